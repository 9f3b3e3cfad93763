"""The same function with its values in another order: a Llama's residual values and each layer's neurons, permuted.

No prediction changes, but which weights share a group does, and with it every rounding error: another draw from the
errors that a grouped format can make on these weights.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ridgeline.errors import ConfigError

READS_RESIDUAL = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
WRITES_RESIDUAL = ("o_proj", "down_proj")


def write_reordered(source: Path, target: Path, seed: int) -> None:
    """A copy of the checkpoint directory `source`, one file of a Llama's weights without biases, as `target`.

    Raises ConfigError for tensors whose part in the residual it does not know."""
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    residual = torch.randperm(tensors["model.embed_tokens.weight"].shape[1], generator=random)
    neurons: dict[str, torch.Tensor] = {}  # layer -> order
    for name, gate in sorted(tensors.items()):
        if name.endswith("gate_proj.weight"):
            neurons[_layer(name)] = torch.randperm(gate.shape[0], generator=random)
    reordered = {name: _reorder(name, tensor, residual, neurons) for name, tensor in tensors.items()}
    save_file(reordered, target / "model.safetensors", metadata={"format": "pt"})


def _reorder(name: str, tensor: torch.Tensor, residual: torch.Tensor, neurons: dict[str, torch.Tensor]) -> torch.Tensor:
    kind = name.split(".")[-2]
    if kind in ("gate_proj", "up_proj"):
        tensor = tensor[neurons[_layer(name)]]
    elif kind == "down_proj":
        tensor = tensor[:, neurons[_layer(name)]]
    if tensor.ndim == 2 and kind in READS_RESIDUAL:
        return tensor[:, residual].contiguous()
    if (tensor.ndim == 2 and kind in WRITES_RESIDUAL) or (tensor.ndim == 1 and kind.endswith("norm")):
        return tensor[residual].contiguous()
    raise ConfigError(f"{name}: not a tensor of a Llama without biases, its order in the residual is unknown")


def _layer(name: str) -> str:
    found = re.search(r"\.layers\.(\d+)\.", name)
    assert found is not None
    return found[1]
