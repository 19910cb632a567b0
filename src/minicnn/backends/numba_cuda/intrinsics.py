"""Functions that kernels call and that have instructions of their own, by what Python has of their name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import shim
from minicnn.backends.numba_cuda.instructions import TYPES, Instructions, Memory, Number, constant

# Functions of NVIDIA's library, which have NumPy's names.
_LIBRARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "exp", "expm1",
    "floor", "fmod", "hypot", "log", "log10", "log1p", "log2", "nextafter", "pow", "rint", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
)  # fmt: skip


def _library(name: str, out: Instructions, *numbers: Number) -> Number:
    numbers = tuple(out.alike(*numbers))
    kind = numbers[0].kind if numbers[0].is_float else "float64"
    function = f"__nv_{name}{'f' if kind == 'float32' else ''}"
    return Number(kind, out.call(function, TYPES[kind], [out.cast(n, kind) for n in numbers]))


def _read(out: Instructions, array: Memory, at: Number) -> Number:
    return out.read(array, at)[0]


def _read_four(out: Instructions, array: Memory, at: Number) -> tuple[Number, ...]:
    return tuple(out.read(array, at, 4))


def _read_word(out: Instructions, array: Memory, at: Number) -> Number:
    return out.read(array, at, 1, "uint32")[0]


def _read_words(out: Instructions, array: Memory, at: Number) -> tuple[Number, ...]:
    return tuple(out.read(array, at, 4, "uint32"))


def _byte(out: Instructions, word: Number, k: Number) -> Number:
    place = out.binary("+", out.cast(k, "uint32"), constant(0x7440))  # the byte under the upper half of 2^23 as float32
    upper = constant(0x4B000000, "uint32")
    packed = out.call("llvm.nvvm.prmt", "i32", [out.cast(word, "uint32"), upper, out.cast(place, "uint32")])
    number = Number("float32", out.emit(f"bitcast i32 {packed} to float"))
    return out.binary("-", number, constant(2.0**23, "float32"))


def _choose(out: Instructions, condition: Number, a: Number, b: Number) -> Number:
    return out.select(out.cast(condition, "bool"), a, b)


def _abs(out: Instructions, x: Number) -> Number:
    if x.is_float:
        ending = "f32" if x.kind == "float32" else "f64"
        return Number(x.kind, out.call(f"llvm.fabs.{ending}", TYPES[x.kind], [x]))
    return out.select(out.compare("<", x, constant(0, x.kind)), out.cast(out.negated(x), x.kind), x)


def _extremum(sign: str) -> Callable[..., Number]:
    def emit(out: Instructions, *numbers: Number) -> Number:
        return reduce(lambda a, b: out.select(out.compare(sign, b, a), b, a), numbers)

    return emit


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(np, name): partial(_library, name) for name in _LIBRARY},
    **{getattr(math, name): partial(_library, name) for name in ("erf", "erfc", "floor")},
    shim.read: _read, shim.read_four: _read_four, shim.read_word: _read_word, shim.read_words: _read_words,
    shim.byte: _byte, shim.choose: _choose, abs: _abs, min: _extremum("<"), max: _extremum(">"),
    bool: lambda out, x: out.cast(x, "bool"),
}  # fmt: skip
