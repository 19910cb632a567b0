"""Sizes of tiles: those of the CUDA engine on a GPU, tiny ones in the simulator, whose threads are the host's."""

from __future__ import annotations

from minicnn.backends._cuda import tiling
from minicnn.backends._cuda.chain_layout import Chain
from minicnn.backends._cuda.tiling import GPU, Limits, Tile
from minicnn.backends.numba_cuda.chain_layout import ChainLayout, byte_tile
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.program.graph import Node

_SIMULATOR = Limits(2, 32, 16, 8, ((4, 4, 2, 2), (8, 2, 2, 1), (2, 8, 1, 2)), (4, 8))
LIMITS = _SIMULATOR if SIMULATED else GPU
CHAINS = True  # there are kernels for chains of rows
LAYOUT = ChainLayout
MOST_TOGETHER = 20  # units of a launch, since each sum declares shared memory of its own, 2 KB at most


def convolution(node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
    """Tile of conv2d or conv2d_input_gradient; None if nothing fits."""
    return tiling.convolution(node, pool, limits=LIMITS, phased=False)


def weight_gradient(node: Node) -> Tile | None:
    """Tile of conv2d_weight_gradient; None if nothing fits."""
    return tiling.weight_gradient(node, limits=LIMITS)


def product(node: Node, *, joined: bool = False) -> Tile:
    """Tile of a matrix product. See `_cuda.tiling.product`."""
    return (None if SIMULATED else _narrow(node)) or tiling.product(node, joined=joined, limits=LIMITS)


NARROW = 16  # columns up to which a thread makes all of a row
_BYTE_ROWS = (8,) if SIMULATED else (8, 16, 32, 64)
MOST_BYTES = 200 * 1024  # of shared memory for a product of bytes; the rest is for what follows it
MOST_SUMS = 96  # registers of a thread for the sums of a product of bytes with the gradient
MANY = 1 << 22  # terms of all results from which it matters


def _narrow(node: Node) -> Tile | None:
    """Tile of a product with few columns of a large matrix: a thread makes whole rows of the result in registers.

    Few rows and many terms are the weight gradient of a narrow layer, many rows its forward pass.
    """
    (m, n), ta, tb = node.outputs[0].shape, node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    if n > NARROW or m * k < MANY or node.outputs[0].dtype != "float32":
        return None
    if m >= 128 * LIMITS.multiprocessors:
        sizes = (256, n, 16, 2, n, 1)
    elif m <= 1024 and k >= 64 * LIMITS.multiprocessors:
        parts = 2 * LIMITS.multiprocessors
        run = -(-k // (8 * parts)) * 8
        sizes = (-(-m // 4) * 4, n, 8, 4, n, -(-k // run))
    else:
        return None
    blocks, threads, parts = -(-m // sizes[0]) * sizes[5], sizes[0] // sizes[3], sizes[5]
    kind = f"ProductTile<{m}, {n}, {k}, {str(ta).lower()}, {str(tb).lower()}, {', '.join(map(str, sizes))}>"
    return Tile(kind, blocks, threads, parts, sizes)


def reduction(results: int, terms: int, *, terms_first: bool, join: str = "Plus") -> Tile:
    """Tile of a sum or a maximum."""
    return tiling.reduction(results, terms, terms_first=terms_first, join=join, limits=LIMITS)


# Chains -----------------------------------------------------------------------------------------------------


def byte_product(node: Node) -> bool:
    """Whether a chain may begin with this product with rows of bytes."""
    (n, m), k = node.outputs[0].shape, node.inputs[0].shape[1]
    return m <= NARROW and _byte_rows(n, k, m) is not None


def _byte_rows(n: int, k: int, m: int) -> int | None:
    """Rows of bytes that a block takes at a time: as many as fit, and leave work for all; None if nothing fits."""
    rows = None
    for more in _BYTE_ROWS:
        tile = byte_tile(n, k, m, more, LIMITS.reduction)
        if rows is not None and -(-n // rows) <= LIMITS.multiprocessors:
            break
        if (SIMULATED or 4 * tile.own * m <= MOST_SUMS) and tile.nbytes <= MOST_BYTES:
            rows = more
    return rows


def chain(one: Chain) -> None:
    """Set the sizes of a chain."""
    one.threads, blocks = LIMITS.reduction, 2 * LIMITS.multiprocessors
    if one.product is not None:
        (_, m), k = one.product.node.outputs[0].shape, one.product.node.inputs[0].shape[1]
        one.rows, blocks = _byte_rows(one.batch, k, m) or one.rows, LIMITS.multiprocessors
    elif SIMULATED:
        one.rows = min(one.rows, 4)
    one.blocks = min(one.tiles, blocks)
