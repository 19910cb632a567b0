"""Kernels of a backend against references in float64, and small trainings: what the CUDA backends are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
from hypothesis import strategies as st

from backends.cupy.networks import NETWORKS, data
from minicnn import ops
from minicnn.conformance import cases as op_cases
from minicnn.conformance.cases import Case
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import Run
from minicnn.ops.convolution import NO_PADDING
from minicnn.program import Program
from minicnn.schedules import ExponentialDecay
from support.numerics import assert_close
from support.steps import arrays_of, runs_of
from support.strategies import normal, seeds

CASES = [c for c in op_cases.CASES if c.op.name not in {"fused", *op_cases.COLLECTIVES}]


def add_case(program: Program, case: Case, dtype: str, name: str = "") -> dict[str, Any]:
    """Append a call with outputs y0, y1 ..., behind a name, to a Program; the arrays for its inputs."""
    arrays, values = {}, []
    for k, array in enumerate(case.arrays):
        array = np.array(array, dtype if array.dtype.kind == "f" else None, order="C")
        arrays[f"{name}a{k}"] = array
        values.append(program.input(f"{name}a{k}", array.shape, array.dtype.name))
    made = case.op(*values, **case.attrs)
    for k, value in enumerate(made if isinstance(made, tuple) else (made,)):
        program.outputs[f"{name}y{k}"] = value
    return arrays


def case_program(case: Case, dtype: str) -> tuple[Program, dict[str, Any]]:
    """A Program of one call, with outputs y0, y1 ..., and the arrays for its inputs."""
    program = Program(case.op.name)
    return program, add_case(program, case, dtype)


def check_results(case: Case, arrays: Iterable[Any], result: Callable[[int], Any], dtype: str = "float32") -> None:
    """Compare the results of a call, by number, with its reference in float64."""
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    expected = case.op.reference(*wide, xp=xp, **case.attrs)
    for k, array in enumerate(expected if isinstance(expected, tuple) else (expected,)):
        found = result(k)
        if found.dtype.kind == "f":
            assert_close(found, array.astype("float64"), case.terms, dtype=dtype)
        else:
            np.testing.assert_array_equal(found, array)


def check_kernels(backend: Any, case: Case, dtype: str = "float32") -> None:
    """Compare a primitive's kernels with its reference in float64."""
    program, arrays = case_program(case, dtype)
    made = backend.compile(program)({k: backend.asarray(a) for k, a in arrays.items()})
    check_results(case, arrays.values(), lambda k: backend.to_numpy(made[f"y{k}"]), dtype)


def shape_of(data_format: str, n: int, h: int, w: int, channels: int) -> tuple[int, ...]:
    """Shape of images in a format."""
    return tuple({"N": n, "H": h, "W": w, "C": channels}[a] for a in data_format)


@st.composite
def convolutions(
    draw: st.DrawFn,
    larger_by: int = 30,
    channels: int = 9,
    filters: int = 17,
    which: str | None = None,
    *,
    depthwise: bool = False,
) -> Case:
    """Convolutions and their gradients, or one of "forward", "input", "weight", of sizes that tiles do not divide."""
    groups = 1 if depthwise else draw(st.sampled_from([1, 1, 2]))
    c, f = draw(st.integers(1, channels)) * groups, draw(st.integers(1, filters)) * groups
    multiplier = draw(st.integers(1, 3)) if depthwise else 1
    f = c * multiplier if depthwise else f
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.sampled_from([NO_PADDING, ((1, 1), (1, 1)), ((2, 0), (1, 3))]))
    image = tuple(d * (k - 1) + 1 + draw(st.integers(0, larger_by)) for k, d in zip(kernel, dilation, strict=True))
    n, seed = draw(st.integers(1, 9 if larger_by > 9 else 3)), draw(seeds)
    data_format = draw(st.sampled_from(["NHWC", "NHWC", "NCHW", "HWCN"]))
    attrs: dict[str, Any] = {
        "strides": strides, "padding": padding, "dilation": dilation, "data_format": data_format,
        **({} if depthwise else {"groups": groups}),
    }  # fmt: skip
    x = normal(shape_of(data_format, n, *image, c), seed)
    w = normal((*kernel, c, multiplier) if depthwise else (*kernel, c // groups, f), seed, 1)
    oh, ow = (
        (m + sum(p) - d * (k - 1) - 1) // s + 1
        for m, p, d, k, s in zip(image, padding, dilation, kernel, strides, strict=True)
    )
    dy = normal(shape_of(data_format, n, oh, ow, f), seed, 2)
    which = which or draw(st.sampled_from(["forward", "input", "weight"]))
    family = "depthwise_conv2d" if depthwise else "conv2d"
    taps = kernel[0] * kernel[1]
    if which == "forward":
        return Case(getattr(ops, family), (x, w), attrs, terms=taps * (1 if depthwise else c))
    if which == "input":
        terms = taps * (multiplier if depthwise else f)
        return Case(getattr(ops, f"{family}_input_gradient"), (dy, w), attrs | {"image": image}, terms=terms)
    return Case(getattr(ops, f"{family}_weight_gradient"), (dy, x), attrs | {"kernel": kernel}, terms=n * oh * ow)


def products(m: int, n: int, k: int) -> st.SearchStrategy[Case]:
    """Matrix products of up to so many rows, columns and terms."""

    def case(m: int, n: int, k: int, ta: bool, tb: bool, seed: int) -> Case:
        a, b = normal((k, m) if ta else (m, k), seed), normal((n, k) if tb else (k, n), seed, 1)
        return Case(ops.matmul, (a, b), {"transpose_a": ta, "transpose_b": tb}, terms=k)

    sizes = (st.integers(1, v) for v in (m, n, k))
    return st.builds(case, *sizes, st.booleans(), st.booleans(), seeds)


def reductions(longest: int, most: int) -> st.SearchStrategy[Case]:
    """Sums, means and maxima over any axes."""

    def case(shape: list[int], seed: int, op: Any, keepdims: bool, pick: int) -> Case:
        axes = tuple(a for a in range(len(shape)) if pick >> a & 1)
        x = normal(tuple(shape), seed)
        return Case(op, (x,), {"axes": axes, "keepdims": keepdims}, terms=int(np.prod(shape)))

    shapes = st.lists(st.integers(1, longest), min_size=1, max_size=4).filter(lambda s: np.prod(s) < most)
    return st.builds(
        case, shapes, seeds, st.sampled_from([ops.sum, ops.mean, ops.max]), st.booleans(), st.integers(0, 15)
    )


def train_network(backend: Any, network: str, epochs: int = 4, **fit: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """History and weights after some epochs."""
    model = NETWORKS[network](backend)
    x, y = data()
    history = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, validation_split=0.2, **fit)
    return history.history, model.get_weights()


def train_by_steps(backend: Any, network: str, steps: int, *, at_once: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and totals after steps with chosen rows and rates, given together or one by one."""
    model = NETWORKS[network](backend)
    x, y = data()
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    model.optimizer.learning_rate = ExponentialDecay(0.01, 1, 0.9)
    run = runs_of(model, x, y, 8)[0]
    index = np.random.default_rng(0).integers(0, len(x), (steps, 8)).astype("int32")
    totals = Totals()
    for rows in [index] if at_once else np.split(index, steps):
        totals = model._training.train(replace(run, steps=len(rows), index=rows), totals)
    return model.get_weights(), totals.read(model.backend.to_numpy)


def made_of(model: Any, run: Run, weight: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    """A function that makes a model's training step, and arrays for it: weights by name, optimizer state at random."""
    rng, given, arrays = np.random.default_rng(3), {}, arrays_of(run)
    trace = partial(model._training.executor.program, "train", run.feed)
    for value in trace().inputs:
        if value.name in arrays:
            given[value.name] = np.asarray(arrays[value.name])
        elif value.kind in ("optimizer", "metric"):
            given[value.name] = np.abs(rng.standard_normal(value.shape) * 0.1).astype(value.dtype)
        elif value.shape == ():
            given[value.name] = np.asarray({"learning_rate": 0.05, "step": 4}[value.name], value.dtype)
        else:
            given[value.name] = weight(value.name)
    return trace, given


def step_of(network: str) -> tuple[Any, dict[str, Any]]:
    """A function that makes the training step's Program of a network, and arrays for it."""
    model = NETWORKS[network]("numpy")
    x, y = data()
    run = runs_of(model, x, y, 16, shuffle=True, seed=1)[-1]
    return made_of(model, run, model._training.variables.get)
