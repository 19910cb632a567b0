"""The backend of WebGPU."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import wgpu  # noqa: F401 - whose absence is said when the backend is asked for

from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.host_namespace import HostNamespace
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.runtime import ALIGNMENT
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import Array as AnyArray
from minicnn.backends.base import Executable
from minicnn.backends.webgpu.adapters import adapters
from minicnn.backends.webgpu.arrays import Array, check_dtype
from minicnn.backends.webgpu.generation import generate
from minicnn.backends.webgpu.runtime import WebGpuRuntime, runtime_of
from minicnn.backends.webgpu.tiles import WebGpuTiles
from minicnn.program.graph import Program


class WebGpuBackend(GpuBackend):
    """Runs Programs by kernels in WGSL, on a GPU of any vendor. See `GpuBackend`.

    Arrays come in and go out as NumPy's. WGSL has no float64.

    Args:
        device: "0", "1" ... or "adapter:1": the number of an adapter that `minicnn info` lists.
        reference_only: See `Backend`.
        strict: See `Backend`.
        options: See `GpuBackend`.
    """

    name = "webgpu"
    devices = ("adapter",)
    xp = HostNamespace("minicnn.backends.webgpu")
    generate = staticmethod(generate)
    runtime: WebGpuRuntime

    def __init__(
        self,
        device: str | None = None,
        *,
        reference_only: bool = False,
        strict: bool = False,
        options: Options | None = None,
    ) -> None:
        device = f"adapter:{device}" if device is not None and device.isdigit() else device
        super().__init__(device, reference_only=reference_only, strict=strict, options=options)
        self.precisions = ("float32",) if reference_only else ("float32", "mixed_float16")

    def open(self, number: int) -> tuple[WebGpuRuntime, Tiles]:
        runtime = runtime_of(number)
        return runtime, WebGpuTiles(runtime.gpu)

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> AnyArray:
        """See `Backend.asarray`.

        Raises:
            TypeError: For a type that WGSL does not have.
        """
        address = self.runtime.address(data)
        if address is not None and address % ALIGNMENT == 0 and dtype in (None, data.dtype):
            return data
        host = np.asarray(data, dtype)
        check_dtype(host.dtype)
        with self.active():
            array = self.runtime.empty(host.shape, host.dtype.name)
            self.runtime.send(np.ascontiguousarray(host), array)
        return array

    def to_numpy(self, array: AnyArray) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, Array)

    def compile(self, program: Program, *, second_stream: bool = True) -> Executable:
        """See `Backend.compile`; references run on the host, and what they give goes to the adapter."""
        run = super().compile(program, second_stream=second_stream)
        if not self.reference_only:
            return run

        def call(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
            return {name: self.asarray(array) for name, array in run(arrays).items()}

        return call

    @classmethod
    def describe(cls) -> dict[str, str]:
        facts = {"wgpu": version("wgpu")}
        for number, adapter in enumerate(adapters()):
            info = adapter.info
            facts[f"webgpu:{number}"] = f"{info['device']} ({info['backend_type']}, {info['adapter_type']})"
        return facts
