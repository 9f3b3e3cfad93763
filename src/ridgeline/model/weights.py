"""The weights that a program reads, by the program's names, whatever file they lie in.

Nothing is read until it is asked for: files are mapped, and each call decodes one tensor, so an executor that packs
and drops one after the other never needs the whole model in fp32. `open_weights` checks the directory of the files at
once, so that a missing or mis-shaped tensor is found before the first byte of data.

Rotary order: the program rotates pairs (i, i + head_dim / 2). llama.cpp stores the q and k rows of llama models in
the order of adjacent pairs (2i, 2i + 1); they are put back here, so that executors know one order only.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.gguf_spec import ROPE_FACTORS
from ridgeline.model.program import weight_shapes
from ridgeline.model.resolve import ModelFiles
from ridgeline.model.spec import ModelSpec
from ridgeline.model.stored import HEAD, ROTARY_TABLE
from ridgeline.model.tensors import StoredTensor
from ridgeline.quant.bf16 import to_bf16
from ridgeline.quant.ggml_blocks import block_format, dequantize, group_form, unpack_groups
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import GroupedWeights

Float32 = NDArray[np.float32]
Bf16 = NDArray[np.uint16]
_Number = TypeVar("_Number", np.float32, np.uint16, np.uint8)

_CHUNK_WEIGHTS = 1 << 18  # decoded at a time: intermediate arrays stay in the cache
_RANDOM_STD = 0.02

# Our name of a layer's weight -> Hugging Face's module, GGUF's.
_LAYER_NAMES = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}
_MODEL_NAMES = {
    "embed": ("model.embed_tokens", "token_embd"),
    "final_norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}


class Weights(ABC):
    """Weights by the program's names; `shapes` is `program.weight_shapes(spec)`."""

    def __init__(self, spec: ModelSpec) -> None:
        self.shapes = weight_shapes(spec)

    @abstractmethod
    def read(self, name: str) -> Float32:
        """The exact values, fp32 of `shapes[name]`. May be a read-only view of the file."""

    @abstractmethod
    def stored_type(self, name: str) -> str:
        """How the file stores it, by ggml's name: F32, BF16, Q4_K, ..."""

    def read_bf16(self, name: str) -> Bf16:
        """The values rounded to nearest even, as bf16 bits of `shapes[name]`; bf16 storage passes through exactly."""
        return to_bf16(self.read(name))

    def group_form(self, name: str) -> GroupForm | None:
        """How the matrix is quantized; None: it is not, and `read` or `read_bf16` serve it."""
        return None

    def read_groups(self, name: str) -> GroupedWeights:
        """A matrix that has a `group_form`, in that form. ValueError for any other: `read` serves it."""
        raise ValueError(f"{name} is not quantized: it has no group form")

    def takes_hadamard(self, name: str) -> bool:
        """Whether the matrix is made for inputs that went through a Hadamard transform (quant/rotation.py)."""
        return False

    def close(self) -> None:  # noqa: B027  (random weights hold no file)
        """Lets go of the files; `read` must not be called again."""


def open_weights(files: ModelFiles, spec: ModelSpec) -> Weights:
    """The weights of a checkpoint. Raises CheckpointError, naming file and tensor, when one is missing, has another
    shape than `spec` asks for, a type that cannot be read, or no place in the program."""
    if files.kind == "config":
        raise ConfigError(
            f"{files.path}: a config.json alone has no weights", hint="give its directory, or --weights random"
        )
    is_gguf, stored = files.kind == "gguf", files.tensors
    tensors = {}
    for name, shape in weight_shapes(spec).items():
        tensors[name] = _find(stored, _stored_name(name, is_gguf), shape, files)
    unread = set(stored) - {tensor.name for tensor in tensors.values()}
    for name in sorted(unread):
        if not _is_redundant(name, spec, files):
            raise CheckpointError(
                f"{stored[name].path}: tensor {name!r} has no place in a {spec.architecture} model "
                f"of {spec.num_layers} layers",
                hint="it belongs to a feature that is not supported",
            )
    return CheckpointWeights(spec, tensors, adjacent_pairs=is_gguf and spec.architecture == "llama")


def _is_redundant(name: str, spec: ModelSpec, files: ModelFiles) -> bool:
    """Whether a tensor beside the weights says nothing that the spec does not: a table that the spec was made from or
    that was compared with it (`model/stored.py`), or the copy of a tied matrix."""
    if files.kind == "gguf":
        return name == ROPE_FACTORS
    return name.endswith(ROTARY_TABLE) or (name == HEAD and spec.tie_embeddings and not files.has_own_head)


def random_weights(spec: ModelSpec, seed: int = 0) -> Weights:
    """Weights for measuring speed without a checkpoint; the same for the same spec and seed."""
    return RandomWeights(spec, seed)


def _stored_name(name: str, is_gguf: bool) -> str:
    """`layers.3.q_bias` -> `model.layers.3.self_attn.q_proj.bias` or `blk.3.attn_q.bias`."""
    kind = "bias" if name.endswith("_bias") else "weight"
    if name in _MODEL_NAMES:
        return f"{_MODEL_NAMES[name][is_gguf]}.{kind}"
    _, layer, part = name.split(".")
    module = _LAYER_NAMES[part.removesuffix("_bias")][is_gguf]
    return f"{'blk' if is_gguf else 'model.layers'}.{layer}.{module}.{kind}"


def _find(stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...], files: ModelFiles) -> StoredTensor:
    tensor = stored.get(name)
    if tensor is None:
        raise CheckpointError(f"{files.path}: tensor {name!r} is missing, the model needs it as {list(shape)}")
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {name!r} has shape {list(tensor.shape)}, the model needs {list(shape)}"
        )
    try:
        block_format(tensor.type)
    except CheckpointError as error:
        raise CheckpointError(f"{tensor.path}: tensor {name!r}: {error.message}", hint=error.hint) from error
    return tensor


class CheckpointWeights(Weights):
    """Weights in mapped files. `adjacent_pairs`: the rows of q and k are in llama.cpp's rotary order."""

    def __init__(self, spec: ModelSpec, tensors: dict[str, StoredTensor], *, adjacent_pairs: bool) -> None:
        super().__init__(spec)
        self._tensors = tensors
        self._half_head = spec.head_dim // 2
        self._adjacent_pairs = adjacent_pairs

    def read(self, name: str) -> Float32:
        tensor = self._tensors[name]
        if tensor.type == "F32":
            return self._in_half_split_order(name, _aligned(tensor.data).view("<f4").reshape(tensor.shape))
        out = np.empty(tensor.shape, np.float32)
        _decode(tensor, out, dequantize)
        return self._in_half_split_order(name, out)

    def read_bf16(self, name: str) -> Bf16:
        tensor = self._tensors[name]
        if tensor.type == "BF16":
            return self._in_half_split_order(name, _aligned(tensor.data).view("<u2").reshape(tensor.shape))
        out = np.empty(tensor.shape, np.uint16)
        _decode(tensor, out, lambda type_name, raw: to_bf16(dequantize(type_name, raw)))
        return self._in_half_split_order(name, out)

    def stored_form(self, name: str) -> GroupForm | None:
        """The form of the file's own groups; None: the tensor is stored as plain numbers."""
        return group_form(self._tensors[name].type)

    def read_stored_groups(self, name: str) -> GroupedWeights:
        """A matrix in the file's own groups, with the very values of `read`."""
        tensor = self._tensors[name]
        outputs, inner = tensor.shape
        groups = unpack_groups(tensor.type, tensor.data, (outputs, inner))
        return groups.map_rows(lambda values: self._in_half_split_order(name, values))

    def stored_type(self, name: str) -> str:
        return self._tensors[name].type

    def close(self) -> None:
        self._tensors = {}

    def _in_half_split_order(self, name: str, values: NDArray[_Number]) -> NDArray[_Number]:
        """Row (i, half) of each head becomes row (half, i), when the file has the other order."""
        if not self._adjacent_pairs or name.rpartition(".")[2] not in ("q", "k", "q_bias", "k_bias"):
            return values
        pairs = values.reshape(-1, self._half_head, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


class RandomWeights(Weights):
    """Normal numbers of deviation 0.02, ones for norms: activations stay of order one, as in a trained model."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__(spec)
        self._seed = seed

    def read(self, name: str) -> Float32:
        if name.endswith("norm"):
            return np.ones(self.shapes[name], np.float32)
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return generator.standard_normal(self.shapes[name], np.float32) * np.float32(_RANDOM_STD)

    def stored_type(self, name: str) -> str:
        return "F32"


def _decode(tensor: StoredTensor, out: NDArray[Any], decode: Any) -> None:
    """Fills `out` chunk by chunk."""
    fmt = block_format(tensor.type)
    flat = out.reshape(-1)
    for start in range(0, flat.size, _CHUNK_WEIGHTS):
        end = min(start + _CHUNK_WEIGHTS, flat.size)
        blocks = slice(start // fmt.block_len * fmt.block_bytes, end // fmt.block_len * fmt.block_bytes)
        flat[start:end] = decode(tensor.type, tensor.data[blocks])


def _aligned(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`data`, copied when it does not begin at a multiple of four bytes, which a safetensors header may cause."""
    return data if data.ctypes.data % 4 == 0 else data.copy()
