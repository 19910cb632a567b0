"""Shape and dtype of an array, and the sizes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


class Shaped:
    """An array, or the description of one: its dtype is a name in `ITEMSIZE`, or an object of NumPy's kind."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        # NumPy has no bfloat16, so a name is looked up.
        size: int = ITEMSIZE[self.dtype] if isinstance(self.dtype, str) else self.dtype.itemsize
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize


@dataclass(frozen=True)
class Spec(Shaped):
    """Shape and dtype of an array, without its elements."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @cached_property
    def size(self) -> int:  # planning asks for it a hundred thousand times
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
