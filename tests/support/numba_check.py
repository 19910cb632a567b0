"""Running one primitive on the numba backend beside its reference.

Compiled kernels are machine code, of which coverage knows nothing; the fixtures `interpreted` and `either` run the same
kernels as Python.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest

from minicnn.backends import backend_class
from minicnn.ops.primitive import Primitive
from minicnn.program import Program

Array = np.ndarray[Any, Any]


def without_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if NUMBA_DISABLE_JIT were set: kernels run as Python."""
    from numba.core import config

    from minicnn.backends.numba import threads

    monkeypatch.setattr(config, "DISABLE_JIT", True)
    monkeypatch.setattr(threads, "_POOLS", {})


def single(op: Primitive, arrays: tuple[Array, ...], attrs: dict[str, Any], weights: tuple[int, ...] = ()) -> Program:
    """A Program of one node; the first array has the batch first, those of `weights` are parameters."""
    program = Program()
    values = [
        program.input(f"x{i}" if i else "x", a.shape, a.dtype.name, kind="parameter" if i in weights else "input")
        for i, a in enumerate(arrays)
    ]
    made = op(*values, **attrs)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        program.outputs[f"y{i}"] = value
    return program


def both(
    op: Primitive, arrays: tuple[Array, ...], attrs: dict[str, Any], weights: tuple[int, ...] = (), threads: int = 2
) -> tuple[list[Array], list[Array]]:
    """Results of the kernels and of the reference; an error if there is no kernel."""
    backend = backend_class("numba")(strict=True, threads=threads)  # type: ignore[call-arg]
    run = backend.compile(single(op, arrays, attrs, weights))
    made = run({f"x{i}" if i else "x": a for i, a in enumerate(arrays)})
    expected = op.reference(*arrays, xp=xp, **attrs)
    return [made[k] for k in sorted(made)], list(expected) if isinstance(expected, tuple) else [expected]
