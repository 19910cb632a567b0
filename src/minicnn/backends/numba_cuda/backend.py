"""The backend of Numba on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.loading import load, notes
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.row_regions import ROW_REGION, every_node
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array as AnyArray
from minicnn.backends.base import Backend, Executable
from minicnn.backends.numba_cuda import namespace, tiling
from minicnn.backends.numba_cuda.arrays import Array, from_interface, from_numpy
from minicnn.backends.numba_cuda.device import device_count, get_device
from minicnn.backends.numba_cuda.elementwise import contiguous
from minicnn.backends.numba_cuda.errors import explained
from minicnn.backends.numba_cuda.shim import LIBRARY, SIMULATED, VERSION
from minicnn.program.graph import Node, Program


class NumbaCudaBackend(Backend):
    """Runs Programs by kernels in Python that are generated for them, on arrays of numba-cuda.

    With NUMBA_ENABLE_CUDASIM=1 in the environment everything runs, slowly, in the CUDA simulator.

    Args:
        device: "cuda", or "cuda:1" for the second GPU.
        reference_only: See `Backend`.
        strict: See `Backend`.
        options: What it does to be fast; everything by default.
    """

    name = "numba_cuda"
    xp = namespace
    devices = ("cuda",)
    survives_fork = False
    precisions: tuple[str, ...] = ("float32", "float64")

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
        self.steps_at_once = 256 if self.captures else 1
        self.gpu = get_device(int(self.device.partition(":")[2] or 0))
        self.tiles: Tiles = tiling.NumbaTiles(self.gpu.gpu or tiling.SIMULATOR)

    @property
    def description(self) -> Gpu | None:
        """What is known of the GPU; None in the simulator."""
        return self.gpu.gpu

    @property
    def captures(self) -> bool:
        """Whether steps run as CUDA graphs."""
        return self.options.graph and not self.reference_only and not SIMULATED

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> AnyArray:
        """See `Backend.asarray`; contiguous in row-major order, and begins at a multiple of 16 bytes."""
        if hasattr(data, "__cuda_array_interface__") and not isinstance(data, Array):
            data = from_interface(data)
        if isinstance(data, Array):
            if data.device is not self.gpu:
                message = (
                    f"Arrays are on the model's device. Received: an array on {data.device}, the model is on "
                    f"{self.gpu}. Copy it with array.to_device({str(self.gpu)!r})."
                )
                raise ValueError(message)
            made = namespace.astype(data, dtype or data.dtype, copy=False)
            return contiguous(made, copy=not made.aligned)
        host = np.asarray(data)
        return from_numpy(np.ascontiguousarray(host, dtype).reshape(host.shape), self.gpu)

    def to_numpy(self, array: AnyArray) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        made: np.ndarray[Any, Any] = array.numpy()
        return made

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, Array)

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        self.gpu.synchronize()

    # Programs -----------------------------------------------------------------------------------

    def rewrite(self, program: Program) -> Program:
        """See `Backend.rewrite`: into operations that have kernels, and sums that many blocks share."""
        if self.reference_only:
            return program
        return rewrite(program, fuse=self.options.fused, tiled=self.options.tiled, tiles=self.tiles)

    def plan(self, program: Program) -> Plan:
        """The kernels of a Program, which is rewritten in place."""
        options = self.options
        plan = Plan(
            self.rewrite(program),
            fuse=options.fused, tiled=options.tiled, reference_only=self.reference_only, tiles=self.tiles,
        )  # fmt: skip
        missing = [u for u in plan.groups if u.reference]
        if self.strict and missing:
            message = (
                f"strict=True: every node needs a kernel of the {self.name} backend. Received {len(missing)} without "
                f"one, first {missing[0].anchor!r} in {missing[0].anchor.scope or program.name}: "
                f"{missing[0].reference}. Use strict=False to run their references; model.explain() lists them."
            )
            raise RuntimeError(message)
        return plan

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        """See `Backend.explain`; nodes of one kernel carry its number."""
        plan, note = self.plan(program), notes(self.gpu.gpu, self.tiles) if self.gpu.gpu else ""
        how = ", launched one by one: the simulator has no graphs" if SIMULATED and self.options.graph else ""
        place: dict[int, str] = {}
        for number, launch in enumerate(plan.launches):
            for group in launch:
                kind = group.described + note if group.tile else group.described
                text = f"reference: {group.reference}" if group.reference else f"kernel {number}: {kind}{how}"
                place |= {id(node): text for node in group.every}
        place |= {id(n): place[id(c)] for c in program.nodes if c.op is ROW_REGION for n in c.attrs["region"].nodes}
        return [(node, place.get(id(node), "kernel: where its result is read")) for node in every_node(program)]

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; arrays that a Program carries are overwritten, unless only references run."""
        if self.reference_only:
            return super().compile(program)
        from minicnn.backends.numba_cuda.executable import StepExecutable

        def make(program: Program) -> Executable:
            with explained():
                return StepExecutable(self, program)

        return load(self, program, make)

    # Machine ------------------------------------------------------------------------------------

    @classmethod
    def describe(cls) -> dict[str, str]:
        """See `Backend.describe`."""
        facts = {LIBRARY: VERSION}
        if SIMULATED:
            return facts | {"cuda": "simulator"}
        for number in range(device_count()):
            facts[f"cuda:{number}"] = get_device(number).name
        return facts

    def memory(self) -> int | None:
        """See `Backend.memory`: what arrays and steps of this process have in use."""
        return self.gpu.used
