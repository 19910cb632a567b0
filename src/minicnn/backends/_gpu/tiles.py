"""Tiles of a backend's kernels, and the operations that these kernels can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from minicnn.backends._gpu import tiling
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.region_layout import Layout, RowRegion
from minicnn.backends._gpu.tiling import (
    LIMITS,
    ConvolutionTile,
    ProductTile,
    ReductionTile,
    TileLimits,
    WeightGradientTile,
)
from minicnn.kernels import elements
from minicnn.program.graph import Node, Value


@dataclass(frozen=True)
class Tiles:
    """Tiles of multiply-adds, which every device has, by the models of `tiling`.

    Attributes:
        gpu: The GPU that they are for.
        precision: In which operands are multiplied: one of `tile_times.PRECISIONS`. Sums are float32.
        limits: Sizes to choose from.
        byte_products: Whether a region may begin with a product with rows of bytes.
        pipelined: Whether convolutions of 16-bit operands bring them ahead; these are all in memory then.
        second_stream: Whether launches that only updates wait for go on beside others.
        layout: Where a region keeps its values.
        reads_scattered: Whether the gradient of a max-pooling is scattered where it is read, however often that is.
        side_by_side: Whether short operations share a launch with others that have larger blocks.
        most_together: Groups that a launch may have.
        stores_short: Whether values may be stored in 16 bits.
    """

    gpu: Gpu
    precision: str = "float32"
    limits: TileLimits = LIMITS
    byte_products: bool = True
    pipelined: bool = False
    second_stream: bool = False
    layout: ClassVar[type[Layout]] = Layout
    reads_scattered: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False
    most_together: ClassVar[float] = math.inf
    stores_short: ClassVar[bool] = True

    def unsupported(self, node: Node) -> str | None:
        """Why there is no kernel for a node, if so; where there is none, its reference runs."""
        return elements.unsupported(node, short=self.stores_short)

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
        """Tile of conv2d or conv2d_input_gradient, with max-pooling by this window behind it; None if nothing fits."""
        return ConvolutionTile.best(node, pool, gpu=self.gpu, limits=self.limits)

    def pooled(self, node: Node, pool: Node) -> Tile | None:
        """Tile of conv2d that does the max-pooling behind it; None if nothing fits, or storing the image costs less."""
        tile, alone = self.convolution(node, pool.attrs["kernel"]), self.convolution(node)
        if tile is None or alone is None or not alone.stages:
            return tile
        bandwidth = self.gpu.bandwidth / self.gpu.clock  # bytes of a cycle
        apart = costs_on(self.gpu).launches.launch + 2 * pool.inputs[0].nbytes / bandwidth
        return tile if tile.precision and tile.score <= alone.score + apart else None

    def weight_gradient(self, node: Node) -> Tile | None:
        """Tile of conv2d_weight_gradient; None if nothing fits."""
        return WeightGradientTile.best(node, gpu=self.gpu, limits=self.limits)

    def depthwise(self, node: Node) -> Tile | None:
        """Tile of a depthwise convolution or of one of its gradients; None if there is none."""
        return None

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """Tile of a matrix product; `joined`: a launch that comes anyway adds up its partial sums."""
        return ProductTile.best(node, gpu=self.gpu, joined=joined, limits=self.limits)

    def reduction(self, results: int, terms: int, *, terms_first: bool) -> ReductionTile:
        """Tile of a sum or a maximum of so many terms for each of so many results."""
        return ReductionTile.best(results, terms, gpu=self.gpu, terms_first=terms_first, limits=self.limits)

    def shared(self, groups: Sequence[FusionGroup]) -> tuple[int, int]:
        """Bytes of shared memory of a block of a launch: what its text declares, at most, and what it asks for."""
        sums = self.pipelined and any(u.shares_sums for u in groups)  # those of neighbours; groups share the memory
        scaled = any(u.on_tensor_cores for u in groups)
        declared = tiling.SUM_SHARED * sums + tiling.SCALE_SHARED * scaled
        return declared, max(u.shared for u in groups)

    def takes_rows(self, node: Node, rows: Value) -> bool:
        """True if a region may begin with this product with rows in memory, of uint8 or float32."""
        return rows.dtype == "uint8" and self.byte_products

    def size_region(self, region: RowRegion) -> bool:
        """Set the sizes of a region, where they are other than it chose itself; whether it fits then."""
        return True
