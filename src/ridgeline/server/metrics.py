"""Prometheus: vLLM's names where a series means the same, so that existing dashboards work; `ridgeline:` for new ones.

Engine figures are read from `Engine.stats()` when somebody scrapes; per-request figures are observed once, when a
request finishes, never per token. Intervals are vLLM's: TTFT and end-to-end begin when the request arrived, template
and tokenization included. Buckets reach 600 s, because a CPU may need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ridgeline.engine.request import Delta, FinishReason
from ridgeline.engine.stats import EngineStats
from ridgeline.engine.tier import TierStats

_Series = dict[str, tuple[str, float]]  # name -> (text, value)

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)
TOKENS = tuple(2**power for power in range(18))

_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From arrival to the first token", SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Mean time per output token after the first", SECONDS),
    "vllm:e2e_request_latency_seconds": ("From arrival to the last token", SECONDS),
    "vllm:request_queue_time_seconds": ("From submission until first scheduled", SECONDS),
    "vllm:request_prefill_time_seconds": ("From first scheduled until the first token", SECONDS),
    "vllm:request_decode_time_seconds": ("From the first to the last token", SECONDS),
    "ridgeline:request_prepare_time_seconds": ("Template and tokenization", SECONDS),
    "ridgeline:request_kv_wait_time_seconds": ("Time spent preempted, waiting for KV memory", SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens", TOKENS),
    "vllm:request_generation_tokens": ("Generated tokens", TOKENS),
}


class ServerMetrics:
    """One registry of its own, so that several servers may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._finished = Counter(
            "vllm:request_success",
            "Finished requests by reason",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._refused = Counter("ridgeline:requests_refused", "By error code", ["code"], registry=self._registry)

    def watch(
        self, model_name: str, stats: Callable[[], EngineStats], tier_stats: Callable[[], TierStats | None]
    ) -> None:
        """Adds the engine's series, read at every scrape."""
        self._registry.register(_EngineCollector(model_name, stats))
        self._registry.register(_CacheCollector(model_name, stats, tier_stats))

    def count_refusal(self, code: str) -> None:
        self._refused.labels(code).inc()

    def observe(self, model_name: str, prepare_s: float, delta: Delta) -> None:
        """Takes a request's last delta. Intervals of requests that did not run to their end would skew the others."""
        assert delta.finish_reason is not None
        self._finished.labels(model_name, delta.finish_reason.value).inc()
        metrics = delta.metrics
        if metrics is None or delta.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        values = {
            "vllm:time_to_first_token_seconds": None if metrics.ttft_s is None else prepare_s + metrics.ttft_s,
            "vllm:request_time_per_output_token_seconds": metrics.tpot_s,
            "vllm:e2e_request_latency_seconds": prepare_s + metrics.e2e_s,
            "vllm:request_queue_time_seconds": metrics.queue_s,
            "vllm:request_prefill_time_seconds": metrics.prefill_s,
            "vllm:request_decode_time_seconds": metrics.decode_s,
            "ridgeline:request_prepare_time_seconds": prepare_s,
            "ridgeline:request_kv_wait_time_seconds": metrics.kv_wait_s,
            "vllm:request_prompt_tokens": metrics.num_prompt_tokens,
            "vllm:request_generation_tokens": metrics.num_output_tokens,
        }
        for name, value in values.items():
            if value is not None:
                self._histograms[name].labels(model_name).observe(value)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def describe(self) -> list[Metric]:
        return []  # registering must not ask the engine

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        gauges: _Series = {
            "vllm:num_requests_running": ("Requests in the running batch", stats.num_running),
            "vllm:num_requests_waiting": ("Requests in the queue", stats.num_waiting),
            "vllm:kv_cache_usage_perc": ("Share of KV pages in use, 0 to 1", stats.page_use),
            "ridgeline:kv_pages_free": ("Free KV pages", stats.num_pages_free),
            "ridgeline:kv_pages_total": ("All KV pages that requests can use", stats.num_pages),
        }
        counters: _Series = {
            "vllm:prompt_tokens": ("Prompt tokens of requests that reached their first token", stats.num_prompt_tokens),
            "vllm:generation_tokens": ("Tokens generated", stats.num_output_tokens),
            "vllm:num_preemptions": ("Preemptions", stats.num_preemptions),
            "ridgeline:engine_steps": ("Engine steps", stats.num_steps),
            "ridgeline:engine_steps_failed": ("Engine steps that failed", stats.num_failed_steps),
            "ridgeline:engine_step_seconds": ("Time spent in engine steps", stats.total_step_s),
        }
        yield from _families(self._model_name, gauges, counters)


class _CacheCollector:
    """vLLM counts queries and hits in tokens: `prefix_cache` is memory, `external_prefix_cache` what lies below, which
    is asked for what memory lacks."""

    def __init__(
        self, model_name: str, stats: Callable[[], EngineStats], tier_stats: Callable[[], TierStats | None]
    ) -> None:
        self._model_name = model_name
        self._stats = stats
        self._tier_stats = tier_stats

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats, tier = self._stats(), self._tier_stats()
        gauges: _Series = {"ridgeline:prefix_cache_pages": ("Cached KV pages nobody uses now", stats.num_pages_cached)}
        counters: _Series = {
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in memory", stats.num_prompt_tokens),
            "vllm:prefix_cache_hits": ("Prompt tokens found in memory", stats.num_prompt_tokens_cached),
            "ridgeline:prefix_cache_pages_published": ("Pages put into the prefix cache", stats.num_pages_published),
        }
        if tier is not None:
            gauges |= _disk_gauges(tier)
            counters |= _disk_counters(stats, tier)
        yield from _families(self._model_name, gauges, counters)
        removed = CounterMetricFamily(
            "ridgeline:prefix_cache_evictions", "Pages removed from memory, by reason", labels=["model_name", "reason"]
        )
        for reason, count in stats.pages_removed.items():
            removed.add_metric([self._model_name, reason], count)
        yield removed


def _disk_gauges(tier: TierStats) -> _Series:
    return {
        "ridgeline:disk_cache_pages": ("KV pages on disk, those of other models included", tier.num_pages),
        "ridgeline:disk_cache_bytes": ("Bytes of KV pages on disk", tier.num_bytes),
        "ridgeline:disk_cache_max_bytes": ("The bound, --cache-disk", tier.max_bytes),
        "ridgeline:disk_cache_foreign_pages": ("Of other models or formats, at the start", tier.num_foreign_pages),
        "ridgeline:disk_cache_pending_pages": ("KV pages that wait to be written", tier.num_pending),
    }


def _disk_counters(stats: EngineStats, tier: TierStats) -> _Series:
    num_missed = stats.num_prompt_tokens - stats.num_prompt_tokens_cached
    return {
        "vllm:external_prefix_cache_queries": ("Prompt tokens looked up on disk", num_missed),
        "vllm:external_prefix_cache_hits": ("Prompt tokens found on disk", stats.num_prompt_tokens_loaded),
        "ridgeline:disk_cache_pages_read": ("KV pages read from disk", tier.num_read),
        "ridgeline:disk_cache_pages_written": ("KV pages written to disk", tier.num_written),
        "ridgeline:disk_cache_pages_evicted": ("KV pages deleted from disk for space", tier.num_evicted),
        "ridgeline:disk_cache_pages_expired": ("KV pages on disk that had expired", tier.num_expired),
        "ridgeline:disk_cache_pages_damaged": ("Files that were cut off or changed", tier.num_damaged),
        "ridgeline:disk_cache_pages_foreign": ("Sound files that were not the wanted page", tier.num_foreign),
        "ridgeline:disk_cache_pages_dropped": ("KV pages not written: the queue was full", tier.num_dropped),
        "ridgeline:disk_cache_failures": ("Reads and writes that the system refused", tier.num_failed),
    }


def _families(model_name: str, gauges: _Series, counters: _Series) -> Iterator[Metric]:
    for family, series in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (text, value) in series.items():
            metric = family(name, text, labels=["model_name"])
            metric.add_metric([model_name], value)
            yield metric
