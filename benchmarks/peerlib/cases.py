"""What is measured, in the unit of the tables, and which peers a figure is held against."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_TOKENS = 128  # of every sequence of a batch, and of every HTTP request
DECODE_STEPS = 32  # over which a step's time is averaged
OUTPUT_TOKENS = 64  # of an HTTP request
CLIENTS = 16


@dataclass(frozen=True)
class Case:
    """`size` is the prompt of a prefill, the context of a decode step or the batch; None: neither.

    `same_bits`: compared with peers whose weights have as many bits, else with the best peer of any format.
    `target` is how many times the best peer is aimed at, by bits of the weights.
    """

    key: str
    part: str
    label: str
    unit: str
    size: int | None = None
    rises: bool = False  # more is better
    digits: int = 0
    same_bits: bool = False
    target: tuple[tuple[int, float], ...] = ()

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better than theirs."""
        return ours / theirs if self.rises else theirs / ours


def _any(times: float) -> tuple[tuple[int, float], ...]:
    return ((16, times), (8, times), (4, times))


CASES = {
    case.key: case
    for case in (
        *(
            Case(f"prefill-{n}", "prefill", f"prefill {n:,}", "tokens/s", n, rises=True, target=_any(2.0))
            for n in (512, 2048)
        ),
        Case(
            "decode-128", "decode", "decode, 128 in context", "ms", 128, digits=1, same_bits=True,
            target=((8, 1.2), (4, 2.0)),
        ),
        Case("decode-2048", "decode", "decode, 2,048 in context", "ms", 2048, digits=1, target=_any(1.7)),
        *(
            Case(f"batch-{n}", "batch", f"batch {n}", "tokens/s", n, rises=True, target=_any(times))
            for n, times in ((4, 2.0), (16, 2.5), (64, 2.5))
        ),
        Case("http", "http", f"HTTP, {CLIENTS} clients", "tokens/s", rises=True, target=_any(2.0)),
        Case("http-ttft", "http", f"HTTP, {CLIENTS} clients: TTFT P50", "s", digits=2, target=_any(2.0)),
        Case("peak-rss", "http", "peak RSS", "MiB"),
        Case("ready", "start", "ready after", "s", digits=2),
    )
}  # fmt: skip

PARTS = ("prefill", "decode", "batch", "http", "start")


def cases_of(part: str) -> list[Case]:
    return [case for case in CASES.values() if case.part == part]
