"""Where a chain of rows keeps its values in shared memory."""

from __future__ import annotations

from minicnn.backends._gpu.chain_layout import Chain, Layout
from minicnn.backends.numba_cuda.kernels.bytes_product import ByteTile

LANES = 8  # threads side by side that have different rows of bytes


def byte_tile(n: int, k: int, m: int, rows: int, threads: int) -> ByteTile:
    """Sizes of a product of n rows of k bytes with m columns, so many rows at a time."""
    return ByteTile(n, k, m, rows, min(LANES, rows // 4), threads)


def byte_tile_of(chain: Chain) -> ByteTile | None:
    """Sizes of a chain's product with rows of bytes, if it begins with one."""
    if chain.product is None:
        return None
    k, m = chain.product.node.inputs[0].shape[1], chain.product.node.outputs[0].shape[1]
    return byte_tile(chain.batch, k, m, chain.rows, chain.threads)


class ChainLayout(Layout):
    """The layout of a chain whose product with bytes is that of `kernels/bytes_product.py`.

    Attributes:
        exchange: Where threads that share a sum leave their parts of it.
    """

    def product_space(self) -> tuple[int, int]:
        """See `Layout.product_space`; at the end nothing of it is needed any more."""
        tile = byte_tile_of(self.chain)
        return (tile.nbytes, 0) if tile is not None else (0, 0)

    def _placed(self) -> None:
        self.narrow = False  # all levels have all threads
        super()._placed()
        self.exchange = self._place(4 * self.chain.threads)
