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

LARGEST_KEPT = 2**25  # bytes: DEFAULT_MMAP_THRESHOLD_MAX of glibc on machines of 64 bits


class NumpyBackend(Backend):
    """Runs the references on NumPy arrays."""

    name = "numpy"
    xp = xp

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict)
        reuse_freed_memory()

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


def reuse_freed_memory() -> None:
    """Have glibc give arrays memory that was freed, rather than new memory, whose pages Linux fills with zeros.

    An array that is larger than the largest one freed so far is mapped anew, up to LARGEST_KEPT, and what lies free
    beyond twice as much is handed back (M_MMAP_THRESHOLD in mallopt(3)). One array that is freed and never touched
    makes glibc keep those of a step, half of whose time goes into new pages otherwise. Other allocators do not mind.
    """
    np.empty(LARGEST_KEPT - 2**14, np.uint8)
