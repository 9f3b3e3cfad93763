from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from scripted_server import Start, chat, completion


def samples(text: str) -> dict[tuple[str, str], float]:
    """Value by (name, the label beside model_name)."""
    return {
        (sample.name, sample.labels.get("finished_reason") or sample.labels.get("code") or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_series_follow_the_requests(start: Start) -> None:
    server = start()
    server.post("/v1/chat/completions", chat("say:abc"))
    server.post("/v1/completions", completion("babble", max_tokens=5, n=2))
    server.post("/v1/completions", completion("x", max_tokens=-1))
    server.post("/v1/completions", completion("<NAN>"))
    server.wait_idle()
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = samples(response.text)
    assert values["vllm:request_success_total", "stop"] == 1
    assert values["vllm:request_success_total", "length"] == 2
    assert values["vllm:request_success_total", "error"] == 1
    assert values["ridgeline:requests_refused_total", "invalid_value"] == 1
    assert values["vllm:generation_tokens_total", ""] == 4 + 2 * 5
    assert values["vllm:request_generation_tokens_sum", ""] == 14
    assert values["vllm:time_to_first_token_seconds_count", ""] == 3
    assert values["vllm:num_requests_running", ""] == 0
    assert values["vllm:num_requests_waiting", ""] == 0
    assert values["vllm:kv_cache_usage_perc", ""] == 0
    free, cached = values["ridgeline:kv_pages_free", ""], values["ridgeline:prefix_cache_pages", ""]
    assert free + cached == values["ridgeline:kv_pages_total", ""] == 64
    latency = values["vllm:e2e_request_latency_seconds_sum", ""]
    parts = ("queue", "prefill", "decode")
    times = [values[f"vllm:request_{part}_time_seconds_sum", ""] for part in parts]
    assert abs(sum(times) + values["ridgeline:request_prepare_time_seconds_sum", ""] - latency) < 1e-6
