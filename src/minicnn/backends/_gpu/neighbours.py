"""Neighbours: how many results beside each other a thread makes, which come from memory and go there together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.tiling import ReductionTile
from minicnn.kernels.windows import images
from minicnn.program.graph import ITEMSIZE, Value

if TYPE_CHECKING:
    from minicnn.backends._gpu.fusing import Plan

_FEW_SUMS = 32  # partial sums that one thread adds up


def width(plan: Plan, group: FusionGroup, launch: Sequence[FusionGroup]) -> int:
    """Neighbours that a thread of a group makes, which shares its launch: of 16 bits, up to 16 bytes of each value."""
    if group.fixed:
        return group.width
    if not plan.tiles.pipelined or group.reference:
        return 1
    if group.tile is not None:
        return _of_reduction(plan, group, group.tile) if isinstance(group.tile, ReductionTile) else 1
    if group.waits:  # for one after the other
        return 1
    if group.slices > 1 and group.anchor.inputs[0].shape[0] > _FEW_SUMS:
        return 1
    count = _fitting([v for v in (*plan.reads(group), *group.stored) if v.size >= group.size])
    work = sum(u.size for u in launch if u.tile is None)
    # Fewer threads must still fill the GPU, and runs must end with the array.
    least = plan.tiles.gpu.multiprocessors * costs_on(plan.tiles.gpu).limits.threads
    while count > 1 and (group.size % count or work < count * least):
        count //= 2
    return count


def runs(plan: Plan, group: FusionGroup, threads: int) -> int:
    """Runs of neighbours that a thread makes, all of the same channels, whose numbers it loads once for all of them."""
    # Where windows are read, there are no registers for several runs.
    if group.width == 1 or not all(node.op.elementwise for node in group.nodes):
        return 1
    span, others = threads * group.width, [v.size for v in plan.reads(group) if v.size != group.size]
    if max(others, default=1) == 1 or any(size > group.size or span % size for size in others):
        return 1
    limits = costs_on(plan.tiles.gpu).limits
    return min(limits.runs, max(1, group.size // span // max(1, plan.tiles.gpu.multiprocessors * limits.blocks)))


def _of_reduction(plan: Plan, group: FusionGroup, tile: ReductionTile) -> int:
    """Neighbouring results of a thread in a reduction over positions; 1 if they are no channels."""
    node = group.anchor
    if tile.terms_first or tile.columns * tile.rows % 32:
        return 1
    if node.op.name == "reduce_partial_sums":
        x = node.inputs[0]
        if x.shape[-1] != tile.results or node.attrs["axes"] != tuple(range(x.ndim - 1)):
            return 1
    elif node.attrs["data_format"] != "NHWC" or images(node)[0].c != images(node)[1].c:
        return 1
    # Only what is as large as the operands decides: a run of numbers of channels comes from the cache.
    count = _fitting([v for v in plan.leaves(node) if v.size >= min(x.size for x in node.inputs)])
    return count if tile.columns % count == node.inputs[0].shape[-1] % count == 0 else 1


def _fitting(values: Sequence[Value]) -> int:
    """Elements of the narrowest of some values in 16 bytes: a load of these costs as much as one of 2."""
    return 16 // max(2, min(ITEMSIZE[v.dtype] for v in values)) if values else 1
