"""Dense and Rescaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.configured import encode
from minicnn.layers import Dense, Identity, Input, Lambda, Layer, Rescaling
from support.layer_check import run, run_layer, run_layer_check, trace_layer
from support.numerics import assert_close
from support.strategies import normal


@pytest.mark.parametrize(
    ("layer", "shape", "output", "weights"),
    [
        (Dense(3), (4,), (3,), {"kernel": (4, 3), "bias": (3,)}),
        (Dense(2, "softmax", use_bias=False), (5,), (2,), {"kernel": (5, 2)}),
        (Dense(3, "gelu", kernel_initializer="he_normal", name="head"), (2, 3, 4), (2, 3, 3),
         {"kernel": (4, 3), "bias": (3,)}),
        (Rescaling(1 / 255), (2, 3), (2, 3), {}),
        (Rescaling(2, offset=-1.0), (2, 3), (2, 3), {}),
    ],
)  # fmt: skip
def test_core(layer: Any, shape: Any, output: Any, weights: Any) -> None:
    run_layer_check(layer, shape, output=output, weights=weights)


def test_dense_by_hand() -> None:
    y = run_layer(Dense(2, "relu"), np.asarray([[1.0, 2.0]]), weights={"kernel": [[1, 2], [3, -4]], "bias": [1, 1]})
    assert y.tolist() == [[8, 0]]


def test_dense_works_along_the_last_axis() -> None:
    x, kernel, bias = normal((2, 3, 4, 5), 0), normal((5, 6), 1), normal((6,), 2)
    assert_close(run_layer(Dense(6), x, weights={"kernel": kernel, "bias": bias}), x @ kernel + bias, terms=5)


def test_an_activation_sees_all_axes() -> None:
    seen = []
    Dense(6, lambda v: seen.append(v.shape) or v)(Input((3, 4)))  # type: ignore[func-returns-value]
    assert seen == [(2, 3, 6)]


def test_rescaling_converts_integers() -> None:
    # A model converts what it is given; inside another layer an integer may still arrive.
    class Inner(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rescale = Rescaling(0.5, 1.0)

        def call(self, inputs: Any) -> Any:
            from minicnn import ops

            return self.rescale(ops.cast(inputs, dtype="int32"))

    x = np.asarray([[3.7, 4.0]])
    program, _, _ = trace_layer(Inner(), [x], dtype="float64")
    y = get_backend("numpy").compile(program)({"x0": x})["y0"]
    assert (y.tolist(), y.dtype.name) == ([[2.5, 3.0]], "float64")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense(-1), "units is an integer of at least 1. Received: units=-1"),
        (lambda: Dense(2, bias_initializer="x"), "An initializer is one of"),
        (lambda: Dense(2)(Input(())), r"Dense takes inputs with a batch axis and a last axis .* shape \(None,\)"),
        (lambda: Rescaling("1/255"), "scale is a number. Received: scale='1/255'"),  # type: ignore[arg-type]
        (lambda: Rescaling(1.0, None), "offset is a number"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_identity_and_lambda() -> None:
    x = np.arange(6.0).reshape(2, 3)
    run_layer_check(Identity(), (2, 3), output=(2, 3))
    assert run(Identity(), x).program.nodes == []
    np.testing.assert_array_equal(run_layer(Lambda(lambda v: v * v + 1.0), x), x * x + 1)
    with pytest.raises(TypeError, match="Lambda takes a function of a Value"):
        Lambda("relu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Functions cannot be saved, because a file holds data only"):
        encode(Lambda(lambda v: v))
