"""Elementary functions of one number, by NumPy's in the simulator; all keep its type."""

from __future__ import annotations

from typing import Any

import numpy as np

_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cos", "cosh", "exp", "expm1", "fmod",
    "hypot", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_TYPED = ("ceil", "floor", "nextafter", "rint", "trunc")  # in whose names their type stands

NAMES: dict[str, Any] = {name: getattr(np, name) for name in _FUNCTIONS}
NAMES["pow_"] = NAMES.pop("pow")  # `pow` is Python's
NAMES |= {f"{name}_{kind}": getattr(np, name) for name in _TYPED for kind in ("float32", "float64")}

copysign, exp, fmod, log, log1p = (NAMES[name] for name in ("copysign", "exp", "fmod", "log", "log1p"))
