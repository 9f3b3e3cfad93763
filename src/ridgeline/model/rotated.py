"""A checkpoint's weights in rotated form: another set of weights for the same model, with the same logits.

A decoder computes the same when its residual stream is turned by an orthogonal matrix, once RMSNorm's own weights are
folded into the matrices behind it. Turned rows have no outliers, so that one scale for a whole row costs 8-bit
activations little (docs/decisions.md has the perplexities). As in the literature (QuaRot):

    embed, q, k, v, gate, up, head    read the residual: norm weights folded in, columns rotated
    o, down                           write it: rows, and biases, rotated
    v and o                           a Hadamard transform of each head, which attention passes through
    down                              a Hadamard transform of its columns, undone by the one that its input gets at
                                      run time (`takes_hadamard`)

q and k are left as they are behind their columns: rotary embedding and the q/k norms do not commute with a rotation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.cost.cores import usable_cores
from ridgeline.model.spec import ModelSpec
from ridgeline.model.weights import Float32, Weights
from ridgeline.quant.rotation import hadamard, hadamard_outputs, rotate, rotate_outputs

_NORM_BEFORE = {
    "q": "attn_norm", "k": "attn_norm", "v": "attn_norm", "gate": "mlp_norm", "up": "mlp_norm", "head": "final_norm",
}  # fmt: skip
_WRITES_RESIDUAL = ("o", "down", "o_bias", "down_bias")


def untied(spec: ModelSpec) -> ModelSpec:
    """The same model with an output matrix of its own."""
    return replace(spec, tie_embeddings=False)


class RotatedWeights(Weights):
    """Norms are ones; embedding and output matrix are two, so the program is that of `untied(spec)`."""

    def __init__(self, source: Weights, spec: ModelSpec) -> None:
        super().__init__(untied(spec))
        self._source = source
        self._head = "embed" if spec.tie_embeddings else "head"
        self._head_dim = spec.head_dim

    def read(self, name: str) -> Float32:
        layer, _, part = name.rpartition(".")
        if part in ("attn_norm", "mlp_norm", "final_norm"):
            return np.ones(self.shapes[name], np.float32)
        values = self._source.read(self._head if part == "head" else name)
        if part in _NORM_BEFORE:
            norm = _NORM_BEFORE[part]
            values = values * self._source.read(f"{layer}.{norm}" if layer else norm)
        threads = usable_cores()
        if part in _NORM_BEFORE or part == "embed":
            values = rotate(values, threads=threads)
        if part in ("v", "v_bias"):
            return hadamard_outputs(values, self._head_dim, threads=threads)
        if part in ("o", "down"):
            values = hadamard(values, self._head_dim if part == "o" else None, threads=threads)
        return rotate_outputs(values, threads=threads) if part in _WRITES_RESIDUAL else values

    def takes_hadamard(self, name: str) -> bool:
        return name.endswith(".down")

    def stored_type(self, name: str) -> str:
        return self._source.stored_type(self._head if name == "head" else name)

    def close(self) -> None:
        self._source.close()
