"""Conv2DTranspose: known values, and those and the sizes of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import Conv2DTranspose, Input
from support.layer_check import assert_formats_agree, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal, seeds

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def test_by_hand() -> None:
    x = np.asarray([1.0, 2.0]).reshape(1, 1, 2, 1)
    kernel = np.asarray([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
    y = run_layer(Conv2DTranspose(1, (1, 3), strides=(1, 2)), x, weights={"kernel": kernel, "bias": [0.5]})
    assert y.ravel().tolist() == [1.5, 10.5, 102.5, 20.5, 200.5]


@pytest.mark.parametrize(
    ("padding", "output_padding", "expected"),
    [
        # Of the positions 1, 10, 102, 20, 200 ...
        ("same", None, [1, 10, 102, 20]),  # ... size * stride, an odd one cut after
        ("same", 0, [10, 102, 20]),
        ("same", 1, [1, 10, 102, 20]),
        ("valid", None, [1, 10, 102, 20, 200]),
        ("valid", 1, [1, 10, 102, 20, 200, 0]),
        (((0, 0), (1, 1)), None, [10, 102, 20]),
        (((0, 0), (1, 1)), 1, [10, 102, 20, 200]),
        (((0, 0), (0, 3)), 0, [1, 10]),
    ],
)
def test_what_padding_cuts(padding: Any, output_padding: int | None, expected: list[int]) -> None:
    x = np.asarray([1.0, 2.0]).reshape(1, 1, 2, 1)
    kernel = np.asarray([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
    extra = None if output_padding is None else (0, output_padding)
    layer = Conv2DTranspose(1, (1, 3), (1, 2), padding, extra, use_bias=False)
    # The height has kernel and stride 1; "same" with an output_padding of 0 leaves it alone as well.
    assert run_layer(layer, x, weights={"kernel": kernel}).ravel().tolist() == expected


def keras_length(size: int, kernel: int, stride: int, padding: str, extra: int | None, dilation: int) -> int:
    """Output length as Keras documents it."""
    kernel = (kernel - 1) * dilation + 1
    if padding == "valid":
        return (size - 1) * stride + kernel + (max(kernel, stride) - kernel if extra is None else extra)
    return size * stride if extra is None else (size - 1) * stride + kernel % 2 + extra


def naive_transpose(x: Any, kernel: Any, strides: Any, dilation: int, starts: Any, size: Any) -> Any:
    """Every input position adds its multiple of the kernel to a large canvas, of which a part is cut out."""
    n, h, w, _ = x.shape
    kh, kw, filters, _ = kernel.shape
    canvas = np.zeros((n, h * strides[0] + kh * dilation + 4, w * strides[1] + kw * dilation + 4, filters))
    for i in range(h):
        for j in range(w):
            for a in range(kh):
                for b in range(kw):
                    canvas[:, i * strides[0] + a * dilation, j * strides[1] + b * dilation] += (
                        x[:, i, j] @ kernel[a, b].T
                    )
    return canvas[:, starts[0] : starts[0] + size[0], starts[1] : starts[1] + size[1]]


@given(
    image=pairs,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=pairs,
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["valid", "same"]),
    extras=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=seeds,
)
def test_values_and_sizes_of_keras(
    image: Any, kernel: Any, strides: Any, dilation: int, padding: str, extras: Any, seed: int
) -> None:
    if extras is not None:
        extras = tuple(min(e, s - 1) for e, s in zip(extras, strides, strict=True))
    size = [
        keras_length(n, k, s, padding, None if extras is None else extras[a], dilation)
        for a, (n, k, s) in enumerate(zip(image, kernel, strides, strict=True))
    ]
    if min(size) < 1:
        return
    # TensorFlow pads "same" as the forward convolution that maps the output's size to the input's.
    whole = [(n - 1) * s + (k - 1) * dilation + 1 for n, k, s in zip(image, kernel, strides, strict=True)]
    starts = [max(v - o, 0) // 2 if padding == "same" else 0 for v, o in zip(whole, size, strict=True)]
    x, w = normal((2, *image, 2), seed), normal((*kernel, 3, 2), seed, 1)
    layer = Conv2DTranspose(3, kernel, strides, padding, extras, dilation_rate=dilation, use_bias=False)
    y = run_layer(layer, x, weights={"kernel": w})
    assert_close(y, naive_transpose(x, w, strides, dilation, starts, size), terms=32)


@given(
    kernel=pairs, strides=pairs, padding=st.sampled_from(["valid", "same", 1]), dilation=st.integers(1, 2), seed=seeds
)
def test_channels_first(kernel: Any, strides: Any, padding: Any, dilation: int, seed: int) -> None:
    assert_formats_agree(
        Conv2DTranspose, normal((2, 3, 4, 2), seed), filters=3, kernel_size=kernel, strides=strides, padding=padding,
        dilation_rate=dilation,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape", "output", "weights"),
    [
        (Conv2DTranspose(3, 3), (4, 3, 2), (6, 5, 3), {"kernel": (3, 3, 3, 2), "bias": (3,)}),
        (Conv2DTranspose(3, (4, 2), strides=2, padding="same", activation="tanh"), (4, 3, 2), (8, 6, 3),
         {"kernel": (4, 2, 3, 2), "bias": (3,)}),
        (Conv2DTranspose(1, 2, strides=3, use_bias=False), (2, 2, 2), (6, 6, 1), {"kernel": (2, 2, 1, 2)}),
        (Conv2DTranspose(2, 3, strides=2, padding=1, output_padding=1, data_format="channels_first"), (2, 3, 4),
         (2, 6, 8), {"kernel": (3, 3, 2, 2), "bias": (2,)}),
        (Conv2DTranspose(2, 2, dilation_rate=(3, 1), padding=((1, 0), (0, 1))), (2, 2, 1), (4, 2, 2),
         {"kernel": (2, 2, 2, 1), "bias": (2,)}),
    ],
)  # fmt: skip
def test_conv2d_transpose(layer: Any, shape: Any, output: Any, weights: Any) -> None:
    run_layer_check(layer, shape, output=output, weights=weights)


def test_wrong_arguments() -> None:
    with pytest.raises(
        ValueError, match=r"output_padding is below the stride .* output_padding=\(1, 1\), strides=\(2, 1\)"
    ):
        Conv2DTranspose(2, 3, strides=(2, 1), output_padding=1)
    with pytest.raises(ValueError, match="output_padding is an integer or a pair of integers of at least 0"):
        Conv2DTranspose(2, 3, output_padding=-1)
    with pytest.raises(ValueError, match=r"leaves at least one position. Received: 2 positions .* Use less padding"):
        Conv2DTranspose(2, 1, padding=1)(Input((2, 2, 1)))
    with pytest.raises(ValueError, match="Conv2DTranspose takes images"):
        Conv2DTranspose(2, 1)(Input((2, 2)))
