"""The latency experiment against a server whose times are a formula."""

import asyncio
import dataclasses

import pytest

from ridgeline.errors import ExecutionError
from ridgeline.measure.endpoints import Capabilities
from ridgeline.measure.events import Failure
from ridgeline.measure.experiment import Experiment, Settings
from ridgeline.measure.findings import find
from ridgeline.measure.unique_prompt import LINE_WORDS
from scripted_latency import (
    HEADER_TOKENS,
    TEMPLATE_TOKENS,
    ScriptedServer,
    count_tokens,
    endpoint,
    tpot_s,
    ttft_s,
)

SETTINGS = Settings(repeats=4, output_len=16, lengths=(256, 1024), length_repeats=2)


def run(server, settings=SETTINGS, target=None, **options):
    experiment = Experiment(target or endpoint(), server.send, settings, seed=1, **options)
    asyncio.run(experiment.run())
    return experiment


def test_figures_are_those_of_the_formula():
    findings = find(run(ScriptedServer()))
    assert findings.valid, findings.invalid_reasons
    assert [point.prompt_tokens for point in findings.points] == [256, 1024]
    for point in [findings.repeats, *findings.points]:
        assert point.ttft_median_s == pytest.approx(ttft_s(point.prompt_tokens))
        assert point.tpot_median_s == pytest.approx(tpot_s(point.prompt_tokens + 8))
        assert point.context == point.prompt_tokens + 8
        assert point.server_prefill_s == pytest.approx(point.ttft_median_s - 0.001)
        assert point.server_tpot_s == pytest.approx(point.tpot_median_s)
    assert findings.cache == "cold"
    assert findings.token_source == "usage"
    assert findings.prefill_tokens_per_s == pytest.approx(1024 / ttft_s(1024))


def test_every_request_has_a_line_of_its_own_and_asks_for_no_cache():
    server = ScriptedServer()
    experiment = run(server)
    lines = [request.prompt.splitlines()[0] for request in server.requests]
    assert len(set(lines)) == len(lines)
    assert {len(line.split()) for line in lines} == {LINE_WORDS}
    assert not any(request.cache for request in server.requests)
    assert all(request.ignore_eos and request.temperature == 0 for request in server.requests)
    repeats = {request.prompt.splitlines()[1] for request in server.requests[2:6]}
    assert len(repeats) == 1, "the repeats ask the same thing"
    assert len(server.requests) == 2 + experiment.settings.num_requests


def test_in_a_chat_the_line_is_the_system_message_and_a_header_may_hit():
    server = ScriptedServer(cached=HEADER_TOKENS)
    experiment = run(server, dataclasses.replace(SETTINGS, chat=True))
    first = server.requests[0].messages
    assert [message["role"] for message in first] == ["system", "user"]
    assert len(first[0]["content"].split()) == LINE_WORDS
    assert HEADER_TOKENS <= experiment.header_tokens <= TEMPLATE_TOKENS + 3  # and the words that ask to continue
    findings = find(experiment)
    assert findings.valid
    assert any("3 tokens of the template's header" in note for note in findings.notes)
    assert findings.prefill_tokens_per_s == pytest.approx((1024 - HEADER_TOKENS) / ttft_s(1024 - HEADER_TOKENS))


def test_a_server_without_raw_prompts_is_asked_to_chat():
    server = ScriptedServer()
    run(server, target=endpoint(capabilities=Capabilities()))
    assert all(request.messages for request in server.requests)


def test_a_cache_hit_makes_the_run_invalid_with_the_numbers():
    findings = find(run(ScriptedServer(cached=64)))
    assert findings.cache == "hit"
    [reason] = findings.invalid_reasons
    assert "in 8 of 8 requests (up to 64 of" in reason


def test_a_cache_that_is_not_reported_is_unverified_not_invalid():
    findings = find(run(ScriptedServer(cached=None)))
    assert findings.valid
    assert findings.cache == "unverified"
    assert findings.points[0].cached_tokens is None
    assert any(note.startswith("unverified") for note in findings.notes)


def test_the_longest_prompt_is_fitted_to_the_context_less_the_output():
    server = ScriptedServer()
    experiment = run(server, target=endpoint(context_len=600))
    assert experiment.settings.lengths == (256, 580)
    assert max(map(count_tokens, server.requests)) == 580
    assert find(experiment).points[-1].prompt_tokens == 580
    assert experiment.skipped == {1024: "1,024 + 16 tokens are beyond the context of 600: 580 instead"}


def test_ollama_gets_one_num_ctx_that_holds_the_longest_prompt():
    server = ScriptedServer()
    run(server, dataclasses.replace(SETTINGS, lengths=(256, 8192)), target=endpoint("ollama"))
    [num_ctx] = {request.num_ctx for request in server.requests}
    assert 8192 + 16 <= num_ctx < 8400


def test_a_larger_num_ctx_that_ollama_runs_with_is_kept():
    server = ScriptedServer()
    run(server, target=endpoint("ollama"), loaded_context=16_384)
    assert {request.num_ctx for request in server.requests} == {16_384}


def test_a_server_that_cuts_prompts_is_found_out():
    findings = find(run(ScriptedServer(truncates_at=512)))
    [reason] = findings.invalid_reasons
    assert "of 1,024 prompt tokens the server reports 512" in reason


def test_failures_are_counted_by_kind_and_the_rest_is_kept():
    failures = {3: Failure("timeout", "silent"), 4: Failure("http_429", "slow down")}
    findings = find(run(ScriptedServer(failures=failures)))
    assert "2 of 8 requests failed: timeout 1, http_429 1" in findings.invalid_reasons
    assert (findings.repeats.failed, findings.repeats.requests) == (2, 4)
    assert findings.repeats.tpot_median_s is not None


def test_three_failures_in_a_row_end_a_shape():
    failures = {number: Failure("timeout", "silent") for number in range(2, 6)}
    experiment = run(ScriptedServer(failures=failures), dataclasses.replace(SETTINGS, repeats=10, lengths=()))
    assert len(experiment.repeats.records) == 3


def test_a_length_that_the_server_refuses_is_left_out_with_its_words():
    refusal = {2 + 4: Failure("http_400", "too long for me")}
    findings = find(run(ScriptedServer(failures=refusal)))
    assert [point.prompt_tokens for point in findings.points] == [1024]
    assert "http_400: too long for me" in findings.notes


def test_nothing_answers_and_the_error_says_what_to_do():
    server = ScriptedServer(failures={0: Failure("http_401", "no such key")})
    with pytest.raises(ExecutionError, match="no such key") as error:
        run(server)
    assert "--api-key" in error.value.hint


def test_mixed_token_sources_make_it_invalid():
    server = ScriptedServer()
    experiment = run(server)
    experiment.repeats.records[0].token_source = "chunks"
    assert any("chunks, usage" in reason for reason in find(experiment).invalid_reasons)


def test_what_was_measured_before_an_interruption_is_kept_and_marked():
    class Interrupted(ScriptedServer):
        async def send(self, request):
            if len(self.requests) == 5:
                raise asyncio.CancelledError
            return await super().send(request)

    server = Interrupted()
    experiment = Experiment(endpoint(), server.send, SETTINGS, seed=1)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(experiment.run())
    findings = find(experiment)
    assert findings.repeats.requests == 3
    assert findings.invalid_reasons == ["partial: ended after 3 of 10 requests"]


def test_the_expected_duration_comes_before_the_measurement_and_is_about_right():
    server, told = ScriptedServer(), []

    def announce(seconds):
        told.append((seconds, len(server.requests), server.clock))

    run(server, announce=announce)
    [(seconds, requests, began)] = told
    assert requests == 2, "only the warm-up was before"
    assert seconds == pytest.approx(server.clock - began, rel=0.3)


@pytest.mark.parametrize("budget_s", [2.0, 5.0, 20.0])
def test_a_budget_is_kept(budget_s):
    server = ScriptedServer()
    run(server, Settings(chat=True, budget_s=budget_s))
    assert server.clock < 1.3 * budget_s


def test_reloads_cold_start_and_thinking_are_noticed():
    findings = find(run(ScriptedServer(load_s={0: 4.0, 3: 2.0, 4: 0.05}, reasoning_share=0.25)))
    assert (findings.cold_start_s, findings.reloads) == (4.0, 1)
    assert findings.reasoning_share == pytest.approx(0.25)


def test_answers_in_one_piece_have_no_time_per_token():
    experiment = run(ScriptedServer())
    for record in experiment.repeats.records:
        record.t_last = record.t_1
    assert any("one piece" in reason for reason in find(experiment).invalid_reasons)


@pytest.mark.parametrize(("lag_s", "valid", "noted"), [(0.004, True, False), (0.01, True, True), (0.2, False, True)])
def test_a_late_client_is_noted_or_makes_the_run_invalid(lag_s, valid, noted):
    findings = find(run(ScriptedServer()), lag_s)
    assert findings.valid is valid
    assert any("event loop was up to" in note for note in findings.notes) is noted
    assert findings.loop_lag_s == lag_s
