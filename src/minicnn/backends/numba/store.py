"""Compiled kernels on disk: object code in a folder for this CPU and these versions, checked when it is read.

What cannot be read, or is not what was written, is compiled anew.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.registry import cpu_target

from minicnn.backends import _code

# Modules whose code writes the operations that kernels are made of.
WRITERS = ("vector", "functions", "registers", "panels", "winograd_tiles", "short", "short_tiles")


@cache
def _platform() -> str:
    target = cpu_target.target_context.codegen()
    # Object code of one CPU may use instructions that another lacks.
    features = hashlib.sha256(repr(target.magic_tuple()).encode()).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{numba.__version__}-{llvmlite.__version__}-py{python}-{llvm.get_host_cpu_name()}-{features}"


@cache
def _writers() -> str:
    """Digest of the modules that write machine code for the operations that a kernel's text names."""
    here = Path(__file__).parent
    # A kernel's text names operations whose machine code these modules write: a change there changes the kernel, too.
    parts = [(here / f"{name}.py").read_bytes() for name in WRITERS]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def key(text: str) -> str:
    """Name of a kernel's file."""
    return hashlib.sha256(f"{_writers()}\n{text}".encode()).hexdigest()[:40]


def place(name: str) -> Path | None:
    """Path of a compiled kernel for this CPU, Numba, llvmlite and Python; None if it cannot be kept."""
    return _code.place("numba", _platform(), f"{name}.bin")


def load(name: str) -> tuple[int, Any] | None:
    """Address of a stored function and its owner; None if there is none that can be used."""
    data = _code.read(place(name)) or b""
    digest, rest = data[:32], data[32:]
    # Machine code is run as it is: a file that was cut short must not be.
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    loader = _object_loader()
    loader.add_object_file(llvm.ObjectFileRef.from_data(code))
    loader.finalize_object()
    address = loader.get_function_address(symbol.decode())
    return (address, loader) if address else None


def save(name: str, symbol: str, code: bytes) -> None:
    """Store a function's object code; nothing happens where that is not possible."""
    rest = symbol.encode() + b"\0" + code
    _code.write(place(name), hashlib.sha256(rest).digest() + rest)


def _object_loader() -> Any:
    """Loader of one object file (an execution engine of LLVM): names may be equal in several; it frees their memory."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    module = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"')
    return llvm.create_mcjit_compiler(module, machine)
