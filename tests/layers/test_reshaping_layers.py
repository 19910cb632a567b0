"""Flatten, Reshape, Permute, ZeroPadding2D, Cropping2D and UpSampling2D."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import Cropping2D, Flatten, Input, Permute, Reshape, UpSampling2D, ZeroPadding2D
from support.layer_check import assert_formats_agree, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal, seeds

frames = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2)


@pytest.mark.parametrize(
    ("layer", "shape", "output"),
    [
        (Flatten(), (2, 3, 4), (24,)),
        (Flatten("channels_first"), (2, 3, 4), (24,)),
        (Flatten("channels_first"), (5,), (5,)),
        (Flatten(), (), (1,)),
        (Reshape((3, 8)), (2, 3, 4), (3, 8)),
        (Reshape([2, -1, 2]), (2, 3, 4), (2, 6, 2)),
        (Reshape((-1,)), (2, 3), (6,)),
        (Permute((2, 1)), (2, 3), (3, 2)),
        (Permute([3, 1, 2]), (2, 3, 4), (4, 2, 3)),
        (ZeroPadding2D(), (2, 3, 4), (4, 5, 4)),
        (ZeroPadding2D(((0, 1), (2, 3)), data_format="channels_first"), (2, 3, 4), (2, 4, 9)),
        (Cropping2D(), (2, 3, 4), (2, 3, 4)),
        (Cropping2D((1, 2)), (4, 5, 2), (2, 1, 2)),
        (Cropping2D(((0, 1), (2, 0)), data_format="channels_first"), (2, 3, 4), (2, 2, 2)),
        (UpSampling2D(), (2, 3, 2), (4, 6, 2)),
        (UpSampling2D((1, 3), "channels_first"), (2, 2, 2), (2, 2, 6)),
        (UpSampling2D((2, 3), interpolation="bilinear"), (3, 2, 2), (6, 6, 2)),
        (UpSampling2D((3, 1), "channels_first", "bilinear"), (2, 1, 4), (2, 3, 4)),
    ],
)
def test_reshaping(layer: Any, shape: Any, output: Any) -> None:
    run_layer_check(layer, shape, output=output)


def test_flatten_gives_the_same_order_for_both_formats() -> None:
    x = normal((2, 3, 4, 5), 0)
    last = run_layer(Flatten(), x)
    np.testing.assert_array_equal(last, x.reshape(2, 60))
    np.testing.assert_array_equal(run_layer(Flatten("channels_first"), x.transpose(0, 3, 1, 2)), last)


def test_permute_and_reshape_are_numpys() -> None:
    x = normal((2, 3, 4, 5), 0)
    np.testing.assert_array_equal(run_layer(Permute((3, 1, 2)), x), np.transpose(x, (0, 3, 1, 2)))
    np.testing.assert_array_equal(run_layer(Reshape((6, -1)), x), x.reshape(2, 6, 10))


@given(widths=frames, first=st.booleans(), seed=seeds)
def test_padding_and_cropping_are_inverse(widths: Any, first: bool, seed: int) -> None:
    x = normal((2, 3, 4, 2), seed)
    data_format = "channels_first" if first else "channels_last"
    axes = (2, 3) if first else (1, 2)
    expected = np.pad(x, [widths[axes.index(a)] if a in axes else (0, 0) for a in range(4)])
    padded = run_layer(ZeroPadding2D(widths, data_format), x)
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_array_equal(run_layer(Cropping2D(widths, data_format), padded), x)


@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    interpolation=st.sampled_from(["nearest", "bilinear"]),
    seed=seeds,
)
def test_upsampling_channels_first(size: Any, interpolation: str, seed: int) -> None:
    assert_formats_agree(UpSampling2D, normal((2, 3, 2, 3), seed), size=size, interpolation=interpolation)


def test_nearest_by_hand() -> None:
    y = run_layer(UpSampling2D((2, 3)), np.asarray([[1.0, 2.0]]).reshape(1, 1, 2, 1))
    assert y[0, :, :, 0].tolist() == [[1, 1, 1, 2, 2, 2]] * 2


def test_bilinear_by_hand() -> None:
    x = np.asarray([0.0, 4.0, 8.0]).reshape(1, 1, 3, 1)
    # Centres of the new pixels lie at -0.25, 0.25, 0.75, 1.25, 1.75 and 2.25 old pixels.
    y = run_layer(UpSampling2D((1, 2), interpolation="bilinear"), x)
    assert_close(y.ravel(), np.asarray([0.0, 1.0, 3.0, 5.0, 7.0, 8.0]))


@given(factor=st.integers(1, 4), n=st.integers(1, 4))
def test_bilinear_keeps_constants_and_symmetry(factor: int, n: int) -> None:
    layer = UpSampling2D(factor, interpolation="bilinear")
    assert_close(run_layer(layer, np.full((1, n, n, 1), 3.0)), np.full((1, n * factor, n * factor, 1), 3.0), terms=4)
    x = normal((1, n, n, 1), n)
    assert_close(run_layer(layer, x[:, ::-1]), run_layer(layer, x)[:, ::-1], terms=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flatten("NHWC"), "data_format is"),
        (lambda: Reshape((2, -1, -1)), r"target_shape has at most one -1. Received: target_shape=\(2, -1, -1\)"),
        (lambda: Reshape((2, 0)), "Each length of target_shape is an integer of at least 1"),
        (lambda: Permute((1, 1)), r"dims has each axis from 1 to 2 once. Received: dims=\(1, 1\)"),
        (lambda: Permute((0, 1)), "Each axis of dims is an integer of at least 1"),
        (lambda: ZeroPadding2D((1, 2, 3)), "padding is an integer of at least 0"),  # type: ignore[arg-type]
        (lambda: ZeroPadding2D("same"), "padding is an integer of at least 0"),
        (lambda: Cropping2D(-1), "cropping is an integer of at least 0"),
        (lambda: UpSampling2D(0), "size is an integer or a pair of integers of at least 1"),
        (lambda: UpSampling2D(interpolation="bicubic"), "interpolation is one of 'nearest', 'bilinear'.*'bicubic'"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"Reshape keeps the elements .* 6 elements \(shape \(2, 3\)\)"):
        Reshape((4, -1))(Input((2, 3)))
    with pytest.raises(ValueError, match="Reshape keeps the elements"):
        Reshape((5,))(Input((2, 3)))
    with pytest.raises(ValueError, match=r"Permute takes samples with as many axes as dims names. Received: 3 axes"):
        Permute((2, 1))(Input((2, 3, 4)))
    with pytest.raises(ValueError, match=r"Cropping2D leaves at least one row and column. Received: image 4x2"):
        Cropping2D((1, 1))(Input((4, 2, 1)))
    for layer in (ZeroPadding2D(), Cropping2D(), UpSampling2D()):
        with pytest.raises(ValueError, match="takes images"):
            layer(Input((2, 3)))
