"""Vocabulary: what a checkpoint's files declare about its tokens, in one shape for every source.

`hf_vocabulary.py` reads Hugging Face files, `gguf_vocabulary.py` GGUF metadata; `tokenizer.py` does the work on top.

A control token structures a conversation (`<|im_start|>`) and has no text of its own. Invariant: `backend` never gives
a control token's id for text. It takes control tokens as plain text, and no merge spells one; whoever wants them parsed
cuts them out first (`Tokenizer.encode(control=True)`). Tokens that are added but not control (`<tool_call>`) are found
in text by the backend, as the model's authors meant it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# How the spelling of a token in the vocabulary stands for bytes.
Spelling = Literal["byte_level", "sentencepiece"]

# Chat models end their turns with these, whatever their configs call the end token.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>")


@dataclass(frozen=True)
class Vocabulary:
    backend: Tokenizer
    continuation: Tokenizer  # for text after a control token; `backend` itself where that makes no difference
    spelling: Spelling
    size: int  # rows of the model's output matrix: at least the tokens, padding counted
    added: Mapping[int, AddedToken]  # control tokens and normal ones, by id
    named_tokens: Mapping[str, str]  # bos_token, eos_token, ... for chat templates
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    adds_bos: bool
    strips_leading_space: bool  # the first text of a sequence starts with a space that nobody wrote


def turn_ends(backend: Tokenizer, chat_templates: Mapping[str, str]) -> set[int]:
    """Ids of the end-of-turn tokens that the vocabulary has and a chat template writes."""
    ids = {token: backend.token_to_id(token) for token in TURN_ENDS}
    return {
        token_id
        for token, token_id in ids.items()
        if token_id is not None and any(token in template for template in chat_templates.values())
    }
