"""The layout pass gives the same numbers, and leaves images in place from one layer to the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends.numpy import NumpyBackend
from minicnn.program import Program, gradients, optimize
from minicnn.program.layout import batch_last

N = 3  # any batch will do for the rewriting itself


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
    average = ops.average_pool2d(
        z, kernel=(2, 3), strides=(1, 2), padding=((0, 1), (1, 1)), data_format=data_format
    )
    spatial = tuple(a for a in range(4) if a not in (0, c))
    parts = [
        ops.mean(z, axes=spatial),
        ops.max(z, axes=spatial),
        ops.sum(pooled, axes=spatial, keepdims=True),
        average,
        ops.sum(ops.square(z)),
    ]
    loss = None
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
    found = run(batch_last(network(data_format, seed, stride=stride, groups=groups), least_batch=1), seed)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_images_are_moved_only_at_the_ends(data_format: str) -> None:
    program = batch_last(network(data_format, 0), least_batch=1)
    images = [n for n in program.nodes if "data_format" in n.attrs]
    assert images
    assert all(n.attrs["data_format"] == "HWCN" for n in images)
    moved = [
        n for n in program.nodes if n.op.name == "permute" and n.phase == "forward" and n.inputs[0].size > 100
    ]
    # x on its way in; two results on their way out. Nothing in between goes back and forth.
    assert len(moved) <= 4


def test_small_batches_stay_as_they_are() -> None:
    program = network("NHWC", 0)
    before = [n.op.name for n in program.nodes]
    batch_last(program)  # N is below the least batch
    assert [n.op.name for n in program.nodes] == before


def test_other_ranks_and_unknown_operations_get_plain_values() -> None:
    p = Program("test")
    x = p.input("x", (2, 4, 4, 2), "float64")
    y = ops.max_pool2d(x, kernel=(2, 2), strides=(2, 2))
    grouped = ops.reshape(y, shape=(2, 2, 2, 1, 2))
    p.outputs = {"y": ops.softmax(y) + 1.0, "g": ops.relu(grouped), "s": ops.argmax(y)}
    before = run(p, 3)
    after = run(batch_last(p, least_batch=1), 3)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
        assert after[name].shape == value.shape
