"""Depthwise convolutions of images in 16 bits by tiles compute what their reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.pipelined import take_only_these
from backends.cupy.short_storage import by_numpy, distance, rounded, steps
from minicnn import Model, layers, ops
from minicnn.backends import get_backend
from minicnn.backends._gpu import depthwise_tiling
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.program import Program, gradients
from minicnn.program.passes import shorten_images
from support.plans import plan_of

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
        patch.setattr(depthwise_tiling, "_score", lambda tile: hash((choice, *tile.sizes.values())))
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


def block(channels: int) -> Model:
    """An inverted residual block as in MobileNetV2: 1x1, depthwise and 1x1 convolutions, normalised, with ReLU6."""
    x = layers.Input((12, 12, 3), dtype="uint8")
    y = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(layers.Rescaling(1 / 255)(x))
    z = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    for made in (
        layers.Conv2D(channels, 1, use_bias=False), layers.DepthwiseConv2D(3, padding="same", use_bias=False)
    ):  # fmt: skip
        z = layers.ReLU(6.0)(layers.BatchNormalization()(made(z)))
    y = layers.Add()([y, layers.BatchNormalization()(layers.Conv2D(8, 1, use_bias=False)(z))])
    return Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y)))


@pytest.mark.night("tests/backends/cupy/test_depthwise_tiles.py::test_depthwise_convolutions_and_their_gradients")
@needs_gxx
@pytest.mark.parametrize(("channels", "dtype"), [(40, "float16"), (48, "bfloat16"), (20, "bfloat16")])
def test_a_normalised_block(channels: int, dtype: str) -> None:
    """Statistics and both sums of gradients come from depthwise tiles; one group finishes both statistics."""
    plain, short, arrays = steps(block(channels), 16, dtype)
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    emulated = Emulated(short, tiles=TensorTiles(H200, precision=dtype, pipelined=True))
    assert distance(emulated(arrays), expected) < 0.05 * distance(exact, expected)
    made = {u.anchor.op.name: u for u in emulated.plan.groups}
    forward, back = (made[f"depthwise_conv2d{name}"] for name in ("", "_input_gradient"))
    assert (len(forward.sums), len(back.sums)) == ((2, 2) if channels % 8 == 0 else (0, 0))
    assert "relu_gradient" in [n.op.name for n in back.nodes]  # which waits for no other group
    for group in (u for u in emulated.plan.groups if u.tile is None and u.anchor.op.name == "sum"):
        if any(n.op.name == "sqrt" for n in group.nodes):
            assert sum(n.op.name == "sum" for n in group.nodes) == 2  # of the image and of its squares


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["a100", "rtx4060", "h200", "rtx5090"])
def test_kernels_fit_and_compile_without_local_memory(name: str) -> None:
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    gpu = KNOWN[name]
    for dtype, kernel, strides in (("bfloat16", 3, 1), ("float16", 5, 2)):
        around = (kernel // 2, kernel // 2)
        attrs = ((strides, strides), (1, 1), (around, around))
        program = depthwise(dtype, 32, 96, (16, 16), (kernel, kernel), *attrs)
        plan = plan_of(program, TensorTiles(gpu, precision=dtype, pipelined=True))
        assert tiled(plan) == NAMES
        for launch in (one for one in plan.launches if any(u.anchor.op.name in NAMES for u in one)):
            source = generate(plan, launch, set())
            found = resources(compiler.compile_kernel(source.text, gpu.architecture))
            assert found.stack == 0
            assert gpu.misfit(source.threads, found.registers, found.shared + source.shared) is None
