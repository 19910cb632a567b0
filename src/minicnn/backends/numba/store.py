"""Compiled kernels on disk: object code in a folder for this CPU and these versions, checked when it is read.

The folder is MINICNN_CACHE, else the user's cache folder. A file is written whole under another name and then renamed,
so processes that compile the same kernel at once do not disturb each other. What cannot be read, or is not what was
written, is compiled anew. The folder holds code that will be run: it belongs to the user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.registry import cpu_target

# Modules whose code writes the operations that kernels are made of.
WRITERS = ("vector", "functions", "registers", "panels", "winograd_tiles")

_LIBRARIES: list[Any] = []  # loaded object files, kept for the life of the process


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def folder() -> Path:
    """Where the compiled kernels of this CPU, Numba, llvmlite and Python are."""
    given = os.environ.get("MINICNN_CACHE")
    root = Path(given) if given else _user_cache() / "minicnn"
    return root / "numba" / _platform()


@cache
def _platform() -> str:
    target = cpu_target.target_context.codegen()
    features = hashlib.sha256(repr(target.magic_tuple()).encode()).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{numba.__version__}-{llvmlite.__version__}-py{python}-{llvm.get_host_cpu_name()}-{features}"


@cache
def _writers() -> str:
    """Digest of the modules that write machine code for the operations that a kernel's text names."""
    here = Path(__file__).parent
    parts = [(here / f"{name}.py").read_bytes() for name in WRITERS]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def key(text: str) -> str:
    """Name of a kernel's file."""
    return hashlib.sha256(f"{_writers()}\n{text}".encode()).hexdigest()[:40]


def load(name: str) -> tuple[int, Any] | None:
    """Address of a stored function and its owner; None if there is none that can be used."""
    try:
        data = (folder() / f"{name}.bin").read_bytes()
    except OSError:
        return None
    digest, rest = data[:32], data[32:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol.decode())
    return (address, engine) if address else None


def save(name: str, symbol: str, code: bytes) -> None:
    """Store a function's object code; nothing happens where that is not possible."""
    rest = symbol.encode() + b"\0" + code
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(temporary, place / f"{name}.bin")
        except BaseException:
            os.unlink(temporary)
            raise


def _engine() -> Any:
    """An execution engine of its own for each object file: names in them may be equal."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    module = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"')
    engine = llvm.create_mcjit_compiler(module, machine)
    _LIBRARIES.append(engine)
    return engine
