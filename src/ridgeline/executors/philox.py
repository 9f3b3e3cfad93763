"""Philox4x32-10, the counter-based random generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").

A draw is a pure function of what it is for. A seeded request therefore gets the same tokens whatever else is in the
batch, after preemption, and in either executor.
"""

from __future__ import annotations

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, as fractions of 2^32
NUM_ROUNDS = 10

PURPOSE_TARGET = 0  # the sample of the model's own distribution

Block = tuple[int, int, int, int]


def philox4x32(counter: Block, key: tuple[int, int]) -> Block:
    """The four 32-bit words that belong to a 128-bit counter and a 64-bit key."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        product0, product1 = MULTIPLIERS[0] * x0, MULTIPLIERS[1] * x2
        x0, x1, x2, x3 = (product1 >> 32) ^ x1 ^ k0, product1 & MASK, (product0 >> 32) ^ x3 ^ k1, product0 & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return x0, x1, x2, x3


def uniform(seed: int, choice: int, position: int, purpose: int = PURPOSE_TARGET) -> float:
    """The one number in [0, 1), with 53 random bits, for the token at `position` of this choice of a request."""
    x0, x1, _, _ = philox4x32((position, choice, purpose, 0), (seed & MASK, seed >> 32))
    return ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53
