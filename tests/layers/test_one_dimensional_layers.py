"""Layers of sequences against those of images with one row, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.layers import (
    AveragePooling1D,
    Conv1D,
    GlobalAveragePooling1D,
    GlobalMaxPooling1D,
    MaxPooling1D,
)
from support.layer_check import run, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal
from support.tolerances import ELEMENT


@pytest.mark.parametrize("padding", ["valid", "same", "causal"])
@pytest.mark.parametrize(("strides", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (1, 2, 1)])
def test_convolution_by_loops(padding: str, strides: int, dilation: int, groups: int) -> None:
    layer = Conv1D(4, 3, strides, padding, dilation_rate=dilation, groups=groups)
    found = run(layer, x := normal((2, 9, 2), 0))
    reach = 2 * dilation
    length = {"valid": (9 - reach - 1) // strides + 1}.get(padding, -(-9 // strides))
    total = {"valid": 0, "causal": reach}.get(padding, max((length - 1) * strides + reach + 1 - 9, 0))
    before = reach if padding == "causal" else total // 2
    wide = np.pad(x, ((0, 0), (before, 20), (0, 0)))
    kernel, own = found.weights["kernel"], 4 // groups
    expected = np.zeros((2, length, 4)) + found.weights["bias"]
    for at in range(length):
        for f in range(4):
            part = slice(f // own * kernel.shape[1], (f // own + 1) * kernel.shape[1])
            for k in range(3):
                expected[:, at, f] += wide[:, at * strides + k * dilation, part] @ kernel[k, :, f]
    assert_close(found.y, expected, 20)


@pytest.mark.parametrize(
    ("layer", "output", "weights"),
    [
        (Conv1D(4, 3, activation="tanh"), (4, 4), {"kernel": (3, 2, 4), "bias": (4,)}),
        (Conv1D(4, 2, 2, "causal", use_bias=False), (3, 4), {"kernel": (2, 2, 4)}),
        (MaxPooling1D(), (3, 2), {}),
        (AveragePooling1D(3, 2, "same"), (3, 2), {}),
        (GlobalMaxPooling1D(), (2,), {}),
        (GlobalAveragePooling1D(keepdims=True), (1, 2), {}),
    ],
)
def test_shapes_gradients_and_configuration(layer: Any, output: Any, weights: Any) -> None:
    run_layer_check(layer, (6, 2), output=output, weights=weights, rtol=ELEMENT)


@pytest.mark.parametrize(
    "kind", [lambda **o: Conv1D(3, 3, 2, "same", **o), MaxPooling1D, AveragePooling1D, GlobalMaxPooling1D,
             GlobalAveragePooling1D]
)  # fmt: skip
def test_channels_first(kind: Any) -> None:
    x = normal((2, 7, 4), 0)
    last = run(kind(), x)
    first = run(kind(data_format="channels_first"), np.swapaxes(x, 1, 2), weights=last.weights).y
    assert_close(np.swapaxes(first, 1, 2) if first.ndim == 3 else first, last.y, 20)


def test_by_hand() -> None:
    x = np.asarray([1.0, 4.0, 2.0, 3.0, 0.0]).reshape(1, 5, 1)
    assert run_layer(MaxPooling1D(), x).ravel().tolist() == [4, 3]
    assert run_layer(AveragePooling1D(2, padding="same"), x).ravel().tolist() == [2.5, 2.5, 0]
    assert run_layer(GlobalAveragePooling1D(), x).tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv1D(4, 3, padding="full"), "padding is one of 'valid', 'same', 'causal'"),
        (lambda: run_layer(Conv1D(4, 3, groups=3), np.zeros((1, 5, 2))), "groups divides the channels"),
        (lambda: run_layer(Conv1D(4, 3), np.zeros((1, 5))), "takes sequences: batch, steps and channels"),
        (lambda: MaxPooling1D(0), "pool_size is an integer"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
