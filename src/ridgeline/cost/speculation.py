"""Speculative decoding on the roofline: drafts are worth their while as long as verifying them is cheap.

With `k` drafts per step, each accepted with probability `a` given that those before it were, a step yields

    E = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a)   tokens

(Leviathan et al., 2023). A step that verifies k + 1 tokens reads the same weights as one that decodes 1, so at batch 1
it takes nearly the same time. In a large batch it is compute that binds, and drafts that are rejected are paid for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ridgeline.cost.facts import ModelFacts
from ridgeline.cost.roofline import Roofline, smallest_batch
from ridgeline.errors import ConfigError

_MOST_DRAFTS = 64


@dataclass(frozen=True)
class Speculation:
    """`draft` None: drafts cost nothing, as with n-grams."""

    num_drafts: int
    acceptance: float
    draft: ModelFacts | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_drafts <= _MOST_DRAFTS:
            raise ConfigError(f"--speculate with {self.num_drafts} drafts", hint=f"1 to {_MOST_DRAFTS}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ConfigError(f"--speculate with acceptance {self.acceptance}", hint="a probability, from 0 to 1")

    @property
    def tokens_per_step(self) -> float:
        return sum(self.acceptance**i for i in range(self.num_drafts + 1))

    def step_time(self, roofline: Roofline, context: int, batch: int) -> float | None:
        """Seconds to draft and verify once for each of `batch` sequences."""
        tokens = self.num_drafts + 1
        verify = roofline.time(roofline.decode(context + self.num_drafts, batch=batch, tokens=tokens))
        if verify is None or self.draft is None:
            return verify
        drafter = dataclasses.replace(roofline, facts=self.draft)
        one_draft = drafter.time(drafter.decode(context, batch=batch))
        return None if one_draft is None else verify + self.num_drafts * one_draft

    def speedup(self, roofline: Roofline, context: int, batch: int) -> float | None:
        plain, drafted = roofline.time(roofline.decode(context, batch=batch)), self.step_time(roofline, context, batch)
        return None if plain is None or drafted is None else self.tokens_per_step * plain / drafted

    def break_even_batch(self, roofline: Roofline, context: int) -> int | None:
        """The smallest batch at which speculation no longer pays; None: it pays at any batch, or cannot be told."""
        return smallest_batch(lambda batch: (self.speedup(roofline, context, batch) or 2.0) <= 1.0)
