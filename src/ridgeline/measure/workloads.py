"""What is asked: lengths and shared parts of requests, decided before the run from a seed.

A session is one request, or a chat of several turns, each of which repeats all before it. Lengths are in tokens of the
server's own count: `TokenRate` is fitted by asking it. By default no two prompts share more than a template's header,
so nothing is cached; workloads that share on purpose say so (`shares`), and their hit rate is reported instead.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError
from ridgeline.measure.endpoints import GenerationRequest
from ridgeline.measure.unique_prompt import text, unique_line

if TYPE_CHECKING:
    from ridgeline.measure.client import Client

NAMES = ("fixed", "uniform", "lognormal", "uneven", "natural", "shared-prefix", "chat")
UNEVEN_LENS = (50, 100, 200, 500)  # what static batching wastes its slots on
BLOCK_TOKENS = 512  # of one hash id of a Mooncake trace
_SIGMA = 0.6  # of the logarithm of a lognormal length: P99 is about four times the median
_FIT_WORDS = (8, 72)  # small enough for a context of 512 tokens, with four tokens a word
_TOKENS_PER_WORD = 1.3  # of English, where a server does not count


@dataclass(frozen=True)
class Block:
    """Text that every prompt with the same `key` has in common."""

    key: int
    num_tokens: int


@dataclass(frozen=True)
class Session:
    """`input_len` of the first turn includes the shared blocks; a later turn adds `input_len` tokens to its history."""

    input_len: int
    output_len: int
    shared: tuple[Block, ...] = ()
    num_turns: int = 1
    time: float | None = None  # of a trace: seconds after the start

    @property
    def shared_tokens(self) -> int:
        return sum(block.num_tokens for block in self.shared)


@dataclass(frozen=True)
class Workload:
    """`shared_share`: of the input, in `shared-prefix`. `num_turns`: of a `chat`."""

    name: str = "fixed"
    input_len: int = 512
    output_len: int = 128
    shared_share: float = 0.5
    num_turns: int = 4

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"--workload {self.name!r}", hint="one of " + ", ".join(NAMES))
        if not 0 < self.shared_share < 1:
            raise ConfigError(f"--shared-prefix {self.shared_share:g}", hint="a share above 0 and below 1")

    @property
    def shares(self) -> bool:
        return self.name in ("shared-prefix", "chat")

    @property
    def has_exact_outputs(self) -> bool:
        """Whether answers are asked to go on past the model's end token."""
        return self.name != "natural"

    def sessions(self, count: int, seed: int) -> list[Session]:
        rng = random.Random(seed)
        lens = self._lens(rng)
        return [self._session(*next(lens)) for _ in range(count)]

    def _session(self, input_len: int, output_len: int) -> Session:
        if self.name == "chat":
            return Session(input_len, output_len, num_turns=self.num_turns)
        if self.name == "shared-prefix":
            return Session(input_len, output_len, (Block(0, max(1, round(self.shared_share * input_len))),))
        return Session(input_len, output_len)

    def _lens(self, rng: random.Random) -> Any:
        """Endless pairs of input and output length."""
        pick: Callable[[int], int] = {
            "uniform": lambda mean: rng.randint(math.ceil(mean / 2), max(1, mean + mean // 2)),
            "lognormal": lambda mean: max(1, round(rng.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA))),
        }.get(self.name, lambda mean: mean)
        outputs = cycle(UNEVEN_LENS if self.name == "uneven" else (self.output_len,))
        for output_len in outputs:
            yield pick(self.input_len), pick(output_len)


def load_trace(path: Path, *, time_scale: float = 1.0) -> list[Session]:
    """JSON lines as in Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, optionally `hash_ids`,
    one per 512 tokens of prompt; equal ids are equal text. Times are multiplied by `time_scale`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="--trace takes a file of JSON lines") from error
    sessions = [_from_line(f"{path}:{i}", line, time_scale) for i, line in enumerate(lines, 1) if line.strip()]
    if not sessions:
        raise ConfigError(f"{path} holds no request", hint="a line is {timestamp, input_length, output_length}")
    return sorted(sessions, key=lambda session: session.time or 0.0)


def _from_line(place: str, line: str, time_scale: float) -> Session:
    try:
        entry = json.loads(line)
        time_ms, input_len, output_len = (entry[key] for key in ("timestamp", "input_length", "output_length"))
        ids = [int(key) for key in entry.get("hash_ids") or ()]
        valid = time_ms >= 0 and input_len >= 1 and output_len >= 1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{place}: {type(error).__name__}: {error}", hint=_TRACE_HINT) from error
    if not valid or len(ids) > math.ceil(input_len / BLOCK_TOKENS):
        raise ConfigError(f"{place}: {line[:200]} makes no sense", hint=_TRACE_HINT)
    blocks = tuple(Block(key, min(BLOCK_TOKENS, input_len - i * BLOCK_TOKENS)) for i, key in enumerate(ids))
    return Session(int(input_len), int(output_len), blocks, time=time_ms / 1e3 * time_scale)


_TRACE_HINT = "a line is {timestamp in ms, input_length, output_length, hash_ids of 512 tokens each or none}"


@dataclass(frozen=True)
class TokenRate:
    """prompt tokens = overhead + words x per_word; the overhead holds the template and the unique line."""

    per_word: float = _TOKENS_PER_WORD
    overhead: float = 0.0
    is_known: bool = False

    def words(self, num_tokens: float, *, with_overhead: bool = True) -> int:
        return max(0, round((num_tokens - (self.overhead if with_overhead else 0.0)) / self.per_word))


async def fit_token_rate(client: Client, *, chat: bool, num_ctx: int | None = None) -> TokenRate:
    """Asks for the tokens of two prompts. Raises ConfigError with the server's words when it answers neither."""
    writer, counts = Writer(TokenRate(), chat=chat, seed=random.randrange(2**32), num_ctx=num_ctx), []
    for words in _FIT_WORDS:
        request = writer.unique(words, max_tokens=1)
        record = await client.stream(request)
        if record.error is not None and not record.is_answered:
            raise ConfigError(
                f"{client.endpoint.url} failed a first small request: {record.error.kind}: {record.error.message}",
                hint=HINTS.get(record.error.kind, "is the model loaded there?"),
            )
        counts.append(record.prompt_tokens)
    if counts[0] is None or counts[1] is None or counts[1] <= counts[0]:
        return TokenRate()
    per_word = (counts[1] - counts[0]) / (_FIT_WORDS[1] - _FIT_WORDS[0])
    return TokenRate(per_word, counts[0] - per_word * _FIT_WORDS[0], is_known=True)


HINTS = {
    "http_400": "the server refuses the request itself; --api chooses between chat and completions",
    "http_401": "give its key with --api-key",
    "http_404": "is that model loaded there? --model names one",
    "http_422": "the server refuses the request itself; --api chooses between chat and completions",
    "http_429": "the server refuses so many requests: wait, or ask for less",
    "timeout": "the server accepts requests but does not answer; --timeout says how long to wait",
}


class Writer:
    """Turns sessions into requests. One per measured point, with a seed of its own: no point repeats another's text."""

    def __init__(
        self,
        rate: TokenRate,
        *,
        chat: bool,
        seed: int,
        ignore_eos: bool = True,
        cache: bool = False,
        num_ctx: int | None = None,
    ) -> None:
        self._rate = rate
        self._chat = chat
        self._rng = random.Random(seed)
        self._seed = seed
        self._fields: dict[str, Any] = {"ignore_eos": ignore_eos, "cache": cache, "num_ctx": num_ctx}
        self._words: list[str] = []

    def first(self, session: Session) -> GenerationRequest:
        own_tokens = session.input_len - session.shared_tokens
        shared = [self._block(block) for block in session.shared]
        head = "\n".join([*shared, unique_line(self._rng)])
        words = self._rate.words(own_tokens)
        return self._request(head, self._text(words), max_tokens=session.output_len, prompt_tokens=session.input_len)

    def unique(self, num_words: int, *, max_tokens: int) -> GenerationRequest:
        return self._request(unique_line(self._rng), self._text(num_words), max_tokens=max_tokens)

    def next_turn(self, session: Session, before: GenerationRequest, answer: str) -> GenerationRequest:
        """The whole chat so far, and another message of the session's input length."""
        message = self._text(self._rate.words(session.input_len, with_overhead=False))
        if before.messages is None:
            prompt = f"{before.prompt}{answer}\n{message}"
            return GenerationRequest(prompt=prompt, max_tokens=session.output_len, **self._fields)
        turns = ({"role": "assistant", "content": answer}, {"role": "user", "content": message})
        return GenerationRequest(messages=(*before.messages, *turns), max_tokens=session.output_len, **self._fields)

    def _request(self, head: str, body: str, *, max_tokens: int, prompt_tokens: int | None = None) -> GenerationRequest:
        fields = {"max_tokens": max_tokens, "prompt_tokens": prompt_tokens, **self._fields}
        if not self._chat:
            return GenerationRequest(prompt=f"{head}\n{body}", **fields)
        messages = ({"role": "system", "content": head}, {"role": "user", "content": f"Continue this text: {body}"})
        return GenerationRequest(messages=messages, **fields)

    def _text(self, num_words: int) -> str:
        """Made once, since it is made while the clock runs: the text of n words begins that of more."""
        if num_words > len(self._words):
            self._words = text(2 * num_words).split()
        return " ".join(self._words[:num_words])

    def _block(self, block: Block) -> str:
        """The same words for the same key, within a run."""
        rng = random.Random(f"{self._seed}/{block.key}")
        num_words = self._rate.words(block.num_tokens, with_overhead=False)
        lines = (word for _ in range(num_words) for word in unique_line(rng).split())
        return " ".join(islice(lines, num_words))


def longest(sessions: Sequence[Session]) -> int:
    """Tokens of the longest context that a run needs."""
    return max(session.num_turns * (session.input_len + session.output_len) for session in sessions)
