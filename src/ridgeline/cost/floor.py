"""The decode floor: no machine generates a token faster than it can read what the token needs.

    floor TPOT = (weight bytes read per token + KV bytes read per token) / read bandwidth

At batch 1 every matrix is read once per token. Of an untied embedding table one row is read; a tied one is read
whole, as the output matrix. Rotary tables and activations stay in the caches and are left out, which only lowers
the floor.
"""

from __future__ import annotations

from ridgeline.cost.memory import bytes_per_value, kv_bytes_per_token, weight_bytes
from ridgeline.model.spec import ModelSpec


def decode_weight_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of weights that one decode step at batch 1 reads."""
    unread_rows = 0 if spec.tie_embeddings else spec.vocab_size - 1
    return weight_bytes(spec, dtype) - unread_rows * spec.hidden_size * bytes_per_value(dtype)


def decode_bytes(spec: ModelSpec, *, dtype: str, kv_dtype: str, context_len: float) -> int:
    """Bytes that one decode step at batch 1 reads when `context_len` tokens are in the KV cache."""
    return decode_weight_bytes(spec, dtype) + round(kv_bytes_per_token(spec, kv_dtype) * context_len)
