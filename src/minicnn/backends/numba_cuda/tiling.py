"""Sizes of tiles: those of the CUDA engine on a GPU, tiny ones in the simulator, whose threads are the host's."""

from __future__ import annotations

from minicnn.backends._cuda import tiling
from minicnn.backends._cuda.tiling import GPU, Limits, Tile
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.program.graph import Node

_SIMULATOR = Limits(2, 32, 16, 8, ((4, 4, 2, 2), (8, 2, 2, 1), (2, 8, 1, 2)), (4, 8))
LIMITS = _SIMULATOR if SIMULATED else GPU


def convolution(node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
    """Tile of conv2d or conv2d_input_gradient; None if nothing fits."""
    return tiling.convolution(node, pool, limits=LIMITS)


def weight_gradient(node: Node) -> Tile | None:
    """Tile of conv2d_weight_gradient; None if nothing fits."""
    return tiling.weight_gradient(node, limits=LIMITS)


def product(node: Node) -> Tile:
    """Tile of a matrix product."""
    return tiling.product(node, limits=LIMITS)


def reduction(results: int, terms: int, *, terms_first: bool, join: str = "Plus") -> Tile:
    """Tile of a sum or a maximum."""
    return tiling.reduction(results, terms, terms_first=terms_first, join=join, limits=LIMITS)
