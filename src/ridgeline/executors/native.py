"""The native executor: hands a program and its weights to the C++ core, then a step in one call.

The core runs on its own threads: `submit` returns at once and Python goes on with the previous step's text while the
step computes. Construction packs one weight at a time into the kernels' order, so the checkpoint is never held twice.

Exactness (invariant 5) is the kernels' doing; see native/kernels_matmul.h and native/kernels_attention.h.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ridgeline import _native  # type: ignore[attr-defined]
from ridgeline.engine.plan import SamplerSetup, StepPlan, StepResult
from ridgeline.errors import ConfigError, ExecutionError
from ridgeline.executors.native_build import PLAIN_DTYPES, Builder, MatrixForm, Weights, matrix_forms
from ridgeline.executors.op_profile import Profile
from ridgeline.executors.packed_file import PackedFile
from ridgeline.executors.packing import load_weights
from ridgeline.model.program import Program
from ridgeline.model.rope import inverse_frequencies
from ridgeline.model.spec import ModelSpec
from ridgeline.quant.formats import SERVED_KV

PAGE_SIZE = 32  # what the attention kernels' page layout is made for
ARITHMETIC_VERSION = 3  # raise it when a kernel's accumulation order or rounding changes, or how weights are quantized
PACKING_VERSION = 4  # raise it when the same weights are packed into other bytes: layout, quantization, random weights
MAX_THREADS = 1024  # more than any one machine's cores; beyond, the system itself gives out


class NativeHandle:
    """A step under way on the core's threads."""

    def __init__(self, core: Any, plan: StepPlan, profile: Profile | None) -> None:
        self._core, self._plan, self._profile = core, plan, profile

    def wait(self) -> StepResult:
        token_ids, logprobs, top_ids, top_logprobs, finite, logits, duration_s = self._core.wait()
        if self._profile is not None:
            self._profile.add(self._plan, duration_s)
        return StepResult(token_ids, logprobs, top_ids, top_logprobs, finite.view(np.bool_), logits, duration_s)


class NativeExecutor:
    """Runs `program` on the CPU. `threads` is the number of compute threads, at least 1, `niceness` theirs alone;
    None: as the process.

    Raises ConfigError for a dtype, page size or shape that the kernels do not have.
    """

    page_size = PAGE_SIZE
    batch_invariant = True

    def __init__(
        self,
        program: Program,
        weights: Weights,
        *,
        dtype: str,
        kv_dtype: str | None = None,
        num_pages: int,
        page_size: int = PAGE_SIZE,
        max_step_tokens: int = 2048,
        num_sampler_slots: int = 64,
        threads: int,
        niceness: int | None = None,
        packed: PackedFile | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        kv_dtype = kv_dtype or (dtype if dtype in PLAIN_DTYPES else "bf16")
        forms = matrix_forms(program, weights, dtype)
        _check(forms, dtype, kv_dtype, page_size, threads)
        self.num_pages = num_pages
        self.max_step_tokens = max_step_tokens
        self.num_sampler_slots = num_sampler_slots
        self.vocab_size = program.spec.vocab_size
        try:
            self._core = _native.Executor(
                _shape(program.spec),
                kv_dtype,
                num_pages,
                max_rows=max_step_tokens,
                num_sampler_slots=num_sampler_slots,
                threads=threads,
                niceness=niceness,
            )
        except (
            ValueError
        ) as error:  # an ISA path or a shape that the kernels do not have, or threads that the system refuses
            raise ConfigError(f"the native executor cannot be built: {error}") from error
        self.arithmetic_id = f"native-{ARITHMETIC_VERSION}-{self._core.isa}-{_name(forms, dtype)}-{kv_dtype}"
        builder = Builder(self._core, program, forms, kv_dtype)
        report = progress or (lambda stage, share: None)
        if packed is not None:
            packed = packed.holding(f"{PACKING_VERSION} {dtype} {builder.contents}")
        pack = partial(builder.pack, weights, report)
        self._profile: Profile | None = None
        self.notices = load_weights(self._core, pack, packed, threads=threads, progress=report)

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights, as allocated."""
        return int(self._core.weight_bytes)

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV pages, the null page included."""
        return int(self._core.kv_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, K and V."""
        return int(self._core.page_bytes)

    def read_page(self, page_id: int) -> np.ndarray:
        """A page's bytes, uint8 [page_bytes], in this executor's own layout. Between steps only."""
        bytes_: np.ndarray = self._core.read_page(page_id)
        return bytes_

    def write_page(self, page_id: int, data: np.ndarray) -> None:
        """Fills a page with what `read_page` gave. Between steps only."""
        self._core.write_page(page_id, data)

    def submit(self, plan: StepPlan) -> NativeHandle:
        try:
            for source, destination in plan.copy_pages:
                self._core.copy_page(source, destination)
            for setup in plan.setups:
                self._open_sampler(setup)
            self._core.submit(
                plan.token_ids,
                plan.positions,
                plan.slots,
                plan.query_start,
                plan.context_len,
                plan.block_tables,
                plan.logit_rows,
                plan.sampler_slots,
                plan.score_ids,
                plan.score_top,
                plan.want_logits,
            )
        except (ValueError, TypeError) as error:
            raise ExecutionError(f"the native executor refused the step: {error}") from error
        return NativeHandle(self._core, plan, self._profile)

    def profile(self) -> Profile:
        """Times every op of every step from now on."""
        self._profile = Profile(self._core)
        return self._profile

    def close(self) -> None:
        """Frees weights, pages and threads."""
        self._core = None

    def _open_sampler(self, setup: SamplerSetup) -> None:
        native = _native.SamplerSetup()
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                     "frequency_penalty", "seed", "choice", "min_tokens", "top_logprobs"):  # fmt: skip
            setattr(native, name, getattr(setup, name))
        native.banned_ids = list(setup.banned_ids)
        native.logit_bias = list(setup.logit_bias)
        prompt, output = (np.array(ids, np.int32) for ids in (setup.prompt_ids, setup.output_ids))
        self._core.open_sampler(setup.slot, native, prompt, output)


def _check(forms: Mapping[str, MatrixForm], dtype: str, kv_dtype: str, page_size: int, threads: int) -> None:
    if dtype not in PLAIN_DTYPES and not any(form.groups for form in forms.values()):
        raise ConfigError(f"these weights do not come as {dtype!r}", hint="they run as fp32 and as bf16")
    if kv_dtype not in SERVED_KV:
        known = ", ".join(SERVED_KV)
        raise ConfigError(f"kv_dtype {kv_dtype!r} is not served by the native executor", hint=f"known: {known}")
    if dtype == "fp32" and kv_dtype == "bf16":
        raise ConfigError("kv_dtype bf16 needs dtype bf16", hint="leave --kv-dtype out, or give --dtype bf16")
    if threads > MAX_THREADS:
        raise ConfigError(f"threads = {threads}: at most {MAX_THREADS}", hint="leave it out to use every usable core")
    if page_size != PAGE_SIZE:
        raise ConfigError(f"page size {page_size} is not served by the native executor", hint=f"it is {PAGE_SIZE}")


def _name(forms: Mapping[str, MatrixForm], dtype: str) -> str:
    """The dtype; where matrices differ from it (quantized, a head of its own) with a digest of all forms."""
    if all(form == MatrixForm(dtype) for form in forms.values()):
        return dtype
    return f"{dtype}.{hashlib.blake2b(repr(sorted(forms.items())).encode(), digest_size=4).hexdigest()}"


def _shape(spec: ModelSpec) -> Any:
    shape = _native.ModelShape()
    shape.num_layers, shape.num_heads, shape.num_kv_heads = spec.num_layers, spec.num_heads, spec.num_kv_heads
    shape.head_dim, shape.vocab, shape.norm_eps = spec.head_dim, spec.vocab_size, spec.norm_eps
    shape.inverse_frequencies = inverse_frequencies(spec).astype(np.float32).tolist()
    return shape
