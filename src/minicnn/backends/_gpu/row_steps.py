"""Steps of the template with which a region begins: the product with rows in memory, and that with their transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicnn.backends._gpu.region_layout import ElementLoop, Layout
from minicnn.kernels.blocks import BLOCK, NUMBER
from minicnn.kernels.expressions import PLACE, Apply, Array, Expr, Name, Number, Select
from minicnn.kernels.statements import Barrier, Let, Loop, Statement, Step, when
from minicnn.program.graph import Value

if TYPE_CHECKING:
    from minicnn.backends._gpu.writer import Writer

TURN, TILE, ROWS = Name("turn", PLACE), Name("tile", PLACE), Name("rows", PLACE)
_MORE, _HALF = Name("more", "bool"), Name("half", PLACE)
_THREADS = 128  # that multiply while as many add
_TITLES = {
    "declare": "rows in memory go through shared memory, and are multiplied on tensor cores",
    "find": "look up where the rows of a tile lie", "keep": "keep where those of a turn lie",
    "copy_weights": "copy the weights", "begin": "make operands of the weights", "load": "copy the rows of a turn",
    "ahead": "copy the rows of the next turn", "wait": "wait for what is copied",
    "multiply": "multiply the rows of a turn by the weights", "note": "note the largest of a column",
    "forget": "forget the largest", "split": "make operands of the gradient",
    "accumulate": "add the product of the transpose of a turn's rows with the gradient",
    "leave": "leave the sums of these products", "finish": "store them",
}  # fmt: skip


@dataclass(frozen=True)
class Early:
    """Elements of a region that wait for nothing in it.

    Attributes:
        loads: Statements that compute those of a tile.
        stores: Statements that put them where they are read.
    """

    loads: Callable[[Expr], Sequence[Statement]]
    stores: Sequence[Statement]


class RowSteps:
    """Steps of the template, in the order in which a block takes them; an engine says how each is written.

    The rows of the next turn are on their way while those of a turn are computed with, if shared memory has room.

    Args:
        writer: The writer of the kernel.
        layout: The region.
        partial: Where a block leaves its sums of products with the gradient, if it makes any.
    """

    def __init__(self, writer: Writer, layout: Layout, partial: Value | None) -> None:
        if layout.region.product is None:
            raise TypeError("A region without rows in memory has no such steps.")
        self.writer, self.layout, self.region, self.partial = writer, layout, layout.region, partial
        self.product = layout.region.product
        self._ahead = self.region.tile.stages - 1  # turns whose rows are on their way

    def step(self, name: str, *arguments: Expr, beside: str = "") -> Step:
        """A step by its name; `beside`: further arguments, as the engine writes them."""
        return Step(_TITLES[name], self.text(name, len(arguments), beside), arguments)

    def text(self, name: str, arguments: int, beside: str) -> str:
        """Text of a step."""
        return ""

    # What an engine writes beside -----------------------------------------------------------------

    def declare(self) -> list[Statement]:
        """Declarations of the template."""
        tile = self.region.tile
        sizes = ", ".join(f"{name} = {value}" for name, value in tile.chosen)
        return [Step(f"{_TITLES['declare']} by a {type(tile).__name__}: {sizes}", "")]

    def find(self, row: Expr) -> Statement:
        """The step that looks up where rows lie."""
        return self.step("find", row)

    def copy_weights(self) -> Statement:
        """The step that copies the weights."""
        return self.step("copy_weights")

    def split(self, gradient: Array) -> list[Statement]:
        """Steps behind the barrier that ends the gradient's level."""
        return [self.step("split", ROWS)]

    def store(self) -> list[Statement]:
        """Steps that store the sums of products with the gradient, behind a barrier."""
        return [self.step("finish")]

    def element(self, e: Expr) -> Expr:
        """Element of the product, by its number in the tile."""
        return Apply("product", (e,))

    # Their order ----------------------------------------------------------------------------------

    def is_early(self, loop: ElementLoop) -> bool:
        """True if a loop of the first level is done a turn ahead."""
        return self.product.node not in loop.nodes

    def begin(self, early: Early) -> list[Statement]:
        """Steps before the first tile."""
        tile, ahead = self.region.tile, bool(self._ahead)
        following = [self.step("load", Number(0, PLACE)), self.find((BLOCK + tile.blocks) * tile.rows)]
        # What waits for nothing is read a tile ahead, so that its latency passes while the product is computed.
        return [
            *self.declare(), self.find(BLOCK * tile.rows), self.copy_weights(), self.step("keep", Number(0, PLACE)),
            Barrier(), *following * ahead, *early.loads(BLOCK), *early.stores, self.step("begin"),
            *[self.step("keep", Number(1, PLACE)), Barrier()] * ahead,
        ]  # fmt: skip

    def head(self, early: Early) -> list[Statement]:
        """Steps with which a tile begins."""
        step, last = self.region.tile.blocks, self.region.tiles - 1
        following = TILE + step
        return [
            Let(_MORE, following < self.region.tiles), *[self.step("load", TURN)] * (not self._ahead),
            self.find((TILE + (self._ahead + 1) * step) * self.region.tile.rows),
            *early.loads(Select(following < last, following, Number(last, PLACE))), self.step("wait"), Barrier(),
            self.step("multiply", TURN, _MORE), Barrier(),
        ]  # fmt: skip

    def behind_product(self) -> list[Statement]:
        """Steps when nobody reads the product any more."""
        return [self.step("ahead", TURN, _MORE)]

    def note(self, column: Expr, x: Expr) -> list[Statement]:
        """Steps that take note of an element of the gradient."""
        return [self.step("note", column, x)]

    def summed(self, others: Sequence[Statement]) -> list[Statement]:
        """Statements that add the product with the gradient, and other sums."""
        # Half of the warps multiply while the others add, and then the other way: tensor cores and adders are both
        # busy.
        turn = (NUMBER // _THREADS + _HALF) % 2
        accumulate = self.step("accumulate", TURN, _MORE)
        if not others:
            return [accumulate]
        return [Loop(_HALF, 2, (*when([turn.equals(1)], others), *when([turn.equals(0)], [accumulate])), 1)]

    def before_last(self, early: Early) -> list[Statement]:
        """Steps before the last level of a tile."""
        return []

    def tail(self, early: Early) -> list[Statement]:
        """Steps with which a tile ends."""
        forget = [self.step("forget")] * (self.product.gradient is not None)
        return [*early.stores, self.step("keep", TURN), *forget, *[Barrier()] * (not self._ahead)]

    def leave(self) -> list[Statement]:
        """Steps behind the last tile, between two barriers."""
        return [self.step("leave")]
