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

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        if self.owns(data):
            return xp.astype(data, getattr(xp, dtype)) if dtype else data
        return xp.asarray(np.asarray(data, dtype=dtype), copy=True)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.array(np.from_dlpack(array))

    def owns(self, array: Any) -> bool:
        return type(array).__module__.startswith("array_api_strict")

    @classmethod
    def describe(cls) -> dict[str, str]:
        return {"array-api-strict": xp.__version__}
