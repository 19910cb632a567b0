"""The choice among all kinds of tiles on a GPU with tensor cores, each by a model of its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from minicnn.backends._gpu import depthwise_tiling
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.depthwise_tiling import DEPTHWISE, DepthwiseTile, DepthwiseWeightGradientTile
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile, PipelinedWeightGradientTile
from minicnn.backends._gpu.tensor_families import (
    TensorConvolutionTile,
    TensorProductTile,
    TensorWeightGradientTile,
)
from minicnn.backends._gpu.tiles import Tiles
from minicnn.kernels.elements import widens
from minicnn.program.graph import Node, Value

_T = TypeVar("_T")
# Scores of thousands of candidates take milliseconds for a node; a network has hundreds of nodes of a few kinds, and is
# planned several times.
_chosen: dict[tuple[Any, ...], Any] = {}


@dataclass(frozen=True)
class TensorTiles(Tiles):
    """Tiles of float32 nodes on tensor cores, of all others with multiply-adds."""

    reads_scattered: ClassVar[bool] = True
    side_by_side: ClassVar[bool] = True

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
        """See `Tiles.convolution`."""
        return self._once(node, pool, lambda: self._convolution(node, pool))

    def weight_gradient(self, node: Node) -> Tile | None:
        """See `Tiles.weight_gradient`."""
        return self._once(node, None, lambda: self._weight_gradient(node))

    def depthwise(self, node: Node) -> Tile | None:
        """See `Tiles.depthwise`."""
        if not self.pipelined or not depthwise_tiling.applies(node):
            return None
        family = DepthwiseTile if node.op.name in DEPTHWISE else DepthwiseWeightGradientTile
        return self._once(node, None, lambda: family.best(node, self.gpu))

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """See `Tiles.product`."""
        tensor, plain = partial(TensorProductTile.best, node, self.gpu, self.precision), super().product
        return self._once(node, joined, lambda: tensor(joined=joined) or plain(node, joined=joined))

    def takes_rows(self, node: Node, rows: Value) -> bool:
        """See `Tiles.takes_rows`."""
        return rows.dtype == "float32" or super().takes_rows(node, rows)

    def _convolution(self, node: Node, pool: tuple[int, int] | None) -> Tile | None:
        ahead = PipelinedTile.best(node, self.gpu, self.precision) if self._pipelines(node, pool) else None
        if ahead is not None and _fills_steps(node, self.gpu):
            return ahead
        tile = TensorConvolutionTile.best(node, self.gpu, self.precision, pool=pool)
        plain = super().convolution(node, pool)
        # Three kinds of kernel can do it; each has a model of its time, and the quickest by the models is taken.
        if tile is None or (plain is not None and without_tensor_cores(node, plain, self.gpu) < tile.score):
            return ahead or plain
        return ahead if ahead is not None and PipelinedTile.least_alone(node, self.gpu) < tile.score else tile

    def _weight_gradient(self, node: Node) -> Tile | None:
        ahead = PipelinedWeightGradientTile.best(node, self.gpu, self.precision) if self._pipelines(node) else None
        if ahead is not None and _fills_steps(node, self.gpu):
            return ahead
        tile = TensorWeightGradientTile.best(node, self.gpu, self.precision)
        if ahead is not None and (tile is None or ahead.score < tile.score):
            return ahead
        return tile or super().weight_gradient(node)

    def _pipelines(self, node: Node, pool: tuple[int, int] | None = None) -> bool:
        """True if a convolution's operands are all in memory in the format of products."""
        stored = (v.node for v in node.inputs)
        return self.pipelined and pool is None and all(widens(n, self.precision) for n in stored)

    def _once(self, node: Node, more: tuple[int, int] | bool | None, choose: Callable[[], _T]) -> _T:
        """The tile that was chosen for such a node before; else it is chosen now."""
        shapes = tuple(v.spec for v in (*node.inputs, *node.outputs))
        key = (self, node.op.name, shapes, str(sorted(node.attrs.items())), more, self._pipelines(node))
        if key not in _chosen:
            _chosen[key] = choose()
        return cast(_T, _chosen[key])


def _fills_steps(node: Node, gpu: Gpu) -> bool:
    """True if images have so many channels that no other tile is quicker than one whose operands come ahead."""
    # Tensor cores multiply all of such channels in a step, and a sum over many positions has many steps.
    arrays, limits = (*node.inputs, *node.outputs), costs_on(gpu).limits
    positions = min(v.size // v.shape[-1] for v in node.inputs)  # the terms of a weight gradient
    many = positions >= limits.positions or not node.op.name.startswith("conv2d_weight")
    return many and all(v.shape[-1] % limits.step == 0 for v in arrays)


def without_tensor_cores(node: Node, tile: Tile, gpu: Gpu) -> float:
    """Cycles that a convolution takes on a GPU with a tile of `tiling`."""
    costs = costs_on(gpu).plain_convolution
    return costs.launch + costs.scored * tile.score + costs.stored * node.outputs[0].size
