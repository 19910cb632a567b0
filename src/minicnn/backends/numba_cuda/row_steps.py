"""Python of the steps of the product with rows of bytes: those of `kernels/bytes_product.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minicnn.backends._gpu.region_layout import ElementLoop
from minicnn.backends._gpu.row_steps import ROWS, TILE, Early, RowSteps
from minicnn.backends.numba_cuda.printer import CudaPython
from minicnn.backends.numba_cuda.tiling import byte_tile_of
from minicnn.kernels.blocks import BLOCK
from minicnn.kernels.expressions import PLACE, SHARED, Array, Body, Expr, Load, Name, Number, Select
from minicnn.kernels.statements import Assign, Barrier, Loop, Shared, Statement, Step, Variable

if TYPE_CHECKING:
    from minicnn.backends.numba_cuda.generation import PythonWriter

_FOLLOWING = Name("following", PLACE)


class PythonRowSteps(RowSteps):
    """Steps as functions; the bytes of the next tile, and what waits for nothing, are in registers on their way."""

    writer: PythonWriter

    def call(self, name: str, text: str, *arguments: Expr) -> Step:
        """A step that calls one of the functions."""
        return Step(f"{name} rows of bytes", f"{self.functions[name]}({text})", arguments)

    def declare(self) -> list[Statement]:
        """See `RowSteps.declare`."""
        writer, product, tile = self.writer, self.product, byte_tile_of(self.region)
        if tile is None:
            raise TypeError("A region without rows in memory has no such steps.")
        rows, first, m = writer.plan.root(product.stored), "index(0)", tile.M
        if id(rows) in writer.queued:
            writer.reads_queue = True
            first = f"index(p[-1] * {rows.size})"
        x = writer.device("p", f"    return {writer.parameter(rows)}, {first}\n")
        place = f"index({writer.function(product.index)}(p, r))" if product.index is not None else "r"
        where = writer.device("p, r", f"    return {place}\n")
        weight, scale = writer.function(product.node.inputs[1]), CudaPython.literal(product.scale, "float32")
        dy, out = 0, "None"
        parts = ["begin", "load", "store", "multiply"]
        if product.gradient is not None and self.partial is not None:
            dy, part = self.layout.slots[id(product.gradient.inputs[1])] // 4, writer.parameter(self.partial)
            place = f"index(number * {tile.K * m} + i)"
            out = writer.device("p, number, i, total", f"    {part}[{place}] = total * {scale}\n")
            parts += ["clear", "accumulate", "finish"]
        stream = writer.define(f"{{name}} = byte_rows({tile}, {x}, {where}, {weight}, {dy}, {out})\n")
        self.functions = {name: writer.define(f"{{name}} = {stream}.{name}\n") for name in parts}
        self.memory = Array("shared", "float32", tile.nbytes // 4, memory=SHARED)
        self.tile = tile
        arrays = ["words = cuda.shared.array(0, types.uint32, ALIGNED)"]
        arrays.append(f"fetched = cuda.local.array({tile.loads * tile.width}, index)")
        steps: list[Statement] = [Shared(self.memory, 0), *(Step("rows of bytes", text) for text in arrays)]
        if "clear" in self.functions:
            gradient = f"gradient = cuda.local.array({tile.words_per_thread * 4 * m}, np.float32)"
            steps += [Step("registers for the gradient's sums", gradient), self.call("clear", "gradient")]
        return steps

    def split(self, gradient: Array) -> list[Statement]:
        """See `RowSteps.split`."""
        return [self.call("accumulate", "shared, words, gradient, cuda.threadIdx.x, {0}", ROWS)]

    def store(self) -> list[Statement]:
        """See `RowSteps.store`."""
        return [self.call("finish", "p, gradient, cuda.threadIdx.x, number")]

    def element(self, e: Expr) -> Expr:
        """See `RowSteps.element`."""
        total, k = Name("total", "float32"), Name("k", PLACE)
        tile = self.tile
        part = Load(self.memory, k * tile.sums_pitch + (e + tile.sums_at))
        add = Loop(k, min(tile.slices, tile.words), (Assign(total, total + part),))
        return Body((Variable(total, Number(0, "float32")), add), total, "float32")

    def is_early(self, loop: ElementLoop) -> bool:
        """See `RowSteps.is_early`."""
        few = loop.lanes == 1 and loop.columns * self.region.tile.rows <= self.region.tile.threads
        return few and all(map(self.layout.early, loop.nodes))

    def _fetch(self, early: Early) -> list[Statement]:
        """Loads of the tile that follows; names last from one turn to the next."""
        tiles = self.region.tiles
        known = Select(tiles > _FOLLOWING, _FOLLOWING, Number(tiles - 1, PLACE))
        return [*early.loads(known), self.call("load", "p, fetched, cuda.threadIdx.x, {0}", _FOLLOWING)]

    def begin(self, early: Early) -> list[Statement]:
        """See `RowSteps.begin`."""
        weights = self.declare()
        begin = self.call("begin", "p, 0, shared, cuda.threadIdx.x")
        return [*weights, Variable(_FOLLOWING, BLOCK), *self._fetch(early), begin]

    def head(self, early: Early) -> list[Statement]:
        """See `RowSteps.head`."""
        return [
            *early.stores, self.call("store", "fetched, words, cuda.threadIdx.x"), Barrier(),
            self.call("multiply", "shared, words, cuda.threadIdx.x"), Barrier(),
        ]  # fmt: skip

    def behind_product(self) -> list[Statement]:
        """See `RowSteps.behind_product`."""
        return []

    def note(self, column: Expr, x: Expr) -> list[Statement]:
        """See `RowSteps.note`."""
        return []

    def summed(self, others: Sequence[Statement]) -> list[Statement]:
        """See `RowSteps.summed`; the product is added in the level before."""
        return list(others)

    def before_last(self, early: Early) -> list[Statement]:
        """See `RowSteps.before_last`."""
        return [Assign(_FOLLOWING, TILE + self.region.tile.blocks), *self._fetch(early)]

    def tail(self, early: Early) -> list[Statement]:
        """See `RowSteps.tail`."""
        return []

    def leave(self) -> list[Statement]:
        """See `RowSteps.leave`."""
        return []
