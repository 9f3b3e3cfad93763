"""A checkpoint made ready to run: everything that one served model owns.

`load_runtime` goes name -> files -> spec -> program -> weights -> executor, and settles what the files leave open: the
number format, how much memory the KV pages get, and how long a context fits in it. What it decides on its own it tells,
in `ModelRuntime.notices`; what cannot work it refuses, with the numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ridgeline.config import ModelConfig, nearest
from ridgeline.cost.cores import core_grant, shares_by_session
from ridgeline.cost.memory import (
    PAGE_SIZE,
    available_memory,
    kv_budget,
    kv_bytes_per_token,
    kv_pages,
    pages_needed,
)
from ridgeline.errors import ConfigError
from ridgeline.model.chat_template import load_chat_template
from ridgeline.model.generation import generation_defaults, unread_notices
from ridgeline.model.packed import packed_file
from ridgeline.model.program import Program, build
from ridgeline.model.quantized import arithmetic, held_bytes, in_format, served_spec
from ridgeline.model.resolve import ModelFiles, load_spec, resolve_model
from ridgeline.model.spec import ModelSpec
from ridgeline.model.tokenizer import load_tokenizer
from ridgeline.model.weights import Weights, open_weights, random_weights
from ridgeline.native_part import native_part
from ridgeline.quant.formats import GGUF, QUANTIZED, SERVED, SERVED_KV, joined, served_format
from ridgeline.units import format_bytes

if TYPE_CHECKING:
    from ridgeline.engine.plan import Executor
    from ridgeline.model.chat_template import ChatTemplate
    from ridgeline.model.tokenizer import Tokenizer

Progress = Callable[[str, float], None]  # a stage's name, and the share of that stage that is done

DTYPES = {"native": SERVED, "torch": ("fp32", "fp64", "bf16")}
KV_DTYPES = {"native": SERVED_KV, "torch": ("fp32", "bf16")}


@dataclass(frozen=True)
class ModelRuntime:
    """`context_len` is the longest sequence, prompt and output, that one request may reach."""

    name: str
    files: ModelFiles
    spec: ModelSpec
    program: Program
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    weights: Weights
    executor: Executor
    dtype: str  # of the weights; `int4-g32+int8-g32` where the output matrix has its own
    arithmetic: str  # both sides of the products: bf16, w8a8, w4a8, ...
    kv_dtype: str
    context_len: int
    kv_bytes_per_token: int
    generation_defaults: dict[str, Any]  # fields of SamplingParams that the checkpoint recommends
    threads: int  # that compute
    threads_reason: str  # why so many
    notices: tuple[str, ...]  # what was decided without being asked

    def close(self) -> None:
        self.executor.close()
        self.weights.close()


def load_runtime(
    model: str, config: ModelConfig, *, num_sampler_slots: int = 64, progress: Progress | None = None
) -> ModelRuntime:
    """Loads MODEL. `num_sampler_slots` is the number of requests that may run at once.

    Raises ConfigError for a name, model or setting that cannot work, CheckpointError for a damaged file.
    """
    if config.executor == "native":
        native_part()  # first of all: without it, nothing needs to be downloaded
    report = progress or (lambda stage, share: None)
    report("reading the model's description", 0.0)
    files = resolve_model(model)
    spec = load_spec(files)
    notices: list[str] = []
    dtype = _choose_dtype(config, spec, notices)
    head_dtype = None if config.head_dtype is None else served_format(config.head_dtype)
    kv_dtype = _choose_kv_dtype(config, dtype, notices)
    program = build(served_spec(spec, dtype, head_dtype))
    weights = in_format(_open(files, spec, config), spec, dtype, head_dtype)
    formats = joined(dtype, head_dtype)
    products = arithmetic(weights, dtype)
    _announce(files, formats, products, notices)
    num_pages = _size_pages(spec, config, held_bytes(weights, dtype), kv_dtype, num_sampler_slots, notices)
    context_len = _choose_context_len(spec, config, num_pages, notices)
    report("loading the tokenizer", 0.0)
    tokenizer = load_tokenizer(files)
    chat_template = None if tokenizer is None else load_chat_template(files, tokenizer)
    notices += unread_notices(files)
    options = {"dtype": dtype, "kv_dtype": kv_dtype, "num_pages": num_pages, "num_sampler_slots": num_sampler_slots}
    if (packed := packed_file(files, config, formats)) is not None:
        options["packed"] = packed
    options["threads"], threads_reason = _choose_threads(config, notices)
    executor = _make_executor(program, weights, config, options, report, notices)
    report("ready", 1.0)
    return ModelRuntime(
        name=files.name,
        files=dataclasses.replace(files),  # without what it has read
        spec=spec,
        program=program,
        tokenizer=tokenizer,
        chat_template=chat_template,
        weights=weights,
        executor=executor,
        dtype=formats,
        arithmetic=products,
        kv_dtype=kv_dtype,
        context_len=context_len,
        kv_bytes_per_token=kv_bytes_per_token(spec, kv_dtype),
        generation_defaults=generation_defaults(files),
        threads=options["threads"],
        threads_reason=threads_reason,
        notices=tuple(notices),
    )


def _choose_dtype(config: ModelConfig, spec: ModelSpec, notices: list[str]) -> str:
    """`auto` is what the checkpoint holds where an executor computes in it, else bf16, and then it is told."""
    if config.executor not in DTYPES:
        raise ConfigError(f"unknown executor {config.executor!r}", hint=nearest(config.executor, list(DTYPES)))
    known = DTYPES[config.executor]
    if config.dtype == "auto":
        if spec.stored_dtype in ("fp32", "bf16"):
            return spec.stored_dtype
        notices.append(f"the checkpoint's {spec.stored_dtype} weights run as bf16; --dtype fp32 keeps them exact")
        return "bf16"
    if config.executor == "native":
        return served_format(config.dtype, known_too=("auto",))
    if config.dtype not in known:
        hint = nearest(config.dtype, ["auto", *known])
        raise ConfigError(f"the {config.executor} executor has no dtype {config.dtype!r}", hint=hint)
    return config.dtype


def _announce(files: ModelFiles, formats: str, products: str, notices: list[str]) -> None:
    """Says that 8-bit activations are no exact arithmetic, and when a file's own grid is left."""
    if "a8" not in products:
        return
    notices.append(f"{formats} is {products}: activations in 8 bits, approximate against its weights; bf16 is not")
    if files.kind == "gguf" and not formats.startswith(GGUF):
        notices.append(f"the file's own quantized weights are rounded anew to {formats}; --dtype gguf keeps them")


def _choose_kv_dtype(config: ModelConfig, dtype: str, notices: list[str]) -> str:
    known = KV_DTYPES[config.executor]
    if config.kv_dtype is None:
        return "bf16" if dtype in (*QUANTIZED, GGUF) else dtype if dtype in known else "fp32"
    if config.kv_dtype not in known:
        hint = nearest(config.kv_dtype, list(known))
        raise ConfigError(f"the {config.executor} executor has no kv_dtype {config.kv_dtype!r}", hint=hint)
    if config.kv_dtype == "int8":
        notices.append("K and V are kept in 8 bits: approximate; --kv-dtype bf16 is not")
    return config.kv_dtype


def _open(files: ModelFiles, spec: ModelSpec, config: ModelConfig) -> Weights:
    if config.weights == "random":
        return random_weights(spec)
    if config.weights != "checkpoint":
        hint = nearest(config.weights, ["checkpoint", "random"])
        raise ConfigError(f"unknown weights {config.weights!r}", hint=hint)
    return open_weights(files, spec)


def _size_pages(
    spec: ModelSpec, config: ModelConfig, weights: int, kv_dtype: str, max_requests: int, notices: list[str]
) -> int:
    """Pages to allocate, the null page included: what the memory allows, but no more than `max_requests` sequences of
    the full context could ever fill."""
    longest = min(spec.max_context_len, config.context or spec.max_context_len)
    useful = max_requests * pages_needed(longest, PAGE_SIZE) + 1
    free_bytes = available_memory()
    budget = config.kv_memory if config.kv_memory is not None else kv_budget(free_bytes, weights)
    num_pages = min(useful, kv_pages(budget, spec, kv_dtype, PAGE_SIZE))
    page_bytes = PAGE_SIZE * kv_bytes_per_token(spec, kv_dtype)
    if num_pages * page_bytes > max(0, free_bytes - weights):
        notices.append(
            f"kv_memory: the KV pages take {format_bytes(num_pages * page_bytes)} and the weights "
            f"{format_bytes(weights)}, {format_bytes(free_bytes)} are free: this machine may swap or end the process"
        )
    if num_pages < 2:
        given = "kv_memory is" if config.kv_memory is not None else (
            f"{format_bytes(free_bytes)} are free and the weights take {format_bytes(weights)}, which leaves KV"
        )  # fmt: skip
        raise ConfigError(
            f"{given} {format_bytes(budget)}: two KV pages of {PAGE_SIZE} tokens need {format_bytes(2 * page_bytes)}",
            hint="free memory, choose a smaller model or dtype, or raise kv_memory",
            budget_bytes=budget,
            needed_bytes=2 * page_bytes,
        )
    return num_pages


def _choose_context_len(spec: ModelSpec, config: ModelConfig, num_pages: int, notices: list[str]) -> int:
    """The smallest of the model's limit, the wanted context and what the pages hold."""
    if config.context is not None and not 1 <= config.context <= spec.max_context_len:
        raise ConfigError(
            f"context = {config.context:,}: this model takes 1 to {spec.max_context_len:,} tokens",
            hint="positions beyond are not in its training",
        )
    wanted = config.context or spec.max_context_len
    capacity = (num_pages - 1) * PAGE_SIZE
    if capacity < wanted:
        notices.append(f"KV memory holds {capacity:,} tokens: the context is {capacity:,} instead of {wanted:,}")
    return min(wanted, capacity)


def _choose_threads(config: ModelConfig, notices: list[str]) -> tuple[int, str]:
    """The number of compute threads, and in words why so many."""
    grant = core_grant()
    if config.threads is None:
        return grant.cores, grant.reason
    if config.threads < 1:
        raise ConfigError(f"threads = {config.threads}: at least 1 is needed")
    if config.threads > grant.cores:
        notices.append(
            f"{config.threads} threads take turns on {grant.cores} usable core{'s' * (grant.cores > 1)} "
            f"({grant.reason}), which is slower; leave --threads out"
        )
    return config.threads, "as given"


def _niceness(config: ModelConfig, notices: list[str]) -> dict[str, int]:
    """The executor's option for `priority`, where it is given."""
    if config.priority is None:
        return {}
    if not -20 <= config.priority <= 19:
        raise ConfigError(f"priority = {config.priority}: -20 (before others) to 19 (what others leave)")
    if config.executor != "native":
        raise ConfigError(
            f"the {config.executor} executor has no threads to give a priority", hint="use --executor native"
        )
    if shares_by_session():
        notices.append(
            f"priority {config.priority} counts within this session: between sessions this system shares equally first "
            "(sched_autogroup); a niceness written to /proc/self/autogroup by its shell changes that share"
        )
    return {"niceness": config.priority}


def _make_executor(
    program: Program,
    weights: Weights,
    config: ModelConfig,
    options: dict[str, Any],
    report: Progress,
    notices: list[str],
) -> Executor:
    executor = _executor_class(config.executor)(
        program,
        weights,
        page_size=PAGE_SIZE,
        max_step_tokens=config.max_step_tokens,
        progress=report,
        **_niceness(config, notices),
        **options,
    )
    notices += executor.notices
    return cast("Executor", executor)


def _executor_class(name: str) -> Any:
    if name == "native":
        from ridgeline.executors.native import NativeExecutor

        return NativeExecutor
    try:
        from ridgeline.executors.torch import TorchExecutor
    except ImportError as error:
        raise ConfigError("the torch executor needs PyTorch", hint="pip install 'ridgeline[torch]'") from error
    return TorchExecutor
