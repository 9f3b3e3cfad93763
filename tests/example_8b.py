"""The handbook's model by hand: a dense decoder whose figures can be checked on paper."""

from dataclasses import dataclass

BYTES = {"fp32": 4, "bf16": 2, "int8": 1, "fp8": 1, "int4": 0.5}


@dataclass(frozen=True)
class DenseFacts:
    """Has what `cost.facts.ModelFacts` has."""

    name: str = "example-8b"
    architecture: str = "llama"
    max_context: int = 131_072
    tied: bool = False
    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 14336
    vocab: int = 128_000
    nominal_parameters: float | None = 8e9
    stored_format: str = "bf16"
    assumptions: tuple[str, ...] = ()
    note: str | None = None

    @property
    def embedding_parameters(self):
        return self.vocab * self.hidden

    @property
    def layer_matrices(self):
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def parameters(self):
        norms = (2 * self.layers + 1) * self.hidden
        return 2 * self.embedding_parameters + self.layers * self.layer_matrices + norms

    @property
    def active_parameters(self):
        return self.parameters

    def weight_bytes(self, fmt):
        return round(self.parameters * BYTES[fmt])

    def decode_read_bytes(self, fmt, batch=1):
        return (self.parameters - self.embedding_parameters + batch * self.hidden) * BYTES[fmt]

    def kv_bytes_per_token(self, kv_fmt="bf16"):
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES[kv_fmt]

    def kv_bytes(self, context, kv_fmt="bf16"):
        return context * self.kv_bytes_per_token(kv_fmt)

    def kv_read_bytes(self, context, kv_fmt="bf16"):
        return self.kv_bytes(context, kv_fmt)

    def linear_flops(self, num_tokens, num_logit_rows):
        return 2.0 * (num_tokens * self.layers * self.layer_matrices + num_logit_rows * self.embedding_parameters)

    def attention_flops(self, start, end):
        pairs = (end * (end + 1) - start * (start + 1)) // 2
        return 4.0 * self.layers * self.heads * self.head_dim * pairs
