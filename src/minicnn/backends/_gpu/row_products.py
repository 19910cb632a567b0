"""Products with rows in memory, with which regions begin: which those are, and how their rows go through blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.region_layout import Layout, RowProduct, RowRegion, StoredRows
from minicnn.backends._gpu.row_tiles import ByteRowTile, FloatRowTile, RowProductTile
from minicnn.backends._gpu.tiles import Tiles
from minicnn.program.graph import Program, Value

ROWS = (16, 32, 48, 64, 80, 96, 112, 128)  # that a block takes at a time


def stored_rows(value: Value) -> StoredRows | None:
    """The rows in memory that a float32 matrix consists of: bytes that are converted, and scaled; or as they are."""
    scale, batch, dtype, scaled = 1.0, value.shape[0] if value.shape else 0, value.dtype, False
    if dtype != "float32":
        return None
    # Walk from the product back to memory, through what a load can do on the way: gather, convert, scale.
    while value.node is not None:
        node = value.node
        name = node.op.name
        if name == "take" and (value.dtype == "uint8" or not scaled):
            stored, index = node.inputs
            return StoredRows(stored, index, scale) if index.shape == (batch,) and _in_memory(stored) else None
        if name in ("multiply", "divide") and dtype == "float32":
            values = [v for v in node.inputs if v.shape == value.shape]
            # One number for all elements only: the product is linear in it, so that it is applied to sums.
            factors = [v.data for v in node.inputs if v.kind == "constant" and v.data is not None and v.size == 1]
            if len(values) != 1 or len(factors) != 1 or (name == "divide" and node.inputs[0] is not values[0]):
                return None
            factor = float(factors[0].flat[0])
            scale, value, scaled = scale * (factor if name == "multiply" else 1 / factor), values[0], True
        elif name == "cast" and dtype == "float32" and node.inputs[0].dtype == "uint8":
            value = node.inputs[0]
            dtype = "uint8"
        elif name == "reshape" and node.inputs[0].shape[:1] == (batch,):
            value = node.inputs[0]
        else:
            return None
    known = _in_memory(value) and value.shape[:1] == (batch,) and (dtype == "uint8" or not scaled)
    return StoredRows(value, None, scale) if known else None


def _in_memory(value: Value) -> bool:
    return value.node is None and value.kind != "constant" and value.dtype in ("uint8", "float32")


def conversions(value: Value) -> set[int]:
    """The nodes that make a matrix of rows in memory."""
    casts: set[int] = set()
    while value.node is not None:
        casts.add(id(value.node))
        value = max(value.node.inputs, key=lambda v: v.size if v.kind != "constant" else -1)
    return casts


def find(program: Program, tiles: Tiles) -> dict[int, StoredRows]:
    """The products with rows in memory that regions may take, and those with the transpose of such rows, by their ids.

    Rows of float32 go through blocks if there are some for each: for fewer, products of their own have more blocks.

    Args:
        program: The Program.
        tiles: The GPU that they are for, and with which rows a region may begin there.
    """
    gpu = tiles.gpu
    products = [(n, rows) for n in program.nodes if n.op.name == "matmul" if (rows := stored_rows(n.inputs[0]))]
    first_products = {}
    for node, rows in products:
        if node.attrs["transpose_a"] or node.attrs["transpose_b"] or not tiles.takes_rows(node, rows.stored):
            continue
        product = RowProduct(rows.stored, rows.index, rows.scale, node, node)
        one = RowRegion(node.outputs[0].shape[0], [node], set(), product)
        # Bytes have no other kernel; floats have, which splits sums among all blocks.
        enough = rows.stored.dtype == "uint8" or one.batch >= ROWS[0] * gpu.multiprocessors
        if enough and best(one, gpu) is not None:
            first_products[id(node)] = rows
    sources = {id(rows.stored) for rows in first_products.values()}
    return first_products | {
        id(n): rows for n, rows in products if n.attrs["transpose_a"] and id(rows.stored) in sources
    }


def of_bytes(program: Program) -> set[int]:
    """The ids of all products with rows of bytes, or the transpose of such."""
    products = [n for n in program.nodes if n.op.name == "matmul"]
    return {id(n) for n in products if (rows := stored_rows(n.inputs[0])) and rows.stored.dtype == "uint8"}


def begin(one: RowRegion, streams: Mapping[int, StoredRows]) -> bool:
    """Let a region begin with its product with rows in memory, if it has one; whether it has one at most."""
    products = [n for n in one.nodes if id(n) in streams and not n.attrs["transpose_a"]]
    for node in products:
        transposed = [n for n in one.nodes if id(n) in streams and id(n) in one.sums]
        width = node.outputs[0].shape[1]
        # Both products share the rows in shared memory, and a layout for one width.
        if len(transposed) > 1 or any(n.outputs[0].shape[1] != width for n in transposed):
            return False
        rows = streams[id(node)]
        one.product = RowProduct(rows.stored, rows.index, rows.scale, node, transposed[0] if transposed else None)
    return len(products) <= 1


def candidates(one: RowRegion, product: RowProduct) -> Iterator[RowProductTile]:
    """Tiles to choose from of a region that begins with a product, which need not fit."""
    (_, columns), terms = product.node.outputs[0].shape, product.node.inputs[0].shape[1]
    family = ByteRowTile if product.stored.dtype == "uint8" else FloatRowTile
    for rows, threads, stages, slices in itertools.product(ROWS, family.THREADS, (1, 2), family.SLICES):
        if rows <= threads and slices * 32 <= threads:
            yield family(
                batch=one.batch, terms=terms, columns=columns, back=product.gradient is not None, rows=rows,
                threads=threads, stages=stages, slices=slices,
            )  # fmt: skip


def best(one: RowRegion, gpu: Gpu) -> RowProductTile | None:
    """The tile of a region that begins with its product that takes the least time; None if nothing fits.

    Args:
        one: The region, with its product.
        gpu: The GPU that it is for.
    """
    models, least = costs_on(gpu), math.inf
    chosen: RowProductTile | None = None
    for tile in candidates(one, one.product) if one.product is not None else ():
        one = replace(one, tile=tile)
        if tile.nbytes > gpu.shared_block:
            continue
        fit = gpu.resident(tile.threads, tile.registers, Layout(one).shared)
        if not fit:
            continue
        # Two blocks hide each other's barriers; each has sums of its own to leave at the end, so that more do not pay.
        resident = min(fit, 2, -(-one.tiles // gpu.multiprocessors))
        blocks = min(one.tiles, gpu.multiprocessors * resident)
        # Rounds of the block that has most tiles, as the launch waits for it.
        score = -(-one.tiles // blocks) * tile.cycles(models, one.thread_per_row, resident)
        if score < least:
            least, chosen = score, replace(tile, blocks=blocks, resident=resident)
    return chosen
