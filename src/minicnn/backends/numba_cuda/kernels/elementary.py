"""Elementary functions of one number: Python's math on the device, NumPy's in the simulator; both keep its type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.shim import SIMULATED, cuda

# Name in kernels -> function of Python's math, function of NumPy.
_FUNCTIONS = {
    "acos": (math.acos, np.arccos), "acosh": (math.acosh, np.arccosh), "asin": (math.asin, np.arcsin),
    "asinh": (math.asinh, np.arcsinh), "atan": (math.atan, np.arctan), "atan2": (math.atan2, np.arctan2),
    "atanh": (math.atanh, np.arctanh), "copysign": (math.copysign, np.copysign), "cos": (math.cos, np.cos),
    "cosh": (math.cosh, np.cosh), "exp": (math.exp, np.exp), "expm1": (math.expm1, np.expm1),
    "hypot": (math.hypot, np.hypot), "log": (math.log, np.log), "log10": (math.log10, np.log10),
    "log1p": (math.log1p, np.log1p), "log2": (math.log2, np.log2), "pow_": (math.pow, np.power),
    "sin": (math.sin, np.sin), "sinh": (math.sinh, np.sinh), "sqrt": (math.sqrt, np.sqrt), "tan": (math.tan, np.tan),
    "tanh": (math.tanh, np.tanh),
}  # fmt: skip
# These keep the type only in libdevice, whose float32 functions end in f.
_TYPED = {"ceil": np.ceil, "floor": np.floor, "nextafter": np.nextafter, "rint": np.rint, "trunc": np.trunc}

NAMES: dict[str, Any] = {name: pair[1 if SIMULATED else 0] for name, pair in _FUNCTIONS.items()}
for _name, _numpy in _TYPED.items():
    for _type, _ending in (("float32", "f"), ("float64", "")):
        NAMES[f"{_name}_{_type}"] = _numpy if SIMULATED else getattr(cuda.libdevice, _name + _ending)

exp, expm1, log, log1p, sqrt, tanh = (NAMES[name] for name in ("exp", "expm1", "log", "log1p", "sqrt", "tanh"))
power = NAMES["pow_"]
