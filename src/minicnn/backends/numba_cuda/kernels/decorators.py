"""Decorators of the kernels' functions: compiled for the device, or left as they are for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.shim import (
    SIMULATED,
    byte,
    choose,
    device_function,
    read,
    read_four,
    read_word,
    read_words,
)
from minicnn.backends.numba_cuda.texts import define

__all__ = [
    "ALIGNED", "Function", "block", "byte", "choose", "device", "index", "read", "read_four", "read_word", "read_words",
    "signed", "slot", "unrolled",
]  # fmt: skip

Function = Callable[..., Any]


def device(function: Function) -> Function:
    """A function of one element: called from kernels, inlined, and without `cuda.` in it.

    In the simulator it stays a Python function: looking for `cuda` in its module at every call would be slow.
    """
    return function if SIMULATED else device_function(function)


def block(function: Function) -> Function:
    """A function that all threads of a block call together, with shared memory and barriers."""
    return device_function(function)


# Indices into memory are 32 bits wide on the device, where 64-bit division is slow; the simulator is fastest with
# Python's int. What may be negative before it is compared becomes `signed`. Indices into shared arrays become `slot`:
# those that differ by a constant then share an address, and none is taken for a negative one that counts from the end.
index: Any = int if SIMULATED else np.uint32
signed: Any = int if SIMULATED else np.int32
slot: Any = int if SIMULATED else np.uint64


def unrolled(count: int, body: Function, state: str = "s") -> Function:
    """Function run(s) that calls body(0, s), body(1, s) ... one after the other, each k a constant.

    If it is `state` several arguments, such as "p, thread", s is the tuple of them.

    The compiler unrolls short loops by itself; this is for those that it leaves as loops, and where a loop would put an
    array in memory that could be in registers.
    """
    names: dict[str, Any] = {"body": body, "index": index}  # 32 bits wide, as other indices
    calls = "".join(f"    body(index({k}), ({state}))\n" for k in range(count))
    # As text, so that each call has its number as a constant.
    define(f"def run({state}):\n    pass\n{calls}", names)
    return device(names["run"])


# Shared memory that is read several numbers at a time; the simulator knows no alignment.
ALIGNED = None if SIMULATED else 16
