"""Running one primitive on the numba backend beside its reference.

Compiled kernels are machine code, of which coverage knows nothing; the fixtures `interpreted` and `either` run the same
kernels as Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest

from minicnn import Model
from minicnn.backends import backend_class
from minicnn.ops.primitive import Primitive
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.small_training import digits

Array = np.ndarray[Any, Any]


def without_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if NUMBA_DISABLE_JIT were set: kernels run as Python."""
    from minicnn.backends.numba import interpreting, threads

    monkeypatch.setattr(interpreting, "SWITCHED_ON", True)
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
    op: Primitive, arrays: tuple[Array, ...], attrs: dict[str, Any], weights: tuple[int, ...] = (), threads: int = 2,
    convolution_kernel: str | None = None,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """Results of the kernels and of the reference; an error if there is no kernel."""
    options: dict[str, Any] = {"threads": threads, "convolution_kernel": convolution_kernel}
    backend = backend_class("numba")(strict=True, **options)
    run = backend.compile(single(op, arrays, attrs, weights))
    made = run({f"x{i}" if i else "x": a for i, a in enumerate(arrays)})
    expected = op.reference(*arrays, xp=xp, **attrs)
    return [made[k] for k in sorted(made)], list(expected) if isinstance(expected, tuple) else [expected]


def run_both(program: Program, arrays: Mapping[str, Array], threads: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of the kernels of a Program and of the references; an error if there is no kernel."""
    expected = backend_class("numba")(reference_only=True).compile(program)(arrays)
    made = backend_class("numba")(strict=True, threads=threads).compile(program)(arrays)  # type: ignore[call-arg]
    return made, expected


def assert_alike(made: Mapping[Any, Array], expected: Mapping[Any, Array], terms: int = 1, slack: float = 1) -> None:
    """Assert that results have the same names, dtypes, shapes and, but for rounding of such sums, numbers."""
    rtol, atol = tolerance("float32", terms)
    assert set(made) == set(expected)
    for name, array in expected.items():
        assert (made[name].dtype, made[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_allclose(made[name], array, rtol=rtol, atol=slack * atol, err_msg=name)


def check(made: list[Array], expected: list[Array], terms: int = 1) -> None:
    """Assert that the results of `both` are alike."""
    assert_alike(dict(enumerate(made)), dict(enumerate(expected)), terms, slack=4)


def backend(threads: int) -> Any:
    """The numba backend with a number of threads."""
    return backend_class("numba")(threads=threads)  # type: ignore[call-arg]


def train(model: Model, steps: int) -> list[float]:
    """The losses of steps on one batch of digits."""
    x, y = digits(40)
    return [float(np.asarray(model.train_on_batch(x, y, return_dict=True)["loss"])) for _ in range(steps)]
