"""The layout pass gives the same numbers, and leaves images in place from one layer to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends.numpy import NumpyBackend
from minicnn.ops import primitive
from minicnn.program import Program, Value, gradients, optimize
from minicnn.program.layout import batch_last, channels_first, channels_last
from support.tolerances import DOUBLE

N = 3  # any batch will do for the rewriting itself
any_batch_last = partial(batch_last, least_batch=1)


def network(data_format: str, seed: int, *, stride: int = 1, groups: int = 1) -> Program:
    """Every kind of node that the pass knows, and those it does not, forward and backward."""
    p = Program("test")
    shape = (N, 9, 8, 4) if data_format == "NHWC" else (N, 4, 9, 8)
    c = data_format.index("C")
    channel = tuple(4 if a == c else 1 for a in range(c, 4))
    x = p.input("x", shape, "float64")
    w = p.input("w", (3, 3, 4 // groups, 4), "float64", kind="parameter")
    d = p.input("d", (3, 3, 4, 1), "float64", kind="parameter")
    scale = p.input("scale", channel, "float64", kind="parameter")
    offset = p.input("offset", channel, "float64", kind="parameter")
    same = {"padding": ((1, 1), (1, 1)), "data_format": data_format}
    y = ops.conv2d(x, w, strides=(stride, stride), groups=groups, **same)
    y = ops.relu(y + offset)
    z = ops.depthwise_conv2d(y, d, **same)
    axes = tuple(a for a in range(4) if a != c)
    z, mean, variance = ops.normalize(z, scale, offset, axes=axes, epsilon=1e-3)
    z = ops.concat(z + y, ops.sigmoid(z), axis=c - 4)
    z = ops.pad(z, widths=tuple((1, 2) if a in (c, 0) else (0, 1) for a in range(4)))
    z = ops.slice_(z, bounds=tuple((1, n - 2) if a in (c, 0) else (0, n - 1) for a, n in enumerate(z.shape)))
    pooled = ops.max_pool2d(z, kernel=(2, 2), strides=(2, 2), data_format=data_format)
    average = ops.average_pool2d(z, kernel=(2, 3), strides=(1, 2), padding=((0, 1), (1, 1)), data_format=data_format)
    spatial = tuple(a for a in range(4) if a not in (0, c))
    parts = [
        ops.mean(z, axes=spatial),
        ops.max(z, axes=spatial),
        ops.sum(pooled, axes=spatial, keepdims=True),
        average,
        ops.sum(ops.square(z)),
    ]
    loss: Any = None
    for i, part in enumerate(parts):
        flat = ops.reshape(part, shape=(part.size,))
        weights = np.random.default_rng(seed + i).standard_normal(part.size)
        term = ops.sum(flat * weights)
        loss = term if loss is None else loss + term
    p.outputs = {
        "loss": loss,
        "mean": mean,
        "variance": variance,
        "pooled": pooled,
        "average": average,
        "pick": parts[0],
    }
    wrt = [x, w, d, scale, offset]
    p.outputs |= {f"d{v.name}": g for v, g in zip(wrt, gradients(p, loss, wrt), strict=True)}
    return optimize(p)


class _Plain(NumpyBackend):
    """The numpy backend without its own rewriting."""

    def rewrite(self, program: Program) -> Program:
        return program


def run(program: Program, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {v.name: rng.standard_normal(v.shape) for v in program.inputs}
    return _Plain().compile(program)(arrays)


@given(
    data_format=st.sampled_from(["NHWC", "NCHW"]),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
)
def test_same_numbers(data_format: str, stride: int, groups: int, seed: int) -> None:
    expected = run(network(data_format, seed, stride=stride, groups=groups), seed)
    found = run(any_batch_last(network(data_format, seed, stride=stride, groups=groups)), seed)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=DOUBLE, atol=DOUBLE, err_msg=name)


@pytest.mark.parametrize(("rewrite", "old", "new"), [(channels_last, "NCHW", "NHWC"), (channels_first, "NHWC", "NCHW")])
@given(stride=st.sampled_from([1, 2]), groups=st.sampled_from([1, 2]), seed=st.integers(0, 1000))
def test_same_numbers_with_the_channels_elsewhere(
    rewrite: Callable[[Program], Program], old: str, new: str, stride: int, groups: int, seed: int
) -> None:
    expected = run(network(old, seed, stride=stride, groups=groups), seed)
    program = rewrite(network(old, seed, stride=stride, groups=groups))
    assert {n.attrs["data_format"] for n in program.nodes if "data_format" in n.attrs} == {new}
    moved = [n for n in program.nodes if n.op.name == "permute" and n.phase == "forward" and n.inputs[0].size > 100]
    assert len(moved) <= 4  # on the way in and out
    found = run(program, seed)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=DOUBLE, atol=DOUBLE, err_msg=name)


def test_images_with_the_channels_last_stay_as_they_are() -> None:
    program = network("NHWC", 0)
    before = str(program)
    assert str(channels_last(program)) == before


@pytest.mark.parametrize("rewrite", [any_batch_last, channels_last])
def test_operations_along_one_axis_follow_the_image(rewrite: Callable[[Program], Program]) -> None:
    def write(p: Program) -> None:
        x = _image(p, "NCHW")
        wide = ops.broadcast_to(ops.max(x, axes=(1,), keepdims=True), shape=(2, 3, 4, 5))
        y = ops.repeat(ops.softmax(x, axis=1) + ops.log_softmax(x, axis=-1) * wide, repeats=2, axis=2)
        p.outputs = {"y": ops.max_pool2d(y, kernel=(2, 2), strides=(2, 2), data_format="NCHW")}

    assert sum(n.op.name == "permute" for n in _same(write, rewrite).nodes) == 2


def test_a_permutation_that_undoes_the_layout_is_no_work() -> None:
    def write(p: Program) -> None:
        x = _image(p, "NCHW")
        p.outputs = {"last": ops.permute(x, axes=(0, 2, 3, 1)), "other": ops.permute(x, axes=(3, 2, 1, 0))}

    assert sum(n.op.name == "permute" for n in _same(write, channels_last).nodes) == 2  # of x, and of "other"


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_images_are_moved_only_at_the_ends(data_format: str) -> None:
    program = any_batch_last(network(data_format, 0))
    images = [n for n in program.nodes if "data_format" in n.attrs]
    assert images
    assert all(n.attrs["data_format"] == "HWCN" for n in images)
    moved = [n for n in program.nodes if n.op.name == "permute" and n.phase == "forward" and n.inputs[0].size > 100]
    # x on its way in; two results on their way out. Nothing in between goes back and forth.
    assert len(moved) <= 4


def test_small_batches_stay_as_they_are() -> None:
    program = network("NHWC", 0)
    before = [n.op.name for n in program.nodes]
    batch_last(program)  # N is below the least batch
    assert [n.op.name for n in program.nodes] == before


def test_other_ranks_and_unknown_operations_get_plain_values() -> None:
    def write(p: Program) -> None:
        y = ops.max_pool2d(p.input("x", (2, 4, 4, 2), "float64"), kernel=(2, 2), strides=(2, 2))
        grouped = ops.reshape(y, shape=(2, 2, 2, 1, 2))
        p.outputs = {"y": ops.softmax(y) + 1.0, "g": ops.relu(grouped), "s": ops.argmax(y)}

    _same(write)


def _image(p: Program, data_format: str) -> Value:
    """An image of which the pass knows that it is one."""
    shape = (2, 4, 5, 3) if data_format == "NHWC" else (2, 3, 4, 5)
    x = p.input("x", shape, "float64")
    image: Value = ops.max_pool2d(x, kernel=(1, 1), strides=(1, 1), data_format=data_format)
    return image


def _same(write: Callable[[Program], None], rewrite: Callable[[Program], Program] = any_batch_last) -> Program:
    """The rewritten Program, after a check that it computes the same."""
    plain, rewritten = Program(), Program()
    write(plain)
    write(rewritten)
    rewritten = rewrite(rewritten)
    expected, found = run(plain, 5), run(rewritten, 5)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=DOUBLE, atol=DOUBLE, err_msg=name)
        assert found[name].shape == value.shape
    return rewritten


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("axes", [(1, 2, 3), (2, 3), (3,), ()])
def test_parameters_of_any_shape_follow_the_image(data_format: str, axes: tuple[int, ...]) -> None:
    """Layer normalisation with a scale for each pixel and channel, and its gradients, in every order of the axes."""

    def write(p: Program) -> None:
        x = _image(p, data_format)
        shape = tuple(x.shape[a] for a in axes)
        scale, offset = p.input("scale", shape, "float64"), p.input("offset", shape, "float64")
        y, _, _ = ops.normalize(x * scale, scale, offset, axes=(1, 2, 3), epsilon=1e-3)
        loss = ops.sum(ops.square(y) * np.arange(float(y.size)).reshape(y.shape))
        p.outputs = {str(i): v for i, v in enumerate([y, *gradients(p, loss, [x, scale, offset])])}

    _same(write)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_scalars_made_from_images(data_format: str) -> None:
    def write(p: Program) -> None:
        x = _image(p, data_format)
        p.outputs = {"y": x / ops.sum(ops.square(x)), "z": ops.exp(x) * ops.mean(x, axes=(0, 1, 2, 3))}

    _same(write)


def test_kernels_made_from_images() -> None:
    """A convolution with a kernel that is itself the result of nodes that were rewritten."""

    def write(p: Program) -> None:
        x = _image(p, "NHWC")
        w = p.input("w", (2, 2, 3, 3), "float64")
        (dw,) = gradients(p, ops.sum(ops.square(ops.conv2d(x, w))), [w])
        image = ops.max_pool2d(dw, kernel=(1, 1), strides=(1, 1))
        p.outputs = {"y": ops.conv2d(x, dw), "z": ops.conv2d(x, image * 0.5)}

    _same(write)


def test_users_operations_with_a_data_format_of_their_own(registry: None) -> None:
    @primitive
    def channel_scale(x: Any, s: Any, *, data_format: str, xp: Any) -> Any:
        return x * (s if data_format == "NHWC" else xp.reshape(s, (s.shape[0], 1, 1)))

    channel_scale.shape(lambda x, s, **_: x)

    def write(p: Program) -> None:
        x = _image(p, "NHWC")
        y = channel_scale(x, p.input("s", (3,), "float64"), data_format="NHWC")
        p.outputs["y"] = ops.average_pool2d(y, kernel=(2, 2), strides=(2, 2))

    assert [n.attrs["data_format"] for n in _same(write).nodes if n.op.name == "channel_scale"] == ["NHWC"]


def test_both_orders_in_one_program() -> None:
    def write(p: Program) -> None:
        x = p.input("x", (3, 3, 3, 3), "float64")
        pools = [ops.max_pool2d(x, kernel=(2, 2), strides=(1, 1), data_format=f) for f in ("NHWC", "NCHW")]
        p.outputs["y"] = ops.reshape(pools[0], shape=(36,)) + ops.reshape(pools[1], shape=(36,))
        p.outputs["z"] = pools[0][:, :, :, :2] * pools[1][:, :2]

    _same(write)


def test_rewriting_twice_changes_nothing_more() -> None:
    program = any_batch_last(network("NHWC", 0))
    before = str(program)
    assert str(any_batch_last(program)) == before


def test_results_of_more_axes_than_an_image() -> None:
    def write(p: Program) -> None:
        image, many = _image(p, "NHWC"), p.input("many", (2, 2, 4, 5, 3), "float64")
        p.outputs["sum"] = image + many
        p.outputs["normal"] = ops.normalize(many, image, image, axes=(0, 4), epsilon=1e-3)[0]

    _same(write)
