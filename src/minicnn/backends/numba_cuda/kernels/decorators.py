"""How the kernels' functions are compiled: for the device, or left as they are for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.shim import SIMULATED, device_function

Function = Callable[..., Any]


def device(function: Function) -> Function:
    """A function of one element: called from kernels, inlined, and without `cuda.` in it.

    In the simulator it stays a Python function: looking for `cuda` in its module at every call would be slow.
    """
    return function if SIMULATED else device_function(function)


def block(function: Function) -> Function:
    """A function that all threads of a block call together, with shared memory and barriers."""
    return device_function(function)


# Indices are 32 bits wide on the device, where 64-bit division is slow; the simulator is fastest with Python's int.
index: Any = int if SIMULATED else np.uint32

# Shared memory that is read several numbers at a time; the simulator knows no alignment.
ALIGNED = None if SIMULATED else 16
