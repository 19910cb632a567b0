"""NVRTC, the compiler of CUDA C++ at run time: CuPy's where CuPy is, else the library of the package nvidia-cuda-nvrtc.

The latter needs no GPU and no driver, so kernels are compiled wherever tests run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minicnn.extras import install

MISSING = (
    "Kernels are compiled by NVRTC. Received: neither CuPy nor the package nvidia-cuda-nvrtc. Install the extra for "
    f"your driver: {install('cuda13')}, or {install('cuda12')}."
)


class CompileError(Exception):
    """A program does not compile; its text is what the compiler said."""


def version() -> str:
    """Version of the compiler, such as "13.0".

    Raises:
        ImportError: If there is none.
    """
    if _cupys() is not None:
        return ".".join(map(str, _cupys().getVersion()))
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
    return (_by_library if _cupys() is None else _by_cupy)(text, headers, options)


@cache
def _cupys() -> Any:
    """CuPy's module for it; None without CuPy, or if CuPy finds no compiler."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError):
        return None
    return nvrtc


def _by_cupy(text: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
    nvrtc = _cupys()
    texts, names = ([t.encode() for t in part] for part in (headers.values(), headers))
    program = nvrtc.createProgram(text, "kernel.cu", texts, names)
    try:
        nvrtc.compileProgram(program, tuple(options))
        code: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        message = f"{error}\n{nvrtc.getProgramLog(program)}"
        raise CompileError(message) from error
    finally:
        nvrtc.destroyProgram(program)
    return code


# The library itself -------------------------------------------------------------------------------


@cache
def _library() -> Any:
    """The newest NVRTC of NVIDIA's packages, or one that the system's loader finds."""
    spec = find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found = [p for f in folders for p in f.glob("*/lib/libnvrtc.so.*") if "alt" not in p.name]
    found.sort(key=lambda path: int(path.name.rpartition(".")[2]), reverse=True)
    for name in (*map(str, found), "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ImportError(MISSING)


def _check(status: int) -> None:
    if status:
        name = _library().nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        raise CompileError(name(status).decode())


def _by_library(text: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
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


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    """The log or the machine code of a program."""
    library, size = _library(), ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw
