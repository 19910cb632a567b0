"""Depthwise convolutions of images in 16 bits by tiles compute what their reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.test_pipelined import take_only_these
from backends.cupy.test_short_storage import by_numpy, distance, rounded, steps
from minicnn import Model, layers, ops
from minicnn.backends import get_backend
from minicnn.backends._gpu import depthwise_tiling
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.program import Program, gradients
from minicnn.program.passes import shorten_images

NAMES = {"depthwise_conv2d", "depthwise_conv2d_input_gradient", "depthwise_conv2d_weight_gradient_partial_sums"}


def depthwise(
    dtype: str, n: int, c: int, size: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int],
    dilation: tuple[int, int], padding: tuple[tuple[int, int], tuple[int, int]],
) -> Program:  # fmt: skip
    """A depthwise convolution of an image in 16 bits, made where it is read, its gradients, and sums over positions."""
    program = Program("depthwise")
    x = program.input("x", (n, *size, c))
    weight = program.input("weight", (*kernel, c, 1), kind="parameter")
    attrs: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation, "data_format": "NHWC"}
    y = ops.depthwise_conv2d(ops.relu(x), weight, **attrs)
    program.outputs["mean"] = ops.sum(y, axes=(0, 1, 2))
    program.outputs["squares"] = ops.sum(ops.square(y), axes=(0, 1, 2))
    loss = ops.sum(ops.square(y) * y)
    for name, value in zip(("dx", "dweight"), gradients(program, loss, [x, weight]), strict=True):
        program.outputs[name] = value * 1.0
    assert shorten_images(program, dtype)
    return program


def tiled(plan: Any) -> set[str]:
    """The depthwise operations that have tiles."""
    return {u.anchor.op.name for u in plan.groups if u.tile is not None and u.tile.stages} & NAMES


sides = st.tuples(st.integers(0, 3), st.integers(0, 3))


@needs_gxx
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@example("bfloat16", 97, 24, (5, 3), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), "h200", 0)
@example("float16", 1, 8, (13, 9), (3, 3), (2, 2), (1, 1), ((0, 1), (1, 0)), "rtx4060", 1)
@example("bfloat16", 3, 40, (11, 19), (7, 7), (1, 1), (1, 1), ((3, 3), (3, 3)), "a100", 2)
@example("bfloat16", 2, 16, (17, 12), (5, 3), (3, 2), (2, 3), ((4, 3), (2, 5)), "h200", 3)
@given(
    dtype=st.sampled_from(["bfloat16", "float16"]), n=st.sampled_from([1, 5, 9]), c=st.sampled_from([8, 48, 72]),
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)), kernel=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 2)), dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(sides, sides), gpu=st.sampled_from(["h200", "rtx3060"]), choice=st.integers(0, 20),
)  # fmt: skip
def test_depthwise_convolutions_and_their_gradients(
    dtype: str, n: int, c: int, size: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int],
    dilation: tuple[int, int], padding: tuple[tuple[int, int], tuple[int, int]], gpu: str, choice: int,
) -> None:  # fmt: skip
    size = tuple(max(s, d * (k - 1) + 1) for s, k, d in zip(size, kernel, dilation, strict=True))  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        take_only_these(patch)
        # Any tile, not only the one that is thought to be the fastest.
        patch.setattr(depthwise_tiling, "_score", lambda tile: hash((choice, *tile.sizes)))
        program = depthwise(dtype, n, c, size, kernel, strides, dilation, padding)
        rng = np.random.default_rng(0)
        sizes = {"x": 1.0, "weight": 1 / (kernel[0] * kernel[1]) ** 0.5}
        arrays = {
            v.name: rounded((sizes[v.name] * rng.standard_normal(v.shape)).astype("float32"), dtype)
            for v in program.inputs
        }
        expected = by_numpy(program, arrays)
        emulated = Emulated(program, tiles=TensorTiles(KNOWN[gpu], precision=dtype, pipelined=True))
        summed = {node.op.name for node in emulated.plan.program.nodes} & NAMES  # few terms are added up at once
        assert len(summed) >= 2
        assert tiled(emulated.plan) == summed
        assert distance(emulated(arrays), expected) < 1e-3
