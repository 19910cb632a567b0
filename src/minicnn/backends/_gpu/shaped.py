"""Sizes that follow from the shape and the type of an array."""

from __future__ import annotations

import math
from typing import Any


class Shaped:
    """An array whose class has a shape and a dtype."""

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
        size: int = self.dtype.itemsize
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize
