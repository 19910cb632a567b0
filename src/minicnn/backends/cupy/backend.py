"""The backend of CuPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.executable import StepExecutable
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import tiles_of, tiles_on
from minicnn.backends._gpu.runtime import ALIGNMENT
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array
from minicnn.backends.cupy import nvrtc
from minicnn.backends.cupy.choosing import fastest, measured
from minicnn.backends.cupy.compiler import HEADERS, header
from minicnn.backends.cupy.errors import explained
from minicnn.backends.cupy.generation import generate
from minicnn.backends.cupy.library import LEAST_OPERATIONS, LIBRARY, described, operations, piece, use_library
from minicnn.backends.cupy.runtime import CupyRuntime
from minicnn.program.graph import Node, Program


class CupyBackend(GpuBackend):
    """Runs Programs by kernels in CUDA C++ that are generated for them, on CuPy arrays. See `GpuBackend`."""

    name = "cupy"
    xp = xp
    precisions: tuple[str, ...] = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
    generate = staticmethod(generate)
    has_library = True
    runtime: CupyRuntime

    def __init__(
        self,
        device: str | None = None,
        *,
        reference_only: bool = False,
        strict: bool = False,
        options: Options | None = None,
    ) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict, options=options)
        if not isinstance(self.tiles, TensorTiles) or reference_only:
            self.precisions = ("float32", "float64")

    def open(self, number: int) -> tuple[CupyRuntime, Tiles]:
        """See `GpuBackend.open`."""
        runtime = CupyRuntime(number)
        return runtime, tiles_on(runtime.gpu, self.options)

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`; contiguous in row-major order, and begins at a multiple of 16 bytes."""
        if isinstance(data, cupy.ndarray) and data.device.id != self.runtime.number:
            message = (
                f"Arrays are on the model's device. Received: an array on cuda:{data.device.id}, the model is on "
                f"cuda:{self.runtime.number}. Copy it there, or use the backend cupy:cuda:{data.device.id}."
            )
            raise ValueError(message)
        with self.runtime.active():
            if isinstance(data, cupy.ndarray):
                made = cupy.ascontiguousarray(data, dtype=dtype).reshape(data.shape)
                return made.copy() if made.data.ptr % ALIGNMENT else made
            return cupy.array(np.asarray(data), dtype=dtype, order="C")

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        with explained():
            return cupy.asnumpy(array)

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, cupy.ndarray)

    # Programs -----------------------------------------------------------------------------------

    def rewrite(self, program: Program) -> Program:
        """See `GpuBackend.rewrite`; the library computes what the options say."""
        wanted = self.options.library != "never" and not self.reference_only
        if wanted and tiles_of(program, self.tiles).precision == "float32":
            use_library(program, partial(self._why_library, program))
        return super().rewrite(program)

    def elsewhere(self, node: Node) -> str | None:
        """See `GpuBackend.elsewhere`."""
        return f"cuBLAS, {node.attrs['why']}" if node.op is LIBRARY else None

    def library(self, node: Node) -> Callable[..., None]:
        """See `GpuBackend.library`."""
        from minicnn.backends.cupy.cublas import handle

        return partial(handle(self.runtime.number).multiply, node)

    def _why_library(self, program: Program, node: Node) -> str | None:
        """Why cuBLAS should compute a product, or None."""
        if self.options.library == "always":
            return "as Options says"
        if operations(node) < LEAST_OPERATIONS:
            return None
        text = described(piece(program, node))
        device = self.runtime.gpu.name
        key = (text, device, cupy.__version__, nvrtc.version(), *map(header, HEADERS), str(self.options))
        ways = {"own kernels": "never", "cuBLAS": "always"}
        times = measured(key, {n: partial(self._time, piece(program, node), mode) for n, mode in ways.items()})
        said = ", ".join(f"{name} {us:.1f} us" for name, us in times.items())
        return f"measured: {said}" if fastest(times) == "cuBLAS" else None

    def _time(self, program: Program, library: str) -> float:
        """Microseconds of a Program of float32 and integer inputs, with what the library computes in it."""
        backend = CupyBackend(self.device, options=replace(self.options, library=library, graph=True))
        rng = cupy.random.RandomState(0)
        with self.runtime.active():
            arrays = {
                v.name: (rng.standard_normal(v.shape) if v.dtype[0] == "f" else cupy.zeros(v.shape)).astype(v.dtype)
                for v in program.inputs
            }
            return StepExecutable(backend, program).microseconds(arrays)

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


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
