"""Floating-point operations that a model cannot do without: products with weights, and attention.

A multiply-add is 2 FLOPs. Attention of a query over n keys takes 2 x heads x (key size + value size) x n. The causal
mask is counted exactly: the query at position p sees p + 1 keys, or as many as its window or chunk allows. Norms,
softmax, rotations and short convolutions are left out, which only lowers a floor.

MLA has two forms. Decompressed, keys and values of every head are made from the latent (for new tokens that product is
among the linear ones; for cached tokens it is done again). Absorbed, queries are mapped into the latent instead: no
decompression, but 2 x heads x (2 x latent + rope) per key. A step uses the cheaper of both.
"""

from __future__ import annotations

from ridgeline.model.anatomy import Anatomy, Attention, LatentAttention, Mixer, Recurrent


def linear_flops(anatomy: Anatomy, num_tokens: int, num_logit_rows: int) -> float:
    """2 per weight of a matrix and token: layers once per token, the output matrix once per row of logits."""
    weights = 0
    for layer in (*anatomy.layers, anatomy.shared):
        weights += sum(matrix.num_values for matrix in layer.matrices)
        if layer.experts:
            weights += layer.experts.active * sum(matrix.num_values for matrix in layer.experts.matrices)
    return 2.0 * weights * num_tokens + 2.0 * anatomy.head.num_values * num_logit_rows


def attention_flops(anatomy: Anatomy, start: int, end: int) -> float:
    """Of the tokens at positions start..end-1 of one sequence, the `start` before them cached."""
    counts: dict[Mixer | None, int] = {}
    for layer in anatomy.layers:
        counts[layer.mixer] = counts.get(layer.mixer, 0) + 1
    return float(sum(count * _mixer_flops(mixer, start, end) for mixer, count in counts.items() if mixer))


def _mixer_flops(mixer: Mixer, start: int, end: int) -> int:
    if isinstance(mixer, Recurrent):
        return (end - start) * mixer.flops_per_state_value * mixer.state_values
    if isinstance(mixer, LatentAttention):
        return _latent_flops(mixer, start, end)
    return 2 * mixer.num_heads * (mixer.key_dim + mixer.value_dim) * _visible_keys(mixer, start, end)


def _latent_flops(mixer: LatentAttention, start: int, end: int) -> int:
    keys = _triangle(start, end, mixer.top_k)
    absorbed = 2 * mixer.num_heads * (2 * mixer.latent_dim + mixer.rope_dim) * keys
    expanded_dim = mixer.nope_dim + mixer.value_dim
    decompressed = 2 * mixer.num_heads * (mixer.rope_dim + expanded_dim) * keys
    decompressed += 2 * mixer.num_heads * expanded_dim * mixer.latent_dim * start
    indexer = 2 * mixer.index_heads * mixer.index_dim * _triangle(start, end, None)
    return min(absorbed, decompressed) + indexer


def _visible_keys(mixer: Attention, start: int, end: int) -> int:
    if mixer.kind == "chunked" and mixer.window:
        return _chunked(end, mixer.window) - _chunked(start, mixer.window)
    return _triangle(start, end, mixer.window)


def _triangle(start: int, end: int, limit: int | None) -> int:
    """Sum of min(p + 1, limit) over p in start..end-1."""
    if limit is None:
        return (end * (end + 1) - start * (start + 1)) // 2
    split = min(max(start, limit), end)
    return _triangle(start, split, None) + (end - split) * limit


def _chunked(end: int, chunk: int) -> int:
    """Sum of p % chunk + 1 over p in 0..end-1."""
    whole, rest = divmod(end, chunk)
    return whole * _triangle(0, chunk, None) + _triangle(0, rest, None)
