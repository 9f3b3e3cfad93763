"""Parameters and the bytes of weights: all of them, and those that one decode step reads.

A decode step reads every matrix of every layer once, whatever the batch; of experts only those that some sequence was
routed to, E (1 - (1 - k/E)^B) of E for B sequences with k experts each (uniform, independent routing); of embedding and
position tables the sequences' own rows, unless the table is the output matrix too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.model.anatomy import Anatomy, Experts, Matrix
from ridgeline.quant.formats import FORMATS, Format
from ridgeline.quant.released import Release


@dataclass(frozen=True)
class WeightFormats:
    """The format of each matrix: `fmt` where the release (None: every one) converts, `plain` elsewhere."""

    fmt: Format
    plain: Format  # matrices that stay as they are
    vectors: Format  # norms, biases, routers
    release: Release | None = None

    def of(self, matrix: Matrix, layer: int) -> Format:
        if matrix.is_router:
            return self.vectors
        if self.release and not self.release.converts(module_name(matrix, layer)):
            return self.plain
        return self.fmt

    def matrix_bytes(self, matrix: Matrix, layer: int) -> int:
        return self.of(matrix, layer).size(matrix.outputs, matrix.inputs)

    @property
    def table(self) -> Format:
        """Of the embedding and output matrices."""
        return self.fmt if self.fmt.covers_embeddings else self.plain


def uniform_formats(fmt: Format) -> WeightFormats:
    """Every matrix in one format; what that leaves alone in 16 bits."""
    return WeightFormats(fmt, fmt if fmt.covers_embeddings else FORMATS["bf16"], fmt.vectors)


def module_name(matrix: Matrix, layer: int) -> str:
    return f"model.layers.{layer}.{matrix.name}"


def table_parameters(anatomy: Anatomy) -> int:
    """Embedding, positions, and the output matrix when it is one of its own."""
    tables = anatomy.embedding.num_values + anatomy.num_positions * anatomy.hidden_size
    return tables if anatomy.tied else tables + anatomy.head.num_values


def total_parameters(anatomy: Anatomy) -> int:
    """Unique parameters. Routing biases that are no parameters but buffers are left out, as are prediction layers."""
    layers = sum(layer.num_values for layer in anatomy.layers)
    return layers + anatomy.final_vector_values + table_parameters(anatomy)


def active_parameters(anatomy: Anatomy) -> int:
    """Of those, the ones that take part in one token: all but the experts it is not routed to."""
    layers = sum(layer.num_active_values for layer in anatomy.layers)
    return layers + anatomy.final_vector_values + table_parameters(anatomy)


def distinct_experts(experts: Experts, batch: int) -> float:
    """The expected number of a layer's experts that a step of `batch` tokens reads."""
    return experts.total * (1 - (1 - experts.active / experts.total) ** batch)


def weight_bytes(anatomy: Anatomy, formats: WeightFormats) -> int:
    """Everything, a tied table once."""
    tables = _table_bytes(anatomy, formats, anatomy.vocab_size)
    tables += formats.plain.size(anatomy.num_positions, anatomy.hidden_size)
    if not anatomy.tied:
        tables += formats.table.size(anatomy.vocab_size, anatomy.hidden_size)
    return round(_layer_bytes(anatomy, formats, None)) + tables


def decode_read_bytes(anatomy: Anatomy, formats: WeightFormats, batch: int) -> float:
    """Read by one decode step of `batch` sequences; `batch` rows at most of tables that are only looked up."""
    rows = min(batch, anatomy.vocab_size)
    lookups = formats.plain.size(min(batch, anatomy.num_positions), anatomy.hidden_size)
    if not anatomy.tied:
        lookups += _table_bytes(anatomy, formats, rows)
    head = formats.table.size(anatomy.vocab_size, anatomy.hidden_size)
    return _layer_bytes(anatomy, formats, batch) + head + lookups


def _table_bytes(anatomy: Anatomy, formats: WeightFormats, rows: int) -> int:
    return formats.table.size(rows, anatomy.hidden_size)


def _layer_bytes(anatomy: Anatomy, formats: WeightFormats, batch: int | None) -> float:
    """All layers and the vectors after them; `batch` None: every expert."""
    total = float(formats.vectors.size(1, anatomy.final_vector_values))
    for i, layer in enumerate(anatomy.layers):
        total += sum(formats.matrix_bytes(matrix, i) for matrix in layer.matrices)
        total += formats.vectors.size(1, layer.vector_values)
        if layer.experts:
            one = sum(formats.matrix_bytes(matrix, i) for matrix in layer.experts.matrices)
            one += formats.vectors.size(1, layer.experts.vector_values)
            total += one * (layer.experts.total if batch is None else distinct_experts(layer.experts, batch))
    return total
