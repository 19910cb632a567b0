"""MLX: arrays of Apple's library, for the GPU of a Mac or a CPU. The GPU has not been tried."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from minicnn.backends.base import Array, Backend, Executable
from minicnn.program.graph import Program


class _Namespace(ModuleType):
    """mlx.core with what it lacks of the Array API, or does in another way."""

    def __getattr__(self, name: str) -> Any:
        return mx.bool_ if name == "bool" else getattr(mx, name)

    @staticmethod
    def argsort(x: Array, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
        """Indices that sort in ascending order; those of equal elements in theirs."""
        return mx.argsort(x, axis)

    @staticmethod
    def searchsorted(x: Array, values: Array, *, side: str = "left") -> Array:
        """Positions as signed integers, as the standard has them."""
        return mx.searchsorted(x, values, side=side).astype(mx.int32)


class MlxBackend(Backend):
    """Runs the references on MLX arrays, which are computed together at the end of a step."""

    name = "mlx"
    xp = _Namespace("mlx.core")
    devices = ("cpu", "gpu")
    survives_fork = False

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        there = "gpu" if mx.metal.is_available() else "cpu"
        super().__init__(there if device is None else device, reference_only=reference_only, strict=strict)
        if self.device == "gpu":
            if there == "cpu":
                raise RuntimeError(
                    f"MLX must see the device that is asked for. Received: {device!r}, found: cpu. Use a Mac with a "
                    "GPU, or mlx:cpu."
                )
            self.precisions = ("float32",)  # Metal has no float64
        self._device = mx.gpu if self.device == "gpu" else mx.cpu

    def active(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = mx.stream(self._device)
        return stream

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        if self.owns(data):
            return data if dtype is None else data.astype(_type(dtype))
        array = np.asarray(data, dtype=dtype, order="C")  # MLX refuses negative strides
        with self.active():
            return mx.array(array, dtype=_type(array.dtype.name))

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, mx.array)

    def synchronize(self) -> None:
        mx.synchronize(self._device)

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; arrays are computed before the next step, or their graph would grow."""
        run = super().compile(program)

        def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
            with self.active():
                results = run(arrays)
                mx.eval(results)
            return results

        return call

    def memory(self) -> int | None:
        return int(mx.get_active_memory()) if self.device == "gpu" else None

    @classmethod
    def describe(cls) -> dict[str, str]:
        return {"mlx": version("mlx"), "devices": "gpu, cpu" if mx.metal.is_available() else "cpu"}


def _type(dtype: str) -> Any:
    """The type of that name."""
    return mx.bool_ if dtype == "bool" else getattr(mx, dtype)
