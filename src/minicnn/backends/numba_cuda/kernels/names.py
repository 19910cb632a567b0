"""All that the text of a generated kernel sees."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.kernels import elementary, scalars
from minicnn.backends.numba_cuda.shim import types

_MODULES = ("decorators", "bytes_product", "matmul", "sorting")

NAMES: dict[str, Any] = {
    **{
        name: it for module in _MODULES for name, it in vars(import_module(f"{__package__}.{module}")).items()
        if not name.startswith("_")
    },
    "np": np, "types": types, **elementary.NAMES, **scalars.NAMES,
}  # fmt: skip
