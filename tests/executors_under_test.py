"""Opens an executor on a checkpoint through the whole loading path, without tokenizer and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ridgeline.cost.memory import PAGE_SIZE
from ridgeline.engine.plan import Executor
from ridgeline.model.program import build
from ridgeline.model.quantized import in_format, served_spec
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.spec import ModelSpec
from ridgeline.model.weights import Weights, open_weights

EXECUTORS = ("torch", "native")


@contextmanager
def open_executor(
    kind: str, model: str, *, view: Callable[[Weights, ModelSpec, str], Weights] = in_format, **options: Any
) -> Iterator[Executor]:
    """`kind` on MODEL, fp32 unless `options` say otherwise, with room for a few short sequences. `view` makes the
    weights of a dtype."""
    if kind == "native":
        from ridgeline.executors.native import NativeExecutor as executor_class
    else:
        from ridgeline.executors.torch import TorchExecutor as executor_class
    files = resolve_model(model)
    spec = load_spec(files)
    threads = 2 if kind == "native" else 1  # torch's threads cost more than they bring on tiny matrices
    defaults = {"dtype": "fp32", "kv_dtype": "fp32", "num_pages": 64, "page_size": PAGE_SIZE, "threads": threads}
    given = defaults | options
    dtype = given["dtype"]
    weights = view(open_weights(files, spec), spec, dtype)
    executor = executor_class(build(served_spec(spec, dtype)), weights, **given)
    try:
        yield executor
    finally:
        executor.close()
        weights.close()
