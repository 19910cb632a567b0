"""Where a row-wise region keeps its values in shared memory."""

from __future__ import annotations

from minicnn.backends._gpu.region_layout import Layout, RowRegion
from minicnn.backends.numba_cuda.kernels.bytes_product import ByteTile


def byte_tile_of(region: RowRegion) -> ByteTile | None:
    """Sizes of a region's product with rows of bytes, if it begins with one."""
    if region.product is None:
        return None
    k, m = region.product.node.inputs[0].shape[1], region.product.node.outputs[0].shape[1]
    return ByteTile(region.batch, k, m, region.rows, region.threads // region.slices, region.threads)


class NumbaLayout(Layout):
    """The layout of a region whose product with bytes is that of `kernels/bytes_product.py`.

    Attributes:
        exchange: Where threads that share a sum leave their parts of it.
    """

    def product_space(self) -> tuple[int, int]:
        """See `Layout.product_space`; at the end nothing of it is needed any more."""
        tile = byte_tile_of(self.region)
        return (tile.nbytes, 0) if tile is not None else (0, 0)

    def _placed(self) -> None:
        self.narrow = False  # all levels have all threads
        super()._placed()
        self.exchange = self._place(4 * self.region.threads)
