"""array-api-strict: a namespace that has nothing but the standard. For tests of portability, slow."""

from __future__ import annotations

from typing import Any

import array_api_strict as xp
import numpy as np

from minicnn.backends.base import Array, Backend


class StrictBackend(Backend):
    """Runs the references on array-api-strict arrays."""

    name = "array_api_strict"
    xp = xp
    devices = ("cpu", "device1", "device2")

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict)
        self._device = xp.Device("CPU_DEVICE" if self.device == "cpu" else self.device)

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        if self.owns(data):
            return xp.astype(data, getattr(xp, dtype)) if dtype else data
        return xp.asarray(np.asarray(data, dtype=dtype), copy=True, device=self._device)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.array(np.from_dlpack(array.to_device(xp.Device("CPU_DEVICE"))))

    def owns(self, array: Any) -> bool:
        return type(array).__module__.startswith("array_api_strict")

    @classmethod
    def describe(cls) -> dict[str, str]:
        return {"array-api-strict": xp.__version__}
