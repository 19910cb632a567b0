"""Compiled kernels on disk: object code in a folder for this CPU and these versions, checked when it is read.

What cannot be read, or is not what was written, is compiled anew.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite

from minicnn.backends import _code
from minicnn.backends.numba import machine_code
from minicnn.backends.numba.cpus import host
from minicnn.ops import winograd_matrices

# Modules whose code writes the operations that kernels are made of.
WRITERS = (
    "vector", "functions", "registers", "channel_tiles", "panels", "winograd_tiles", "short", "short_tiles",
    "matrix_tiles", "operations", "translation", "machine_code",
)  # fmt: skip


@cache
def _platform() -> str:
    target = host()
    # Object code of one CPU may use instructions that another lacks.
    features = hashlib.sha256(repr(target).encode()).hexdigest()[:12]
    return f"{llvmlite.__version__}-{target.cpu}-{features}"


@cache
def _writers() -> str:
    """Digest of the modules that write machine code for the operations that a kernel's text names."""
    here = Path(__file__).parent
    # A kernel's text names operations whose machine code these modules write: a change there changes the kernel, too.
    files = [*(here / f"{name}.py" for name in WRITERS), Path(winograd_matrices.__file__)]
    parts = [file.read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def key(text: str) -> str:
    """Name of a kernel's file."""
    return hashlib.sha256(f"{_writers()}\n{text}".encode()).hexdigest()[:40]


def place(name: str) -> Path | None:
    """Path of a compiled kernel for this CPU and llvmlite; None if it cannot be kept."""
    return _code.place("numba", _platform(), f"{name}.bin")


def load(name: str) -> tuple[int, Any] | None:
    """Address of a stored function and its owner; None if there is none that can be used."""
    data = _code.read(place(name)) or b""
    digest, rest = data[:32], data[32:]
    # Machine code is run as it is: a file that was cut short must not be.
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    return machine_code.loaded(symbol.decode(), code)


def save(name: str, symbol: str, code: bytes) -> None:
    """Store a function's object code; nothing happens where that is not possible."""
    rest = symbol.encode() + b"\0" + code
    _code.write(place(name), hashlib.sha256(rest).digest() + rest)
