"""Causes that people meet when a server of their own is slow, each with its number and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ridgeline.cost.roofline import Roofline
from ridgeline.measure import metrics
from ridgeline.measure.deployment import Loaded
from ridgeline.measure.endpoints import Endpoint
from ridgeline.measure.events import Record
from ridgeline.measure.findings import Findings
from ridgeline.units import format_bytes, format_duration

_SHORT_KEEP_ALIVE_S = 360  # Ollama's default is five minutes
_COLD_START_S = 0.5
_LARGE_CONTEXT_SHARE = 0.25  # of the weights: KV memory that could hold layers instead
_SLOTS_TRIED = 2


def find_causes(
    endpoint: Endpoint,
    findings: Findings,
    loaded: Loaded | None,
    roofline: Roofline | None,
    together: Sequence[Record] = (),
    now: datetime | None = None,
    num_busy: int = 0,
) -> list[str]:
    """`together`: requests that were sent at once (`why` sends two). `now` is compared with when Ollama unloads.
    `num_busy`: requests of others that were answered when the measurement began."""
    return [
        *_others(num_busy),
        *_outside_gpu(loaded),
        *_reloads(findings, loaded, now or datetime.now(UTC)),
        *_one_slot(endpoint, together),
        *_thinking(findings),
        *_context(loaded, roofline),
    ]


def _others(num_busy: int) -> Iterator[str]:
    if num_busy:
        yield (
            f"When the measurement began, the server was busy with {num_busy} request{'s' * (num_busy > 1)} of others: "
            "what they took is missing from these figures. Measure again when it is idle."
        )


def _outside_gpu(loaded: Loaded | None) -> Iterator[str]:
    if loaded is None or not loaded.is_split:
        return
    outside = loaded.size_bytes - loaded.vram_bytes
    yield (
        f"{loaded.share_outside_gpu:.0%} of the model ({format_bytes(outside)} of {format_bytes(loaded.size_bytes)}) "
        "lies outside the GPU, and every token waits for the slower part: a smaller format, a smaller num_ctx, or "
        "fewer models in memory make it fit."
    )


def _reloads(findings: Findings, loaded: Loaded | None, now: datetime) -> Iterator[str]:
    if findings.reloads:
        yield (
            f"The model was loaded again during the measurement, {findings.reloads} times: requests with another "
            "num_ctx, or for another model, push it out. Use one num_ctx everywhere, and OLLAMA_MAX_LOADED_MODELS for "
            "several models."
        )
    if findings.cold_start_s is None or findings.cold_start_s < _COLD_START_S:
        return
    text = f"The first request loaded the model, {format_duration(findings.cold_start_s)} that TTFT here leaves out"
    seconds = _until(loaded, now)
    if seconds is not None and seconds < _SHORT_KEEP_ALIVE_S:
        text += f"; it is unloaded {format_duration(seconds)} after the last request: raise keep_alive"
    yield text + "."


def _until(loaded: Loaded | None, now: datetime) -> float | None:
    try:
        end = datetime.fromisoformat(loaded.expires_at or "") if loaded else None
    except ValueError:
        return None
    if end is None:
        return None
    seconds = (end if end.tzinfo else end.replace(tzinfo=UTC)) - now
    return max(0.0, seconds.total_seconds())


def _one_slot(endpoint: Endpoint, together: Sequence[Record]) -> Iterator[str]:
    """Two requests at once on one slot: the later one's first token comes after the earlier one's last."""
    slots = (endpoint.facts.get("props") or {}).get("total_slots")
    done = sorted((record for record in together if record.t_1 is not None), key=lambda record: record.t_1 or 0.0)
    queued = len(done) >= _SLOTS_TRIED and (done[-1].t_1 or 0.0) >= (done[0].t_last or 0.0)
    if not queued and slots != 1:
        return
    waited = metrics.ttft(done[-1]) if queued else None
    text = "The server answers one request at a time"
    if waited is not None:
        text += f": of two sent together, the second waited {format_duration(waited)} for its first token"
    setting = {"ollama": "OLLAMA_NUM_PARALLEL", "llamacpp": "--parallel"}.get(endpoint.kind, "its number of slots")
    yield f"{text}. With several users, raise {setting}; until then a load test measures the queue."


def _thinking(findings: Findings) -> Iterator[str]:
    if findings.reasoning_share:
        yield (
            f"{findings.reasoning_share:.0%} of the tokens are thinking: they cost as much as the answer's, and a "
            "reader waits for them. Switch thinking off where the task allows it (`think: false`, `/no_think`)."
        )


def _context(loaded: Loaded | None, roofline: Roofline | None) -> Iterator[str]:
    if loaded is None or loaded.context_len is None or roofline is None:
        return
    kv = roofline.facts.kv_bytes(loaded.context_len, roofline.kv_dtype)
    weights = roofline.facts.weight_bytes(roofline.dtype)
    if kv > _LARGE_CONTEXT_SHARE * weights:
        yield (
            f"num_ctx is {loaded.context_len:,}: its KV cache takes {format_bytes(kv)} beside "
            f"{format_bytes(weights)} of weights, whether it is used or not. A smaller num_ctx leaves room for the "
            "model."
        )
