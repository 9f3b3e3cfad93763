"""LLM: generate without a server, on the caller's thread.

The same engine that `ridgeline serve` runs, stepped by whoever waits for an answer. There is no background thread: time
passes for the engine only inside the calls of this class, so one LLM belongs to one thread at a time.

Ctrl-C is held back until the step under way is over; it never leaves the engine half committed, and the requests of
the interrupted call are aborted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ridgeline.assemble import load_engine
from ridgeline.config import EngineConfig, ModelConfig, split
from ridgeline.engine.request import Delta, FinishReason, Request, RequestMetrics, SamplingParams, TokenLogprob
from ridgeline.errors import ExecutionError, OverloadedError, RequestError

if TYPE_CHECKING:
    pass

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Progress = Callable[[str, float], None]

DEFAULT_MODEL = "smollm2-135m"
_IDLE_S = 0.001  # until the next look, when a static batch waits for its time


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt led to. `logprobs` has an entry per token of `token_ids`, when they were asked for."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str  # stop | length
    num_prompt_tokens: int
    num_cached_tokens: int
    metrics: RequestMetrics
    stop_reason: str | int | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


class Generation:
    """A request under way: the deltas that have arrived so far."""

    def __init__(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> None:
        self.deltas: list[Delta] = []
        self.request = Request(request_id, prompt_ids, params, self.deltas.append)

    @property
    def done(self) -> bool:
        return bool(self.deltas) and self.deltas[-1].finish_reason is not None

    def completion(self) -> Completion:
        """The whole answer of a finished generation. Raises the error that ended it, if one did."""
        last = self.deltas[-1]
        if last.finish_reason is FinishReason.ERROR:
            raise last.error or ExecutionError(f"request {self.request.id} failed")
        metrics = cast(RequestMetrics, last.metrics)
        prompt_logprobs = next((d.prompt_logprobs for d in self.deltas if d.prompt_logprobs is not None), None)
        return Completion(
            text="".join(d.text for d in self.deltas),
            token_ids=[token_id for d in self.deltas for token_id in d.token_ids],
            logprobs=None if self.request.params.logprobs is None else [x for d in self.deltas for x in d.logprobs],
            finish_reason=str(last.finish_reason),
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_cached_tokens=metrics.num_cached_tokens,
            metrics=metrics,
            stop_reason=last.stop_reason,
            prompt_logprobs=None if prompt_logprobs is None else list(prompt_logprobs),
        )


class LLM:
    """A model, ready to generate.

    `model` is whatever `ridgeline serve MODEL` takes; the options are the fields of ModelConfig and EngineConfig, which
    are its flags too. Raises ConfigError for an unknown model or option, CheckpointError for an unreadable file.

        with LLM("smollm2-135m") as llm:
            [completion] = llm.generate("Once upon a time", SamplingParams(max_tokens=20))
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        dtype: str = "auto",
        kv_dtype: str | None = None,
        threads: int | None = None,
        weights: str | None = None,
        progress: Progress | None = None,
        **engine_options: Any,
    ) -> None:
        given = {"dtype": dtype, "kv_dtype": kv_dtype, "threads": threads, **engine_options}
        if weights is not None:
            given["weights"] = weights
        model_config, engine_config = split((ModelConfig, EngineConfig), given)
        self.runtime, self.engine = load_engine(model, model_config, engine_config, progress=progress)
        self._request_numbers = itertools.count()

    @property
    def default_params(self) -> SamplingParams:
        """For calls that give no SamplingParams: as the checkpoint recommends, greedy where it says nothing."""
        return SamplingParams(**{"temperature": 0.0, **self.runtime.generation_defaults})

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """One Completion per prompt, in order. A prompt is a text, taken as it stands, or a list of token ids.

        `params` holds for all prompts, or is a list with one for each. Raises RequestError for a prompt or parameter
        that cannot be honoured; then nothing is returned, and nothing of the call goes on.
        """
        batch = _as_batch(prompts)
        return self._run([self.tokenize(prompt) for prompt in batch], self._params_of_each(params, len(batch)))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Completion]:
        """As `generate`, for one conversation or a list of them, through the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        batch = [self.render(cast(Messages, conversation), tools=tools) for conversation in conversations]
        own_params = self._params_of_each(params, len(batch))
        return self._run(batch, [dataclasses.replace(p or self.default_params, starts_text=True) for p in own_params])

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """The answer to one prompt, piece by piece; leaving the iterator early aborts the request."""
        generation = self.submit(prompt, params)
        try:
            position = 0
            while True:
                for delta in generation.deltas[position:]:
                    position += 1
                    yield delta
                if generation.done:
                    generation.completion()  # raises when the request failed
                    return
                self._step(generation)
        finally:
            self._abort([generation])

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """Queues one prompt; steps the engine for as long as its queue is full. `wait` gets the answer."""
        request_id = f"llm-{next(self._request_numbers)}"
        generation = Generation(request_id, self.tokenize(prompt), params or self.default_params)
        while True:
            try:
                self.engine.submit(generation.request)
                return generation
            except OverloadedError:
                self._step(generation)

    def wait(self, generation: Generation) -> Completion:
        """Steps the engine until `generation` is done."""
        while not generation.done:
            self._step(generation)
        return generation.completion()

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a raw prompt; strings that spell control tokens are parsed."""
        if not isinstance(prompt, str):
            return list(prompt)
        tokenizer = self.runtime.tokenizer
        if tokenizer is None:
            raise RequestError(f"{self.runtime.name} has no tokenizer", param="prompt", hint="give token ids instead")
        return tokenizer.encode(prompt, control=True, bos=tokenizer.adds_bos)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation under the model's chat template, ready for the assistant's answer. `extra` are
        further variables of the template, as in `{"enable_thinking": False}`."""
        template = self.runtime.chat_template
        if template is None:
            raise RequestError(f"{self.runtime.name} has no chat template", param="messages", hint="use a raw prompt")
        return template.encode([dict(message) for message in messages], tools=tools, extra=extra)

    def close(self) -> None:
        """Keeps cached prefixes in `cache_dir`, if there is one, and frees the model's memory. The LLM cannot be used
        afterwards."""
        self.engine.shutdown(0.0)
        self.runtime.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, prompts: list[list[int]], params: list[SamplingParams | None]) -> list[Completion]:
        generations: list[Generation] = []
        try:
            for index, pair in enumerate(zip(prompts, params, strict=True)):
                try:
                    generations.append(self.submit(*pair))
                except RequestError as error:
                    if len(prompts) > 1:
                        raise error.of_entry(index) from None
                    raise
            return [self.wait(generation) for generation in generations]
        finally:
            self._abort(generations)

    def _params_of_each(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> list[SamplingParams | None]:
        if params is None or isinstance(params, SamplingParams):
            return [params] * num_prompts
        if len(params) != num_prompts:
            raise RequestError(f"{len(params)} SamplingParams for {num_prompts} prompts", param="params")
        return list(params)

    def _step(self, awaited: Generation) -> None:
        with _interrupts_held_back():
            advanced = self.engine.step(looks_ahead=True)
        if advanced or awaited.done:
            return
        if self.engine.is_stuck():
            raise ExecutionError(f"no step advances, yet request {awaited.request.id} is not finished")
        time.sleep(_IDLE_S)

    def _abort(self, generations: list[Generation]) -> None:
        """Ends what is still under way, down to its last delta, so that its pages are free again."""
        unfinished = [generation for generation in generations if not generation.done]
        for generation in unfinished:
            self.engine.abort(generation.request.id)
        for generation in unfinished:
            while not generation.done:
                self._step(generation)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A Ctrl-C inside the block takes effect at its end. Other threads than the main one never get signals, and a
    handler that was not installed from Python cannot be put back, so it is left alone."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if caught:
        signal.raise_signal(signal.SIGINT)
