"""Pooling over windows and over whole images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import (
    AdaptiveAveragePooling2D,
    AveragePooling2D,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    Input,
    MaxPooling2D,
)
from support.layer_check import assert_formats_agree, run_layer, run_layer_check
from support.strategies import distinct_values, seeds

COUNT = np.arange(9.0).reshape(1, 3, 3, 1)  # rows 0 1 2, 3 4 5, 6 7 8
KINDS = [MaxPooling2D, AveragePooling2D, GlobalMaxPooling2D, GlobalAveragePooling2D]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (MaxPooling2D(), [[4]]),
        (MaxPooling2D(2, strides=1), [[4, 5], [7, 8]]),
        (MaxPooling2D(2, padding="same"), [[4, 5], [7, 8]]),
        (MaxPooling2D(3, strides=3, padding=1), [[4]]),
        (AveragePooling2D(), [[2]]),
        (AveragePooling2D((1, 2), strides=1), [[0.5, 1.5], [3.5, 4.5], [6.5, 7.5]]),
        # Padding is not counted: the last windows average two elements, and one.
        (AveragePooling2D(2, padding="same"), [[2, 3.5], [6.5, 8]]),
        (AveragePooling2D(2, padding=((1, 0), (1, 0))), [[0, 1.5], [4.5, 6]]),
        (GlobalMaxPooling2D(keepdims=True), [[8]]),
        (GlobalAveragePooling2D(keepdims=True), [[4]]),
    ],
)
def test_by_hand(layer: Any, expected: Any) -> None:
    assert run_layer(layer, COUNT)[0, :, :, 0].tolist() == expected


def test_padding_never_wins() -> None:
    assert run_layer(MaxPooling2D(2, padding="same"), -COUNT - 1).max() == -1


@pytest.mark.parametrize(
    ("layer", "shape", "output"),
    [
        (MaxPooling2D(), (5, 4, 2), (2, 2, 2)),
        (MaxPooling2D((2, 3), strides=(1, 2), padding="same"), (5, 4, 2), (5, 2, 2)),
        (MaxPooling2D(3, padding=1, data_format="channels_first"), (2, 5, 4), (2, 2, 2)),
        (AveragePooling2D(), (5, 4, 2), (2, 2, 2)),
        (AveragePooling2D((2, 3), strides=1, padding="same"), (5, 4, 2), (5, 4, 2)),
        (AveragePooling2D(3, padding=1, data_format="channels_first"), (2, 5, 4), (2, 2, 2)),
        (GlobalMaxPooling2D(), (3, 4, 2), (2,)),
        (GlobalMaxPooling2D("channels_first", True), (2, 3, 4), (2, 1, 1)),
        (GlobalAveragePooling2D(), (3, 4, 2), (2,)),
        (GlobalAveragePooling2D("channels_first", keepdims=True), (2, 3, 4), (2, 1, 1)),
    ],
)
def test_pooling(layer: Any, shape: Any, output: Any) -> None:
    run_layer_check(layer, shape, output=output)


@given(
    which=st.sampled_from(KINDS[:2]),
    pool_size=st.integers(1, 3),
    strides=st.none() | st.integers(1, 3),
    padding=st.sampled_from(["valid", "same", 0]),
    seed=seeds,
)
def test_channels_first(which: Any, pool_size: int, strides: int | None, padding: Any, seed: int) -> None:
    x = distinct_values((2, 4, 5, 3), seed)
    assert_formats_agree(which, x, pool_size=pool_size, strides=strides, padding=padding)


@given(which=st.sampled_from(KINDS[2:]), keepdims=st.booleans(), seed=seeds)
def test_global_channels_first(which: Any, keepdims: bool, seed: int) -> None:
    assert_formats_agree(which, distinct_values((2, 4, 5, 3), seed), keepdims=keepdims)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_use(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} takes images"):
        kind()(Input((4, 4)))
    with pytest.raises(ValueError, match="data_format is"):
        kind(data_format="last")


def test_wrong_windows() -> None:
    with pytest.raises(ValueError, match="pool_size is an integer or a pair"):
        MaxPooling2D(0)
    with pytest.raises(ValueError, match="padding is 'valid', 'same' or integers"):
        AveragePooling2D(padding="half")
    with pytest.raises(ValueError, match="at least as large as its"):
        MaxPooling2D(5)(Input((4, 4, 1)))
    with pytest.raises(ValueError, match="takes padding smaller than the window"):
        MaxPooling2D(2, padding=2)(Input((4, 4, 1)))


@pytest.mark.parametrize(
    ("layer", "shape", "output"),
    [
        (AdaptiveAveragePooling2D((2, 1)), (4, 3, 2), (2, 1, 2)),  # one window size
        (AdaptiveAveragePooling2D(2), (3, 5, 2), (2, 2, 2)),  # windows that overlap
        (AdaptiveAveragePooling2D((4, 3)), (2, 3, 1), (4, 3, 1)),  # elements that repeat
        (AdaptiveAveragePooling2D(3), (3, 3, 2), (3, 3, 2)),
        (AdaptiveAveragePooling2D((1, 2), data_format="channels_first"), (2, 3, 3), (2, 1, 2)),
    ],
)
def test_adaptive_pooling(layer: Any, shape: Any, output: Any) -> None:
    run_layer_check(layer, shape, output=output)


def test_adaptive_pooling_by_hand() -> None:
    x = np.arange(5.0).reshape(1, 1, 5, 1)
    # Windows 0..1, 1..3, 3..4 of the five elements.
    assert run_layer(AdaptiveAveragePooling2D((1, 3)), x).ravel().tolist() == [0.5, 2, 3.5]


@given(size=st.tuples(st.integers(1, 5), st.integers(1, 5)), seed=seeds)
def test_adaptive_channels_first(size: Any, seed: int) -> None:
    assert_formats_agree(AdaptiveAveragePooling2D, distinct_values((2, 4, 5, 3), seed), output_size=size)
