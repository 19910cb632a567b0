"""Kernels from their text: compiled for a device through PTX and kept on disk, or handed to the simulator."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from minicnn.backends.numba_cuda.shim import LIBRARY, VERSION, compile_ptx, cuda, types

EARLY = (9, 0)  # capability from which a kernel may be launched before the one ahead of it has ended, and then waits

# Type of an argument as text: "float32*" is a pointer, "int64" a number. A bool is a byte in memory.
Signature = tuple[str, ...]


def numba_types(signature: Signature) -> Any:
    """The signature as Numba's types."""
    made = []
    for text in signature:
        name = text.rstrip("*")
        kind = types.uint8 if name == "bool" else getattr(types, name)
        made.append(types.CPointer(kind) if text.endswith("*") else kind)
    return types.void(*made)


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


def cache_folder() -> Path:
    """Where compiled kernels are kept: MINICNN_CACHE, else the user's cache folder."""
    chosen = os.environ.get("MINICNN_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minicnn"
    return base / "numba_cuda"


def ptx(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> str:
    """PTX with one entry, named "kernel"."""
    made = compile_ptx(python_function(text), numba_types(signature), capability, threads)
    found = re.search(r"\.entry\s+(\w+)", made)
    if found is None:
        message = f"PTX of a kernel has an entry. Received: {made[:200]}. Please report this."
        raise RuntimeError(message)
    made = made.replace(found.group(1), "kernel")
    if capability < EARLY:
        return made
    start = re.compile(r"^\t(?!\.)(?=\w)", re.MULTILINE).search(made, made.index("\n{", made.index(".entry kernel")))
    if start is None:
        message = f"PTX of a kernel has an instruction. Received: {made[-200:]}. Please report this."
        raise RuntimeError(message)
    return f"{made[: start.start()]}\tgriddepcontrol.wait;\n{made[start.start() :]}"


def machine_code(text: str, signature: Signature, capability: tuple[int, int], threads: int) -> bytes:
    """A cubin, from the cache if it was compiled before."""
    import cuda.core

    parts = (text, *signature, str(capability), str(threads), LIBRARY, VERSION, cuda.core.__version__, _package())
    path = cache_folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    options = cuda.core.ProgramOptions(arch=f"sm_{capability[0]}{capability[1]}")
    program = cuda.core.Program(ptx(text, signature, capability, threads), "ptx", options)
    code = bytes(program.compile("cubin").code)
    _keep(path, code)
    return code


def _keep(path: Path, code: bytes) -> None:
    """Write a file so that another process sees all of it or nothing; without a place to write, do without."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
