"""Results and gradients of layers against torch.nn.functional, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import layers, ops
from minicnn.backends import get_backend
from minicnn.layers import Layer
from minicnn.program import gradients
from support.layer_check import trace_layer
from support.numerics import assert_close
from support.strategies import distinct_values, normal, seeds

torch = pytest.importorskip("torch")
F: Any = torch.nn.functional

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def compare(
    layer: Layer,
    x: Any,
    weights: dict[str, Any],
    reference: Callable[..., Any],
    *,
    training: bool = False,
    terms: int = 200,
) -> None:
    """Compare y and the gradients of sum(y * upstream) by x and all trainable weights.

    `reference(x, **weights)` works on torch tensors in NCHW; x and the layer are in NHWC.
    """
    program, known, trace = trace_layer(layer, [x], training=training, dtype="float64")
    y = program.outputs["y0"]
    upstream = normal(y.shape, 7)
    loss = ops.sum(y * program.input("upstream", y.shape, "float64"))
    names = [n for n, w in known.items() if w.trainable]
    prefix = next(iter(trace.declared), "/").partition("/")[0]
    wrt = [program.value("x0"), *(trace.weights[f"{prefix}/{n}"] for n in names)]
    for name, gradient in zip(["x", *names], gradients(program, loss, wrt), strict=True):
        program.outputs[f"d{name}"] = gradient
    assert set(weights) == set(known)
    made = get_backend("numpy").compile(program)(
        {"x0": x, "upstream": upstream, **{f"{prefix}/{n}": np.asarray(v, "float64") for n, v in weights.items()}}
    )

    def tensor(array: Any) -> Any:
        return torch.tensor(np.asarray(array, "float64"), requires_grad=True)

    tensors = {n: tensor(v) for n, v in weights.items()}
    xt = tensor(np.transpose(x, (0, 3, 1, 2)) if x.ndim == 4 else x)
    yt = reference(xt, **tensors)
    up = np.transpose(upstream, (0, 3, 1, 2)) if upstream.ndim == 4 else upstream
    (yt * torch.tensor(up)).sum().backward()

    def back(array: Any) -> Any:
        array = array.detach().numpy()
        return np.transpose(array, (0, 2, 3, 1)) if array.ndim == 4 else array

    assert_close(made["y0"], back(yt), terms=terms)
    assert_close(made["dx"], back(xt.grad), terms=terms)
    for name in names:
        assert_close(made[f"d{name}"], tensors[name].grad.numpy(), terms=terms * 10)


@given(
    kernel=pairs,
    strides=pairs,
    padding=pairs,
    dilation=pairs,
    groups=st.integers(1, 3),
    width=st.integers(1, 2),
    seed=seeds,
)
def test_conv2d(kernel: Any, strides: Any, padding: Any, dilation: Any, groups: int, width: int, seed: int) -> None:
    channels = groups * width
    x, w = normal((2, 6, 5, channels), seed), normal((*kernel, width, groups * 2), seed, 1)
    compare(
        layers.Conv2D(groups * 2, kernel, strides, padding, dilation_rate=dilation, groups=groups),
        x,
        {"kernel": w, "bias": normal((groups * 2,), seed, 2)},
        # torch's kernel: (filters, channels / groups, KH, KW)
        lambda x, kernel, bias: F.conv2d(x, kernel.permute(3, 2, 0, 1), bias, strides, padding, dilation, groups),
    )


@given(kernel=pairs, strides=pairs, padding=pairs, multiplier=st.integers(1, 3), channels=st.integers(1, 3), seed=seeds)
def test_depthwise_conv2d(kernel: Any, strides: Any, padding: Any, multiplier: int, channels: int, seed: int) -> None:
    x, w = normal((2, 5, 4, channels), seed), normal((*kernel, channels, multiplier), seed, 1)
    compare(
        layers.DepthwiseConv2D(kernel, strides, padding, multiplier, activation="silu"),
        x,
        {"kernel": w, "bias": normal((channels * multiplier,), seed, 2)},
        lambda x, kernel, bias: F.silu(
            F.conv2d(
                x,
                kernel.reshape(*kernel.shape[:2], -1).permute(2, 0, 1)[:, None],
                bias,
                strides,
                padding,
                groups=channels,
            )
        ),
    )


def test_separable_conv2d() -> None:
    compare(
        layers.SeparableConv2D(4, 3, strides=2, padding=1, depth_multiplier=2),
        normal((2, 5, 6, 3), 0),
        {
            "depthwise_kernel": normal((3, 3, 3, 2), 1),
            "pointwise_kernel": normal((1, 1, 6, 4), 2),
            "bias": normal((4,), 3),
        },
        lambda x, depthwise_kernel, pointwise_kernel, bias: F.conv2d(
            F.conv2d(
                x,
                depthwise_kernel.reshape(3, 3, 6).permute(2, 0, 1)[:, None],
                stride=2,
                padding=1,
                groups=3,
            ),
            pointwise_kernel.permute(3, 2, 0, 1),
            bias,
        ),
    )


@given(
    kernel=pairs,
    strides=pairs,
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    dilation=st.integers(1, 2),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=seeds,
)
def test_conv2d_transpose(kernel: Any, strides: Any, padding: Any, dilation: int, extra: Any, seed: int) -> None:
    extra = tuple(min(e, s - 1) for e, s in zip(extra, strides, strict=True))
    x, w = normal((2, 4, 4, 2), seed), normal((*kernel, 3, 2), seed, 1)
    compare(
        layers.Conv2DTranspose(3, kernel, strides, padding, extra, dilation_rate=dilation),
        x,
        {"kernel": w, "bias": normal((3,), seed, 2)},
        # torch's kernel: (channels, filters, KH, KW)
        lambda x, kernel, bias: F.conv_transpose2d(
            x, kernel.permute(3, 2, 0, 1), bias, strides, padding, extra, dilation=dilation
        ),
    )


@given(pool=st.integers(1, 3), stride=st.integers(1, 3), seed=seeds, data=st.data())
def test_pooling(pool: int, stride: int, seed: int, data: Any) -> None:
    padding = data.draw(st.integers(0, pool // 2))
    x = distinct_values((2, 6, 5, 3), seed)
    compare(layers.MaxPooling2D(pool, stride, padding), x, {}, lambda x: F.max_pool2d(x, pool, stride, padding))
    compare(
        layers.AveragePooling2D(pool, stride, padding),
        x,
        {},
        lambda x: F.avg_pool2d(x, pool, stride, padding, count_include_pad=False),
    )


def test_global_pooling() -> None:
    x = distinct_values((2, 3, 4, 5), 0)
    compare(layers.GlobalMaxPooling2D(), x, {}, lambda x: x.amax((2, 3)))
    compare(layers.GlobalAveragePooling2D(keepdims=True), x, {}, lambda x: F.adaptive_avg_pool2d(x, 1))


@given(n=pairs, size=pairs, seed=seeds)
def test_adaptive_pooling(n: Any, size: Any, seed: int) -> None:
    x = normal((2, *n, 2), seed)
    compare(layers.AdaptiveAveragePooling2D(size), x, {}, lambda x: F.adaptive_avg_pool2d(x, size))


@given(epsilon=st.floats(1e-5, 1e-2), training=st.booleans(), seed=seeds)
def test_batch_normalization(epsilon: float, training: bool, seed: int) -> None:
    weights = {
        "gamma": normal((4,), seed),
        "beta": normal((4,), seed, 1),
        "moving_mean": normal((4,), seed, 2),
        "moving_variance": normal((4,), seed, 3) ** 2 + 0.1,
    }
    compare(
        layers.BatchNormalization(epsilon=epsilon),
        normal((3, 4, 2, 4), seed, 4),
        weights,
        lambda x, gamma, beta, moving_mean, moving_variance: F.batch_norm(
            x, moving_mean.detach(), moving_variance.detach(), gamma, beta, training, eps=epsilon
        ),
        training=training,
        terms=10**4,
    )


def test_moving_variance_differs_from_torchs_by_bessels_correction() -> None:
    from support.layer_check import run

    x = normal((4, 3, 3, 2), 0)
    layer = torch.nn.BatchNorm2d(2, momentum=0.1, dtype=torch.float64)
    layer(torch.tensor(np.transpose(x, (0, 3, 1, 2))))
    start = {"moving_mean": np.zeros(2), "moving_variance": np.ones(2)}
    new = run(layers.BatchNormalization(momentum=0.9), x, training=True, weights=start).updates
    assert_close(new["moving_mean"], layer.running_mean.numpy(), terms=36)
    ours, theirs = new["moving_variance"] - 0.9, layer.running_var.numpy() - 0.9
    assert_close(ours * 36 / 35, theirs, terms=1000)


@given(seed=seeds)
def test_layer_and_group_normalization(seed: int) -> None:
    x = normal((2, 4, 3, 6), seed)
    vector = {"gamma": normal((6,), seed, 1), "beta": normal((6,), seed, 2)}
    compare(
        layers.LayerNormalization(),
        x,
        vector,
        lambda x, gamma, beta: F.layer_norm(x.permute(0, 2, 3, 1), (6,), gamma, beta, 1e-3).permute(0, 3, 1, 2),
        terms=10**4,
    )
    compare(
        layers.GroupNormalization(3, epsilon=1e-5),
        x,
        vector,
        lambda x, gamma, beta: F.group_norm(x, 3, gamma, beta, 1e-5),
        terms=10**4,
    )
    compare(
        layers.GroupNormalization(-1),
        x,
        vector,
        lambda x, gamma, beta: F.instance_norm(x, weight=gamma, bias=beta, eps=1e-3),
        terms=10**4,
    )


@given(size=st.integers(1, 7), alpha=st.floats(0, 2), beta=st.floats(0, 2), k=st.floats(0.5, 2), seed=seeds)
def test_local_response_normalization(size: int, alpha: float, beta: float, k: float, seed: int) -> None:
    compare(
        layers.LocalResponseNormalization(size, alpha, beta, k),
        normal((2, 2, 3, 5), seed),
        {},
        lambda x: F.local_response_norm(x, size, alpha, beta, k),
    )


def test_local_response_defaults_are_torchs() -> None:
    x = normal((2, 2, 3, 8), 0)
    compare(layers.LocalResponseNormalization(), x, {}, torch.nn.LocalResponseNorm(5))


@given(size=pairs, n=pairs, seed=seeds)
def test_upsampling(size: Any, n: Any, seed: int) -> None:
    x = normal((2, *n, 2), seed)
    compare(
        layers.UpSampling2D(size, interpolation="bilinear"),
        x,
        {},
        lambda x: F.interpolate(x, scale_factor=size, mode="bilinear", align_corners=False),
    )
    compare(layers.UpSampling2D(size), x, {}, lambda x: F.interpolate(x, scale_factor=size, mode="nearest"))


@pytest.mark.parametrize(
    ("layer", "reference"),
    [
        (layers.Activation("gelu"), F.gelu),
        (layers.Activation("relu6"), F.relu6),
        (layers.Activation("leaky_relu"), lambda x: F.leaky_relu(x, 0.2)),
        (layers.LeakyReLU(), lambda x: F.leaky_relu(x, 0.3)),
        (layers.ELU(0.7), lambda x: F.elu(x, 0.7)),
        (layers.Softmax(), lambda x: F.softmax(x, -1)),
        (layers.ReLU(threshold=0.3), lambda x: F.threshold(x, 0.3, 0.0)),
    ],
)
def test_activations(layer: Layer, reference: Any) -> None:
    compare(layer, distinct_values((4, 7), 0), {}, reference)


def test_dense() -> None:
    weights = {"kernel": normal((5, 3), 1), "bias": normal((3,), 2)}
    compare(
        layers.Dense(3, "tanh"),
        normal((4, 5), 0),
        weights,
        lambda x, kernel, bias: torch.tanh(F.linear(x, kernel.T, bias)),
    )
