"""Plain tiles of products and sums for any GPU, by its limits and a small model of its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends._gpu.tiling import ProductTile, ReductionTile
from minicnn.kernels.products import Product, product_of
from minicnn.kernels.tiles import TileShape
from minicnn.program.graph import ITEMSIZE, Node, Value

THREADS = 256
SHAPES = tuple(
    TileShape(rows, columns, thread_rows, thread_columns, depth)  # each with 256 threads or fewer
    for rows, columns, thread_rows, thread_columns, depth in (
        (64, 64, 4, 4, 16), (128, 64, 8, 4, 8), (32, 32, 2, 2, 32), (128, 32, 4, 4, 16), (64, 32, 4, 2, 16),
        (128, 16, 4, 2, 16), (256, 16, 4, 4, 8), (256, 8, 4, 2, 8), (16, 16, 1, 1, 32), (16, 64, 2, 2, 32),
        (64, 16, 2, 2, 32), (16, 128, 2, 4, 16), (32, 128, 4, 4, 16),
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlainTile(ProductTile):
    """Tile of any product, such as that of a convolution, an element of either matrix at a time."""


@dataclass(frozen=True)
class PlainTiles(Tiles):
    """Tiles in the kernel language; rows are computed by elements."""

    byte_products: bool = False

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> PlainTile | None:
        """See `Tiles.convolution`; a pooling is a launch of its own."""
        return None if pool else self._tile(product_of(node), node)

    def weight_gradient(self, node: Node) -> PlainTile | None:
        """See `Tiles.weight_gradient`."""
        return self._tile(product_of(node), node, split=True)

    def product(self, node: Node, *, joined: bool = False) -> PlainTile:
        """See `Tiles.product`."""
        return self._tile(product_of(node), node, split=True)

    def _tile(self, product: Product, node: Node, *, split: bool = False) -> PlainTile:
        """The tile with the least modelled time."""
        itemsize, gpu = max(4, ITEMSIZE[node.outputs[0].dtype]), self.gpu  # it computes in float32 at least
        best: PlainTile | None = None
        for shape in SHAPES:
            shared = shape.numbers(product) * itemsize
            if shared > gpu.shared_block or shape.threads > gpu.threads_block:
                continue
            blocks = shape.blocks(product)
            most = max(1, product.terms // (4 * shape.depth)) if split else 1
            for goal in (1, 2, 4):
                splits = max(1, min(most, goal * gpu.multiprocessors // blocks))
                whole = replace(shape, splits=splits)
                score = self._cycles(product, whole)
                if best is None or score < best.score:
                    best = PlainTile(
                        blocks=whole.blocks(product), threads=shape.threads, splits=splits, shared=shared, score=score,
                        shape=whole,
                    )  # fmt: skip
        if best is None:
            raise AssertionError("The smallest tile fits every adapter.")
        return best

    def _cycles(self, product: Product, shape: TileShape) -> float:
        """Modelled cycles: the blocks of a core one after the other, each step's loads and multiply-adds; its sums."""
        rounds = math.ceil(shape.blocks(product) / self.gpu.multiprocessors)
        steps = shape.run(product) / shape.depth
        # A multiply-add takes two reads of shared memory, which rows and columns of a thread share.
        reads = 1 + 1.2 / shape.thread_rows + 1.2 / shape.thread_columns
        work = shape.rows * shape.columns * shape.depth * reads / self.gpu.lanes32
        filled = (shape.rows + shape.columns) * shape.depth / self.gpu.lanes32 * 12
        # A block waits for its loads, then works; other blocks of the core work while it waits.
        step = max(work + filled, (work + filled + 600) / min(4, rounds))
        partial = shape.splits * product.rows * product.columns * product.groups / (4 * self.gpu.multiprocessors)
        return rounds * steps * step + (partial + 3000 if shape.splits > 1 else 0)

    def reduction(self, results: int, terms: int, *, terms_first: bool) -> ReductionTile:
        """See `Tiles.reduction`."""
        side = 1
        while side < min(results, THREADS // 8 if not terms_first else 8 if terms < 256 else 1):
            side *= 2
        lanes, columns = THREADS // side, -(-results // side)
        splits = max(1, min(2 * self.gpu.multiprocessors // columns, terms // (lanes * 8)))
        return ReductionTile(
            results=results, terms=terms, columns=side, rows=lanes, terms_first=terms_first, blocks=columns * splits,
            threads=THREADS, splits=splits,
        )  # fmt: skip

    def takes_rows(self, node: Node, rows: Value) -> bool:
        """See `Tiles.takes_rows`."""
        return False

    def size_region(self, region: RowRegion) -> bool:
        """See `Tiles.size_region`; rows are computed by elements."""
        return False
