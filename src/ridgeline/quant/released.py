"""Which format each module of a released checkpoint has, as its `quantization_config` says.

Understood are the methods fp8 (DeepSeek's blocks), mxfp4 (gpt-oss), modelopt (NVFP4, FP8), compressed-tensors, gptq and
awq. Modules left alone are named by patterns; a pattern that names nothing we know of is refused, since what it leaves
alone would be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import FORMATS, Format

_METHODS = ("fp8", "mxfp4", "modelopt", "compressed-tensors", "gptq", "awq")
_IGNORE_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
# Parts that hold no matrix of the text model's layers, or whose matrices stay in 16 bits anyway.
_ELSEWHERE = ("lm_head", "embed", "norm", "vision", "visual", "audio", "multi_modal", "mm_projector", "mtp", "eh_proj",
              "router", "gate", "shared_head", "conv1d")  # fmt: skip


@dataclass(frozen=True)
class Release:
    """`fmt` is the format of the converted modules; the others are stored as the config's dtype says."""

    fmt: Format
    only: str = ""  # converted are only modules with this in their name
    ignored: tuple[str, ...] = ()

    def converts(self, module: str) -> bool:
        return self.only in module and not any(_matches(pattern, module) for pattern in self.ignored)

    def refuse_unknown(self, modules: Sequence[str], num_layers: int, source: str) -> None:
        """Raises ConfigError for a pattern that leaves alone what is not among `modules` of the text model."""
        for pattern in self.ignored:
            layer = re.search(r"layers\.(\d+)\b", pattern)
            is_elsewhere = any(part in pattern.lower() for part in _ELSEWHERE)
            if is_elsewhere or (layer and int(layer[1]) >= num_layers):  # prediction layers follow the last
                continue
            if not any(_matches(pattern, module) for module in modules):
                raise ConfigError(
                    f"{source}: quantization_config leaves {pattern!r} alone, which names no known module"
                )


def _matches(pattern: str, module: str) -> bool:
    """`re:` begins a regular expression; `*` stands for anything; else the name of a module or of one above it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    body = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.search(rf"(^|\.){body}($|\.)", module) is not None


def release(config: Mapping[str, Any], source: str) -> Release:
    """Reads a `quantization_config` object. Raises ConfigError for what it does not know."""
    method = str(config.get("quant_method", "")).lower()
    ignored = _patterns(config, source)
    if method == "fp8":
        return Release(_fp8(config, source), ignored=ignored)
    if method == "mxfp4":
        return Release(FORMATS["mxfp4"], only=".experts", ignored=ignored)
    if method in ("gptq", "awq"):
        return Release(_integer_groups(config, method, source), ignored=ignored)
    if method == "modelopt":
        return Release(_modelopt(config, source), ignored=ignored)
    if method == "compressed-tensors":
        return Release(_compressed_tensors(config, source), ignored=ignored)
    hint = nearest(method, list(_METHODS))
    raise ConfigError(f"{source}: quantization_config: quant_method {method!r} is unknown", hint=hint)


def _patterns(config: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Names of the modules left alone. Raises ConfigError for what is no list of names or expressions."""
    found: list[str] = []
    for key in _IGNORE_KEYS:
        names = config.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{source}: quantization_config: {key} is {names!r}, not a list of names")
        found += names
    for pattern in found:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            raise ConfigError(f"{source}: quantization_config: {pattern!r} is no expression: {error}") from error
    return tuple(found)


def _fp8(config: Mapping[str, Any], source: str) -> Format:
    block = config.get("weight_block_size")
    if block is None:
        return replace(FORMATS["fp8"], group_rows=0)  # one scale per matrix
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise ConfigError(f"{source}: quantization_config: weight_block_size is {block!r}, not two sizes")
    return replace(FORMATS["fp8-128x128"], group_rows=block[0], group_cols=block[1])


def _integer_groups(config: Mapping[str, Any], method: str, source: str) -> Format:
    """fp16 scales and packed zero points per group; GPTQ also stores each input's group, an int32."""
    bits, group = config.get("bits"), config.get("group_size")
    if bits not in (2, 3, 4, 8) or not isinstance(group, int) or group == 0:
        raise ConfigError(f"{source}: quantization_config: {method} with bits {bits!r} and group_size {group!r}")
    return Format(
        f"{method}-int{bits}-g{group}",
        bits,
        group_cols=max(group, 0),
        group_bytes=2,
        zero_bits=bits,
        input_bytes=4 if method == "gptq" else 0,
        covers_embeddings=False,
    )


def _modelopt(config: Mapping[str, Any], source: str) -> Format:
    algorithm = config.get("quant_algo")
    if algorithm == "NVFP4":  # an input scale beside the weights' own
        return replace(FORMATS["nvfp4"], matrix_bytes=8)
    if algorithm == "FP8":
        return replace(FORMATS["fp8"], group_rows=0, matrix_bytes=4)
    raise ConfigError(f"{source}: quantization_config: quant_algo {algorithm!r} is unknown", hint="known: NVFP4, FP8")


def _compressed_tensors(config: Mapping[str, Any], source: str) -> Format:
    w = _only_group(config, source)
    bits, kind, strategy = w.get("num_bits"), w.get("type"), w.get("strategy")
    if kind == "float" and bits == 4 and w.get("group_size") == 16:
        return replace(FORMATS["nvfp4"], matrix_bytes=8)  # an input scale beside the weights' own
    extents = {
        "tensor": (0, 0),
        "channel": (1, 0),
        "group": (1, w.get("group_size")),
        "block": w.get("block_structure"),
    }
    extent = extents.get(strategy) if isinstance(strategy, str) else None
    sizes = list(extent) if isinstance(extent, tuple | list) else []
    is_extent = len(sizes) == 2 and all(isinstance(size, int) and size >= 0 for size in sizes)
    if not isinstance(bits, int) or bits not in (4, 8) or kind not in ("int", "float") or not is_extent:
        raise ConfigError(
            f"{source}: quantization_config: weights of {bits!r} bits, {kind!r}, {strategy!r} are unknown"
        )
    return Format(
        f"{kind}{bits}-{strategy}",
        bits,
        group_rows=sizes[0],
        group_cols=sizes[1],
        group_bytes=2,
        zero_bits=0 if w.get("symmetric") or kind == "float" else bits,
        matrix_bytes=16 if config.get("format") == "pack-quantized" else 0,  # its shape, as two int64
        covers_embeddings=False,
    )


def _only_group(config: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """`weights` of the only entry of `config_groups`."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        count = len(groups) if isinstance(groups, dict) else 0
        raise ConfigError(f"{source}: quantization_config has {count} config_groups, one is understood")
    group = next(iter(groups.values()))
    found = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{source}: quantization_config: the weights of its config group are missing")
    return found
