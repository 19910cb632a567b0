"""Sizes of tiles and places of regions: those of the CUDA engine on a GPU, tiny ones in the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.region_layout import Layout, RowRegion
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends._gpu.tiling import LIMITS, ProductTile, TileLimits
from minicnn.backends.numba_cuda.kernels.bytes_product import ByteTile
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.kernels.elements import MOST_ELEMENTS
from minicnn.kernels.tiles import TileShape
from minicnn.program.graph import Node, Value

SIMULATOR = replace(H200, name="simulator", multiprocessors=2)
# The simulator has a thread of the host for each of the device: small blocks, so that tests end.
_SHAPES = TileShape(4, 4, 2, 2, depth=4), TileShape(8, 2, 2, 1, depth=4), TileShape(2, 8, 1, 2, depth=4)
_SMALL = TileLimits(convolution=32, weight_gradient=16, reduction=8, products=_SHAPES, depths=(4, 8))

THREAD_COLUMNS = 16  # columns up to which a thread makes all of a row
LANES = 8  # threads side by side that have different rows of bytes
BESIDE_ROW = 432  # bytes of shared memory that a product of bytes leaves to what follows it, for each row
MOST_SUMS = 96  # registers of a thread for the sums of a product of bytes with the gradient
MANY = 1 << 22  # terms of all results from which it matters


def byte_tile_of(region: RowRegion) -> ByteTile | None:
    """Sizes of a region's product with rows of bytes, if it begins with one."""
    if region.product is None:
        return None
    k, m = region.product.node.inputs[0].shape[1], region.product.node.outputs[0].shape[1]
    one = region.tile
    return ByteTile(N=region.batch, K=k, M=m, ROWS=one.rows, LANES=one.threads // one.slices, THREADS=one.threads)


class NumbaLayout(Layout):
    """The layout of a region whose product with bytes is that of `kernels/bytes_product.py`."""

    shuffles = False

    def product_space(self) -> tuple[int, int]:
        """See `Layout.product_space`; at the end nothing of it is needed any more."""
        tile = byte_tile_of(self.region)
        return (tile.nbytes, 0) if tile is not None else (0, 0)

    def _placed(self) -> None:
        self.thread_per_row = False  # all levels have all threads
        super()._placed()


@dataclass(frozen=True)
class NumbaTiles(Tiles):
    """Tiles of the kernels in Python.

    Attributes:
        simulated: Whether blocks run in the simulator.
    """

    limits: TileLimits = _SMALL if SIMULATED else LIMITS
    simulated: bool = SIMULATED
    layout: ClassVar[type[Layout]] = NumbaLayout
    most_together: ClassVar[float] = 20  # each sum declares shared memory of its own
    stores_short: ClassVar[bool] = False

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """See `Tiles.product`; few columns of a large matrix have tiles of their own."""
        return (None if self.simulated else self._few_columns(node)) or super().product(node, joined=joined)

    def _few_columns(self, node: Node) -> ProductTile | None:
        """Tile of a product with few columns of a large matrix: a thread makes whole rows of the result in registers.

        Few rows and many terms are the weight gradient of a narrow layer, many rows its forward pass.
        """
        (m, n), ta = node.outputs[0].shape, node.attrs["transpose_a"]
        k, multiprocessors = node.inputs[0].shape[0 if ta else 1], self.gpu.multiprocessors
        if n > THREAD_COLUMNS or m * k < MANY or node.outputs[0].dtype != "float32":
            return None
        if m >= 128 * multiprocessors:
            shape = TileShape(rows=256, columns=n, thread_rows=2, thread_columns=n, depth=16)
        elif m <= 1024 and k >= 64 * multiprocessors:
            run = -(-k // (8 * 2 * multiprocessors)) * 8
            shape = TileShape(-(-m // 4) * 4, n, thread_rows=4, thread_columns=n, depth=8, splits=-(-k // run))
        else:
            return None
        return ProductTile(
            shape=shape, blocks=-(-m // shape.rows) * shape.splits, threads=shape.threads, splits=shape.splits,
            shared=shape.depth * (shape.rows + shape.thread_rows + -(-n // 4) * 4 + 4) * 4,
        )  # fmt: skip

    def shared(self, groups: Sequence[FusionGroup]) -> tuple[int, int]:
        """See `Tiles.shared`: only regions ask for theirs, all else is declared, group by group."""
        regions = [u.tile.shared for u in groups if u.tile and u.anchor.op.name == "row_region"]
        return sum(u.shared for u in groups if u.anchor.op.name != "row_region"), max(regions, default=0)

    # Regions -------------------------------------------------------------------------------------

    def takes_rows(self, node: Node, rows: Value) -> bool:
        """See `Tiles.takes_rows`; places of these rows are 32 bits wide."""
        (n, m), k = node.outputs[0].shape, node.inputs[0].shape[1]
        fits = rows.dtype == "uint8" and m <= THREAD_COLUMNS and rows.size <= MOST_ELEMENTS
        return fits and next(self._byte_tiles(n, k, m), None) is not None

    def _byte_tiles(self, n: int, k: int, m: int) -> Iterator[ByteTile]:
        """Tiles of a product of n rows of k bytes with m columns that may fit, the best first.

        The more rows the better, while there is work for all multiprocessors; of as many, best four and more for a
        thread, which read each weight once, else two, whose sums take less shared memory.
        """
        rows = [8] if self.simulated else [8, *(r for r in (16, 32, 64) if -(-2 * n // r) > self.gpu.multiprocessors)]
        for r in reversed(rows):
            for few in (False, True):
                lanes = r // 2 if few else min(LANES, r // 4)
                tile = ByteTile(N=n, K=k, M=m, ROWS=r, LANES=lanes, THREADS=self.limits.reduction)
                held = self.simulated or 4 * tile.words_per_thread * m <= MOST_SUMS
                if held and tile.nbytes + BESIDE_ROW * r <= self.gpu.shared_block:
                    yield tile

    def size_region(self, region: RowRegion) -> bool:
        """See `Tiles.size_region`."""
        one, blocks = replace(region.tile, threads=self.limits.reduction), 2 * self.gpu.multiprocessors
        if region.product is not None:
            (_, m), k = region.product.node.outputs[0].shape, region.product.node.inputs[0].shape[1]
            blocks = self.gpu.multiprocessors
            for tile in self._byte_tiles(region.batch, k, m):
                region.tile = replace(one, rows=tile.ROWS, slices=tile.slices)
                if NumbaLayout(region).shared <= self.gpu.shared_block:
                    break
        else:
            region.tile = replace(one, rows=min(one.rows, 4) if self.simulated else one.rows)
            while NumbaLayout(region).shared > self.gpu.shared_block and region.tile.rows > 1:
                region.tile = replace(region.tile, rows=region.tile.rows // 2)
        region.tile = replace(region.tile, blocks=min(region.tiles, blocks))
        return NumbaLayout(region).shared <= self.gpu.shared_block
