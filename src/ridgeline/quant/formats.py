"""Number formats of weights and KV pages: how many bytes a matrix takes, scales and zero points counted.

A quantized matrix is cut into groups of `group_rows` x `group_cols` weights that share a scale and, in some formats, a
zero point. GGUF's block formats are groups along a row; a row that is no whole number of blocks is stored by llama.cpp
in the next format that fits (`fallback`). Sizes follow ggml-common.h, the OCP microscaling specification, and the
layouts of the GPTQ, AWQ, compressed-tensors and DeepSeek fp8 checkpoints.

`QUANTIZED` are those that our own kernels compute in, on activations of 8 bits. They are sized as the executor lays
them out, padded to its tiles, so that a plan, admission and the executor agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.quant.group_form import GroupForm


@dataclass(frozen=True)
class Format:
    """`bits` per weight; `group_bytes` of scales and minima per group, `zero_bits` of a packed zero point.

    A group extent of 0 means the whole extent of the matrix: (1, 0) is a scale per output channel.
    """

    name: str
    bits: int
    group_rows: int = 1
    group_cols: int = 0
    group_bytes: float = 0
    zero_bits: int = 0
    matrix_bytes: int = 0  # once per matrix
    input_bytes: int = 0  # per column: GPTQ's group index
    fallback: str | None = None  # for rows that are no whole blocks; None: rows are padded to whole groups
    covers_embeddings: bool = True  # False: releases in this format keep embedding and output matrix in 16 bits
    is_packed: bool = False  # laid out by our own executor
    has_minimum: bool = False  # per group, beside the scale
    is_rotated: bool = False  # model/rotated.py: embedding and output matrix are never one

    def size(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix [outputs, inputs], or of vectors: outputs of them, of inputs values each."""
        if outputs == 0 or inputs == 0:
            return 0
        if self.is_packed:
            return outputs * self.form(inputs).row_bytes(inputs)
        cols = self.group_cols or inputs
        if self.fallback and inputs % cols:
            return FORMATS[self.fallback].size(outputs, inputs)
        groups = _ceil(outputs, self.group_rows or outputs) * _ceil(inputs, cols)
        padded_inputs = _ceil(inputs, cols) * cols if self._is_blocked else inputs
        data = outputs * _ceil(padded_inputs * self.bits, 8)
        zeros = _ceil(groups * self.zero_bits, 8)
        return data + int(groups * self.group_bytes) + zeros + self.matrix_bytes + inputs * self.input_bytes

    def form(self, inputs: int) -> GroupForm:
        """How our own executor cuts rows of `inputs` weights: fp16 scales, fp32 where a row has but one."""
        zero = 0 if self.has_minimum else 1 << (self.bits - 1)
        return GroupForm(
            self.bits, zero, min(self.group_cols or inputs, inputs), self.has_minimum, bool(self.group_cols)
        )

    @property
    def vectors(self) -> Format:
        """Of norms, biases and routers beside matrices in this format: llama.cpp keeps them in fp32."""
        if self.fallback or self.name in ("f16", "fp32"):
            return FORMATS["fp32"]
        return FORMATS["fp16"] if self.name == "fp16" else FORMATS["bf16"]

    @property
    def _is_blocked(self) -> bool:
        """Scales lie among the weights, so that a row is whole blocks."""
        return self.fallback is not None


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _ggml(name: str, bits: int, block_len: int, block_bytes: int, fallback: str = "f16") -> Format:
    return Format(name, bits, 1, block_len, block_bytes - block_len * bits // 8, fallback=fallback)


_PLAIN = [Format("fp32", 32), Format("bf16", 16), Format("fp16", 16), Format("f16", 16)]
_GGML = [
    _ggml("q8_0", 8, 32, 34), _ggml("q4_0", 4, 32, 18), _ggml("q4_1", 4, 32, 20), _ggml("q5_0", 5, 32, 22),
    _ggml("q5_1", 5, 32, 24), _ggml("iq4_nl", 4, 32, 18), _ggml("iq4_xs", 4, 256, 136, "iq4_nl"),
    _ggml("q2_k", 2, 256, 84, "iq4_nl"), _ggml("q3_k", 3, 256, 110, "iq4_nl"), _ggml("q4_k", 4, 256, 144, "q5_0"),
    _ggml("q5_k", 5, 256, 176, "q5_1"), _ggml("q6_k", 6, 256, 210, "q8_0"),
    *(_ggml(name, bits, 256, size, "iq4_nl") for name, bits, size in (
        ("iq1_s", 1, 50), ("iq1_m", 1, 56), ("iq2_xxs", 2, 66), ("iq2_xs", 2, 74), ("iq2_s", 2, 82),
        ("iq3_xxs", 3, 98), ("iq3_s", 3, 110), ("tq1_0", 1, 54), ("tq2_0", 2, 66))),
]  # fmt: skip
_PACKED = [
    Format("int8", 8, is_packed=True, is_rotated=True),
    *(Format(f"int8-g{n}", 8, 1, n, is_packed=True) for n in (32, 64, 128)),
    *(Format(f"int4-g{n}", 4, 1, n, is_packed=True) for n in (32, 64, 128)),
    *(Format(f"int4-g{n}-zp", 4, 1, n, is_packed=True, has_minimum=True) for n in (32, 64, 128)),
]
_GROUPED = [
    Format("fp8", 8, group_bytes=4, covers_embeddings=False),
    Format("fp8-128x128", 8, 128, 128, 4, covers_embeddings=False),
    Format("mxfp4", 4, 1, 32, 1, covers_embeddings=False),
    Format("mxfp8", 8, 1, 32, 1, covers_embeddings=False),
    Format("nvfp4", 4, 1, 16, 1, matrix_bytes=4, covers_embeddings=False),  # fp8 scales and an fp32 one over them
]
FORMATS = {fmt.name: fmt for fmt in [*_PLAIN, *_GGML, *_PACKED, *_GROUPED]}
PLAIN = ("fp32", "bf16")
QUANTIZED = tuple(fmt.name for fmt in _PACKED)
GGUF = "gguf"  # whatever groups a GGUF file has
SERVED = (*PLAIN, *QUANTIZED, GGUF)  # by the native executor
_ALIASES = {
    "int4": "int4-g32",
    "int4-zp": "int4-g32-zp",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f32": "fp32",
}
_MIXES = ("q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m")
KV_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "q8_0", "q4_0")
SERVED_KV = ("fp32", "bf16", "int8")  # by the native executor
# A scale per vector in int8; per layer at most in fp8, which is left out.
_KV_VECTORS = {"fp8": Format("fp8", 8), "int8": Format("int8", 8, group_bytes=4)}


def weight_format(name: str) -> Format:
    """The format of that name, upper or lower case. Raises ConfigError."""
    key = name.lower()
    if key in _MIXES:
        hint = "give the .gguf file, its bytes are exact; or a single format: q4_k, q5_k, q6_k"
        raise ConfigError(f"{name} is a mix of formats that differs by tensor", hint=hint)
    found = FORMATS.get(_ALIASES.get(key, key))
    if found is None:
        raise ConfigError(f"number format {name!r} is unknown", hint=nearest(key, [*FORMATS, "int4"]))
    return found


def served_format(name: str, *, known_too: tuple[str, ...] = ()) -> str:
    """The full name of a format that the native executor computes in. Raises ConfigError, listing them all, and
    `known_too`, which the caller takes beside them."""
    key = name.lower()
    key = _ALIASES.get(key, key)
    if key not in SERVED:
        known = ", ".join((*known_too, *SERVED, "int4"))
        raise ConfigError(f"the native executor has no dtype {name!r}", hint=f"known: {known}")
    return key


def joined(dtype: str, head_dtype: str | None) -> str:
    """One name for both, as a plan takes it: `int4-g32+int8-g32`."""
    return dtype if head_dtype in (None, dtype) else f"{dtype}+{head_dtype}"


def kv_format(name: str) -> Format:
    """The format of K and V vectors. Raises ConfigError."""
    key = _ALIASES.get(name.lower(), name.lower())
    if key not in KV_FORMATS:
        raise ConfigError(f"KV format {name!r} is unknown", hint=nearest(key, list(KV_FORMATS)))
    return _KV_VECTORS.get(key, FORMATS[key])
