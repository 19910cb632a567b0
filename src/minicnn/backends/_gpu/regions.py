"""Row-wise regions as statements."""

from __future__ import annotations

from minicnn.backends._gpu.region_levels import Levels
from minicnn.backends._gpu.region_rows import ThreadRows
from minicnn.backends._gpu.writer import Writer
from minicnn.kernels.expressions import SHARED, Array
from minicnn.kernels.lanes import exchanged
from minicnn.kernels.statements import Shared, Statement
from minicnn.program.graph import Node


def region_statements(writer: Writer, node: Node) -> list[Statement]:
    """Statements of a region's blocks."""
    one = (ThreadRows if writer.plan.tiles.layout(node.attrs["region"]).thread_per_row else Levels)(writer, node)
    statements = one.statements()
    if one.layout.shuffles:
        return statements
    arrays: dict[str, Array] = {}

    def exchange(dtype: str) -> Array:
        return arrays.setdefault(dtype, Array(f"exchange_{dtype}", dtype, one.region.tile.threads, memory=SHARED))

    statements = list(exchanged(statements, exchange))
    return [*(Shared(array, one.layout.exchange) for array in arrays.values()), *statements]
