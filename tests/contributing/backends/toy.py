"""A backend that is added as CONTRIBUTING.md says: NumPy's arrays, and one kernel."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn.backends.base import Array, Backend, Kernel
from minicnn.program import Node


class ToyBackend(Backend):
    """NumPy with a kernel for relu in float32."""

    name = "toy"
    xp = xp

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`."""
        return np.asarray(data, dtype)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        return np.asarray(array)

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, np.ndarray)

    def kernel(self, node: Node) -> Kernel | str:
        """See `Backend.kernel`."""
        if node.op.name != "relu":
            return f"no kernel for {node.op.name}"
        return relu if node.outputs[0].dtype == "float32" else "relu has a kernel for float32 only"


def relu(x: Array) -> Array:
    """max(x, 0) as a new array."""
    return np.maximum(x, np.float32(0))
