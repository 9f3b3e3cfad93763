"""Steps of tiny models on every ISA path of another architecture, for `make test-arm64`.

    python tests/arm64_steps.py write DIRECTORY    here: checkpoints, and the generic path's logits
    python tests/arm64_steps.py compare DIRECTORY  there: every path under several schedules

There, all paths and schedules must have the same bits (invariant 5). Between architectures the C library's cosines may
differ in their last bit, so those logits are close. Needs numpy alone to compare: no torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from executors_under_test import open_executor
from ridgeline._native import kernels
from step_plans import Stepper

PROMPTS = [np.random.default_rng(seed).integers(3, 320, size).tolist() for seed, size in ((0, 70), (1, 33))]
CHUNKS = (None, 16, 1)
TOLERANCE = 2e-4  # of the largest logit, in fp32
ROUNDING = 3e-2  # the same where a value near a tie may round to the other neighbour
CASES = {  # model, dtype, dtype of pages -> tolerance
    ("qwen3", "fp32", "fp32"): TOLERANCE,
    ("mistral", "bf16", "bf16"): ROUNDING,
    ("qwen3", "int8", "int8"): ROUNDING,
    ("qwen3", "int4-g32", "bf16"): ROUNDING,
    ("k-mix.gguf", "gguf", "int8"): ROUNDING,
}


def main() -> None:
    action, directory = sys.argv[1], Path(sys.argv[2])
    {"write": write, "compare": compare}[action](directory)


def logits(model: Path, dtype: str, kv_dtype: str, isa: str, chunk: int | None = None, threads: int = 1) -> np.ndarray:
    """Of every position of every prompt, [tokens, vocab]."""
    os.environ["RIDGELINE_ISA"] = isa
    with open_executor("native", str(model), dtype=dtype, kv_dtype=kv_dtype, threads=threads) as executor:
        if f"-{isa}-" not in executor.arithmetic_id:
            raise SystemExit(f"{isa} was asked for, {executor.arithmetic_id} came")
        return np.concatenate(Stepper(executor).logits(PROMPTS, chunk))


def write(directory: Path) -> None:
    from checkpoints import make_gguf, make_hf

    for family in ("qwen3", "mistral"):
        make_hf(directory / family, family)
    wide = make_hf(directory / "wide", "llama", hidden_size=256, intermediate_size=256, head_dim=64)
    make_gguf(wide, directory / "k-mix.gguf", "Q4_K_M")
    for model, dtype, kv_dtype in CASES:
        np.save(directory / f"{model}-{dtype}.npy", logits(directory / model, dtype, kv_dtype, "generic"))


def compare(directory: Path) -> None:
    for (model, dtype, kv_dtype), tolerance in CASES.items():
        elsewhere = np.load(directory / f"{model}-{dtype}.npy")
        expected = logits(directory / model, dtype, kv_dtype, "generic")
        error = np.abs(expected - elsewhere).max() / np.abs(elsewhere).max()
        if not error <= tolerance:
            raise SystemExit(
                f"{model} in {dtype}: logits differ by {error:.2g} of the largest from the other machine's"
            )
        isas = [isa for isa in kernels.isas() if isa != "generic"]
        for isa in isas:
            for chunk in CHUNKS:
                ours = logits(directory / model, dtype, kv_dtype, isa, chunk, threads=2 if chunk == 16 else 1)
                np.testing.assert_array_equal(ours, expected, err_msg=f"{model} in {dtype}, {isa}, chunks of {chunk}")
        same = "the same bits" if error == 0 else f"within {error:.1g} of the largest"
        print(f"{model} in {dtype}: {', '.join(isas)} have generic's bits in every schedule; elsewhere {same}")


if __name__ == "__main__":
    main()
