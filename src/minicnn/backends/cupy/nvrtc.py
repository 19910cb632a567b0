"""NVRTC, the compiler of CUDA C++ at run time.

It needs no GPU and no driver, so kernels are compiled wherever tests run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from minicnn.backends.cupy.nvidia import load
from minicnn.extras import install

MISSING = (
    "Kernels are compiled by NVRTC. Received: none that loads from Python's packages, conda's environment, the "
    f"system's libraries or CUDA_PATH. Install the extra for your driver: {install('cuda13')}, or {install('cuda12')}."
)


class CompileError(Exception):
    """A program does not compile; its text is what the compiler said."""


def version() -> str:
    """Version of the compiler, such as "13.0".

    Raises:
        ImportError: If there is none.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def compile_program(text: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
    """Machine code of a program.

    Args:
        text: CUDA C++.
        headers: Texts of what it may include, by name.
        options: The compiler's; the architecture is one such as sm_90.

    Raises:
        CompileError: If it does not compile.
        ImportError: If there is no compiler.
    """
    library, program = _library(), ctypes.c_void_p()

    def strings(items: Sequence[str]) -> Any:
        return (ctypes.c_char_p * len(items))(*(item.encode() for item in items))

    sources, names = strings(list(headers.values())), strings(list(headers))
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernel.cu", len(headers), sources, names
        )
    )  # fmt: skip
    try:
        if library.nvrtcCompileProgram(program, len(options), strings(options)):
            raise CompileError(_read(program, "ProgramLog").rstrip(b"\0").decode())
        return _read(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _library() -> Any:
    return load("nvrtc", MISSING)


def _check(status: int) -> None:
    if status:
        name = _library().nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        raise CompileError(name(status).decode())


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    """The log or the machine code of a program."""
    library, size = _library(), ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw
