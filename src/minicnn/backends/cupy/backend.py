"""The backend of CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from minicnn.backends._gpu.device import Gpu, from_attributes
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.loading import load, notes
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import tiles_of, tiles_on
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.row_regions import ROW_REGION, every_node
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends.base import Array, Backend, Executable, Stage
from minicnn.backends.cupy import nvrtc
from minicnn.backends.cupy.choosing import fastest, measured
from minicnn.backends.cupy.compiler import HEADERS, header
from minicnn.backends.cupy.errors import explained
from minicnn.backends.cupy.library import LEAST_OPERATIONS, LIBRARY, described, operations, piece, use_library
from minicnn.program.graph import Node, Program, Spec

STAGE_BYTES = 8 * 2**20  # of a slot: large enough for copies at full speed


class CupyBackend(Backend):
    """Runs Programs by kernels that are generated for them, on CuPy arrays.

    Args:
        device: "cuda", or "cuda:1" for the second GPU.
        reference_only: See `Backend`.
        strict: See `Backend`.
        options: What it does to be fast; everything by default.
    """

    name = "cupy"
    xp = xp
    devices = ("cuda",)
    survives_fork = False
    precisions: tuple[str, ...] = ("float32", "float64", "mixed_bfloat16", "mixed_float16")

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
        self.steps_at_once = self.predictions_at_once = 256 if self.options.graph and not reference_only else 1
        self.stage_bytes = min(STAGE_BYTES, self.options.data_bytes or STAGE_BYTES)
        with explained():
            count = cupy.cuda.runtime.getDeviceCount()
            self.number = int(self.device.partition(":")[2] or 0)
            if self.number >= count:
                message = (
                    f"The device is one of the {count} that CUDA sees. Received: {self.device!r}. "
                    f"Use cuda:0 to cuda:{count - 1}."
                )
                raise ValueError(message)
            self._device = cupy.cuda.Device(self.number)
            self.gpu = self._described()
        self.tiles = tiles_on(self.gpu, self.options)
        if not isinstance(self.tiles, TensorTiles) or reference_only:
            self.precisions = ("float32", "float64")

    def _described(self) -> Gpu:
        """What is known of the GPU."""
        found, capability = cupy.cuda.runtime.getDeviceProperties(self.number), self._device.compute_capability
        version = int(capability[:-1]), int(capability[-1])
        memory = int(found["totalGlobalMem"])
        return from_attributes(found["name"].decode(), version, memory, self._device.attributes)

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`; contiguous in row-major order."""
        if isinstance(data, cupy.ndarray) and data.device.id != self.number:
            message = (
                f"Arrays are on the model's device. Received: an array on cuda:{data.device.id}, the model is on "
                f"cuda:{self.number}. Copy it there, or use the backend cupy:cuda:{data.device.id}."
            )
            raise ValueError(message)
        with explained(), self._device:
            if isinstance(data, cupy.ndarray):
                return cupy.ascontiguousarray(data, dtype=dtype).reshape(data.shape)
            return cupy.array(np.asarray(data), dtype=dtype, order="C")

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        with explained():
            return cupy.asnumpy(array)

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, cupy.ndarray)

    def keeps(self, nbytes: int) -> bool:
        """See `Backend.keeps`: what fits, unless an option says otherwise."""
        limit = self.options.data_bytes
        if self.options.resident and limit is None:
            with explained(), self._device:
                free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
            limit = free // 5 * 4
        return self.options.resident and nbytes <= (limit or 0)

    def stage(self, specs: Mapping[str, Spec], rows: int) -> Stage:
        """See `Backend.stage`."""
        from minicnn.backends.cupy.staging import CupyStage

        return CupyStage(self, specs, rows)

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        with explained():
            self._device.synchronize()

    # Programs -----------------------------------------------------------------------------------

    def rewrite(self, program: Program) -> Program:
        """See `Backend.rewrite`: into operations that have kernels, and sums that many blocks share."""
        if self.reference_only:
            return program
        options, tiles = self.options, tiles_of(program, self.tiles)
        if options.library != "never" and tiles.precision == "float32":
            use_library(program, partial(self._why_library, program))
        return rewrite(program, fuse=options.fused, tiled=options.tiled, tiles=tiles)

    def plan(self, program: Program) -> Plan:
        """The kernels of a Program, which is rewritten in place."""
        options, tiles = self.options, tiles_of(program, self.tiles)
        plan = Plan(
            self.rewrite(program),
            fuse=options.fused,
            tiled=options.tiled,
            reference_only=self.reference_only,
            tiles=tiles,
        )
        missing = [u for u in plan.groups if u.reference and u.anchor.op is not LIBRARY]
        if self.strict and missing:
            message = (
                f"strict=True: every node needs a kernel of the cupy backend. Received {len(missing)} without one, "
                f"first {missing[0].anchor!r} in {missing[0].anchor.scope or program.name}: {missing[0].reference}. "
                "Use strict=False to run their references; model.explain() lists them."
            )
            raise RuntimeError(message)
        return plan

    def _why_library(self, program: Program, node: Node) -> str | None:
        """Why cuBLAS should compute a product, or None."""
        if self.options.library == "always":
            return "as Options says"
        if operations(node) < LEAST_OPERATIONS:
            return None
        text = described(piece(program, node))
        device = cupy.cuda.runtime.getDeviceProperties(self.number)["name"].decode()
        key = (text, device, cupy.__version__, nvrtc.version(), *map(header, HEADERS), str(self.options))
        ways = {"own kernels": "never", "cuBLAS": "always"}
        times = measured(key, {n: partial(self._time, piece(program, node), mode) for n, mode in ways.items()})
        said = ", ".join(f"{name} {us:.1f} us" for name, us in times.items())
        return f"measured: {said}" if fastest(times) == "cuBLAS" else None

    def _time(self, program: Program, library: str) -> float:
        """Microseconds of a Program of float32 and integer inputs, with what the library computes in it."""
        from minicnn.backends.cupy.executable import StepExecutable

        backend = CupyBackend(self.device, options=replace(self.options, library=library, graph=True))
        rng = cupy.random.RandomState(0)
        with explained(), self._device:
            arrays = {
                v.name: (rng.standard_normal(v.shape) if v.dtype[0] == "f" else cupy.zeros(v.shape)).astype(v.dtype)
                for v in program.inputs
            }
            return StepExecutable(backend, program).microseconds(arrays)

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        """See `Backend.explain`; nodes of one kernel carry its number."""
        plan, note = self.plan(program), notes(self.gpu, self.tiles)
        place = {}
        for number, launch in enumerate(plan.launches):
            for group in launch:
                tile = group.described + note if group.tile else group.described
                for node in group.every:
                    place[id(node)] = f"reference: {group.reference}" if group.reference else f"kernel {number}: {tile}"
                    if node.op is LIBRARY:
                        place[id(node)] = f"kernel {number}: cuBLAS, {node.attrs['why']}"
        place |= {id(n): place[id(c)] for c in program.nodes if c.op is ROW_REGION for n in c.attrs["region"].nodes}
        return [(node, place.get(id(node), "kernel: where its result is read")) for node in every_node(program)]

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; arrays that a Program carries are overwritten. The Program is changed."""
        from minicnn.backends.cupy.executable import StepExecutable

        def make(program: Program) -> Executable:
            with explained():
                return StepExecutable(self, program)

        with explained(), self._device:
            return load(self, program, make)

    # Machine ------------------------------------------------------------------------------------

    @classmethod
    def describe(cls) -> dict[str, str]:
        """See `Backend.describe`."""
        facts = {"cupy": cupy.__version__}
        with explained():
            facts["cuda"] = _version(cupy.cuda.runtime.runtimeGetVersion())
            facts["driver"] = _version(cupy.cuda.runtime.driverGetVersion())
            for number in range(cupy.cuda.runtime.getDeviceCount()):
                facts[f"cuda:{number}"] = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
        return facts

    def memory(self) -> int | None:
        """See `Backend.memory`: what CuPy's pool has in use."""
        with explained(), self._device:
            return int(cupy.get_default_memory_pool().used_bytes())


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
