"""Elementary functions of one number: Python's math on the device, NumPy's in the simulator; both keep its type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.shim import SIMULATED, cuda

_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cos", "cosh", "exp", "expm1", "hypot",
    "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
# These keep the type only in libdevice, whose float32 functions end in f.
_TYPED = ("ceil", "floor", "nextafter", "rint", "trunc")

_SOURCE: Any = np if SIMULATED else math
NAMES: dict[str, Any] = {name: getattr(_SOURCE, name) for name in _FUNCTIONS}
NAMES["pow_"] = NAMES.pop("pow")  # `pow` is Python's
for _name in _TYPED:
    for _type, _ending in (("float32", "f"), ("float64", "")):
        NAMES[f"{_name}_{_type}"] = getattr(np, _name) if SIMULATED else getattr(cuda.libdevice, _name + _ending)

exp, log, log1p = (NAMES[name] for name in ("exp", "log", "log1p"))
