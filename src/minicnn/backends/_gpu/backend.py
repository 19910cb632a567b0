"""Base of the backends that generate CUDA kernels: options, plans, explanations, compiled steps, stages."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from minicnn.backends._gpu.arena import Arena
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.executable import StepExecutable
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, covered, every_node
from minicnn.backends._gpu.joined_plan import JoinedPlan
from minicnn.backends._gpu.loading import load, notes
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import tiles_of
from minicnn.backends._gpu.rank_joining import Joined
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.runtime import Runtime
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.staging import STAGE_BYTES, Stages
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array, Backend, Executable, Stage
from minicnn.machine import cores, local_rank
from minicnn.program.graph import Node, Program, Spec

if TYPE_CHECKING:
    from minicnn.distribution.schedule import RankSchedule
    from minicnn.ops.groups import Communicator

COMPILED_AT_ONCE = 8  # Programs, each of which compiles several kernels at once
_one_arena = threading.Lock()


class GpuBackend(Backend, ABC):
    """Runs Programs by kernels that are generated for them.

    Args:
        device: "cuda", or "cuda:1" for the second GPU.
        reference_only: See `Backend`.
        strict: See `Backend`.
        options: What it does to be fast; everything by default.

    Attributes:
        runtime: The device.
        tiles: Where tiles come from.

    Raises:
        ValueError: If there is no such device, or an option cannot be had there.
    """

    devices = ("cuda",)
    survives_fork = False
    exchanges = False  # whether its kernels can take sums over ranks
    runtime: Runtime
    tiles: Tiles

    def __init__(
        self,
        device: str | None = None,
        *,
        reference_only: bool = False,
        strict: bool = False,
        options: Options | None = None,
    ) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict)
        self.options = options or Options()
        number = self.device.partition(":")[2]
        self.runtime, self.tiles = self.open(int(number or local_rank()))
        if not number and local_rank():  # of several processes on a machine each has a GPU of its own
            self.runtime.use()
        self._check_options()
        if reference_only or not isinstance(self.tiles, TensorTiles):
            self.precisions = Backend.precisions  # mixed ones are for tensor cores
        self._arena: Callable[[], Arena | None] = lambda: None
        self._stages = Stages()
        self.steps_at_once = self.predictions_at_once = 256 if self.captures else 1
        self.stage_bytes = min(STAGE_BYTES, self.options.data_bytes or STAGE_BYTES)

    @staticmethod
    @abstractmethod
    def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
        """The kernel of a launch: see `Generate`."""

    @abstractmethod
    def open(self, number: int) -> tuple[Runtime, Tiles]:
        """The device of a number, and where its tiles come from.

        Raises:
            ValueError: If there is no such device.
        """

    def _check_options(self) -> None:
        options, on_tensor_cores = self.options, isinstance(self.tiles, TensorTiles)
        if options.products != "float32" and not on_tensor_cores:
            raise ValueError(
                "Products in another precision than float32 are for tensor cores: the backend cupy, compute capability "
                f"8.0 or later, tiled=True and tensor_cores=True. Received: Options(products={options.products!r}) for "
                f"{self}. Use products='float32'."
            )

    @property
    def gpu(self) -> Gpu | None:
        """The GPU as data; None in a simulator."""
        return self.runtime.gpu

    @property
    def captures(self) -> bool:
        """True if steps run as CUDA graphs."""
        return self.options.graph and not self.reference_only and self.runtime.captures

    @property
    def block(self) -> int:
        """Threads of a block of the kernels without tiles."""
        return self.options.block

    # Data ---------------------------------------------------------------------------------------

    def keeps(self, nbytes: int) -> bool:
        """See `Backend.keeps`: what fits, unless an option says otherwise."""
        limit = self.options.data_bytes
        if self.options.resident and limit is None:
            with self.runtime.active():
                # The rest is for activations and for what the compiler and the driver keep.
                limit = self.runtime.free() // 5 * 4
        return self.options.resident and nbytes <= (limit or 0)

    def stage(self, specs: Mapping[str, Spec], rows: int, total: int = 0) -> Stage:
        return self._stages.take(self.runtime, specs, rows, total, pinned=self.options.pinned)

    def active(self) -> AbstractContextManager[Any]:
        return self.runtime.active()

    def synchronize(self) -> None:
        with self.active():
            self.runtime.synchronize()

    def memory(self) -> int | None:
        """See `Backend.memory`: what arrays have in use."""
        with self.active():
            return self.runtime.used()

    def arena(self) -> Arena:
        """The memory that its executables share; a new one if there are none."""
        with _one_arena:
            arena = self._arena()
            if arena is None:
                arena = Arena(self.runtime)
                # The last executable takes the memory with it.
                self._arena = weakref.ref(arena)
            return arena

    # Programs -----------------------------------------------------------------------------------

    def rewrite(self, program: Program) -> Program:
        """See `Backend.rewrite`: into operations that have kernels, and sums that many blocks share."""
        if self.reference_only:
            return program
        tiles = tiles_of(program, self.tiles)
        return rewrite(program, fuse=self.options.fused, tiled=self.options.tiled, tiles=tiles)

    def plan(self, program: Program, *, second_stream: bool = True) -> Plan:
        """The kernels of a Program, which is rewritten in place.

        Args:
            program: The Program.
            second_stream: Whether launches may go on beside others: see `second_stream`.
        """
        tiles = replace(self.tiles, second_stream=second_stream and self.tiles.second_stream)
        if isinstance(program, Joined):
            return JoinedPlan(program, partial(self.plan, second_stream=second_stream), tiles)
        options, tiles = self.options, tiles_of(program, tiles)
        plan = Plan(
            self.rewrite(program),
            fuse=options.fused,
            tiled=options.tiled,
            reference_only=self.reference_only,
            tiles=tiles,
        )
        missing = [(u.anchor, u.reference) for u in plan.groups if u.reference]
        self.check_strict(missing, program)
        return plan

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        """See `Backend.explain`; nodes of one kernel carry its number."""
        # The explanation is the plan itself, so that it cannot differ from what runs.
        plan, note = self.plan(program), notes(self.gpu, self.tiles) if self.gpu else ""
        how = (
            ""
            if self.runtime.captures or not self.options.graph
            else ", launched one by one: the simulator has no graphs"
        )
        place: dict[int, str] = {}
        for number, launch in enumerate(plan.launches):
            for group in launch:
                kind = group.described + (note if group.tile else "") + how
                text = f"reference: {group.reference}" if group.reference else f"kernel {number}: {kind}"
                place |= {id(node): text for node in covered([group])}
        return [(node, place.get(id(node), "kernel: where its result is read")) for node in every_node(program.nodes)]

    def compile(self, program: Program, *, second_stream: bool = True) -> Executable:
        """See `Backend.compile`, and `plan` for the second stream. The Program is changed."""
        if self.reference_only:
            return self._on_the_device(super().compile(program))

        def make(program: Program) -> Executable:
            with self.active():
                return StepExecutable(self, program, second_stream=second_stream)

        return load(self, program, make)

    def compile_each(self, programs: Sequence[Program]) -> list[Executable]:
        """See `Backend.compile_each`: compilers work outside of Python, and each Program has few kernels.

        They have one stream, as parts of a step: what waits for other ranks would find its places taken by others.
        """
        with ThreadPoolExecutor(min(COMPILED_AT_ONCE, cores())) as pool:
            return list(pool.map(partial(self.compile, second_stream=False), programs))

    def connected(self, communicator: Communicator) -> Communicator:
        """See `Backend.connected`: NCCL connects GPUs, the other communicator the processes."""
        from minicnn.distribution.communicators import Planned
        from minicnn.distribution.nccl import NcclCommunicator

        there = isinstance(communicator, NcclCommunicator | Planned)  # or nobody to connect
        return communicator if there else NcclCommunicator(communicator)

    def rank_step(self, schedule: RankSchedule, run: Callable[[RankSchedule, Self], Executable]) -> Executable:
        """See `Backend.rank_step`; as one CUDA graph where that can be."""
        from minicnn.backends._gpu.ranks import rank_step

        return rank_step(schedule, self)

    def _on_the_device(self, run: Executable) -> Executable:
        def call(arrays: Mapping[str, Array]) -> dict[str, Any]:
            with self.active():
                return run(arrays)

        return call
