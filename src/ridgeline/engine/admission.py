"""Admission: what is refused before it is queued, because it could never run, and settings that could never work.

Every refusal names the parameter and gives the numbers. What passes here fits alone in context and pool, so that the
scheduler can always finish its most important request.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.config import EngineConfig
from ridgeline.engine.request import Request
from ridgeline.errors import CapacityError, ConfigError, RequestError

TOO_LONG = "context_length_exceeded"  # stands in the message too: the openai package shows clients no more than that


def check_config(config: EngineConfig, *, max_step_tokens: int, num_sampler_slots: int) -> None:
    """Raises ConfigError for settings out of range, or beyond what the executor was built for."""
    batch_tokens = config.max_batch_tokens
    for name, value, most in (
        ("max_batch_tokens", max_step_tokens if batch_tokens is None else batch_tokens, max_step_tokens),
        ("max_requests", config.max_requests, num_sampler_slots),
    ):
        if not 1 <= value <= most:
            raise ConfigError(f"{name} is {value}, this executor was built for 1 to {most}")
    for name in ("max_waiting", "target_gap_s", "stuck_after_s"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} is {getattr(config, name)}, it must be above 0")
    if config.prefix_ttl_s is not None and not config.prefix_ttl_s > 0:
        raise ConfigError(f"prefix_ttl_s is {config.prefix_ttl_s}, it must be above 0")
    if not config.static_wait_s >= 0:
        raise ConfigError(f"static_wait_s is {config.static_wait_s}, it must be at least 0")


@dataclass(frozen=True, slots=True)
class Limits:
    """All in tokens."""

    context_len: int
    pool_tokens: int  # what the KV pages hold
    vocab_size: int
    has_tokenizer: bool


def check_request(request: Request, limits: Limits) -> int:
    """The most output tokens that `request` may have. Raises RequestError or CapacityError when it can never run."""
    _check_content(request, limits)
    num_prompt = len(request.prompt_ids)
    room = min(limits.context_len, limits.pool_tokens)
    limit = f"{TOO_LONG}: this model's maximum context length is {room} tokens"  # LangChain and LiteLLM look for these
    if limits.pool_tokens < limits.context_len:
        limit += f" in this server's KV memory (the model's own: {limits.context_len})"
    numbers = {
        "num_prompt_tokens": num_prompt,
        "context_len": limits.context_len,
        "kv_pool_tokens": limits.pool_tokens,
    }
    if num_prompt + 1 > room and request.params.max_tokens != 0:
        raise CapacityError(
            f"{limit}, one of which is for the answer, and the prompt has {num_prompt} tokens",
            code=TOO_LONG,
            param="prompt",
            hint=f"shorten the prompt by {num_prompt + 1 - room} tokens or more",
            **numbers,
        )
    wanted = request.params.max_tokens
    if wanted is None:
        if request.params.min_tokens > room - num_prompt:
            raise CapacityError(
                f"{limit}: less than {num_prompt} prompt tokens and min_tokens {request.params.min_tokens}",
                code=TOO_LONG,
                param="min_tokens",
                hint=f"at most {room - num_prompt} can be generated after this prompt",
                **numbers,
            )
        return room - num_prompt
    if num_prompt + wanted > room:
        raise CapacityError(
            f"{limit}: {num_prompt} prompt tokens and max_tokens {wanted} make {num_prompt + wanted}",
            code=TOO_LONG,
            param="max_tokens",
            hint=f"at most {room - num_prompt} can be generated after this prompt",
            max_tokens=wanted,
            **numbers,
        )
    return wanted


def _check_content(request: Request, limits: Limits) -> None:
    if not request.prompt_ids:
        raise RequestError("the prompt is empty, it needs at least one token", param="prompt")
    for token_id in request.prompt_ids:
        if not 0 <= token_id < limits.vocab_size:
            last = limits.vocab_size - 1
            raise RequestError(
                f"the prompt holds token id {token_id}, this model's ids are 0 to {last}", param="prompt"
            )
    if request.cache_ttl_s is not None and not request.cache_ttl_s > 0:
        raise RequestError(f"cache_ttl is {request.cache_ttl_s}, it must be above 0", param="cache_ttl")
    if request.params.stop and not limits.has_tokenizer:
        raise RequestError("stop strings need a tokenizer, and this model has none", param="stop")
