"""Vocabulary: what a checkpoint's files declare about its tokens, in one shape for every source.

`from_directory` reads the Hugging Face files (`tokenizer.json` and the configs beside it); `gguf_vocabulary.py` reads
GGUF metadata. `tokenizer.py` does the work on top.

A control token structures a conversation (`<|im_start|>`) and has no text of its own. Invariant: `backend` never gives
a control token's id for text. It takes control tokens as plain text, and no merge spells one; whoever wants them parsed
cuts them out first (`Tokenizer.encode(control=True)`). Tokens that are added but not control (`<tool_call>`) are found
in text by the backend, as the model's authors meant it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# How the spelling of a token in the vocabulary stands for bytes.
Spelling = Literal["byte_level", "sentencepiece"]

# Chat models end their turns with these, whatever their configs call the end token.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>")

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class Vocabulary:
    backend: Tokenizer
    continuation: (
        Tokenizer  # for text that does not begin its sequence; `backend` itself where that makes no difference
    )
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


def from_directory(directory: Path, chat_templates: Mapping[str, str]) -> Vocabulary | None:
    """The vocabulary of a Hugging Face checkpoint, or None when the directory holds no tokenizer at all."""
    path = directory / "tokenizer.json"
    if not path.exists():
        others = [name for name in ("tokenizer.model", "vocab.json") if (directory / name).exists()]
        if others:
            raise CheckpointError(
                f"{directory}: has {others[0]} but no tokenizer.json",
                hint="load it with transformers' AutoTokenizer and save_pretrained writes one",
            )
        return None
    declared = read_json(path)
    config = read_json(directory / "tokenizer_config.json")
    model_config = read_json(directory / "config.json")
    backend, continuation = _load_backends(path, declared, config)
    named = _named_tokens(config, read_json(directory / "special_tokens_map.json"))
    bos_token_id, eos_token_id = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    eos = _eos_ids(model_config) | _eos_ids(read_json(directory / "generation_config.json"))
    eos |= turn_ends(backend, chat_templates) | ({eos_token_id} if eos_token_id is not None else set())
    highest_id = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    spelling = _spelling(path, declared)
    return Vocabulary(
        backend=backend,
        continuation=continuation,
        spelling=spelling,
        size=max(highest_id + 1, model_config.get("vocab_size") or 0),
        added=backend.get_added_tokens_decoder(),
        named_tokens=named,
        bos_token_id=bos_token_id,
        eos_token_ids=frozenset(eos),
        adds_bos=_adds_bos(config, backend, bos_token_id),
        strips_leading_space=spelling == "sentencepiece" and _strips_leading_space(declared),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def _load_backends(path: Path, declared: dict[str, Any], config: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """The backend for the beginning of a sequence and the one for what follows a control token."""
    model = declared.get("model") or {}
    if model.get("type", "BPE") != "BPE":
        raise ConfigError(f"{path}: tokenizer model {model['type']!r} is not supported", hint="supported: BPE")
    control = {token["content"] for token in declared.get("added_tokens") or () if token["special"]}
    merges = [merge for merge in model.get("merges") or () if _merged(merge) not in control]
    plain = {**declared, "model": {**model, "merges": merges}}
    backend = _backend(path, plain, config)
    if "first" not in (step.get("prepend_scheme") for step in _steps(declared, "pre_tokenizer")):
        return backend, backend
    for step in _steps(plain, "pre_tokenizer"):
        step["prepend_scheme"] = "never"
    return backend, _backend(path, plain, config)


def _backend(path: Path, declared: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    try:
        backend = Tokenizer.from_str(json.dumps(declared))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: cannot be loaded: {error}") from error
    # tokenizer_config may declare tokens that tokenizer.json lacks.
    for token_id, token in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        backend.add_tokens([AddedToken(token["content"], **flags)])
        if backend.token_to_id(token["content"]) != int(token_id):
            raise CheckpointError(f"{path}: has no token {token_id}, {token['content']!r} in tokenizer_config.json")
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def _merged(merge: str | list[str]) -> str:
    """What a merge makes: older files write it as "left right", newer ones as a pair."""
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _named_tokens(*configs: dict[str, Any]) -> dict[str, str]:
    """The first config that names a token wins."""
    named: dict[str, str] = {}
    for config in configs:
        for name in _TOKEN_NAMES:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _eos_ids(config: dict[str, Any]) -> set[int]:
    declared = config.get("eos_token_id")
    return set(declared) if isinstance(declared, list) else set() if declared is None else {declared}


def _adds_bos(config: dict[str, Any], backend: Tokenizer, bos_token_id: int | None) -> bool:
    """As tokenizer_config says; else whether the post-processor puts BOS before an empty text."""
    declared = config.get("add_bos_token")
    if isinstance(declared, bool):
        return declared and bos_token_id is not None
    return bos_token_id is not None and backend.encode("").ids[:1] == [bos_token_id]


def _steps(declared: dict[str, Any], part: Literal["decoder", "pre_tokenizer"]) -> list[dict[str, Any]]:
    """What a part of tokenizer.json does: itself, or the steps of a sequence."""
    step = declared.get(part) or {}
    return list(step.get("decoders") or step.get("pretokenizers") or [step])


def _spelling(path: Path, declared: dict[str, Any]) -> Spelling:
    kinds = {step.get("type") for step in _steps(declared, "decoder")}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"}:
        return "sentencepiece"
    raise ConfigError(
        f"{path}: decoder {', '.join(sorted(map(str, kinds)))} is not supported",
        hint="supported: ByteLevel, and SentencePiece's ByteFallback or Metaspace",
    )


def _strips_leading_space(declared: dict[str, Any]) -> bool:
    for step in _steps(declared, "decoder"):
        if step["type"] == "Strip" and step.get("content") == " ":
            return bool(step["start"])
        if step["type"] == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never")
    return False
