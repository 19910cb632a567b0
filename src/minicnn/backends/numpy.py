"""NumPy: the references train on it with NumPy alone, convolutions by rows or in blocks."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn.backends._blocks import in_blocks
from minicnn.backends._rows import by_rows
from minicnn.backends.base import Array, Backend, Kernel
from minicnn.program.graph import Node, Program
from minicnn.program.layout import batch_last


class NumpyBackend(Backend):
    """Runs the references on NumPy arrays."""

    name = "numpy"
    xp = xp

    def rewrite(self, program: Program) -> Program:
        """Images with the batch last: NumPy is fast where its inner loops are long."""
        return batch_last(program)

    def kernel(self, node: Node) -> Kernel | str:
        """Convolutions in the order that is fastest for their shapes; the reference where that is a plain unfolding."""
        return by_rows(node) or in_blocks(node, xp) or super().kernel(node)

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        return np.asarray(data, dtype=dtype)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    @classmethod
    def describe(cls) -> dict[str, str]:
        return {"numpy": np.__version__}
