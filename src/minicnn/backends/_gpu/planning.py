"""A step planned for a GPU that need not be there: its launches, what each takes of the GPU, how long it may last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.cubin import Resources
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, covered, whole
from minicnn.backends._gpu.inputs import Inputs
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.rewriting import products_in, rewrite
from minicnn.backends._gpu.source import Generate, Source
from minicnn.backends._gpu.tensor_tiling import TensorTiles, without_tensor_cores
from minicnn.backends._gpu.tile_times import PRECISIONS
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends._gpu.tiling import ConvolutionTile, WeightGradientTile
from minicnn.backends.base import is_new_each_step
from minicnn.kernels.expressions import SHORT
from minicnn.kernels.statements import Kernel
from minicnn.program.graph import Node, Program


def tiles_on(gpu: Gpu, options: Options) -> Tiles:
    """Tiles for a GPU: on tensor cores, if it has such and the options do not forbid it."""
    second_stream = options.second_stream and options.graph
    if options.tensor_cores and options.tiled and gpu.has_tensor_cores:
        pipelined = options.pipelined and options.fused
        return TensorTiles(gpu, options.products, pipelined=pipelined, second_stream=second_stream)
    return Tiles(gpu, byte_products=options.tensor_cores, second_stream=second_stream)


def tiles_of(program: Program, tiles: Tiles) -> Tiles:
    """Tiles for a Program, in the precision that its products have."""
    products = products_in(program)
    if products:
        return replace(tiles, precision=products)
    # Pipelined tiles copy operands as they are stored, which only a mixed precision stores in 16 bits. A part of such a
    # step may have no product, as one that casts weights.
    short = any(v.dtype in SHORT for node in program.nodes for v in node.outputs)
    return replace(tiles, pipelined=tiles.pipelined and short)


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of a planned step.

    Attributes:
        plan: The plan that it is of.
        groups: What its blocks do.
        source: Its kernel; None where a reference runs.
        declared: Bytes of shared memory that its text declares, at most.
        flops: Floating-point operations.
        nbytes: Bytes that it reads and writes, each array once.
        roof: Seconds that it takes at least, by the GPU's peaks.
        seconds: Seconds that it takes by the model.
    """

    plan: Plan
    groups: Sequence[FusionGroup]
    source: Source | None
    declared: int
    flops: int
    nbytes: int
    roof: float
    seconds: float

    @property
    def nodes(self) -> list[Node]:
        """The nodes that it computes, those of a row-wise region in their place."""
        return covered(self.groups)

    @property
    def kernel(self) -> Kernel:
        """Its kernel as data."""
        queued = {id(v) for v in self.plan.program.inputs if is_new_each_step(v.name)}
        return lowered(self.plan, self.groups, queued, self.source.threads if self.source else 1)[0]

    def misfit(self, gpu: Gpu, compiled: Resources | None = None) -> str | None:
        """The limit of a GPU that the launch exceeds; None if it fits. A compiled kernel's needs are known exactly."""
        if self.source is None:
            return None
        declared, registers = (self.declared, 32) if compiled is None else (compiled.shared, compiled.registers)
        if declared > gpu.shared_unasked:
            return f"{declared} bytes of declared shared memory, of which {gpu.name} has {gpu.shared_unasked}"
        return gpu.misfit(self.source.threads, registers, declared + self.source.shared)


@dataclass(frozen=True)
class PlannedStep:
    """A step planned for a GPU.

    Attributes:
        gpu: The GPU.
        launches: Its launches, in order.
        flops: Floating-point operations of the Program as it was given.
        carried: Bytes of weights, of the optimizer's state and of running totals.
        inputs: Bytes of a batch.
        arena: Bytes of the memory for what lives within a step.
    """

    gpu: Gpu
    launches: Sequence[PlannedLaunch]
    flops: int
    carried: int
    inputs: int
    arena: int

    @property
    def memory(self) -> int:
        """Bytes of all that."""
        return self.carried + self.inputs + self.arena


def planned(
    program: Program, gpu: Gpu, generate: Generate, options: Options | None = None, tiles: Tiles | None = None
) -> PlannedStep:
    """Plan a step; the Program is rewritten in place.

    Args:
        program: The step.
        gpu: The GPU that it is for.
        generate: What writes kernels in the language of an engine.
        options: As the engine's.
        tiles: Where tiles come from; those of the CUDA engines by default.
    """
    options = options or Options()
    # Counted before rewriting, which may remove operations: the rate of a step is that of what the user asked for.
    flops, inputs = program.flops, Inputs.of(program)
    tiles = tiles_of(program, tiles or tiles_on(gpu, options))
    fuse, tiled = options.fused, options.tiled
    plan = Plan(rewrite(program, fuse=fuse, tiled=tiled, tiles=tiles), fuse=fuse, tiled=tiled, tiles=tiles)
    queued = {id(v) for v in program.inputs if is_new_each_step(v.name)}
    launches = [
        planned_launch(plan, launch, partial(generate, plan, launch, queued, options.block)) for launch in plan.launches
    ]
    carried = sum(v.nbytes for v in (*inputs.bound, *inputs.totals)) + sum(v.nbytes for v in program.constants)
    queued_bytes = sum(v.nbytes for v in (*inputs.queued, *inputs.copied))
    return PlannedStep(gpu, launches, flops, carried, queued_bytes, place(plan).nbytes)


def planned_launch(plan: Plan, launch: Sequence[FusionGroup], write: Callable[[], Source]) -> PlannedLaunch:
    """One launch of a plan; `write` makes its kernel, unless a reference runs."""
    gpu, reference = plan.tiles.gpu, launch[0].reference is not None
    arrays = {id(v): v for u in launch for v in (*plan.reads(u), *u.stored)}
    nbytes = sum(v.nbytes for v in arrays.values())
    flops = [sum(map(_flops, covered([u]))) for u in launch]
    roof = max(nbytes / gpu.bandwidth, sum(f / _peak(plan.tiles, u) for f, u in zip(flops, launch, strict=True)))
    modelled = [_cycles(u, gpu) / gpu.clock for u in launch]
    return PlannedLaunch(
        plan=plan,
        groups=launch,
        source=None if reference else write(),
        declared=0 if reference else plan.tiles.shared(launch)[0],
        flops=sum(flops),
        nbytes=nbytes,
        roof=roof,
        # Groups of a launch run side by side: it lasts as long as the longest of them.
        seconds=max([roof + costs_on(gpu).launches.launch / gpu.clock, *modelled]),
    )


def _cycles(group: FusionGroup, gpu: Gpu) -> float:
    """Cycles that the model of its tile says; 0 if there is none."""
    if group.tile is None:
        return 0.0
    plain = isinstance(group.tile, ConvolutionTile | WeightGradientTile)
    return without_tensor_cores(group.anchor, group.tile, gpu) if plain else group.tile.score


def _peak(tiles: Tiles, group: FusionGroup) -> float:
    """FLOP/s at most of the units that a fusion group computes on."""
    gpu, dtype = tiles.gpu, group.anchor.outputs[0].dtype
    region = group.anchor.attrs.get("region")
    rows = isinstance(region, RowRegion) and region.product is not None
    if rows or group.on_tensor_cores:
        return gpu.peak("float16") / PRECISIONS[tiles.precision][1]
    return gpu.peak("float64" if dtype == "float64" else "float32")


def _flops(node: Node) -> int:
    """Floating-point operations of a node of a plan; parts of a sum have those of the whole."""
    return node.inputs[0].size if node.op.name == "reduce_partial_sums" else whole(node).cost.flops
