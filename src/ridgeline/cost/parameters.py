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
    output: Format | None = None  # the output matrix, and a table that is one with it; None: as other tables

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
        """Of tables that are looked up."""
        return self.fmt if self.fmt.covers_embeddings else self.plain

    @property
    def head(self) -> Format:
        """Of the output matrix."""
        return self.output or self.table

    def embedding(self, anatomy: Anatomy) -> Format:
        """Of the embedding, which goes with a tied output matrix unless all weights are rotated."""
        return self.head if anatomy.tied and not self.fmt.is_rotated else self.table

    def keeps_tied(self, anatomy: Anatomy) -> bool:
        """Whether embedding and output matrix are one: rotated ones never are."""
        return anatomy.tied and not self.fmt.is_rotated and not self.head.is_rotated


def uniform_formats(fmt: Format, head: Format | None = None) -> WeightFormats:
    """Every matrix in one format, perhaps with an output matrix in another; what that leaves alone in 16 bits."""
    return WeightFormats(fmt, fmt if fmt.covers_embeddings else FORMATS["bf16"], fmt.vectors, output=head)


def module_name(matrix: Matrix, layer: int) -> str:
    return f"model.layers.{layer}.{matrix.name}"


def table_parameters(anatomy: Anatomy) -> int:
    """Embedding and other tables that are looked up, and the output matrix when it is one of its own."""
    tables = anatomy.embedding.num_values + sum(table.num_values for table in anatomy.lookups)
    return tables if anatomy.tied else tables + anatomy.head.num_values


def total_parameters(anatomy: Anatomy) -> int:
    """Unique parameters. Routing biases that are no parameters but buffers are left out, as are prediction layers."""
    layers = sum(layer.num_values for layer in anatomy.layers)
    return layers + anatomy.shared.num_values + table_parameters(anatomy)


def active_parameters(anatomy: Anatomy) -> int:
    """Of those, the ones that take part in one token: all but the experts it is not routed to."""
    layers = sum(layer.num_active_values for layer in anatomy.layers)
    return layers + anatomy.shared.num_values + table_parameters(anatomy)


def distinct_experts(experts: Experts, batch: int) -> float:
    """The expected number of a layer's experts that a step of `batch` tokens reads."""
    return experts.total * (1 - (1 - experts.active / experts.total) ** batch)


def weight_bytes(anatomy: Anatomy, formats: WeightFormats) -> int:
    """Everything, a tied table once."""
    head = _table_bytes(anatomy.head, formats.head)
    if not formats.keeps_tied(anatomy):
        head += _table_bytes(anatomy.embedding, formats.embedding(anatomy))
    lookups = sum(_table_bytes(table, formats.table) for table in anatomy.lookups)
    return round(_block_bytes(anatomy, formats, None)) + head + lookups


def decode_read_bytes(anatomy: Anatomy, formats: WeightFormats, batch: int) -> float:
    """Read by one decode step of `batch` sequences; `batch` rows at most of tables that are only looked up."""
    rows = sum(_table_bytes(table, formats.table, batch) for table in anatomy.lookups)
    if not formats.keeps_tied(anatomy):
        rows += _table_bytes(anatomy.embedding, formats.embedding(anatomy), batch)
    return _block_bytes(anatomy, formats, batch) + _table_bytes(anatomy.head, formats.head) + rows


def _table_bytes(table: Matrix, fmt: Format, rows: int | None = None) -> int:
    """All rows, or `rows` of them at most."""
    return fmt.size(table.outputs if rows is None else min(rows, table.outputs), table.inputs)


def _block_bytes(anatomy: Anatomy, formats: WeightFormats, batch: int | None) -> float:
    """All layers and what they share; `batch` None: every expert."""
    total = 0.0
    for i, block in enumerate((*anatomy.layers, anatomy.shared)):
        total += sum(formats.matrix_bytes(matrix, i) for matrix in block.matrices)
        total += formats.vectors.size(1, block.vector_values)
        if block.experts:
            one = sum(formats.matrix_bytes(matrix, i) for matrix in block.experts.matrices)
            one += formats.vectors.size(1, block.experts.vector_values)
            total += one * (block.experts.total if batch is None else distinct_experts(block.experts, batch))
    return total
