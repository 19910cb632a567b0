"""The primitives against torch.nn.functional in float64: results and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program, gradients
from support.gradcheck import read_only, run_checked
from support.numerics import assert_close
from support.strategies import (
    WindowCase,
    away_from_zero,
    conv_cases,
    distinct_values,
    from_format,
    normal,
    pool_cases,
    seeds,
    to_format,
)

torch = pytest.importorskip("torch")
F = torch.nn.functional


def compare(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, seed: int, terms: int = 1) -> None:
    """Equal results, and equal gradients of all floating-point inputs for the same upstream gradient."""
    tensors = [torch.tensor(np.ascontiguousarray(a), requires_grad=a.dtype.kind == "f") for a in arrays]
    expected = theirs(*tensors)
    dy = normal(tuple(expected.shape), seed, 99)
    expected.backward(torch.tensor(dy))

    program = Program()
    values = [program.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    y = ours(*values)
    smooth = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    found = gradients(program, ops.sum(y * dy), [values[i] for i in smooth])
    program.outputs = {"y": y} | {f"g{i}": g for i, g in zip(smooth, found, strict=True)}
    made = run_checked(program, {f"x{i}": read_only(a) for i, a in enumerate(arrays)})
    assert_close(made["y"], expected.detach().numpy(), terms)
    for i in smooth:
        assert_close(made[f"g{i}"], tensors[i].grad.numpy(), 10 * terms)


def _nchw(function: Callable[..., Any], case: WindowCase) -> Callable[..., Any]:
    """A torch function of NCHW images, called with images in the case's layout."""
    there = [case.data_format.index(a) for a in "NCHW"]
    back = ["NCHW".index(a) for a in case.data_format]
    return lambda x, *rest: function(x.permute(there).contiguous(), *rest).permute(back)


def _pad(x: Any, case: WindowCase, value: float = 0.0) -> Any:
    (top, bottom), (left, right) = case.padding
    return F.pad(x, (left, right, top, bottom), value=value)


@given(case=conv_cases())
def test_conv2d(case: WindowCase) -> None:
    def theirs(x: Any, w: Any) -> Any:
        return F.conv2d(
            _pad(x, case), w.permute(3, 2, 0, 1).contiguous(), None, case.strides, 0, case.dilation, case.groups
        )

    x = to_format(case.x, case.data_format)
    compare(lambda x, w: ops.conv2d(x, w, **case.convolution), _nchw(theirs, case), x, case.w,
            seed=case.seed, terms=case.terms)  # fmt: skip


@given(case=conv_cases())
def test_transposed_convolution(case: WindowCase) -> None:
    """conv2d_input_gradient is torch's conv_transpose2d; symmetric padding, which is all that torch has."""
    padding = tuple(
        min(*pair, d * (k - 1)) for pair, d, k in zip(case.padding, case.dilation, case.kernel, strict=True)
    )
    extra = [min(1, s - 1) for s in case.strides]
    (oh, ow), (kh, kw) = case.output, case.kernel
    image = tuple(
        (o - 1) * s - 2 * p + d * (k - 1) + e + 1
        for o, s, p, d, k, e in zip((oh, ow), case.strides, padding, case.dilation, (kh, kw), extra, strict=True)
    )
    if min(image) < 1:
        image, padding = tuple(i + 2 * p for i, p in zip(image, padding, strict=True)), (0, 0)
    attrs = case.convolution | {"padding": tuple((p, p) for p in padding), "image": image}

    def theirs(dy: Any, w: Any) -> Any:
        # torch's kernel is (in, out / groups, KH, KW), where "in" are our filters.
        return F.conv_transpose2d(
            dy, w.permute(3, 2, 0, 1).contiguous(), None, case.strides, padding, extra, case.groups, case.dilation
        )

    dy = to_format(normal((case.n, oh, ow, case.filters), case.seed), case.data_format)
    compare(lambda dy, w: ops.conv2d_input_gradient(dy, w, **attrs), _nchw(theirs, case), dy, case.w,
            seed=case.seed, terms=case.terms)  # fmt: skip


@given(case=conv_cases())
def test_depthwise_conv2d(case: WindowCase) -> None:
    def theirs(x: Any, w: Any) -> Any:
        kh, kw, c, m = w.shape
        kernel = w.permute(2, 3, 0, 1).reshape(c * m, 1, kh, kw)
        return F.conv2d(_pad(x, case), kernel, None, case.strides, 0, case.dilation, c)

    x = to_format(case.x, case.data_format)
    compare(lambda x, w: ops.depthwise_conv2d(x, w, **case.sliding), _nchw(theirs, case), x, case.depthwise_w,
            seed=case.seed, terms=case.terms)  # fmt: skip


@given(case=pool_cases(), ties=st.booleans())
def test_max_pool2d(case: WindowCase, ties: bool) -> None:
    def theirs(x: Any) -> Any:
        return F.max_pool2d(_pad(x, case, float("-inf")), case.kernel, case.strides)

    x = to_format(np.round(case.x) if ties else case.x, case.data_format)
    compare(lambda x: ops.max_pool2d(x, **case.pooling), _nchw(theirs, case), x, seed=case.seed, terms=case.terms)


@given(case=pool_cases(), count_padding=st.booleans())
def test_average_pool2d(case: WindowCase, count_padding: bool) -> None:
    def theirs(x: Any) -> Any:
        total = F.avg_pool2d(_pad(x, case), case.kernel, case.strides)
        inside = F.avg_pool2d(_pad(torch.ones_like(x), case), case.kernel, case.strides)
        return total if count_padding else total / inside

    x = to_format(case.x, case.data_format)
    compare(lambda x: ops.average_pool2d(x, count_padding=count_padding, **case.pooling), _nchw(theirs, case), x,
            seed=case.seed, terms=case.terms)  # fmt: skip


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (ops.relu, F.relu),
    "relu6": (ops.relu6, F.relu6),
    "leaky_relu": (lambda x: ops.leaky_relu(x, negative_slope=0.2), lambda x: F.leaky_relu(x, 0.2)),
    "elu": (lambda x: ops.elu(x, alpha=0.7), lambda x: F.elu(x, 0.7)),
    "gelu": (ops.gelu, F.gelu),
    "gelu tanh": (lambda x: ops.gelu(x, approximate=True), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (ops.silu, F.silu),
    "sigmoid": (ops.sigmoid, torch.sigmoid),
    "tanh": (ops.tanh, torch.tanh),
    "erf": (ops.erf, torch.erf),
    "softmax": (ops.softmax, lambda x: F.softmax(x, -1)),
    "softmax axis 0": (lambda x: ops.softmax(x, axis=0), lambda x: F.softmax(x, 0)),
    "log_softmax": (ops.log_softmax, lambda x: F.log_softmax(x, -1)),
    "exp": (ops.exp, torch.exp),
    "abs": (ops.abs, torch.abs),
    "max": (lambda x: ops.max(x, axes=1), lambda x: torch.amax(x, 1)),
    "mean": (lambda x: ops.mean(x, axes=(0, 2)), lambda x: torch.mean(x, (0, 2))),
    "repeat": (lambda x: ops.repeat(x, repeats=2, axis=1), lambda x: torch.repeat_interleave(x, 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(seed=seeds)
def test_activations_and_reductions(name: str, seed: int) -> None:
    ours, theirs = ACTIVATIONS[name]
    compare(ours, theirs, away_from_zero((3, 4, 5), seed) * 3, seed=seed, terms=20)


@given(seed=seeds, c=st.integers(1, 4))
def test_batch_norm(seed: int, c: int) -> None:
    x, scale, offset = distinct_values((3, 4, 2, c), seed), normal((c,), seed, 1), normal((c,), seed, 2)
    compare(
        lambda x, s, o: ops.normalize(x, s, o, axes=(0, 1, 2), epsilon=1e-3)[0],
        lambda x, s, o: F.batch_norm(x.permute(0, 3, 1, 2), None, None, s, o, True, 0.0, 1e-3).permute(0, 2, 3, 1),
        x, scale, offset, seed=seed, terms=1000,
    )  # fmt: skip


@given(seed=seeds, c=st.integers(2, 4))
def test_layer_norm(seed: int, c: int) -> None:
    x, scale, offset = distinct_values((3, 4, c), seed), normal((4, c), seed, 1), normal((4, c), seed, 2)
    compare(
        lambda x, s, o: ops.normalize(x, s, o, axes=(1, 2), epsilon=1e-3)[0],
        lambda x, s, o: F.layer_norm(x, (4, c), s, o, 1e-3),
        x, scale, offset, seed=seed, terms=1000,
    )  # fmt: skip


@given(seed=seeds, n=st.integers(1, 5), classes=st.integers(1, 6))
def test_cross_entropy(seed: int, n: int, classes: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, n)
    compare(
        lambda x, t: ops.softmax_cross_entropy(x, t),
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        normal((n, classes), seed) * 3, labels, seed=seed, terms=classes,
    )  # fmt: skip


def test_layouts_agree() -> None:
    """The helper that turns layouts round does so."""
    x = normal((2, 3, 4, 5), 0)
    for data_format in ("NCHW", "HWCN"):
        np.testing.assert_array_equal(from_format(to_format(x, data_format), data_format), x)
    np.testing.assert_array_equal(to_format(x, "NCHW"), torch.tensor(x).permute(0, 3, 1, 2).numpy())
