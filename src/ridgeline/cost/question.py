"""What `plan` is asked: one workload. Lengths in tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import ConfigError

_LARGEST = 1 << 30  # beyond this a number is a slip of the finger


@dataclass(frozen=True)
class Question:
    """`cached` of the `input_len` prompt tokens are in the prefix cache. `context` (None: input + output) is where KV
    memory is told; every other figure is for sequences of input + output. Raises ConfigError for absurd numbers."""

    input_len: int = 2000
    output_len: int = 500
    batch: int = 1
    cached: int = 0
    context: int | None = None
    devices: int = 1

    def __post_init__(self) -> None:
        for name, value in (
            ("input", self.input_len),
            ("output", self.output_len),
            ("batch", self.batch),
            ("context", self.context_len),
            ("devices", self.devices),
        ):
            if not 1 <= value <= _LARGEST:
                raise ConfigError(f"--{name} is {value:,}", hint=f"it must be from 1 to {_LARGEST:,}")
        if not 0 <= self.cached < self.input_len:
            raise ConfigError(
                f"--cached is {self.cached:,} of {self.input_len:,} prompt tokens",
                hint="from 0 to one less than --input: the last token is always computed, its logits are needed",
            )

    @property
    def final_len(self) -> int:
        return self.input_len + self.output_len

    @property
    def uncached(self) -> int:
        return self.input_len - self.cached

    @property
    def context_len(self) -> int:
        return self.final_len if self.context is None else self.context
