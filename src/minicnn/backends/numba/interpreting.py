"""Kernels without compilation, for NUMBA_DISABLE_JIT=1: their text runs as Python, their operations on NumPy arrays.

An operation writes LLVM instructions with a builder. Here the builder computes each instruction at once instead, so
what is run and debugged is the very code that writes the kernels. It is thousands of times slower: for tiny arrays.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

# Whether kernels run as Python.
SWITCHED_ON = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "i1": "bool",
    "i8": "uint8",
    "i16": "uint16",
    "i32": "int32",
    "i64": "int64",
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip

# What kernels can name beside their operations.
NAMES: dict[str, Any] = {
    "float32": np.float32, "int32": int, "int64": int, "uint8": int, "uint16": int, "inf": math.inf, "nan": math.nan,
}  # fmt: skip

_FUNCTIONS: list[Callable[..., None]] = []  # kernels by address, which is their place here and one more
_LOCK = threading.Lock()


def address_of(function: Callable[..., None]) -> int:
    """An address by which `call_kernel` finds a Python function; as machine code, it warns of no overflow."""

    def quiet(*arguments: int) -> None:
        with np.errstate(all="ignore"):
            function(*arguments)

    with _LOCK:
        _FUNCTIONS.append(quiet)
        return len(_FUNCTIONS)


def function_at(address: int) -> Callable[..., None]:
    """The function of an address."""
    return _FUNCTIONS[address - 1]


def interpreted(emit: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that does what the instructions do that `emit(builder, *arguments)` writes."""
    return lambda *arguments: _value(emit(BUILDER, *arguments))


@cache
def _dtype(kind: Any) -> np.dtype[Any]:
    return np.dtype(_DTYPES[str(kind.element if isinstance(kind, ir.VectorType) else kind)])


def _value(x: Any) -> Any:
    """Constants of LLVM as values: vectors as arrays, integers as int, tiles as lists."""
    if not isinstance(x, ir.Constant):
        return x
    kind, value = x.type, x.constant
    if isinstance(kind, ir.VectorType):
        return np.array([0 if v.constant is ir.Undefined else v.constant for v in value], _dtype(kind))
    if isinstance(kind, ir.ArrayType):
        many = [ir.Constant(kind.element, ir.Undefined)] * kind.count if value is ir.Undefined else value
        return [_value(v) for v in many]
    return _scalar(value, kind)


def _scalar(value: Any, kind: Any) -> Any:
    return int(value) if isinstance(kind, ir.IntType) else _dtype(kind).type(value)


def _load(address: int, kind: Any) -> Any:
    dtype, vector = _dtype(kind), isinstance(kind, ir.VectorType)
    elements = np.frombuffer(ctypes.string_at(int(address), dtype.itemsize * (kind.count if vector else 1)), dtype)
    return elements.copy() if vector else _scalar(elements[0], kind)


def _store(address: int, value: Any, kind: Any) -> None:
    data = np.asarray(value).astype(_dtype(kind)).tobytes()
    ctypes.memmove(address, data, len(data))


def _masked_load(pointer: Any, _: Any, mask: Any, other: Any) -> Any:
    count, result = int(mask.sum()), other.copy()
    result[:count] = np.frombuffer(ctypes.string_at(pointer[0], count * other.itemsize), other.dtype)
    return result


def _masked_store(value: Any, pointer: Any, _: Any, mask: Any) -> None:
    data = value[: int(mask.sum())].tobytes()
    ctypes.memmove(pointer[0], data, len(data))


def _gather(places: Any, *_: Any) -> Any:
    return np.array([_load(int(place), ir.FloatType()) for place in places[0]], "float32")


def _scatter(value: Any, places: Any, *_: Any) -> None:
    for one, place in zip(value, places[0], strict=True):
        _store(int(place), one, ir.FloatType())


def _fma(x: Any, y: Any, z: Any) -> Any:
    return (x.astype("float64") * y + z).astype("float32")


# Functions of LLVM and of the operating system, by how their names begin.
_CALLS: dict[str, Callable[..., Any]] = {
    "llvm.fma": _fma,
    "llvm.sqrt": np.sqrt,
    "llvm.fabs": np.abs,
    "llvm.floor": np.floor,
    "llvm.rint": np.rint,
    "llvm.copysign": np.copysign,
    "llvm.masked.gather": _gather,
    "llvm.masked.scatter": _scatter,
    "llvm.masked.load": _masked_load,
    "llvm.masked.store": _masked_store,
    "llvm.vector.reduce.and": np.all,
    "llvm.prefetch": lambda *_: None,
}


class VectorInterpreter:
    """Stands in for `llvmlite.ir.IRBuilder`; pointers are pairs of an address and a type."""

    def __init__(self) -> None:
        self.module = ir.Module()
        for name, instruction in _INSTRUCTIONS.items():
            setattr(self, name, _on_constants(instruction))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An instruction that is missing."""
        raise AttributeError(f"Instructions are listed in _INSTRUCTIONS. Received: {name}. Add what it does.")


def _on_constants(instruction: Callable[..., Any]) -> Callable[..., Any]:
    """An instruction on values, of which some may be constants."""
    return lambda *operands, **_: instruction(*[_value(o) if isinstance(o, ir.Constant) else o for o in operands])


def _convert(x: Any, kind: Any) -> Any:
    return x.astype(_dtype(kind)) if isinstance(x, np.ndarray) else _scalar(x, kind)


def _truncated(x: Any, kind: Any) -> Any:
    if isinstance(x, np.ndarray):
        return _convert(x, kind)
    half = 1 << kind.width - 1
    return (int(x) + half) % (2 * half) - half


def _bitcast(x: Any, kind: Any) -> Any:
    return x.view(_dtype(kind)) if isinstance(x, np.ndarray) else np.int32(x).view("float32")


def _with(sequence: Any, value: Any, place: int) -> Any:
    result = sequence.copy()
    result[place] = value
    return result


def _call(function: Any, arguments: Any) -> Any:
    if isinstance(function, tuple):
        return function_at(function[0])(*arguments)
    run_call = next(run for name, run in _CALLS.items() if function.name.startswith(name))
    return run_call(*(_value(a) for a in arguments))


def _ordered(sign: str, x: Any, y: Any) -> Any:
    return _COMPARE[sign](x, y) & ~(np.isnan(x) | np.isnan(y))


_INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "fadd"), operator.add),
    **dict.fromkeys(("sub", "fsub"), operator.sub),
    **dict.fromkeys(("mul", "fmul"), operator.mul),
    "fdiv": operator.truediv,
    "shl": operator.lshift,
    "ashr": operator.rshift,
    "lshr": lambda x, n: (x.view("uint32") >> n.view("uint32")).view("int32"),
    "and_": operator.and_,
    "or_": operator.or_,
    "not_": operator.invert,
    "icmp_signed": lambda sign, x, y: _COMPARE[sign](x, y),
    "fcmp_ordered": _ordered,
    "fcmp_unordered": lambda _, x, y: np.isnan(x) | np.isnan(y),
    "select": lambda which, x, y: np.where(which, x, y) if np.ndim(which) else (x if which else y),
    "bitcast": _bitcast,
    "trunc": _truncated,
    **dict.fromkeys(("fptosi", "sitofp", "uitofp", "fpext", "fptrunc", "sext", "zext"), _convert),
    **dict.fromkeys(("insert_element", "insert_value"), _with),
    **dict.fromkeys(("extract_element", "extract_value"), operator.getitem),
    "shuffle_vector": lambda x, y, places: np.concatenate([x, y])[places],
    "inttoptr": lambda address, kind: (address, getattr(kind, "pointee", kind)),
    "load": lambda pointer: _load(*pointer),
    "store": lambda value, pointer: _store(pointer[0], value, pointer[1]),
    "call": _call,
}

BUILDER = VectorInterpreter()
