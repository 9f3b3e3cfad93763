"""Scheduler: which requests compute how many tokens in the next step.

There are no phases. A request has tokens, of which `num_computed_tokens` are in pages; a step hands one token budget
out so that the second number catches up with the first: running requests first (those that need one token, then
those that prefill), then waiting ones. Chunked prefill, decode and coming back after preemption are that one rule.

When a running request's next token needs a page and none can be had, the lowest-ranked running request gives its pages
back and returns to the queue. When it comes back, it takes up what the cache still has of it and recomputes the rest.

Invariant 3: tokens in a step <= budget; while budget is left, every running request advances or is preempted.
Everything here runs on the engine's thread.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ridgeline.config import EngineConfig
from ridgeline.engine.cache import Cache
from ridgeline.engine.policy import PrefillPacer, outranks, rank, reserved_pages, start_order
from ridgeline.engine.request import Request, Status


class Chunk(NamedTuple):
    """A request's share of a step: the tokens at positions [start, start + num_tokens)."""

    request: Request
    start: int
    num_tokens: int

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the chunk ends at the last known token, whose logits give the next one, if one is wanted."""
        return self.stop == self.request.num_tokens and self.request.max_tokens > 0


class Scheduler:
    def __init__(self, config: EngineConfig, cache: Cache, *, max_step_tokens: int) -> None:
        self.cache = cache
        self.waiting: list[Request] = []  # sorted by rank
        self.running: list[Request] = []
        self.pacer = PrefillPacer(config)
        self.max_tokens = max_step_tokens if config.max_batch_tokens is None else config.max_batch_tokens
        self.num_preemptions = 0
        self._config = config
        self._free_slots = list(range(config.max_requests - 1, -1, -1))
        self._num_turns = 0
        self._batch_size = 0  # of the latest static batch

    @property
    def num_places(self) -> int:
        """Places in the batch that are taken: a static batch holds those of ended requests until its last one ends."""
        return self._batch_size if self._config.scheduler == "static" else len(self.running)

    def add(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=self._rank)

    def finish(self, request: Request) -> None:
        """Takes a waiting or running request out, with all that it holds."""
        if request.status is Status.RUNNING:
            self._stop_running(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED

    def schedule(self, now: float) -> list[Chunk]:
        """The next step; empty when nothing can run now. `now` is the time on the engine's clock."""
        step = _Step(self.max_tokens)
        self._schedule_running(step, now)
        if self._config.scheduler == "static":
            self._start_batch(step, now)
        else:
            self._start_waiting(step, now)
        return [Chunk(request, request.num_computed_tokens, count) for request, count in step.shares.items()]

    def foresee(self, chunks: Sequence[Chunk]) -> list[Chunk] | None:
        """The step after the one that computes `chunks`, its pages allocated, when nothing but the tokens is left open:
        all running requests decode, none ends by its length, and none can join. Else None."""
        if len(chunks) != len(self.running) or self._can_start() or not self._config.kv_cache:
            return None
        following: list[Chunk] = []
        lacking: list[Request] = []  # one page each
        for request, start, num_tokens in chunks:
            num_known = start + num_tokens
            if num_tokens != 1 or num_known != request.num_tokens or request.num_missing_outputs < 2:
                return None
            following.append(Chunk(request, num_known, 1))
            if num_known >= len(request.pages) * self.cache.page_size:
                lacking.append(request)
        if len(lacking) > self.cache.num_available_meanwhile:
            return None
        for request in lacking:
            self.cache.extend(request, request.num_tokens + 1)
        return following

    def next_start_s(self) -> float | None:
        """When a static batch that is not full will start; None: nothing waits for the clock."""
        if self._config.scheduler != "static" or self.running or not self.waiting:
            return None
        return min(request.timeline.submitted_s for request in self.waiting) + self._config.static_wait_s

    def _rank(self, request: Request) -> tuple[int, int]:
        return rank(request, self._config.policy)

    def _schedule_running(self, step: _Step, now: float) -> None:
        """Decodes, those that waited longest first, so that a small budget goes round; then prefills by rank."""
        decodes = [r for r in self.running if r.num_remaining_tokens == 1]
        prefills = [r for r in self.running if r.num_remaining_tokens > 1]
        for request in sorted(decodes, key=lambda r: r.last_turn):
            self._schedule_one(request, step, now)
        if step.shares:
            step.cap_room(self.pacer.max_prefill_tokens(step.room, len(step.shares)))
        for request in sorted(prefills, key=self._rank):
            self._schedule_one(request, step, now)

    def _schedule_one(self, request: Request, step: _Step, now: float) -> None:
        """Gives a running request what it needs and the budget allows; frees pages by preemption when they lack."""
        if step.room == 0 or request.status is not Status.RUNNING:  # it may have been preempted in this step
            return
        if request.num_remaining_tokens > 1:
            request.num_computed_tokens = self.cache.acquire(request)
        count = min(step.room, request.num_remaining_tokens)
        while not self.cache.extend(request, request.num_computed_tokens + count):
            victim = max(self.running, key=self._rank)
            self._preempt(victim, step, now)
            if victim is request:
                return
        step.give(request, count)
        if count > 1 and self._config.kv_cache:  # without, what is computed again is no prompt that others wait behind
            step.cap_room(self.pacer.max_further_tokens(step.room, count))
        self._num_turns += 1
        request.last_turn = self._num_turns

    def _preempt(self, victim: Request, step: _Step, now: float) -> None:
        step.take_back(victim)
        self._stop_running(victim)
        self.num_preemptions += 1
        victim.status = Status.WAITING
        victim.num_computed_tokens = 0
        victim.timeline.on_preempted(now)
        self.add(victim)

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.release(request)
        assert request.sampler_slot is not None
        self._free_slots.append(request.sampler_slot)
        request.sampler_slot = None

    def _start_waiting(self, step: _Step, now: float) -> None:
        """Continuous batching: starts requests in the order of the queue, none past one that lacks a place or pages.

        A request whose prefix a running prefill is computing is passed over until that has published what they share.
        """
        if step.room == 0 or not self._can_start():
            return
        for request in self._start_order():
            if step.room == 0:
                break
            if self.cache.is_being_computed(request, self.running):
                continue
            if not self._fits(request) and not self._make_room(request, step, now):
                break
            self._start(request, now)
            self._schedule_one(request, step, now)

    def _can_start(self) -> bool:
        """Whether a waiting request might start in the next step, as far as places go."""
        if self._config.scheduler == "static":
            return not self.running and bool(self.waiting)
        is_full = len(self.running) == self._config.max_requests and self._config.policy != "priority"
        return bool(self.waiting) and not is_full

    def _start_order(self) -> list[Request]:
        return start_order(self.waiting, self._config.policy, self.cache.num_hit_tokens)

    def _start_batch(self, step: _Step, now: float) -> None:
        """Static batching: a batch starts when it is full or due, and the next one when its last request has ended."""
        if self.running:
            return
        batch = self._next_batch()
        full = len(batch) == self._config.max_requests or len(batch) < len(self.waiting)
        due_s = self.next_start_s()
        if due_s is None or (not full and now < due_s):
            return
        for request in batch:
            self._start(request, now)
            self._schedule_one(request, step, now)
        self._batch_size = len(batch)

    def _next_batch(self) -> list[Request]:
        """The head of the queue, as far as places and the pages of the requests' final lengths go."""
        batch: list[Request] = []
        available = self.cache.num_available
        for request in self._start_order()[: self._config.max_requests]:
            available -= self.cache.pages_needed(request.final_len)
            if available < 0:
                break
            batch.append(request)
        return batch

    def _start(self, request: Request, now: float) -> None:
        self.waiting.remove(request)
        for other in self.waiting:
            other.num_overtaken += other.arrival < request.arrival
        self.running.append(request)
        request.status = Status.RUNNING
        request.sampler_slot = self._free_slots.pop()
        request.needs_setup = True
        request.num_computed_tokens = self.cache.acquire(request)
        request.timeline.on_scheduled(now)

    def _fits(self, request: Request) -> bool:
        """A place is free, and the pages set aside for it are, beside those set aside for the running ones."""
        has_place = len(self.running) < self._config.max_requests
        return has_place and self._num_wanted_pages(request) <= self._num_spare_pages()

    def _num_reserved_pages(self, request: Request) -> int:
        return reserved_pages(request, self._config.admission, self.cache.page_size)

    def _num_wanted_pages(self, request: Request, leaving: Collection[Request] = ()) -> int:
        """Available pages that starting a request takes: all of its own but those that others hold too."""
        return self._num_reserved_pages(request) - self.cache.num_shared_pages(request, leaving)

    def _num_missing_pages(self, running: Request) -> int:
        """Pages that are set aside for a running request, and that it has not got yet."""
        return max(0, self._num_reserved_pages(running) - len(running.pages))

    def _num_spare_pages(self) -> int:
        return self.cache.num_available - sum(self._num_missing_pages(r) for r in self.running)

    def _make_room(self, request: Request, step: _Step, now: float) -> bool:
        """Preempts less important requests until `request` fits, if that is enough; no more of them than needed."""
        lesser = [r for r in self.running if outranks(request, r, self._config.policy)]
        won = self.cache.num_freed_pages(lesser) + sum(self._num_missing_pages(r) for r in lesser)
        if not lesser or self._num_wanted_pages(request, lesser) > self._num_spare_pages() + won:
            return False
        for victim in sorted(lesser, key=self._rank, reverse=True):
            self._preempt(victim, step, now)
            if self._fits(request):
                break
        return True


class _Step:
    """A step in the making: who gets how many tokens, and how many are left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.shares: dict[Request, int] = {}

    def cap_room(self, room: int) -> None:
        self.room = min(self.room, room)

    def give(self, request: Request, count: int) -> None:
        self.shares[request] = count
        self.room -= count

    def take_back(self, victim: Request) -> None:
        self.room += self.shares.pop(victim, 0)
