"""The backend of Numba on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array as AnyArray
from minicnn.backends.numba_cuda import namespace, tiling
from minicnn.backends.numba_cuda.arrays import Array, from_interface, from_numpy
from minicnn.backends.numba_cuda.device import device_count, get_device
from minicnn.backends.numba_cuda.elementwise import contiguous
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.runtime import NumbaCudaRuntime
from minicnn.backends.numba_cuda.shim import LIBRARY, SIMULATED, VERSION


class NumbaCudaBackend(GpuBackend):
    """Runs Programs by kernels in Python that are generated for them, on arrays of numba-cuda. See `GpuBackend`.

    With NUMBA_ENABLE_CUDASIM=1 in the environment everything runs, slowly, in the CUDA simulator.
    """

    name = "numba_cuda"
    xp = namespace
    generate = staticmethod(generate)
    runtime: NumbaCudaRuntime

    def open(self, number: int) -> tuple[NumbaCudaRuntime, Tiles]:
        runtime = NumbaCudaRuntime(get_device(number))
        return runtime, tiling.NumbaTiles(runtime.gpu or tiling.SIMULATOR)

    @property
    def block(self) -> int:
        """See `GpuBackend.block`; few in the simulator, where each is a thread of the host."""
        return self.tiles.limits.reduction if SIMULATED else self.options.block

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> AnyArray:
        """See `Backend.asarray`; contiguous in row-major order, and begins at a multiple of 16 bytes."""
        if hasattr(data, "__cuda_array_interface__") and not isinstance(data, Array):
            data = from_interface(data)
        if isinstance(data, Array):
            device = self.runtime.device
            if data.device is not device:
                raise ValueError(
                    f"Arrays are on the model's device. Received: an array on {data.device}, the model is on "
                    f"{device}. Copy it with array.to_device({str(device)!r})."
                )
            array = namespace.astype(data, dtype or data.dtype, copy=False)
            return contiguous(array, copy=not array.aligned)
        host = np.asarray(data)
        return from_numpy(np.ascontiguousarray(host, dtype).reshape(host.shape), self.runtime.device)

    def to_numpy(self, array: AnyArray) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = array.numpy()
        return host

    def owns(self, array: Any) -> bool:
        return isinstance(array, Array)

    def over(self, array: Any) -> AnyArray:
        return from_interface(array)

    # Machine ------------------------------------------------------------------------------------

    @classmethod
    def describe(cls) -> dict[str, str]:
        facts = {LIBRARY: VERSION}
        if SIMULATED:
            return facts | {"cuda": "simulator"}
        for number in range(device_count()):
            facts[f"cuda:{number}"] = get_device(number).name
        return facts
