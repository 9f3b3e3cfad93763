"""The engine as its users see it: deltas, ends, metrics, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from engine_runs import Client, make_engine, make_request, run_alone, submit
from fakes import FakeExecutor, FakeTokenizer, fake_logprob
from ridgeline.config import EngineConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import Int32
from ridgeline.engine.request import FinishReason, TokenLogprob
from ridgeline.errors import OverloadedError

EOS = 257
TIMEOUT_S = 30


def says(text: str, prompt_len: int = 1) -> FakeExecutor:
    """An executor that answers prompts of `prompt_len` tokens with `text`, byte by byte, and EOS."""
    answer = [*text.encode(), EOS]

    def next_token(context: Int32) -> int:
        return answer[min(len(context) - prompt_len, len(answer) - 1)]

    return FakeExecutor(next_token=next_token)


def test_end_token_ends_with_stop_and_gives_no_text() -> None:
    engine = make_engine(says("hi"))
    _, client = submit(engine, [1])
    engine.run_until_idle()
    assert client.text == "hi"
    assert client.token_ids == [*b"hi", EOS]
    assert (client.reason, client.deltas[-1].stop_reason) == (FinishReason.STOP, None)


def test_ignore_eos_runs_on_to_max_tokens() -> None:
    engine = make_engine(says("hi"))
    _, client = submit(engine, [1], ignore_eos=True, max_tokens=5)
    engine.run_until_idle()
    assert client.token_ids == [*b"hi", EOS, EOS, EOS]
    assert client.reason is FinishReason.LENGTH


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_stop_token_ids(include: bool, text: str) -> None:
    engine = make_engine(says("abcd"))
    _, client = submit(engine, [1], stop_token_ids=(ord("c"),), include_stop_str=include)
    engine.run_until_idle()
    assert client.text == text
    assert client.token_ids == [*b"abc"]
    assert (client.reason, client.deltas[-1].stop_reason) == (FinishReason.STOP, ord("c"))


def test_a_stop_string_ends_the_request_and_the_token_computed_meanwhile_is_discarded() -> None:
    executor = says("one END two")
    engine = make_engine(executor)
    request, client = submit(engine, [1], stop=("END",))
    engine.run_until_idle()
    assert client.text == "one "
    assert client.token_ids == [*b"one END"]
    assert (client.reason, client.deltas[-1].stop_reason) == (FinishReason.STOP, "END")
    metrics = client.deltas[-1].metrics
    assert metrics is not None
    assert metrics.num_output_tokens == len("one END") == engine.stats().num_output_tokens
    assert len(executor.plans) == len("one END") + 1
    assert all("E" not in delta.text for delta in client.deltas)
    assert request.pages == []


def test_a_stop_string_in_the_last_token_counts_as_stop() -> None:
    engine = make_engine(says("abX"))
    _, client = submit(engine, [1], stop=("X",), max_tokens=3)
    engine.run_until_idle()
    assert (client.text, client.reason) == ("ab", FinishReason.STOP)


def test_text_that_was_held_back_comes_at_the_end() -> None:
    engine = make_engine(says("aEN"))
    _, client = submit(engine, [1], stop=("END",))
    engine.run_until_idle()
    assert (client.text, client.reason) == ("aEN", FinishReason.STOP)


def test_characters_arrive_whole() -> None:
    text = "👋 삼겹살 ďábelské"
    engine = make_engine(says(text))
    _, client = submit(engine, [1])
    engine.run_until_idle()
    assert client.text == text
    assert [delta.text for delta in client.deltas if delta.text] == list(text)


def test_without_a_tokenizer_there_are_token_ids_and_no_text() -> None:
    engine = Engine(FakeExecutor(), None, EngineConfig(), context_len=64)
    _, client = submit(engine, [1], max_tokens=3)
    engine.run_until_idle()
    assert (len(client.token_ids), client.text) == (3, "")


@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("prompt", [[5, 6, 7, 8], [5]])
def test_logprobs_of_prompt_and_output_do_not_depend_on_the_chunks(budget: int, prompt: list[int]) -> None:
    engine = make_engine(FakeExecutor(), max_batch_tokens=budget)
    _, client = submit(engine, prompt, logprobs=2, prompt_logprobs=3, max_tokens=3)
    engine.run_until_idle()
    tokens = np.array(prompt + client.token_ids, np.int32)
    scores = [fake_logprob(tokens[:i], int(tokens[i])) for i in range(1, len(tokens))]
    top = ((0, 0.0), (1, -1.0), (2, -2.0))
    of_prompt = [TokenLogprob(5, None)]
    of_prompt += [TokenLogprob(token, scores[i], top) for i, token in enumerate(prompt[1:])]
    assert [delta.prompt_logprobs for delta in client.deltas] == [tuple(of_prompt), None, None]
    of_output = [entry for delta in client.deltas for entry in delta.logprobs]
    last = scores[len(prompt) - 1 :]
    assert of_output == [TokenLogprob(i, s, top[:2]) for i, s in zip(client.token_ids, last, strict=True)]


def test_the_parts_of_a_requests_time_sum_to_the_whole() -> None:
    engine = make_engine(FakeExecutor(num_pages=9, num_sampler_slots=2), admission="optimistic", max_batch_tokens=4)
    clients = [submit(engine, [i] * 5, max_tokens=20)[1] for i in range(4)]
    for _ in range(5):
        engine.step()
    request, aborted = submit(engine, [9], max_tokens=3)
    engine.abort(request.id)
    engine.run_until_idle()
    for client in (*clients, aborted):
        m = client.deltas[-1].metrics
        assert m is not None
        assert m.queue_s + m.prefill_s + m.decode_s == pytest.approx(m.e2e_s)
        assert min(m.queue_s, m.prefill_s, m.decode_s) >= 0
        assert m.kv_wait_s <= m.prefill_s + m.decode_s
    m = clients[0].deltas[-1].metrics
    assert m is not None
    assert m.ttft_s == pytest.approx(m.queue_s + m.prefill_s)
    assert m.tpot_s == pytest.approx(m.decode_s / 19)
    assert aborted.deltas[-1].metrics is not None
    assert aborted.deltas[-1].metrics.ttft_s is None


def test_unseeded_requests_draw_a_seed_and_given_seeds_are_kept() -> None:
    executor = FakeExecutor()
    engine = make_engine(executor)
    for seed in (None, None, 7, -1):
        submit(engine, [1], seed=seed, max_tokens=1)
    engine.run_until_idle()
    seeds = [setup.seed for setup in executor.plans[0].setups]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [7, 2**64 - 1]
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_results_are_delivered_while_the_next_step_computes() -> None:
    gate = threading.Event()
    engine = make_engine(FakeExecutor(gate=gate))
    first_delta = threading.Event()
    client = Client()
    request = make_request([1], lambda delta: (client(delta), first_delta.set()), max_tokens=2)
    engine.submit(request)
    gate.set()
    engine.step()
    assert client.deltas == []
    gate.clear()
    stepper = threading.Thread(target=engine.step)
    stepper.start()
    assert first_delta.wait(TIMEOUT_S), "step 1 waits for the gate, and step 0's token was not delivered"
    assert stepper.is_alive()
    gate.set()
    stepper.join(TIMEOUT_S)
    engine.run_until_idle()
    assert client.reason is FinishReason.LENGTH


class WaitingClient(Client):
    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def __call__(self, delta: object) -> None:
        super().__call__(delta)  # type: ignore[arg-type]
        if self.ended:
            self.done.set()


def started(executor: FakeExecutor, **config: object) -> Engine:
    engine = Engine(executor, FakeTokenizer(), EngineConfig(**config), context_len=128)  # type: ignore[arg-type]
    engine.start()
    return engine


def test_requests_from_many_threads_finish_as_if_alone() -> None:
    engine = started(FakeExecutor(num_pages=30), max_requests=3)
    clients = [WaitingClient() for _ in range(24)]
    threads = [
        threading.Thread(target=lambda i=i: engine.submit(make_request([i, i], clients[i], max_tokens=5 + i % 7)))
        for i in range(24)
    ]
    for thread in threads:
        thread.start()
    for i, client in enumerate(clients):
        assert client.done.wait(TIMEOUT_S)
        assert client.token_ids == run_alone([i, i], max_tokens=5 + i % 7).token_ids
    for thread in threads:
        thread.join(TIMEOUT_S)
    engine.shutdown(TIMEOUT_S)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_pages_held) == (0, 0, 0)
    assert stats.num_prompt_tokens == 48


def test_a_started_static_engine_starts_its_batch_by_the_clock() -> None:
    engine = started(FakeExecutor(), scheduler="static", static_wait_s=0.01)
    client = WaitingClient()
    engine.submit(make_request([1], client, max_tokens=2))
    assert client.done.wait(TIMEOUT_S)
    engine.shutdown(TIMEOUT_S)


def test_shutdown_lets_requests_finish_and_accepts_nothing_more() -> None:
    engine = started(FakeExecutor())
    client = WaitingClient()
    engine.submit(make_request([1], client, max_tokens=50))
    engine.shutdown(TIMEOUT_S)
    assert client.reason is FinishReason.LENGTH
    with pytest.raises(OverloadedError, match="shutting down"):
        engine.submit(make_request([1], Client()))


class Gate(threading.Event):
    """Tells when somebody waits at it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.reached.set()
        return super().wait(timeout)


def test_shutdown_aborts_what_does_not_finish_in_time() -> None:
    gate = Gate()
    engine = started(FakeExecutor(gate=gate), max_requests=1)
    running, waiting = WaitingClient(), WaitingClient()
    engine.submit(make_request([1], running, max_tokens=50))
    engine.submit(make_request([2], waiting, max_tokens=50))
    assert gate.reached.wait(TIMEOUT_S)
    closer = threading.Thread(target=engine.shutdown, args=(0.0,))
    closer.start()
    with engine._changed:
        assert engine._changed.wait_for(lambda: engine._aborted, TIMEOUT_S)
    gate.set()
    closer.join(TIMEOUT_S)
    assert (running.reason, waiting.reason) == (FinishReason.ABORT, FinishReason.ABORT)
    assert engine.stats().num_pages_held == 0


def test_shutdown_without_a_thread_steps_itself() -> None:
    engine = make_engine(FakeExecutor())
    _, finishing = submit(engine, [1], max_tokens=3)
    engine.shutdown(10.0)
    assert finishing.reason is FinishReason.LENGTH
    engine = make_engine(FakeExecutor())
    _, aborted = submit(engine, [1], max_tokens=3)
    engine.shutdown(0.0)
    assert aborted.reason is FinishReason.ABORT


def test_stuck_means_that_work_waits_and_no_step_finishes() -> None:
    engine = make_engine(FakeExecutor(), stuck_after_s=10)
    clock = engine._clock
    clock.now += 100
    assert not engine.is_stuck(), "an idle engine is not stuck"
    submit(engine, [1], max_tokens=3)
    clock.now += 9
    assert not engine.is_stuck()
    clock.now += 2
    assert engine.is_stuck()
    engine.step()
    assert not engine.is_stuck()
    assert engine.stats().last_step_age_s is not None
    engine.run_until_idle()
    clock.now += 100
    assert not engine.is_stuck()


def test_an_engine_that_becomes_idle_checks_its_books() -> None:
    engine = make_engine(FakeExecutor())
    engine._cache.pool.allocate(1)  # a leak
    _, client = submit(engine, [1], max_tokens=2)
    with pytest.raises(AssertionError, match="1 pages held, 0 of them by requests"):
        engine.run_until_idle()
    assert client.reason is FinishReason.LENGTH


def test_a_request_id_cannot_be_used_twice_at_once() -> None:
    engine = make_engine(FakeExecutor())
    request, _ = submit(engine, [1], max_tokens=2)
    twin = make_request([2], Client(), max_tokens=2)
    twin.id = request.id
    with pytest.raises(ValueError, match=request.id):
        engine.submit(twin)
    engine.run_until_idle()
    engine.abort(request.id)  # too late: must not hit the next request of that id
    engine.submit(twin)
    engine.run_until_idle()
    assert twin.sink.reason is FinishReason.LENGTH  # type: ignore[attr-defined]
