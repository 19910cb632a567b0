"""Kernels from their text: compiled for a device through PTX and kept on disk, or handed to the simulator."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from minicnn.backends import _code
from minicnn.backends._gpu.device import OVERLAPPING
from minicnn.backends.numba_cuda import nvvm
from minicnn.backends.numba_cuda.shim import cuda
from minicnn.backends.numba_cuda.texts import define
from minicnn.machine import cores

# Types of arguments as text: "float32*" is a pointer, "const float32*" one to what nobody writes while the kernel is in
# place, "int64" a number. A bool is a byte in memory.
Signature = tuple[str, ...]
# Text, signature, capability, most threads of a block.
Job = tuple[str, Signature, tuple[int, int], int]


def python_function(text: str) -> Any:
    """The function named `kernel` of a kernel's text."""
    from minicnn.backends.numba_cuda.kernels.names import NAMES

    names: dict[str, Any] = {**NAMES, "cuda": cuda, "__name__": "minicnn.backends.numba_cuda.generated"}
    define(text, names)
    return names["kernel"]


@cache
def _package() -> str:
    """Text of all that decides about code beside a kernel's own text: a change makes every compiled kernel stale."""
    engine = files("minicnn.backends.numba_cuda")
    parts = [
        *engine.joinpath("kernels").iterdir(),
        *map(engine.joinpath, ("compiling.py", "translation.py", "instructions.py", "intrinsics.py", "nvvm.py")),
    ]
    return chr(0).join(p.read_text(encoding="utf-8") for p in sorted(parts, key=str) if p.name.endswith(".py"))


def ptx(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> str:
    """PTX with one entry, named "kernel"."""
    overlaps = capability >= OVERLAPPING  # and waits for the kernel ahead, which may still write
    module = nvvm.module_of(python_function(text), signature, threads, nvvm.version(), overlaps=overlaps)
    code = nvvm.compile_module(module, capability)
    if not overlaps:
        return code
    # The first instruction behind the declarations. Python has no word for it, so that it goes into the PTX.
    start = re.compile(r"^\t(?!\.)(?=\w)", re.MULTILINE).search(code, code.index("\n{", code.index(".entry kernel")))
    if start is None:
        raise RuntimeError(f"PTX of a kernel has an instruction. Received: {code[-200:]}. Please report this.")
    return f"{code[: start.start()]}\tgriddepcontrol.wait;\n{code[start.start() :]}"


def machine_code(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> bytes:
    """A cubin, from the cache if it was compiled before."""
    import cuda.core

    # By all that decides about the code, so that a stale file is never found.
    path = _place(text, signature, capability, threads)
    cubin = _code.read(path)
    if cubin is not None:
        return cubin
    options = cuda.core.ProgramOptions(arch=f"sm_{capability[0]}{capability[1]}")
    program = cuda.core.Program(ptx(text, signature, capability, threads), "ptx", options)
    code = bytes(program.compile("cubin").code)
    _code.write(path, code)
    return code


def compile_all(jobs: Sequence[Job]) -> None:
    """Put machine code that is not in the cache there, several kernels at a time."""
    new = [job for job in dict.fromkeys(jobs) if _code.read(_place(*job)) is None]
    if len(new) < 2 or _place(*new[0]) is None:
        return
    new.sort(key=lambda job: len(job[0]), reverse=True)
    # The compilers work outside of Python.
    with ThreadPoolExecutor(min(cores(), len(new))) as pool:
        for _ in pool.map(lambda job: machine_code(*job), new):
            pass


def _place(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> Path | None:
    """Path of a kernel's machine code; None if it cannot be kept."""
    import cuda.core

    versions = (*map(str, nvvm.version()), cuda.core.__version__)
    parts = (text, *signature, str(capability), str(threads), *versions, _package())
    return _code.place("numba_cuda", f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin")
