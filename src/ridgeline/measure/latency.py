"""The result of `ridgeline measure`: what was found, the limit beside it, and the sentences that explain the gap.

`as_json` has the keys that programs rely on. Without a limit (the device or the model is unknown) the keys that need
one are None, and `limit_reason` says why.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ridgeline.cost.roofline import Roofline
from ridgeline.measure import explain
from ridgeline.measure.endpoints import Endpoint
from ridgeline.measure.findings import Findings, Point
from ridgeline.units import format_duration


@dataclass(frozen=True)
class Latency:
    """`roofline` None: no limit is known, and `limit_reason` says why; else how model and device were found."""

    endpoint: Endpoint
    findings: Findings
    roofline: Roofline | None
    limit_reason: str
    causes: list[str]
    duration_s: float

    @property
    def context(self) -> int | None:
        """Tokens in the cache of the repeats' mean decode step."""
        context = self.findings.repeats.context
        return None if context is None else round(context)

    @property
    def tpot_s(self) -> float | None:
        """None also where tokens came too fast to be told apart: a median of 0 says nothing about the model."""
        return self.findings.repeats.tpot_median_s or None

    @property
    def limit_tpot_s(self) -> float | None:
        return self.tpot_limit_s(self.findings.repeats)

    @property
    def limit_tpot_weights_s(self) -> float | None:
        return None if self.roofline is None else self.roofline.time(self.roofline.decode(0))

    @property
    def efficiency(self) -> float | None:
        limit, tpot = self.limit_tpot_s, self.tpot_s
        return limit / tpot if limit and tpot else None

    def tpot_limit_s(self, point: Point) -> float | None:
        """KV at the point's mean context included."""
        if self.roofline is None or point.context is None:
            return None
        return self.roofline.time(self.roofline.decode(round(point.context)))

    def ttft_limit_s(self, point: Point) -> float | None:
        """Of the tokens that no cache held."""
        if self.roofline is None or not point.prompt_tokens:
            return None
        cached = min(point.cached_tokens or 0, point.prompt_tokens - 1)
        return self.roofline.time(self.roofline.prefill(point.prompt_tokens, cached))

    @property
    def explanation(self) -> str:
        """The sentence of the table: why a token takes as long as it does."""
        if self.tpot_s is None:
            return "No time per output token was measured."
        if self.roofline is None:
            return f"No limit: {self.limit_reason}."
        if self.context is None:
            weights = format_duration(self.limit_tpot_weights_s or 0.0)
            return f"Reading the weights takes {weights}; the server does not count tokens, so the KV cache is unknown."
        return explain.why_gap(self.roofline, self.context, self.tpot_s, self.findings.repeats.server_tpot_s)

    @property
    def slopes(self) -> list[str]:
        """Two sentences: TTFT against prompt length, TPOT against context."""
        points = [self.findings.repeats, *self.findings.points]
        ttfts = [(p.prompt_tokens, p.ttft_median_s) for p in points if p.prompt_tokens and p.ttft_median_s is not None]
        tpots = [(p.context, p.tpot_median_s) for p in points if p.context and p.tpot_median_s]
        return [explain.why_ttft(self.roofline, ttfts), explain.why_tpot(self.roofline, tpots)]

    @property
    def counterfactuals(self) -> list[str]:
        if self.roofline is None or self.context is None or self.tpot_s is None:
            return []
        return explain.counterfactuals(self.roofline, self.context, self.tpot_s)

    def as_json(self) -> dict[str, Any]:
        findings, roofline, tpot = self.findings, self.roofline, self.tpot_s
        limit = self.limit_tpot_s
        return {
            "url": self.endpoint.url,
            "server": self.endpoint.server,
            "model": self.endpoint.model,
            "hardware": None if roofline is None else roofline.hardware.name,
            "dtype": None if roofline is None else roofline.format_name,
            "kv_dtype": None if roofline is None else roofline.kv_dtype,
            "limit_tpot_s": limit,
            "limit_tpot_weights_s": self.limit_tpot_weights_s,
            "limit_reason": self.limit_reason,
            "tpot_median_s": tpot,
            "tpot_p90_s": findings.repeats.tpot_p90_s,
            "ttft_median_s": findings.repeats.ttft_median_s,
            "efficiency": self.efficiency,
            "tokens_per_s": 1 / tpot if tpot else None,
            "limit_tokens_per_s": 1 / limit if limit else None,
            "prefill_tokens_per_s": findings.prefill_tokens_per_s,
            "explanation": self.explanation,
            "slopes": self.slopes,
            "counterfactuals": self.counterfactuals,
            "causes": self.causes,
            "repeats": self._point_json(findings.repeats),
            "points": [self._point_json(point) for point in findings.points],
            "cache": findings.cache,
            "header_tokens": findings.header_tokens,
            "token_source": findings.token_source,
            "cold_start_s": findings.cold_start_s,
            "rtt_s": findings.rtt_s,
            "client_loop_lag_p99_s": findings.loop_lag_s,
            "duration_s": self.duration_s,
            "valid": findings.valid,
            "invalid_reasons": findings.invalid_reasons,
            "notes": findings.notes,
        }

    def _point_json(self, point: Point) -> dict[str, Any]:
        return dataclasses.asdict(point) | {
            "server_tpot_s": point.server_tpot_s,
            "ttft_limit_s": self.ttft_limit_s(point),
            "tpot_limit_s": self.tpot_limit_s(point),
        }
