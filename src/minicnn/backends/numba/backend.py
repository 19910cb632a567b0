"""The backend of kernels for the CPU, which are compiled by LLVM, as Numba's are."""

from __future__ import annotations

from typing import Any

import llvmlite
import numpy as np

from minicnn.backends.base import Array, Executable, check_results
from minicnn.backends.numba.executable import NumbaExecutable
from minicnn.backends.numba.rules import lower
from minicnn.backends.numba.short import SHORT
from minicnn.backends.numba.threads import default_threads
from minicnn.backends.numpy import NumpyBackend
from minicnn.program.graph import Node, Program

__all__ = ["NumbaBackend"]

CONVOLUTION_KERNELS = ("direct", "winograd", "unrolled", "channels", "tiles")


class NumbaBackend(NumpyBackend):
    """Runs Programs on NumPy arrays with kernels compiled by LLVM.

    Args:
        device: "cpu".
        reference_only: See `Backend`.
        strict: See `Backend`.
        threads: How many threads share the work; MINICNN_THREADS, else the cores that the process may use if None.
            Results are the same bits every time for one number of threads.
        convolution_kernel: How convolutions and their input gradients are done: "direct", "winograd" where there is a
            transform, "unrolled" to matrix products through BLAS, "channels" with channels in the lanes of vectors
            instead of samples, or, with weight gradients and products in bfloat16, by "tiles" as the instruction
            tdpbf16ps computes them. None chooses by a model of their cost; `explain` shows what was chosen.

    Raises:
        ValueError: If threads is not a positive integer, or there is no such way of convolution.
    """

    name = "numba"
    precisions: tuple[str, ...] = ("float32", "float64", "mixed_bfloat16")

    def __init__(
        self,
        device: str | None = None,
        *,
        reference_only: bool = False,
        strict: bool = False,
        threads: int | None = None,
        convolution_kernel: str | None = None,
    ) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict)
        if self.reference_only:
            self.precisions = NumpyBackend.precisions  # NumPy has no bfloat16
        self.threads = default_threads() if threads is None else threads
        if isinstance(threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise ValueError(f"threads is an integer of at least 1. Received: threads={threads!r}.")
        if convolution_kernel not in (None, *CONVOLUTION_KERNELS):
            names = ", ".join(CONVOLUTION_KERNELS)
            raise ValueError(f"convolution_kernel is one of {names}, or None. Received: {convolution_kernel!r}.")
        self.convolution_kernel = convolution_kernel

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`; bfloat16 is held in float32, since NumPy has no arrays of it."""
        return super().asarray(data, "float32" if dtype == SHORT else dtype)

    def rewrite(self, program: Program) -> Program:
        """See `Backend.rewrite`; lowering merges what can run in one kernel."""
        return super().rewrite(program) if self.reference_only else program

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        if self.reference_only:
            return super().explain(program)
        how = lower(program, self.threads, self.convolution_kernel).how
        rows = [(node, how[id(node)]) for node in program.nodes]
        return [(node, text if text.startswith("reference") else f"kernel: {text}") for node, text in rows]

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`.

        Raises:
            RuntimeError: If `strict` is set and a node has no kernel.
        """
        if self.reference_only:
            return super().compile(program)
        check_results(program)
        lowering = lower(program, self.threads, self.convolution_kernel)
        how = {node: lowering.how[id(node)] for node in program.nodes}
        self.check_strict([(n, text) for n, text in how.items() if text.startswith("reference")], program)
        return NumbaExecutable(lowering, program, self.threads)

    @classmethod
    def describe(cls) -> dict[str, str]:
        versions = {"llvmlite": llvmlite.__version__, "numpy": np.__version__}
        return versions | {"threads": str(default_threads())}

    def __repr__(self) -> str:
        kernel = self.convolution_kernel
        pinned = f", convolution_kernel={kernel}" if kernel else ""
        return f"{super().__repr__()[:-1]}, threads={self.threads}{pinned}>"
