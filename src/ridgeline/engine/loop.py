"""Engine: plan, run, commit, deliver; the one place where the parts of `engine/` meet.

A step: take what other threads left (new requests, aborts), schedule, submit the plan; while it computes, deliver the
step before; wait; commit: append tokens, publish pages, end what has ended. Where the next step is certain but for the
tokens that this one samples, its plan is made meanwhile and submitted before the commit, so that the core does not wait
for Python. All state belongs to the thread that steps. Other threads call `submit`, `abort`, `stats`, `is_stuck` and
`shutdown` only; they leave messages under a lock that is never held while a step computes or a sink runs.

A failing step fails the requests in it, a row that is not finite fails its request, a sink that raises aborts its own;
nothing of that reaches others or stops the loop.

Long, since what it guards is the order of all this, and that is read in one piece.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from ridgeline.config import EngineConfig
from ridgeline.engine.admission import Limits, check_config, check_request
from ridgeline.engine.batch import LogitRow, build_plan, continued_plan
from ridgeline.engine.cache import Cache
from ridgeline.engine.delivery import Delivery, Tokenizer
from ridgeline.engine.outcome import Outcome, is_ending, row_logprob, token_outcome
from ridgeline.engine.pages import PagePool
from ridgeline.engine.params import checked
from ridgeline.engine.plan import Executor, StepHandle, StepPlan, StepResult
from ridgeline.engine.reports import MissReport, TreeNode
from ridgeline.engine.request import FinishReason, Request, Status, TokenLogprob
from ridgeline.engine.scheduler import Chunk, Scheduler
from ridgeline.engine.stats import Counters, EngineStats, snapshot
from ridgeline.engine.tier import Tier, TierStats
from ridgeline.errors import ExecutionError, OverloadedError, RidgelineError

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 30.0  # how long a question about the cache waits for the step under way
CHECK_EVERY_S = 10.0  # an idle engine checks its books, which takes milliseconds on a large pool, at most so often
ABORT_GRACE_S = 5.0  # how long `shutdown` waits for the step under way, after it has aborted what was left


def _guarded(call: Callable[[], _Answer]) -> _Answer | ExecutionError:
    """An executor's fault must not reach requests outside of its step."""
    try:
        return call()
    except ExecutionError as error:
        return error
    except Exception as error:
        _log.exception("the executor failed")
        return ExecutionError(f"the step failed: {error!r}")


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was submitted; `handle` is the failure where that failed."""

    chunks: Sequence[Chunk]
    rows: Sequence[LogitRow]
    plan: StepPlan
    ending_ids: frozenset[int]  # tokens that end some request of `rows`, if not all of them
    num_places: int
    start_s: float
    handle: StepHandle | ExecutionError

    def wait(self) -> StepResult | ExecutionError:
        handle = self.handle
        return handle if isinstance(handle, ExecutionError) else _guarded(handle.wait)


class Engine:
    """Runs requests on an executor. Either `start` its thread, or call `step` or `run_until_idle` on yours."""

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        config: EngineConfig,
        *,
        context_len: int,
        tier: Tier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_config(config, max_step_tokens=executor.max_step_tokens, num_sampler_slots=executor.num_sampler_slots)
        pool = PagePool(executor.num_pages)
        self._executor = executor
        self._tier = tier
        self._config = config
        self._clock = clock
        self._eos_ids = frozenset[int]() if tokenizer is None else frozenset(tokenizer.eos_token_ids)
        self._limits = Limits(
            context_len=context_len,
            pool_tokens=pool.num_usable * executor.page_size,
            vocab_size=executor.vocab_size,
            has_tokenizer=tokenizer is not None,
        )
        self._cache = Cache(
            pool,
            executor.page_size,
            arithmetic_id=executor.arithmetic_id,
            prefix_cache=config.prefix_cache and config.kv_cache,
            prefix_ttl_s=config.prefix_ttl_s,
            tier=tier,
            clock=clock,
        )
        self._scheduler = Scheduler(config, self._cache, max_step_tokens=executor.max_step_tokens)
        self._delivery = Delivery(tokenizer, self._on_end)
        self._counters = Counters()
        self._under_way: _Step | None = None  # submitted, and not waited for
        self._thread: threading.Thread | None = None
        self._progress_s = clock()  # when a step last finished, or work came to an idle engine
        self._checked_s = -math.inf  # when the books were last checked

        self._changed = threading.Condition()  # guards the fields below
        self._requests: dict[str, Request] = {}  # accepted, and not ended
        self._submitted: list[Request] = []
        self._aborted: list[str] = []
        self._questions: list[tuple[Callable[[], Any], Future[Any]]] = []  # what other threads ask of the cache
        self._num_submitted = 0
        self._closing = False  # nothing is accepted any more
        self._stopping = False  # the thread is to end

    # -- any thread ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        return self._config

    def submit(self, request: Request) -> None:
        """Accepts `request`, whose sink then gets exactly one Delta with a finish reason.

        Raises RequestError for what is malformed, CapacityError for what can never fit, OverloadedError when the
        queue is full or the engine shuts down.
        """
        request.params = checked(request.params, vocab_size=self._limits.vocab_size)
        request.max_tokens = check_request(request, self._limits)
        request.encode_prompt()
        request.seed = secrets.randbits(64) if request.params.seed is None else request.params.seed
        if request.params.prompt_logprobs is not None:
            request.prompt_logprobs = [TokenLogprob(request.prompt_ids[0], None)]
        with self._changed:
            self._check_queue()
            if request.id in self._requests:
                raise ValueError(f"a request with id {request.id!r} is already running")
            now = self._clock()
            if not self._requests:
                self._progress_s = now
            request.arrival = self._num_submitted
            request.timeline.submitted_s = now
            self._num_submitted += 1
            self._delivery.open(request)
            self._requests[request.id] = request
            self._submitted.append(request)
            self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """Ends a request before the next step. One that has ended, or never was, is no error: its client was late."""
        with self._changed:
            if request_id in self._requests:
                self._aborted.append(request_id)
                self._changed.notify_all()

    def stats(self) -> EngineStats:
        return snapshot(self._counters, self._scheduler, num_submitted=len(self._submitted), now=self._clock())

    def cache_namespace(self, cache_salt: str = "") -> str:
        """The part of the prefix cache that requests with this salt share."""
        return self._cache.namespace(cache_salt)

    def cache_tree(self) -> list[TreeNode]:
        """What the prefix cache holds, one entry per namespace."""
        return self._ask(self._cache.snapshot)

    def tier_stats(self) -> TierStats | None:
        """Of the tier below memory, if there is one."""
        return None if self._tier is None else self._tier.stats()

    def flush_cache(self, namespace: str | None = None) -> int:
        """Forgets cached prefixes that no running request uses, of one namespace or of all; how many pages."""
        return self._ask(lambda: self._cache.flush(namespace))

    def nearest_prefix(self, namespace: str, token_ids: Sequence[int]) -> MissReport:
        """What `namespace` holds that comes nearest to a prompt."""
        return self._ask(lambda: self._cache.nearest(namespace, token_ids))

    def is_stuck(self) -> bool:
        """Whether work waits and no step has finished for `stuck_after_s`."""
        return bool(self._requests) and self._clock() - self._progress_s > self._config.stuck_after_s

    def start(self) -> None:
        """Starts the engine's thread."""
        if self._thread is not None:
            raise RuntimeError("the engine's thread has been started before")
        self._thread = threading.Thread(target=self._run, name="ridgeline-engine", daemon=True)
        self._thread.start()

    def shutdown(self, timeout_s: float) -> None:
        """Accepts nothing more, lets requests finish for `timeout_s`, aborts the rest and ends the thread."""
        with self._changed:
            self._closing = True
        if not self._drain(timeout_s):
            with self._changed:
                self._aborted += self._requests
                self._changed.notify_all()
            self._drain(ABORT_GRACE_S)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(ABORT_GRACE_S)
            if self._thread.is_alive():
                _log.error("the executor has not come back from a step; %d requests are lost", len(self._requests))
                return
        self._cache.close()

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Answered by the thread that steps, between two steps. Raises TimeoutError when none ends in time."""
        answer: Future[_Answer] = Future()
        with self._changed:
            has_thread = self._thread is not None and not self._stopping
            if has_thread:
                self._questions.append((question, answer))
                self._changed.notify_all()
        return answer.result(ANSWER_WITHIN_S) if has_thread else question()

    def _check_queue(self) -> None:
        num_running = len(self._scheduler.running)
        num_waiting = len(self._scheduler.waiting) + len(self._submitted)
        retry_after_s = max(1.0, self._counters.run_s / max(1, num_running))
        if self._closing:
            raise OverloadedError("the server is shutting down", retry_after_s=retry_after_s)
        if num_waiting >= self._config.max_waiting:
            raise OverloadedError(
                f"{num_waiting} requests wait, as many as may (max_waiting); {num_running} are running",
                retry_after_s=retry_after_s,
                num_waiting=num_waiting,
                num_running=num_running,
            )

    # -- the thread that steps ----------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Steps on the caller's thread until every accepted request has ended."""
        while self._requests:
            self._step_or_wait()

    def step(self, *, looks_ahead: bool = False) -> bool:
        """Runs one step on the caller's thread. False: there was nothing to compute.

        One that `looks_ahead` may leave the next step under way, which the next call takes up.
        """
        now = self._clock()
        self._take_messages(now)
        self._cache.expire()
        if self._under_way is None:
            self._under_way = self._begin(now)
        step = self._under_way
        self._delivery.flush()
        if step is None:
            if not self._requests and now - self._checked_s >= CHECK_EVERY_S:
                self._cache.check(self._scheduler.running)
                self._checked_s = now
            return False
        following = self._scheduler.foresee(step.chunks) if looks_ahead else None
        next_plan = following and continued_plan(step.plan, following, self._executor.page_size)
        result = step.wait()
        self._under_way = None
        end_s = self._clock()
        if following and next_plan and self._goes_on(result, step):
            next_plan.token_ids = result.token_ids
            self._under_way = self._submit(following, step.rows, step.ending_ids, next_plan, end_s)
        self._end_step(step, result, end_s)
        return True

    def _begin(self, now: float) -> _Step | None:
        """Schedules and submits a step, if there is something to compute."""
        chunks = self._scheduler.schedule(now)
        if not chunks:
            return None
        plan, rows = build_plan(chunks, self._executor.page_size, self._eos_ids)
        plan.copy_pages = self._cache.take_copies()
        ending_ids = self._eos_ids.union(*{row.request.params.stop_token_ids for row in rows})
        return self._submit(chunks, rows, ending_ids, plan, now)

    def _submit(
        self,
        chunks: Sequence[Chunk],
        rows: Sequence[LogitRow],
        ending_ids: frozenset[int],
        plan: StepPlan,
        now: float,
    ) -> _Step:
        num_places = self._scheduler.num_places  # a stop string may end a request while the step computes
        return _Step(chunks, rows, plan, ending_ids, num_places, now, _guarded(lambda: self._executor.submit(plan)))

    def _goes_on(self, result: StepResult | ExecutionError, step: _Step) -> TypeGuard[StepResult]:
        """Whether the step after this one is as foreseen: nobody has ended and there is no news."""
        if isinstance(result, ExecutionError) or not result.finite.all():
            return False
        if self._submitted or self._aborted or self._questions:
            return False
        token_ids = result.token_ids.tolist()
        if step.ending_ids.isdisjoint(token_ids):
            return True
        return not any(is_ending(row.request, t, self._eos_ids) for row, t in zip(step.rows, token_ids, strict=True))

    def _end_step(self, step: _Step, result: StepResult | ExecutionError, end_s: float) -> None:
        if isinstance(result, ExecutionError):
            self._counters.num_failed_steps += 1
            for chunk in step.chunks:
                self._finish(chunk.request, FinishReason.ERROR, end_s, result)
        else:
            self._scheduler.pacer.observe([chunk.num_tokens for chunk in step.chunks], result.duration_s)
            self._counters.on_samples(sum(row.scores is None for row in step.rows), step.num_places)
            self._commit(step.chunks, step.rows, result, end_s)
        self._counters.on_step(num_tokens=step.plan.num_tokens, start_s=step.start_s, end_s=end_s)
        self._progress_s = end_s

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests or self._questions or self._stopping)
                is_last = self._stopping
            if is_last:
                self._abandon_step()
                self._answer_questions()
                return
            try:
                self._step_or_wait()
            except Exception as error:  # a fault of ours: the clients must hear of it, and others be served
                _log.exception("the engine failed")
                self._fail_all(error)

    def _step_or_wait(self) -> None:
        """One step; when nothing can run yet, waits for a static batch to be due or for news."""
        if self.step(looks_ahead=True):
            return
        with self._changed:
            if not self._requests or self._submitted or self._aborted or self._questions:
                return
            next_start_s = self._scheduler.next_start_s()
            if next_start_s is None:
                raise RuntimeError(f"{len(self._requests)} requests are unfinished and none of them was scheduled")
            self._changed.wait(max(0.0, next_start_s - self._clock()))

    def _drain(self, timeout_s: float) -> bool:
        """Whether all requests ended within `timeout_s`."""
        if self._thread is not None:
            with self._changed:
                return self._changed.wait_for(lambda: not self._requests, timeout_s)
        deadline_s = self._clock() + timeout_s
        while self._requests and self._clock() < deadline_s:
            self._step_or_wait()
        return not self._requests

    def _take_messages(self, now: float) -> None:
        with self._changed:
            submitted, self._submitted = self._submitted, []
            aborted, self._aborted = self._aborted, []
        self._answer_questions()
        for request in submitted:
            self._scheduler.add(request)
        for request_id in aborted:
            if request_id in self._requests:
                self._finish(self._requests[request_id], FinishReason.ABORT, now)

    def _answer_questions(self) -> None:
        with self._changed:
            questions, self._questions = self._questions, []
        for question, answer in questions:
            try:
                answer.set_result(question())
            except Exception as error:  # the asker's to handle; requests have no part in it
                answer.set_exception(error)

    def _commit(self, chunks: Sequence[Chunk], rows: Sequence[LogitRow], result: StepResult, now: float) -> None:
        """Makes the step's results part of the requests that still run; what ended while it computed is discarded."""
        finite, token_ids = result.finite.tolist(), result.token_ids.tolist()
        for i, row in enumerate(rows):
            if row.request.status is not Status.RUNNING:
                continue
            if not finite[i]:
                hint = "its weights are damaged, or values exceed the number format, which --dtype fp32 would tell"
                error = ExecutionError("the model's logits for this request are not finite numbers", hint=hint)
                self._finish(row.request, FinishReason.ERROR, now, error)
            elif row.scores is not None:
                self._commit_score(row.request, row.scores, i, result)
        for request, start, num_tokens in chunks:
            if request.status is Status.RUNNING:
                request.num_computed_tokens = start + num_tokens
                self._cache.publish(request)
                if request.max_tokens == 0 and request.num_remaining_tokens == 0:
                    self._finish(request, FinishReason.LENGTH, now)  # all of its prompt is scored
        for i, row in enumerate(rows):
            if row.scores is None and row.request.status is Status.RUNNING:
                self._commit_token(row.request, token_ids[i], i, result, now)

    def _commit_score(self, request: Request, position: int, i: int, result: StepResult) -> None:
        token_id = request.prompt_ids[position]
        request.prompt_logprobs.append(row_logprob(token_id, result, i, request.params.prompt_logprobs or 0))

    def _commit_token(self, request: Request, token_id: int, i: int, result: StepResult, now: float) -> None:
        request.output_ids.append(token_id)
        request.timeline.on_token(now)
        self._counters.on_token(request)
        if not self._config.kv_cache:
            request.num_computed_tokens = 0
        outcome = token_outcome(request, token_id, result, i, self._eos_ids, now)
        if outcome.finish_reason is not None:
            self._scheduler.finish(request)
        self._delivery.add(outcome)

    def _finish(self, request: Request, reason: FinishReason, now: float, error: RidgelineError | None = None) -> None:
        """Frees what the request holds and puts its last event on its way, unless that has happened."""
        if request.status is Status.FINISHED:
            return
        self._scheduler.finish(request)
        self._delivery.add(Outcome(request, now, finish_reason=reason, error=error))

    def _fail_all(self, error: Exception) -> None:
        self._abandon_step()
        failure = ExecutionError(f"the engine failed: {error!r}")
        now = self._clock()
        self._take_messages(now)
        for request in list(self._requests.values()):
            self._finish(request, FinishReason.ERROR, now, failure)
        self._delivery.flush()

    def _abandon_step(self) -> None:
        """Waits for a step whose results nobody will take."""
        step, self._under_way = self._under_way, None
        if step is not None:
            step.wait()

    def _on_end(self, request: Request, reason: FinishReason) -> None:
        """A stop string and a failing sink end a request that still runs; everything else has freed it before."""
        if request.status is not Status.FINISHED:
            self._scheduler.finish(request)
        self._counters.on_end(reason, request.metrics(self._clock()))
        with self._changed:
            del self._requests[request.id]
            self._changed.notify_all()
