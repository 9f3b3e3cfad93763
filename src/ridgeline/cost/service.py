"""A device that serves many requests at once: what it sustains under an SLO, and what a million tokens cost.

Continuous batching at batch B. Per request the device spends one prefill P, which it shares with nobody, and its part
of `output` decode steps that B requests share:

    requests/s  X = 1 / (P + output x step(B) / B)
    TPOT        = step(B) + B x P / output        decodes pause while others' prompts are computed
    TTFT        = P + step(B)                     the step under way ends first

Prefill and decode on the same device, no queue: what arrives in bursts waits longer, and `simulate` tells how long.
Prices follow from the same times, so output costs more than input by their ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.cost.capacity import capacity
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline, smallest_batch
from ridgeline.errors import ConfigError
from ridgeline.units import parse_duration


@dataclass(frozen=True)
class Slo:
    """Limits per request in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None


def parse_slo(text: str) -> Slo:
    """`tpot=50ms,ttft=1s`, either or both. Raises ConfigError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if name not in ("ttft", "tpot") or not separator or f"{name}_s" in limits:
            raise ConfigError(f"--slo {text!r}", hint="write it as tpot=50ms,ttft=1s, either or both")
        limits[f"{name}_s"] = parse_duration(value)
    return Slo(**limits)


@dataclass(frozen=True)
class Service:
    """One model on one device (or `--devices` as one), times in seconds. Raises ConfigError when nothing is known of
    the device's speed."""

    roofline: Roofline
    question: Question

    def prefill_s(self) -> float:
        return self._known(self.roofline.prefill_time(self.question.input_len, self.question.cached))

    def step_s(self, batch: int) -> float:
        return self._known(self.roofline.time(self.roofline.decode(self.question.final_len, batch=batch)))

    def requests_per_s(self, batch: int) -> float:
        return 1 / (self.prefill_s() + self.question.output_len * self.step_s(batch) / batch)

    def tpot_s(self, batch: int) -> float:
        return self.step_s(batch) + batch * self.prefill_s() / self.question.output_len

    def ttft_s(self, batch: int) -> float:
        return self.prefill_s() + self.step_s(batch)

    def prices(self, batch: int, price_per_hour: float) -> dict[str, float | None]:
        """Dollars per million tokens. A cached token costs what it adds to the prefill: attention over its KV."""
        per_second = price_per_hour / 3600
        alone = self._known(self.roofline.prefill_time(self.question.uncached))
        cached_s = (self.prefill_s() - alone) / self.question.cached if self.question.cached else None
        input_s = alone / self.question.uncached
        output_s = self.step_s(batch) / batch
        return {
            "input_per_million": per_second * input_s * 1e6,
            "cached_input_per_million": None if cached_s is None else per_second * cached_s * 1e6,
            "output_per_million": per_second * output_s * 1e6,
            "output_to_input_ratio": output_s / input_s,
        }

    def _known(self, time: float | None) -> float:
        if time is None:
            name = self.roofline.hardware.name
            raise ConfigError(f"the speed of {name} is unknown", hint="give --bandwidth and --compute")
        return time


def plan_service(service: Service, slo: Slo, *, rate: float | None, price_per_hour: float | None) -> dict[str, Any]:
    """The `service` object of `plan --json`: the largest batch that memory and the SLO allow, which of them binds, and
    what that batch sustains. `batch` 0: not even one request meets the SLO, or fits."""
    found = capacity(service.roofline, service.question.final_len)
    limits = {
        "memory": None if found is None else found.admissible_requests,
        "tpot": _largest(service.tpot_s, slo.tpot_s),
        "ttft": _largest(service.ttft_s, slo.ttft_s),
    }
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if not known:
        raise ConfigError("nothing limits the batch", hint="give --memory, or a tighter --slo")
    binds = min(known, key=lambda name: known[name])
    batch = known[binds]
    result: dict[str, Any] = {"batch": batch, "binds": binds, "batch_by": limits, "rate": rate}
    if batch == 0:
        return result | dict.fromkeys(
            ("ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s", "replicas", "prices")
        )
    sustained = service.requests_per_s(batch)
    return result | {
        "ttft_s": service.ttft_s(batch),
        "tpot_s": service.tpot_s(batch),
        "requests_per_s": sustained,
        "output_tokens_per_s": sustained * service.question.output_len,
        "replicas": None if rate is None else -int(-rate // sustained),
        "prices": None if price_per_hour is None else service.prices(batch, price_per_hour),
    }


def _largest(latency: Callable[[int], float], limit: float | None) -> int | None:
    """The largest batch whose latency, which grows with the batch, is within `limit`; None: any."""
    if limit is None:
        return None
    first_beyond = smallest_batch(lambda batch: latency(batch) > limit)
    return None if first_beyond is None else first_beyond - 1
