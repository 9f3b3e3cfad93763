"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shapes: see what the server would make of a prompt
without running it."""

from __future__ import annotations

from typing import Any

from ridgeline.errors import RequestError
from ridgeline.model.tokenizer import Tokenizer
from ridgeline.server.checks import refusal
from ridgeline.server.fields import DETOKENIZE, TOKENIZE
from ridgeline.server.jobs import chat_prompt, check_token_ids, raw_prompt
from ridgeline.server.state import ServerState
from ridgeline.server.transport import parse_object


def tokenize(state: ServerState, body: bytes) -> dict[str, Any]:
    """{prompt | messages, add_special_tokens} -> {count, max_model_len, tokens}; `model` may be left out."""
    fields = TOKENIZE.parse(parse_object(body))
    runtime = state.require_model(fields.get("model")).runtime
    if ("prompt" in fields) == ("messages" in fields):
        raise refusal("prompt", "or messages must be given, and not both")
    if "messages" in fields:
        tokens = chat_prompt(runtime, fields)
    else:
        add_special_tokens = fields.get("add_special_tokens", True)
        tokens = raw_prompt(runtime, "prompt", fields["prompt"], add_special_tokens=add_special_tokens)
    answer = {"count": len(tokens), "max_model_len": runtime.context_len, "tokens": tokens}
    if fields.get("return_token_strs", False):
        tokenizer = _tokenizer(runtime.tokenizer, "return_token_strs")
        answer["token_strs"] = [tokenizer.token_text(token_id) for token_id in tokens]
    return answer


def detokenize(state: ServerState, body: bytes) -> dict[str, Any]:
    """{tokens} -> {prompt}, control tokens spelled out."""
    fields = DETOKENIZE.parse(parse_object(body))
    runtime = state.require_model(fields.get("model")).runtime
    check_token_ids("tokens", fields["tokens"], runtime)
    return {"prompt": _tokenizer(runtime.tokenizer, "tokens").decode(fields["tokens"], skip_special=False)}


def tokenizer_info(state: ServerState) -> dict[str, Any]:
    """The named special tokens as text, and the chat template's source: what lm_eval's remote tokenizer asks for."""
    runtime = state.require().runtime
    if runtime.tokenizer is None:
        raise RequestError(f"{runtime.name} has no tokenizer", code="no_tokenizer", status=404)
    return {
        "tokenizer_class": type(runtime.tokenizer).__name__,
        "vocab_size": runtime.tokenizer.vocab_size,
        "model_max_length": runtime.context_len,
        "add_bos_token": runtime.tokenizer.adds_bos,
        **runtime.tokenizer.named_tokens,
        "chat_template": None if runtime.chat_template is None else runtime.chat_template.source,
    }


def _tokenizer(tokenizer: Tokenizer | None, param: str) -> Tokenizer:
    if tokenizer is None:
        raise refusal(param, "needs a tokenizer, and this model has none")
    return tokenizer
