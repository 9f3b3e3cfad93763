"""`/tokenize` and `/detokenize`, in vLLM's shapes: see what the server would make of a prompt without running it."""

from __future__ import annotations

from typing import Any

from ridgeline.model.tokenizer import Tokenizer
from ridgeline.server.checks import refusal
from ridgeline.server.fields import DETOKENIZE, TOKENIZE
from ridgeline.server.jobs import chat_prompt, check_token_ids, raw_prompt
from ridgeline.server.state import Served, ServerState
from ridgeline.server.transport import parse_object


def tokenize(state: ServerState, body: bytes) -> dict[str, Any]:
    """{prompt | messages, add_special_tokens} -> {count, max_model_len, tokens}; `model` may be left out."""
    fields = TOKENIZE.parse(parse_object(body))
    runtime = _served(state, fields).runtime
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
    runtime = _served(state, fields).runtime
    check_token_ids("tokens", fields["tokens"], runtime)
    return {"prompt": _tokenizer(runtime.tokenizer, "tokens").decode(fields["tokens"], skip_special=False)}


def _served(state: ServerState, fields: dict[str, Any]) -> Served:
    return state.require_model(fields["model"]) if "model" in fields else state.require()


def _tokenizer(tokenizer: Tokenizer | None, param: str) -> Tokenizer:
    if tokenizer is None:
        raise refusal(param, "needs a tokenizer, and this model has none")
    return tokenizer
