"""The backend of CuPy."""

from __future__ import annotations

from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.errors import explained
from minicnn.backends._gpu.planning import tiles_on
from minicnn.backends._gpu.runtime import ALIGNMENT
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array
from minicnn.backends.cupy.generation import generate
from minicnn.backends.cupy.runtime import CupyRuntime


class CupyBackend(GpuBackend):
    """Runs Programs by kernels in CUDA C++ that are generated for them, on CuPy arrays. See `GpuBackend`."""

    name = "cupy"
    xp = xp
    precisions = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
    generate = staticmethod(generate)
    exchanges = True
    runtime: CupyRuntime

    def open(self, number: int) -> tuple[CupyRuntime, Tiles]:
        runtime = CupyRuntime(number)
        return runtime, tiles_on(runtime.gpu, self.options)

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`; contiguous in row-major order, and begins at a multiple of 16 bytes."""
        if isinstance(data, cupy.ndarray) and data.device.id != self.runtime.number:
            raise ValueError(
                f"Arrays are on the model's device. Received: an array on cuda:{data.device.id}, the model is on "
                f"cuda:{self.runtime.number}. Copy it there, or use the backend cupy:cuda:{data.device.id}."
            )
        with self.active():
            if isinstance(data, cupy.ndarray):
                array = cupy.ascontiguousarray(data, dtype=dtype).reshape(data.shape)
                return array.copy() if array.data.ptr % ALIGNMENT else array
            return cupy.array(np.asarray(data), dtype=dtype, order="C")

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        with self.active():
            return cupy.asnumpy(array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, cupy.ndarray)

    def over(self, array: Any) -> Array:
        with self.active():
            return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)

    # Machine ------------------------------------------------------------------------------------

    @classmethod
    def describe(cls) -> dict[str, str]:
        facts = {"cupy": cupy.__version__}
        with explained():
            facts["cuda"] = _version(cupy.cuda.runtime.runtimeGetVersion())
            facts["driver"] = _version(cupy.cuda.runtime.driverGetVersion())
            for number in range(cupy.cuda.runtime.getDeviceCount()):
                facts[f"cuda:{number}"] = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
        return facts


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
