"""The namespace of the Array API standard 2025.12 for arrays on numba-cuda.

What the standard has and this namespace lacks is in `MISSING`, with the reason; asking for it raises an
AttributeError that says so.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.arrays import OPERATORS
from minicnn.backends.numba_cuda.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)  # fmt: skip
from minicnn.backends.numba_cuda.device import device_count
from minicnn.backends.numba_cuda.dtypes import ALL, KINDS, can_cast, finfo, iinfo, isdtype, result_type
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, astype, clip, contiguous, nextafter, where
from minicnn.backends.numba_cuda.gathering import (
    isin,
    repeat,
    sort,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from minicnn.backends.numba_cuda.indexing import get, put, take, take_along_axis
from minicnn.backends.numba_cuda.linear_algebra import matmul, tensordot, vecdot
from minicnn.backends.numba_cuda.manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    permute_dims,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)  # fmt: skip
from minicnn.backends.numba_cuda.reductions import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)  # fmt: skip
from minicnn.backends.numba_cuda.sorting import argsort, nonzero, searchsorted

__array_api_version__ = "2025.12"
e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

globals().update(FUNCTIONS)
OPERATORS.update(FUNCTIONS, matmul=matmul, contiguous=contiguous, get=get, put=put)
OPERATORS["namespace"] = lambda: sys.modules[__name__]
globals().update({name: np.dtype(name) for name in ALL})

_COMPLEX = "there are no complex numbers"
_EXTENSION = "the extension is left out"
MISSING = {"imag": _COMPLEX, "complex64": _COMPLEX, "complex128": _COMPLEX, "fft": _EXTENSION, "linalg": _EXTENSION}


def __getattr__(name: str) -> Any:
    reason = MISSING.get(name)
    text = f": {reason}" if reason else ", and neither has the standard"
    message = f"numba_cuda has no {name}{text}. docs/numba-cuda.md lists what there is."
    raise AttributeError(message)


class _Info:
    """What `__array_namespace_info__` tells."""

    def capabilities(self) -> dict[str, Any]:
        """What depends on data, and how many axes there may be."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where arrays go when no device is named."""
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
    """What the namespace can do."""
    return _Info()


__all__ = [
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "clip",
    "concat",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "e",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "finfo",
    "flip",
    "from_dlpack",
    "full",
    "full_like",
    "iinfo",
    "inf",
    "isdtype",
    "isin",
    "linspace",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "meshgrid",
    "min",
    "moveaxis",
    "nan",
    "newaxis",
    "nextafter",
    "nonzero",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "prod",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "searchsorted",
    "sort",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]  # fmt: skip
