"""Checks of a namespace against NumPy: primitives, gradients, training steps and their times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import array_api_compat.numpy
import numpy as np

from minicnn import ops, zoo
from minicnn.backends import NamespaceBackend
from minicnn.backends.base import Backend
from minicnn.conformance.cases import CASES, Case
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.operations import NodeTime, step_inputs, step_times
from minicnn.models import Model, Sequential
from minicnn.program import Program, gradients
from minicnn.tolerance import tolerance

Array = np.ndarray[Any, Any]

PRIMITIVES = sorted({case.op.name for case in CASES})
DIFFERENTIABLE = sorted({case.op.name for case in CASES if case.wrt})
STEPS, BATCH = 3, 16


def _normalized(backend: Backend) -> Model:
    """A network with normalisation and dropout."""
    return Sequential(
        [
            Input((28, 28, 1)), Conv2D(8, 3, activation="relu"), BatchNormalization(), MaxPooling2D(2), Flatten(),
            Dropout(0.25), Dense(10),
        ],
        backend=backend,
    )  # fmt: skip


NETWORKS: dict[str, Callable[[Backend], Model]] = {
    "mlp": lambda backend: zoo.get_model("mlp", backend=backend),
    "platforms": lambda backend: zoo.get_model("platforms", backend=backend),
    "normalized": _normalized,
}


def check(backend: Backend, kind: str, name: str) -> dict[str, Any]:
    """One check: what is measured, which is nothing for primitives.

    Args:
        backend: Of the namespace.
        kind: "primitive", "gradient", "training" or "times".
        name: Of the primitive or network.

    Raises:
        AssertionError: If numbers differ from NumPy's.
        Exception: Of any kind, if the library does not compute them.
    """
    if kind == "training":
        _training(backend, name)
    elif kind == "times":
        return _times(backend, name)
    else:
        for case in CASES:
            if case.op.name == name and (kind == "primitive" or case.wrt):
                _primitive(backend, case, kind == "gradient")
    return {}


def _primitive(backend: Backend, case: Case, differentiate: bool) -> None:
    """In float32, against NumPy in float64 from the same numbers."""
    single = [a.astype("float32") if a.dtype == "float64" else a for a in case.arrays]
    double = [a.astype("float64") if a.dtype == "float32" else a for a in single]
    program, expected = _traced(case, single, differentiate), _traced(case, double, differentiate)
    results = backend.compile(program)({f"x{i}": backend.asarray(a) for i, a in enumerate(single)})
    plain = NamespaceBackend(array_api_compat.numpy).compile(expected)({f"x{i}": a for i, a in enumerate(double)})
    for key, value in program.outputs.items():
        _compare(f"{case} {key}", backend.to_numpy(results[key]), np.asarray(plain[key]), value.dtype, case.terms)


def _traced(case: Case, arrays: list[Array], differentiate: bool) -> Program:
    program = Program(case.op.name)
    values = [program.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    attrs = {k: arrays[0].dtype.name if v == "float64" else v for k, v in case.attrs.items()}
    result = case.differentiable(*values, **attrs) if differentiate else case.op(*values, **attrs)
    results = result if isinstance(result, tuple) else (result,)
    if not differentiate:
        program.outputs = {f"y{i}": value for i, value in enumerate(results)}
        return program
    terms = []
    for i, value in enumerate(v for v in results if "float" in v.dtype):
        upstream = np.random.default_rng(i).standard_normal(value.shape).astype(value.dtype)
        terms.append(ops.sum(value * program.constant(upstream)))
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    of_inputs = gradients(program, loss, [values[i] for i in case.wrt])
    program.outputs = {f"g{i}": g for i, g in zip(case.wrt, of_inputs, strict=True)}
    return program


def _compare(what: str, actual: Array, expected: Array, dtype: str, terms: int) -> None:
    if actual.shape != expected.shape or actual.dtype.name != dtype:
        raise AssertionError(f"{what} is {actual.dtype.name} {actual.shape}, not {dtype} {expected.shape}")
    rtol, atol = tolerance(dtype, terms) if dtype.startswith("float") else (0.0, 0.0)
    size = max(1.0, float(np.max(np.abs(expected), initial=0)))
    if not np.allclose(actual, expected, rtol=rtol, atol=atol * size, equal_nan=True):
        difference = np.max(np.abs(actual.astype("float64") - expected))
        raise AssertionError(f"{what} differs from NumPy's by {difference:.3g}, of numbers up to {size:.3g}")


def _batch(name: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(len(name))
    return rng.random((BATCH, 28, 28, 1), "float32"), rng.integers(0, 10, BATCH)


def _compiled(backend: Backend, name: str) -> Model:
    model = NETWORKS[name](backend)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    return model


def _training(backend: Backend, name: str) -> None:
    """Three steps of Adam: the same losses as on NumPy, and the same predictions afterwards."""
    x, y = _batch(name)
    ours, theirs = (_compiled(b, name) for b in (NamespaceBackend(array_api_compat.numpy), backend))
    terms = 28 * 28 * BATCH * STEPS
    for step in range(STEPS):
        actual, expected = (np.asarray(model.train_on_batch(x, y), "float32") for model in (theirs, ours))
        _compare(f"the loss of step {step + 1}", actual, expected, "float32", terms)
    _compare("the prediction", theirs.predict(x), ours.predict(x), "float32", terms)


def _times(backend: Backend, name: str) -> dict[str, Any]:
    """Seconds of a training step by primitive: {primitive: [here, on NumPy]}."""
    x, y = _batch(name)
    batch = {"x": x, "y": y.astype("int32"), "learning_rate": np.asarray(0.001, "float32")}
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for i, each in enumerate((backend, NamespaceBackend(array_api_compat.numpy))):
        model = _compiled(each, name)
        program = model.program("train", batch_size=BATCH)
        measured = step_times(each, program, step_inputs(model, program, batch), repeats=3)
        nodes: list[NodeTime] = measured[1] if measured else []
        for node in nodes:
            sums[node.op][i] += median(node.seconds)
    return dict(sums)
