"""The one place that knows which library compiles Python for CUDA: numba-cuda, or its successor numba-cuda-mlir.

Kernel files take the global name `cuda` from here; the simulator replaces exactly the globals that are that module.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

NEWEST_NUMPY = (2, 4)  # numba-cuda up to 0.30.4 calls numpy.row_stack, which NumPy 2.5 lacks


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def check_numpy(numpy: str, numba_cuda: str) -> None:
    """Refuse a pair of versions that compiles but cannot launch.

    Raises:
        ImportError: If NumPy is too new for numba-cuda; says what to install.
    """
    if _version(numba_cuda) <= (0, 30, 4) and _version(numpy)[:2] > NEWEST_NUMPY:
        newest = ".".join(map(str, NEWEST_NUMPY))
        raise ImportError(
            f"a NumPy that is not newer than {newest}: numba-cuda {numba_cuda} cannot launch kernels under "
            f'NumPy {numpy}. Use pip install "numpy<2.5"'
        )


if find_spec("numba_cuda") is not None:
    LIBRARY = "numba-cuda"
    check_numpy(np.__version__, importlib.metadata.version("numba-cuda"))
    from numba import cuda, types
elif find_spec("numba_cuda_mlir") is not None:
    LIBRARY = "numba-cuda-mlir"
    from numba_cuda_mlir import cuda, types
else:
    _missing = "numba_cuda"
    raise ImportError(_missing, name=_missing)

VERSION = importlib.metadata.version(LIBRARY)
SIMULATED = LIBRARY == "numba-cuda" and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


# numba-cuda-mlir 0.6.0 takes shared memory only in kernels, so its functions are put into them before it compiles.
_INLINED: dict[str, Any] = {"forceinline": True} if LIBRARY == "numba-cuda" else {"inline": "always"}


def device_function(function: Any) -> Any:
    """A function that kernels call, inlined into them."""
    return cuda.jit(function, device=True, **({} if SIMULATED else _INLINED))


def _plain_read(pointer: Any, i: Any) -> Any:
    return pointer[i]


def _plain_read_four(pointer: Any, i: Any) -> Any:
    return pointer[i], pointer[i + 1], pointer[i + 2], pointer[i + 3]


def _plain_read_word(pointer: Any, i: Any) -> Any:
    word = np.uint32(0)
    for k in range(4):
        word |= np.uint32(pointer[i + k]) << np.uint32(8 * k)
    return word


def _plain_read_words(pointer: Any, i: Any) -> Any:
    first, second = _plain_read_word(pointer, i), _plain_read_word(pointer, i + 4)
    return first, second, _plain_read_word(pointer, i + 8), _plain_read_word(pointer, i + 12)


def _plain_byte(word: Any, k: Any) -> Any:
    return np.float32(word >> (8 * k) & 255)


def _plain_choose(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _intrinsics() -> tuple[Any, ...]:
    """Intrinsics that Python has no word for: `read`, `read_four`, `read_word`, `read_words`, `byte` and `choose`."""
    plain = (_plain_read, _plain_read_four, _plain_read_word, _plain_read_words, _plain_byte, _plain_choose)
    if SIMULATED:
        return plain
    if LIBRARY != "numba-cuda":
        return tuple(map(device_function, plain))
    from llvmlite import ir

    intrinsic: Callable[[Any], Any] = importlib.import_module("numba.cuda.extending").intrinsic

    def loaded(context: Any, builder: Any, arguments: Any, i: Any, kind: Any = None, align: int | None = None) -> Any:
        """A number, or several as LLVM's type of a vector, from memory that the kernel does not write."""
        place = builder.gep(arguments[0], [context.cast(builder, arguments[1], i, types.uint64)])
        value = builder.load(place if kind is None else builder.bitcast(place, kind.as_pointer()), align=align)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    @intrinsic
    def read(typing: Any, pointer: Any, i: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = loaded(context, builder, arguments, i)
            return context.data_model_manager[pointer.dtype].from_data(builder, value)

        return pointer.dtype(pointer, i), generate

    def reading_four(kind: Any = None) -> Any:
        """An intrinsic that reads four numbers of a type, that of the pointer by default, by one load."""

        @intrinsic
        def read_four(typing: Any, pointer: Any, i: Any) -> Any:
            quad = types.UniTuple(kind or pointer.dtype, 4)

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                model = context.data_model_manager[quad.dtype]
                four, size = ir.VectorType(model.get_data_type(), 4), context.get_abi_sizeof(model.get_data_type())
                value = loaded(context, builder, arguments, i, four, min(16, 4 * size))
                each = [builder.extract_element(value, ir.Constant(ir.IntType(32), k)) for k in range(4)]
                return context.make_tuple(builder, quad, [model.from_data(builder, one) for one in each])

            return quad(pointer, i), generate

        return read_four

    @intrinsic
    def read_word(typing: Any, pointer: Any, i: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return loaded(context, builder, arguments, i, ir.IntType(32), 4)

        return types.uint32(pointer, i), generate

    @intrinsic
    def byte(typing: Any, word: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer, number = ir.IntType(32), ir.FloatType()
            packed, at = (context.cast(builder, x, t, types.uint32) for x, t in zip(arguments, (word, k), strict=True))
            select = builder.module.declare_intrinsic("llvm.nvvm.prmt", fnty=ir.FunctionType(integer, [integer] * 3))
            place = builder.add(at, ir.Constant(integer, 0x7440))  # the byte under the upper half of 2^23 as float32
            word_bits = builder.call(select, [packed, ir.Constant(integer, 0x4B000000), place])
            return builder.fsub(builder.bitcast(word_bits, number), ir.Constant(number, 2.0**23))

        return types.float32(word, k), generate

    @intrinsic
    def choose(typing: Any, condition: Any, a: Any, b: Any) -> Any:
        common_type = typing.unify_types(types.unliteral(a), types.unliteral(b))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pair = (context.cast(builder, x, t, common_type) for x, t in zip(arguments[1:], (a, b), strict=True))
            return builder.select(arguments[0], *pair)

        return common_type(condition, a, b), generate

    return read, reading_four(), read_word, reading_four(types.uint32), byte, choose


# read(pointer, i): element i of memory that the kernel does not write, loaded early, in any order and through the
# read-only path. read_four(pointer, i): four from i on, a multiple of four, by one load; read_word(pointer, i):
# four bytes as one number, the first the lowest; read_words(pointer, i): four such words, from a multiple of 16 on.
# byte(word, k): the k-th byte of a word as float32; one instruction puts it into a float, another subtracts 2^23.
# choose(condition, a, b): both are computed and one is taken, so that no load waits for a branch.
read, read_four, read_word, read_words, byte, choose = _intrinsics()


def compile_ptx(function: Any, signature: Any, capability: tuple[int, int], threads: int) -> str:
    """PTX of a kernel.

    Args:
        function: The Python function.
        signature: Types of its arguments.
        capability: Compute capability, such as (9, 0).
        threads: Most threads of a block that it is launched with.
    """
    options: dict[str, Any] = {"cc": capability, "device": False, "abi": "numba", "output": "ptx"}
    with _device_of(capability):
        return str(cuda.compile(function, signature, launch_bounds=threads, **options)[0])


@contextmanager
def _device_of(capability: tuple[int, int]) -> Iterator[None]:
    """numba-cuda asks the current device what to compile device functions for; this answers, and no GPU is needed."""
    if LIBRARY != "numba-cuda" or SIMULATED:
        yield
        return
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = original


__all__ = [
    "LIBRARY", "SIMULATED", "VERSION", "byte", "check_numpy", "choose", "compile_ptx", "cuda", "device_function",
    "read", "read_four", "read_word", "read_words", "types",
]  # fmt: skip
