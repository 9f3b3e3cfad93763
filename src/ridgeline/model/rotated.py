"""A checkpoint's weights in rotated form: another set of weights for the same model, with the same logits.

A product is the same when its input and the rows of its weights are rotated alike. Rotated rows have no outliers, so
that one scale for a whole row costs 8-bit activations little (docs/decisions.md has the figures):

    q, k, v, gate, up, head, down     columns rotated; their input is, before it is quantized (`takes_hadamard`)
    v and o                           a Hadamard transform of each head, which attention passes through

A rotation spreads the rounding errors too, evenly over all channels. So each channel of an input is weighed first, and
its column in the weights the other way round. Errors are least when the root of (energy of the column / energy of the
channel) is the square of the weight. No data is needed: a channel's energy is guessed from the weights that write it.
The weights are powers of two, which change no bit of a number but its exponent, and stand in place of the norm's own,
that go into the matrices behind it, or in the rows of `up`.

q and k are left as they are behind their columns: rotary embedding and the q/k norms do not commute with a rotation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.cores import usable_cores
from ridgeline.model.spec import ModelSpec
from ridgeline.model.weights import Float32, Weights
from ridgeline.quant.rotation import hadamard, hadamard_outputs, rotate, signs

_READERS = {"attn_norm": ("q", "k", "v"), "mlp_norm": ("gate", "up"), "final_norm": ("head",)}
_NORM_BEFORE = {part: norm for norm, parts in _READERS.items() for part in parts}
_ROTATED = (*_NORM_BEFORE, "down")
_LARGEST_EXPONENT = 10  # of a channel's weight, either way


def untied(spec: ModelSpec) -> ModelSpec:
    """The same model with an output matrix of its own."""
    return replace(spec, tie_embeddings=False)


class RotatedWeights(Weights):
    """Embedding and output matrix are two, as norms are folded into one of them: the program is `untied(spec)`'s. An
    output matrix that stays in plain numbers is not rotated: `rotates_head` is false."""

    def __init__(self, source: Weights, spec: ModelSpec, *, rotates_head: bool = True) -> None:
        super().__init__(untied(spec))
        self._source = source
        self._spec = spec
        self._rotates_head = rotates_head
        self._channels: dict[str, Float32] = {}  # name of a norm or of a `down`: the weights of its channels

    def read(self, name: str) -> Float32:
        part = _part(name)
        if part in _READERS:
            return self._channel_weights(name)
        values = self._folded(name)
        if part in _NORM_BEFORE:
            values = values / self._channel_weights(_beside(name, _NORM_BEFORE[part]))
        elif part == "down":
            values = values / self._channel_weights(name)
        threads = usable_cores()
        if self.takes_hadamard(name):
            values = rotate(values, threads=threads)
        match part:
            case "v" | "v_bias":
                return hadamard_outputs(values, self._spec.head_dim, threads=threads)
            case "o":
                return hadamard(values, self._spec.head_dim, threads=threads)
            case "up" | "up_bias":
                rows = self._channel_weights(_beside(name, "down"))
                return values * rows.reshape(-1, *[1] * (values.ndim - 1))
        return values

    def takes_hadamard(self, name: str) -> bool:
        return _part(name) in _ROTATED and (name != "head" or self._rotates_head)

    def stored_type(self, name: str) -> str:
        return self._source.stored_type(self._source_name(name))

    def close(self) -> None:
        self._source.close()

    def _source_name(self, name: str) -> str:
        return "embed" if name == "head" and self._spec.tie_embeddings else name

    def _folded(self, name: str) -> Float32:
        """As the checkpoint has it, the norm before it folded in."""
        values = self._source.read(self._source_name(name))
        norm = _NORM_BEFORE.get(_part(name))
        return values * self._source.read(_beside(name, norm)) if norm else values

    def _channel_weights(self, name: str) -> Float32:
        """Of the channels that leave the norm `name`, or that enter the `down` of this name."""
        if name not in self._channels:
            self._channels[name] = self._weigh_inner(name) if _part(name) == "down" else self._weigh_residual(name)
        return self._channels[name]

    def _weigh_residual(self, norm: str) -> Float32:
        """Energies of the residual's channels vary as the square of what the weights write there: measured, since few
        channels with large weights are fed by large inputs."""
        random_signs = signs(self._spec.hidden_size)
        if _part(norm) == "final_norm":  # the output matrix is nearly even, and loses by any weights but these
            return random_signs
        columns = sum(_column_energy(self._folded(_beside(norm, part))) for part in _READERS[_part(norm)])
        return random_signs * _powers_of_two(np.sqrt(columns) / self._written[norm])

    def _weigh_inner(self, down: str) -> Float32:
        """Values of the MLP are products of gate and up."""
        energy = _row_energy(self._folded(_beside(down, "gate"))) * _row_energy(self._folded(_beside(down, "up")))
        return _powers_of_two(np.sqrt(_column_energy(self._folded(down)) / energy))

    @cached_property
    def _written(self) -> dict[str, Float32]:
        """By norm: the energy of all rows before it that write each channel of the residual; the embedding's columns
        where there are none."""
        written = {"layers.0.attn_norm": _column_energy(self._source.read("embed"))}
        total = np.zeros(self._spec.hidden_size, np.float32)
        for i in range(self._spec.num_layers):
            written.setdefault(f"layers.{i}.attn_norm", total)
            written[f"layers.{i}.mlp_norm"] = total = total + _row_energy(self._source.read(f"layers.{i}.o"))
            total = total + _row_energy(self._source.read(f"layers.{i}.down"))
        return written


def _part(name: str) -> str:
    return name.rpartition(".")[2]


def _beside(name: str, part: str) -> str:
    """The tensor `part` of the same layer."""
    layer, dot, _ = name.rpartition(".")
    return f"{layer}{dot}{part}"


def _column_energy(weight: Float32) -> Float32:
    return np.asarray(np.einsum("ij,ij->j", weight, weight))


def _row_energy(weight: Float32) -> Float32:
    return np.asarray(np.einsum("ij,ij->i", weight, weight))


def _powers_of_two(squares: NDArray[Any]) -> Float32:
    """The power of two that is nearest to each one's root, 1 where there is none."""
    with np.errstate(all="ignore"):
        exponents = np.rint(np.log2(squares / squares.mean()) / 2)
    exponents = np.where(np.isfinite(exponents), exponents, 0).clip(-_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    return np.asarray(np.exp2(exponents), np.float32)
