"""Kernels from their text: compiled for a device through PTX and kept on disk, or handed to the simulator."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from minicnn.backends import _code
from minicnn.backends._gpu.device import OVERLAPPING
from minicnn.backends._helpers import compile_side_by_side, work_with
from minicnn.backends.numba_cuda.shim import LIBRARY, VERSION, compile_ptx, cuda, types

# Type of an argument as text: "float32*" is a pointer, "int64" a number. A bool is a byte in memory.
Signature = tuple[str, ...]
# Text, signature, capability, most threads of a block.
Job = tuple[str, Signature, tuple[int, int], int]


def numba_types(signature: Signature) -> Any:
    """The signature as Numba's types."""
    arguments = []
    for text in signature:
        name = text.rstrip("*")
        kind = types.uint8 if name == "bool" else getattr(types, name)
        arguments.append(types.CPointer(kind) if text.endswith("*") else kind)
    return types.void(*arguments)


def python_function(text: str) -> Any:
    """The function named `kernel` of a kernel's text."""
    from minicnn.backends.numba_cuda.kernels.names import NAMES

    names: dict[str, Any] = {**NAMES, "cuda": cuda, "__name__": "minicnn.backends.numba_cuda.generated"}
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    exec(compile(text, f"<kernel {digest}>", "exec"), names)
    return names["kernel"]


@cache
def _package() -> str:
    """Text of all kernel files: a change of one makes every compiled kernel stale."""
    folder = files("minicnn.backends.numba_cuda").joinpath("kernels")
    names = sorted(p.name for p in folder.iterdir() if p.name.endswith(".py"))
    return chr(0).join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def ptx(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> str:
    """PTX with one entry, named "kernel"."""
    code = compile_ptx(python_function(text), numba_types(signature), capability, threads)
    entry = re.search(r"\.entry\s+(\w+)", code)
    if entry is None:
        raise RuntimeError(f"PTX of a kernel has an entry. Received: {code[:200]}. Please report this.")
    # Numba mangles names by type; the loader asks for one name.
    code = code.replace(entry.group(1), "kernel")
    if capability < OVERLAPPING:  # a kernel waits for the one ahead of it from there on
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
    if not new or _place(*new[0]) is None:
        return
    new.sort(key=lambda job: len(job[0]), reverse=True)
    compile_side_by_side(new, _compile_job, __name__, processes=os.cpu_count() or 1)


def _compile_job(job: Sequence[Any]) -> None:
    text, signature, capability, threads = job
    machine_code(text, tuple(signature), tuple(capability), threads)


def work() -> None:
    """Compile what another process asks for: see `compile_side_by_side`."""
    work_with(_compile_job)


def _place(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> Path | None:
    """Path of a kernel's machine code; None if it cannot be kept."""
    import cuda.core

    parts = (text, *signature, str(capability), str(threads), LIBRARY, VERSION, cuda.core.__version__, _package())
    return _code.place("numba_cuda", f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin")
