"""Normalisation's gradient with the gradient of its activation: no array between them, and the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.program import Program, gradients
from support.numba_check import assert_alike, run_both
from support.strategies import normal

rules = pytest.importorskip("minicnn.backends.numba.rules")
weights = pytest.importorskip("minicnn.backends.numba.weights")

IMAGES = (18, 3, 2, 4)  # a whole block of samples and two more
SHAPES = {"x": IMAGES, "dz": IMAGES, "scale": (4,), "offset": (4,), "w": (3, 3, 4, 1)}
ARRAYS = {name: normal(shape, i).astype("float32") for i, (name, shape) in enumerate(SHAPES.items())}


def step(activation: str) -> Program:
    """Gradients of a normalisation with an activation, and a depthwise convolution behind it."""
    program = Program()
    kinds = {"x": "input", "dz": "input"}
    x, dz, scale, offset, w = (
        program.input(name, shape, kind=kinds.get(name, "parameter"))  # type: ignore[arg-type]
        for name, shape in SHAPES.items()
    )
    z, _, _ = ops.normalize(x, scale, offset, axes=(0, 1, 2), epsilon=1e-3)
    y = ops.depthwise_conv2d(getattr(ops, activation)(z), w, padding=((1, 1), (1, 1)))
    wrt = {"x": x, "scale": scale, "offset": offset}
    results = gradients(program, ops.sum(y * dz), list(wrt.values()))
    program.outputs = {"y": y, **dict(zip(wrt, results, strict=True))}
    return program


def numba(threads: int) -> Any:
    return backend_class("numba")(strict=True, threads=threads)  # type: ignore[call-arg]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("activation", ["relu", "relu6", "tanh"])
def test_gradient_of_the_activation_is_part_of_the_passes(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = {"relu": "relu_gradient", "relu6": "less+where+relu_gradient", "tanh": "square+subtract+multiply"}
    kernels = [how.removeprefix("kernel: ") for _, how in numba(1).explain(step(activation))]
    passes = [how for how in kernels if mask[activation] in how]
    assert sum("sum+sum" in how for how in kernels) == 1  # of the terms of both sums, in one pass
    assert mask[activation] not in kernels
    if activation != "tanh":  # is made again of what was normalised
        assert all(f"+{activation}+" in how for how in passes)
    assert_alike(*run_both(step(activation), ARRAYS), terms=1000)
    for threads in (1, 2, 3):
        joined = numba(threads).compile(step(activation))(ARRAYS)
        with monkeypatch.context() as patch:
            patch.setattr(rules, "repeat_gradients", lambda lowering: None)
            apart = numba(threads).compile(step(activation))(ARRAYS)
        for name, array in joined.items():
            np.testing.assert_array_equal(array, apart[name], err_msg=name)


@pytest.mark.usefixtures("interpreted")
def test_mean_and_variance_are_not_one_sum() -> None:
    # They read the same images, but the one needs the other.
    kernels = [how for _, how in numba(1).explain(step("relu"))]
    assert "kernel: mean" in kernels
    assert "kernel: subtract+square+mean" in kernels


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("limit", [1 << 18, 64], ids=["in order", "some channels at a time"])
@pytest.mark.parametrize("channels", [4, 11, 24])
def test_two_sums_of_any_number_of_channels(channels: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "LANES_LIMIT", limit)
    program = Program()
    x, y = (program.input(name, (18, 7, channels)) for name in ("x", "y"))
    h = x + 0.0
    program.outputs = {"first": ops.sum(h * y, axes=(0, 1)), "second": ops.sum(y * y, axes=(0, 1))}
    arrays = {name: normal((18, 7, channels), i).astype("float32") for i, name in enumerate("xy")}
    assert_alike(*run_both(program, arrays, threads=3), terms=18 * 7)
