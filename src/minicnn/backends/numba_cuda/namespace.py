"""The namespace of the Array API standard 2025.12 for arrays on numba-cuda.

What the standard has and this namespace lacks is in `MISSING`, with the reason; asking for it raises an
AttributeError that says so.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import (
    creation,
    dtypes,
    elementwise,
    gathering,
    indexing,
    linear_algebra,
    manipulation,
    reductions,
    sorting,
)
from minicnn.backends.numba_cuda.arrays import OPERATORS
from minicnn.backends.numba_cuda.device import device_count
from minicnn.backends.numba_cuda.dtypes import ALL, KINDS

__array_api_version__ = "2025.12"
e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

# Each of these modules lists in its `__all__` what of it is the standard's.
for _module in (creation, dtypes, elementwise, gathering, indexing, linear_algebra, manipulation, reductions, sorting):
    globals().update({name: getattr(_module, name) for name in _module.__all__})
globals().update(elementwise.FUNCTIONS)
OPERATORS.update(elementwise.FUNCTIONS, matmul=linear_algebra.matmul, contiguous=elementwise.contiguous)
OPERATORS.update(get=indexing.get, put=indexing.put)
OPERATORS["namespace"] = lambda: sys.modules[__name__]
globals().update({name: np.dtype(name) for name in ALL})

_COMPLEX = "there are no complex numbers"
_EXTENSION = "the extension is left out"
MISSING = {"imag": _COMPLEX, "complex64": _COMPLEX, "complex128": _COMPLEX, "fft": _EXTENSION, "linalg": _EXTENSION}


def __getattr__(name: str) -> Any:
    reason = MISSING.get(name)
    text = f": {reason}" if reason else ", and neither has the standard"
    raise AttributeError(f"numba_cuda has no {name}{text}. docs/numba-cuda.md lists what there is.")


class _Info:
    """The namespace's answers to `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Capabilities that depend on data, and the most axes of an array."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Device of arrays for which none is named."""
        return "cuda:0"

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Types that are taken when none is named."""
        return {
            "real floating": np.dtype("float64"), "complex floating": None, "integral": np.dtype("int64"),
            "indexing": np.dtype("int64"),
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Types by name, of a kind."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = ALL if kind is None else [n for k in kinds for n in KINDS[k]]
        return {name: np.dtype(name) for name in wanted}

    def devices(self) -> tuple[str, ...]:
        """Names of devices."""
        return tuple(f"cuda:{number}" for number in range(device_count()))


def __array_namespace_info__() -> _Info:  # noqa: N807
    """Inspection of the namespace, as the standard defines it."""
    return _Info()
