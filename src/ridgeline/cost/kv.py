"""What a sequence keeps between steps: KV caches that grow, windows that fill up, states of fixed size.

Bytes of one sequence at context c, by kind of layer:
    full       KV heads x (key size + value size) x c
    sliding    the same x min(c, window); chunked the same, with the chunk as window
    mla        (latent + rotary key) x c, plus the indexer's key x c where attention is sparse
    recurrent  the state, whatever c: fp32 state, 16-bit convolution inputs
Layers that read an earlier layer's cache, and layers without attention, keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.model.anatomy import Anatomy, Attention, LatentAttention, Mixer, Recurrent
from ridgeline.quant.formats import Format

_STATE_BYTES, _CONV_BYTES = 4, 2  # per value, whatever the format of K and V


@dataclass(frozen=True)
class CacheGroup:
    """Layers that cache alike. `bytes_per_token` of all of them; `window` None: grows for ever."""

    kind: str  # full | sliding | chunked | mla | recurrent | none
    num_layers: int
    bytes_per_token: int = 0
    window: int | None = None
    state_bytes: int = 0  # of all of them, per sequence

    def bytes_at(self, context: int) -> int:
        tokens = context if self.window is None else min(context, self.window)
        return self.bytes_per_token * tokens + self.state_bytes


def cache_groups(anatomy: Anatomy, fmt: Format) -> tuple[CacheGroup, ...]:
    """The layers by kind, in order of first appearance."""
    counts: dict[Mixer | None, int] = {}
    for layer in anatomy.layers:
        counts[layer.mixer] = counts.get(layer.mixer, 0) + 1
    return tuple(_group(mixer, count, fmt) for mixer, count in counts.items())


def _group(mixer: Mixer | None, count: int, fmt: Format) -> CacheGroup:
    if mixer is None or (isinstance(mixer, Attention) and not mixer.owns_cache):
        return CacheGroup("none", count)
    if isinstance(mixer, Recurrent):
        state = mixer.state_values * _STATE_BYTES + mixer.conv_values * _CONV_BYTES
        return CacheGroup(mixer.kind, count, state_bytes=count * state)
    if isinstance(mixer, LatentAttention):
        return CacheGroup(mixer.kind, count, count * (_latent_bytes(mixer, fmt) + _index_bytes(mixer, fmt)))
    return CacheGroup(mixer.kind, count, count * _head_bytes(mixer, fmt), mixer.window)


def _head_bytes(mixer: Attention, fmt: Format) -> int:
    return fmt.size(mixer.num_kv_heads, mixer.key_dim) + fmt.size(mixer.num_kv_heads, mixer.value_dim)


def _latent_bytes(mixer: LatentAttention, fmt: Format) -> int:
    return fmt.size(1, mixer.latent_dim) + fmt.size(1, mixer.rope_dim)


def _index_bytes(mixer: LatentAttention, fmt: Format) -> int:
    return fmt.size(1, mixer.index_dim) if mixer.index_dim else 0


def kv_bytes_per_token(anatomy: Anatomy, fmt: Format) -> int:
    """By how much a sequence grows per token once its windows are full."""
    return sum(group.bytes_per_token for group in cache_groups(anatomy, fmt) if group.window is None)


def kv_bytes(anatomy: Anatomy, context: int, fmt: Format) -> int:
    return sum(group.bytes_at(context) for group in cache_groups(anatomy, fmt))


def decode_read_bytes(anatomy: Anatomy, context: int, fmt: Format) -> int:
    """Cache traffic of one decode step of one sequence: what it keeps is read, a recurrent state also written back; of
    a sparse attention's latents only the chosen ones are read. Layers that share a cache each read it."""
    total = 0
    for layer in anatomy.layers:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention) and mixer.top_k:
            total += _index_bytes(mixer, fmt) * context + _latent_bytes(mixer, fmt) * min(context, mixer.top_k)
        elif isinstance(mixer, Attention):
            total += _head_bytes(mixer, fmt) * _visible_keys(mixer, context)
        else:
            group = _group(mixer, 1, fmt)
            total += group.bytes_at(context) + group.state_bytes
    return total


def _visible_keys(mixer: Attention, context: int) -> int:
    """Of the last of `context` tokens."""
    if mixer.window is None:
        return context
    if mixer.kind == "chunked":
        return (context - 1) % mixer.window + 1 if context else 0
    return min(context, mixer.window)
