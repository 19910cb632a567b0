"""Compiling kernels with NVRTC, once for each text, architecture and version: the results are kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from itertools import zip_longest

from minicnn.backends import _code
from minicnn.backends._progress import Progress
from minicnn.backends.cupy import nvrtc
from minicnn.backends.cupy.cpp import scalar_functions
from minicnn.machine import cores, local_rank, local_ranks

# Not every value that is computed for a group is read.
OPTIONS = ("-std=c++17", "-default-device", "--diag-suppress=177")
SCALARS = "scalars.cuh"  # made, not a file
HEADERS = (
    "core.cuh", SCALARS, "mma.cuh", "windows.cuh", "results.cuh", "tiles.cuh", "sums.cuh", "parts.cuh",
    "tensor.cuh", "tensor_products.cuh", "rows.cuh", "warpgroups.cuh", "stages.cuh", "pipelined.cuh", "depthwise.cuh",
    "kernels.cuh", "bytes.cuh", "floats.cuh", "regions.cuh", "peers.cuh", "rank_sums.cuh",
)  # fmt: skip


@cache
def header(name: str) -> str:
    """Text of a header of this package."""
    if name == SCALARS:
        return scalar_functions()
    return files("minicnn.backends.cupy").joinpath("kernels", name).read_text(encoding="utf-8")


def compile_kernel(text: str, architecture: str) -> bytes:
    """Machine code of a kernel, from the cache if it was compiled before.

    Args:
        text: CUDA C++, which may include this package's headers.
        architecture: Such as "sm_90".

    Raises:
        RuntimeError: If it does not compile; says why.
        ImportError: If there is no compiler.
    """
    # By everything that decides about the code, headers included, so that no change needs the cache to be cleared.
    parts = (text, *map(header, HEADERS), architecture, nvrtc.version(), *OPTIONS)
    path = _code.place("cuda", f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin")
    code = _code.read(path)
    if code is None:
        code = _compile(text, architecture)
        _code.write(path, code)
    return code


def _compile(text: str, architecture: str) -> bytes:
    headers = {name: header(name) for name in HEADERS}
    try:
        return nvrtc.compile_program(text, headers, (f"--gpu-architecture={architecture}", *OPTIONS))
    except nvrtc.CompileError as error:
        raise RuntimeError(
            f"A kernel of minicnn compiles for every GPU that its CUDA knows. Received for {architecture}: {error}\n"
            "Install the extra for your driver, cuda12 or cuda13, or use CupyBackend(reference_only=True) and report "
            "this."
        ) from error


def in_turn(texts: Sequence[str], rank: int, ranks: int) -> list[str]:
    """The order in which one of several processes, whose code goes to one folder, compiles the same texts.

    Each begins with its share, and goes on with those of others from their ends; what is there already is read.
    """
    shares = [list(texts[k::ranks]) for k in range(ranks)]
    first = shares.pop(rank % ranks)
    return first + [text for share in zip_longest(*map(reversed, shares)) for text in share if text is not None]


def compile_all(texts: Sequence[str], architecture: str) -> list[bytes]:
    """Machine code of several kernels, compiled side by side, with a line on the terminal if that takes long."""
    machine_codes: dict[str, bytes] = {}
    # The longest first, since one that begins last would be waited for.
    distinct = in_turn(sorted(dict.fromkeys(texts), key=len, reverse=True), local_rank(), local_ranks())
    with ThreadPoolExecutor(min(16, max(1, len(distinct)), cores())) as pool, Progress(len(distinct)) as progress:
        codes = pool.map(lambda text: compile_kernel(text, architecture), distinct)
        for text, code in zip(distinct, codes, strict=True):
            machine_codes[text] = code
            progress.next()
    return [machine_codes[text] for text in texts]
