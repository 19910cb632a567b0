"""Convolutions whose operands are brought ahead of the tensor cores compute what their reference does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.pipelined import NAMES, convolution, take_only_these, tiled_ahead
from backends.cupy.short_storage import by_numpy, distance, residual, rounded, steps
from minicnn import Model, layers, ops
from minicnn.backends import get_backend
from minicnn.backends._gpu import neighbours
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile, PipelinedWeightGradientTile
from minicnn.backends._gpu.planning import tiles_on
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.program import Program
from minicnn.program.passes import lower_precision, shorten_images
from support.plans import plan_of
from support.tolerances import SUM


@pytest.fixture
def ahead_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other tiles on tensor cores, so that these are taken where they are slower, too."""
    take_only_these(monkeypatch)


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads make neighbours, and several runs of them, however few elements there are."""
    costs = costs_on(H200)
    few = replace(costs, limits=replace(costs.limits, threads=0, blocks=0))
    monkeypatch.setattr(neighbours, "costs_on", lambda gpu: few)


@needs_gxx
@settings(max_examples=1, deadline=None, phases=[Phase.explicit, Phase.generate])
@example("bfloat16", 2, 72, 40, 3, 2, 1, 2, 5, "rtx4060", 4)
@example("float16", 97, 40, 8, 1, 2, 1, 1, 3, "h200", 1)
@example("bfloat16", 1, 8, 8, 7, 1, 2, 1, 13, "a100", 2)
@given(
    dtype=st.sampled_from(["bfloat16", "float16"]), n=st.sampled_from([1, 5, 9]), c=st.sampled_from([8, 24, 72]),
    f=st.sampled_from([8, 40, 136]), kernel=st.sampled_from([1, 2, 3, 7]), strides=st.sampled_from([1, 2, 3]),
    dilation=st.sampled_from([1, 2]), groups=st.sampled_from([1, 2]), size=st.sampled_from([4, 7, 8]),
    gpu=st.sampled_from(["h200", "rtx3060"]), splits=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_convolutions_and_their_gradients(
    dtype: str, n: int, c: int, f: int, kernel: int, strides: int, dilation: int, groups: int, size: int, gpu: str,
    splits: int,
) -> None:  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        take_only_these(patch)
        best = partial(min, key=lambda tile: (tile.splits != splits, tile.score), default=None)  # if it can be
        chosen = classmethod(lambda family, *given: best(family.candidates(*given)))
        patch.setattr(PipelinedTile, "best", chosen)
        program = convolution(dtype, n, c, f, kernel, strides, dilation, groups, size)
        rng = np.random.default_rng(0)
        sizes = {"x": 1.0, "weight": 1 / (kernel * c**0.5)}  # results of size 1, which are cubed
        arrays = {
            v.name: rounded((sizes[v.name] * rng.standard_normal(v.shape)).astype("float32"), dtype)
            for v in program.inputs
        }
        expected = by_numpy(program, arrays)
        emulated = Emulated(program, tiles=TensorTiles(KNOWN[gpu], precision=dtype, pipelined=True))
        assert strides > 1 < dilation or tiled_ahead(emulated.plan)
        assert distance(emulated(arrays), expected) < 1e-3


@pytest.mark.parametrize("gpu", ["h200", "rtx4060"])
def test_the_tile_that_is_taken_is_the_quickest_of_all(gpu: str) -> None:
    nodes = [n for n in convolution("bfloat16", 9, 72, 40, 3, 2, 1, 2, 8).nodes if n.op.name in NAMES]
    assert len(nodes) == 3
    for node in nodes:
        family = PipelinedWeightGradientTile if node.op.name == "conv2d_weight_gradient" else PipelinedTile
        tiles = family.candidates(node, KNOWN[gpu], "bfloat16")
        assert len(tiles) > 100
        assert family.best(node, KNOWN[gpu], "bfloat16") == min(tiles, key=lambda tile: tile.score)


@pytest.mark.night("tests/backends/cupy/test_pipelined.py::test_convolutions_and_their_gradients")
@needs_gxx
@pytest.mark.usefixtures("ahead_only")
def test_a_step_rounds_where_the_program_says_and_sums_what_it_stores() -> None:
    x = layers.Input((8, 8, 3), dtype="uint8")
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, use_bias=False)(layers.Rescaling(1 / 255)(x))))
    y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(y))
    y = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(layers.ReLU()(y))
    model = Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y)))
    plain, short, arrays = steps(model, 32, "bfloat16")
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    emulated = Emulated(short, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    assert tiled_ahead(emulated.plan) == set(NAMES)
    # The second normalisation's mean and sum of squares, and the two sums of both gradients.
    assert [len(u.sums) for u in emulated.plan.groups if u.sums] == [2, 2, 2]
    assert distance(emulated(arrays), expected) < 0.05 * distance(exact, expected)


@needs_gxx
@pytest.mark.usefixtures("ahead_only")
def test_a_convolution_that_a_pooling_reads_is_stored_in_16_bits_and_its_maxima_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TensorTiles, "pooled", lambda *_: None)  # as if storing the image cost less
    x = layers.Input((9, 9, 8))
    y = layers.MaxPooling2D(2)(layers.Conv2D(16, 3, padding="same", use_bias=False)(layers.ReLU()(x)))
    y = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(y)))
    plain, short, arrays = steps(Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y))), 12, "bfloat16")
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    emulated = Emulated(short, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    ops_of = [[n.op.name for n in u.nodes] for u in emulated.plan.groups]
    assert ["conv2d", "cast"] in ops_of
    assert any(names[:2] == ["max_pool2d", "max_pool2d_index"] for names in ops_of)
    assert ["max_pool2d_scatter", "cast"] in ops_of
    assert distance(emulated(arrays), expected) < 0.05 * distance(exact, expected)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("ahead_only")
@pytest.mark.parametrize("name", ["a100", "rtx4060", "h200", "rtx5090"])
def test_kernels_fit_and_compile_without_local_memory(name: str) -> None:
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    gpu = KNOWN[name]
    for dtype, c, f, strides in (("bfloat16", 128, 128, 1), ("float16", 64, 256, 2)):
        program = convolution(dtype, 64, c, f, 3, strides, 1, 1, 16 // strides)
        plan = plan_of(program, TensorTiles(gpu, precision=dtype, pipelined=True))
        assert tiled_ahead(plan) == set(NAMES)
        for launch in (one for one in plan.launches if any(u.tile and u.tile.stages for u in one)):
            source = generate(plan, launch, set())
            found = resources(compiler.compile_kernel(source.text, gpu.architecture))
            assert found.stack == 0
            assert gpu.misfit(source.threads, found.registers, found.shared + source.shared) is None


def test_a_gpu_without_tensor_cores_for_both_formats_has_no_such_kernels() -> None:
    assert not tiles_on(KNOWN["t4"], Options(pipelined=True)).pipelined


@pytest.mark.night("tests/backends/cupy/test_pipelined.py::test_convolutions_and_their_gradients")
@needs_gxx
@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize(("channels", "dtype"), [(8, "bfloat16"), (12, "float16")])
def test_threads_make_neighbours_of_what_is_stored_in_16_bits(channels: int, dtype: str) -> None:
    plain, short, arrays = steps(residual(channels, 2, overlapping=True, depthwise=True), 10, dtype)
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    emulated = Emulated(short, tiles=TensorTiles(H200, precision=dtype, pipelined=True))
    widths = {wide for u in emulated.plan.groups for wide in (8, 4, 2) if u.tile is None and u.size % wide == 0}
    assert widths == {8, 4, 2}
    assert distance(emulated(arrays), expected) < 0.05 * distance(exact, expected)


@pytest.mark.night("tests/backends/cupy/test_pipelined.py::test_convolutions_and_their_gradients")
@needs_gxx
@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize("channels", [16, 20])  # eight channels at once, or as many as go into both: four
def test_windows_slide_over_neighbouring_channels(channels: int) -> None:
    x = layers.Input((11, 11, 3), dtype="uint8")
    y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(layers.Rescaling(1 / 255)(x))
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False)(y)
    y = layers.AveragePooling2D(3, 1, padding="same")(layers.ReLU()(layers.BatchNormalization()(y)))
    y = layers.MaxPooling2D(2)(layers.ReLU()(layers.DepthwiseConv2D(5, padding="same", use_bias=False)(y)))
    model = Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y)))
    plain, short, arrays = steps(model, 8, "bfloat16")
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    emulated = Emulated(short, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    assert distance(emulated(arrays), expected) < 0.05 * distance(exact, expected)


@needs_gxx
@pytest.mark.parametrize("channels", [8, 40, 72, 12])  # whole tiles, cut ones, and no eight
def test_sums_and_maxima_over_positions(channels: int) -> None:
    program = Program("sums")
    x = program.input("x", (5, 9, 13, channels))
    scale = program.input("scale", (channels,))
    y = ops.cast(ops.cast(ops.relu(x), dtype="bfloat16"), dtype="float32")
    program.outputs["sum"] = ops.sum(y, axes=(0, 1, 2))
    program.outputs["scaled"] = ops.sum(ops.square(y) * scale, axes=(0, 1, 2))
    program.outputs["max"] = ops.max(y - scale, axes=(0, 1, 2))
    program.outputs["y"] = y * 1.0
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal(v.shape).astype("float32") for v in program.inputs}
    expected = by_numpy(program, arrays)
    emulated = Emulated(program, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    assert distance(emulated(arrays), expected) < SUM


@needs_gxx
@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize(("channels", "blocks"), [(16, 2), (48, 14)])  # of which a block has whole rows, or not
def test_threads_make_several_runs_of_the_same_channels(channels: int, blocks: int) -> None:
    program = Program("scaled")
    x, scale = program.input("x", (5, 9, 13, channels)), program.input("scale", (channels,))
    program.outputs["y"] = ops.cast(ops.relu(x * scale - scale), dtype="bfloat16")
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal(v.shape).astype("float32") for v in program.inputs}
    expected = np.maximum(arrays["x"] * arrays["scale"] - arrays["scale"], 0)
    emulated = Emulated(program, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    assert [source.blocks for source in emulated.sources] == [blocks]
    found = (emulated(arrays)["y"].astype("uint32") << 16).view("float32")
    assert np.array_equal(found, rounded(expected, "bfloat16"))


@needs_gxx
@pytest.mark.usefixtures("ahead_only")
def test_threads_share_each_of_the_sums_that_a_tile_leaves() -> None:
    program = Program("sums")
    x, weight = program.input("x", (20, 16, 16, 8)), program.input("weight", (1, 1, 8, 8), kind="parameter")
    attrs = {"strides": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1, "data_format": "NHWC"}
    y = ops.conv2d(ops.relu(x), weight, **attrs)
    sums = [ops.sum(terms, axes=(0, 1, 2)) for terms in (y, ops.square(y))]
    program.outputs |= {"y": y * 1.0, "mean": sums[0] * 0.5, "both": sums[0] + sums[1], "square": sums[1]}
    assert shorten_images(program, "bfloat16")
    assert lower_precision(program, "bfloat16")
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal(v.shape).astype("float32") for v in program.inputs}
    expected = by_numpy(program, arrays)
    emulated = Emulated(program, tiles=TensorTiles(H200, precision="bfloat16", pipelined=True))
    (added,) = [u for u in emulated.plan.groups if u.slices > 1]
    assert [n.inputs[0].shape[0] > neighbours._FEW_SUMS for n in added.totals] == [True, True]
    assert distance(emulated(arrays), expected) < SUM
