"""row-wise regions: which nodes they take, and that what they compute is what NumPy computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from backends.cupy.dense import Made, dense_network, dense_steps, step
from backends.cupy.emulator import needs_gxx
from backends.cupy.regions import regions_of
from minicnn import Sequential, get_backend, layers, losses
from minicnn.backends._gpu import row_products, row_regions
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.region_layout import Layout, RowRegion
from minicnn.backends._gpu.row_tiles import ByteRowTile, FloatRowTile, RowProductTile
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.optimizers import SGD
from support.plans import MULTIPLY_ADDS, plan_of
from support.tolerances import LONG_SUM, SHORT_SUM, SUM

ONE = replace(H200, name="one multiprocessor", multiprocessors=1)


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads: on ONE there are also so few blocks that each takes several tiles."""
    monkeypatch.setattr(row_regions, "THREADS", 64)
    for sizes in (ByteRowTile, FloatRowTile):
        monkeypatch.setattr(sizes, "THREADS", (64,))


def planned(made: Made, **options: Any) -> Plan:
    """The plan of a step."""
    return plan_of(made[0](), **options)


def names(region: row_regions.RowRegion) -> list[str]:
    """The operations of a region."""
    return [n.op.name for n in region.nodes]


# Which nodes ------------------------------------------------------------------------------------------------


def test_a_step_of_dense_layers_on_bytes_is_a_region_and_an_update() -> None:
    plan = planned(step(dense_network(784, [10], 10), 590, 784, 10))
    assert len(plan.launches) == 2
    (region,) = regions_of(plan)
    assert region.product is not None
    assert region.product.gradient is not None
    assert region.product.index is not None
    assert region.product.scale == pytest.approx(1 / 255)
    assert names(region).count("matmul") == 5
    assert "take" in names(region)


def test_weights_too_large_for_every_block_stay_outside_but_the_sum_of_their_parts_does_not() -> None:
    (region,) = regions_of(planned(step(dense_network(500, [128], 10, dtype="float32"), 512, 500, 10)))
    assert region.product is None
    assert names(region)[0] == "sum"
    assert all(n.inputs[0].shape[-1] <= 128 for n in region.nodes if n.op.name == "matmul")
    assert len(region.sums) == 5  # loss, accuracy, and the gradients of the last weights and of both biases


@pytest.mark.parametrize("options", [{"fuse": False}, {"tiled": False}])
def test_row_regions_can_be_switched_off(options: dict[str, Any]) -> None:
    made = step(dense_network(40, [10], 5), 60, 40, 5)
    assert regions_of(planned(made))
    assert not regions_of(planned(made, **options))


def test_a_block_has_no_more_shared_memory_than_the_device_gives() -> None:
    made = step(dense_network(784, [10], 10), 59_000, 784, 10)
    (region,) = regions_of(planned(made))
    assert Layout(region).shared <= 227 * 1024
    (smaller,) = regions_of(planned(made, tiles=Tiles(KNOWN["t4"])))
    assert Layout(smaller).shared <= 64 * 1024
    for region in regions_of(planned(made, tiles=Tiles(replace(H200, shared_block=16 * 1024)))):
        assert region.product is None  # the product with bytes is a kernel of its own


def test_bytes_are_multiplied_on_tensor_cores_only_where_that_is_wanted() -> None:
    made = step(dense_network(784, [10], 10), 590, 784, 10)
    plan = planned(made, tiles=Tiles(H200, byte_products=False))
    assert all(region.product is None for region in regions_of(plan))
    assert any(n.op.name.startswith("matmul") for u in plan.groups for n in u.nodes)


def test_rows_of_float32_go_through_blocks_where_all_blocks_have_some() -> None:
    network = dense_network(784, [10], 10, dtype="float32")
    plan = planned(step(network, 2112, 784, 10), tiles=TensorTiles(H200))
    assert len(plan.launches) == 2
    (region,) = regions_of(plan)
    assert region.product is not None
    assert region.product.gradient is not None
    assert region.product.index is not None
    assert isinstance(region.tile, FloatRowTile)
    assert (region.tile.batch, region.tile.terms, region.tile.columns, region.tile.rows) == (2112, 784, 10, 16)
    for made in (planned(step(network, 2000, 784, 10), tiles=TensorTiles(H200)), planned(step(network, 2112, 784, 10))):
        assert all(region.product is None for region in regions_of(made))
        assert any(n.op.name.startswith("matmul") for u in made.groups for n in u.nodes)


def test_rows_that_are_made_in_the_step_are_no_rows_in_memory() -> None:
    from minicnn import ops
    from minicnn.program import Program

    program = Program()
    x, w = program.input("x", (64, 8)), program.input("w", (8, 3), kind="parameter")
    assert row_products.stored_rows(x) == row_products.StoredRows(x, None, 1.0)
    assert row_products.stored_rows(ops.reshape(x, shape=(64, 8))) == row_products.StoredRows(x, None, 1.0)
    for made in (x * 2.0, ops.relu(x), x @ w, program.constant(np.ones((64, 8), "float32"))):
        assert row_products.stored_rows(made) is None


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_precisions_have_no_region(dtype: str) -> None:
    from minicnn import ops
    from minicnn.program import Program

    program = Program()
    x, y = program.input("x", (64, 8), dtype), program.input("y", (64,), "int32")
    w = program.input("w", (8, 3), dtype, kind="parameter")
    program.outputs["loss"] = ops.sum(ops.softmax_cross_entropy(x @ w, y), axes=None)
    assert not regions_of(plan_of(program))


def test_what_waits_for_a_sum_over_the_batch_is_outside() -> None:
    from minicnn import ops
    from minicnn.program import Program

    program = Program()
    x, y = program.input("x", (64, 8)), program.input("y", (64,), "int32")
    w = program.input("w", (8, 3), kind="parameter")
    logits = ops.relu(x @ w)
    centred = logits - ops.sum(logits, axes=0, keepdims=True) / 64
    program.outputs["loss"] = ops.sum(ops.softmax_cross_entropy(centred, y), axes=None)
    plan = plan_of(program)
    first = next(c for c in regions_of(plan) if "matmul" in names(c))
    assert "softmax_cross_entropy" not in names(first)


# What they compute ------------------------------------------------------------------------------------------


def check(made: Made, tiles: Tiles = MULTIPLY_ADDS) -> Plan:
    """Compare a step's kernels with NumPy; returns their plan."""
    from backends.cupy.emulator import Emulated

    program, given = made
    expected = get_backend("numpy").compile(program())(given)
    kernels = Emulated(program(), tiles=tiles)
    results = kernels(given)
    for name, array in expected.items():
        largest = max(1e-3, float(np.abs(array).max())) if array.size else 1.0
        np.testing.assert_allclose(results[name], array, rtol=LONG_SUM, atol=SHORT_SUM * largest, err_msg=name)
    return kernels.plan


@needs_gxx
@pytest.mark.usefixtures("small_device")
@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example is compiled: a smaller one is not worth the time
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(dense_steps([1, 3, 16, 20, 33, 40, 70], 21, 70))
def test_a_step_of_dense_layers_is_that_of_numpy(made: Made) -> None:
    check(made, TensorTiles(ONE))


def choose(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Have all regions that begin with rows in memory take these sizes."""

    def best(one: RowRegion, *_: Any) -> RowProductTile:
        assert one.product is not None
        return replace(next(row_products.candidates(one, one.product)), **sizes)

    patch.setattr(row_products, "best", best)


@pytest.mark.sampled(2)
@needs_gxx
@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    ("width", "hidden", "rows", "stages", "parts"),
    [(40, 10, 16, 1, 1), (40, 18, 16, 2, 2), (33, 6, 16, 2, 2), (72, 9, 48, 2, 1), (74, 10, 64, 1, 2)],
)
def test_a_block_takes_several_tiles(
    width: int, hidden: int, rows: int, stages: int, parts: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"rows": rows, "threads": 64, "stages": stages, "slices": parts, "blocks": 2}
    choose(monkeypatch, **chosen)
    batch = 5 * rows - 5
    made = step(dense_network(width, [hidden], 5, dtype=dtype), batch, width, 5)
    (region,) = regions_of(check(made, TensorTiles(ONE)))
    assert region.product is not None
    assert region.product.stored.dtype == dtype
    assert region.tiles == 5
    assert Layout(region).thread_per_row == (hidden <= 16)


@needs_gxx
def test_gradients_that_nobody_reads_are_not_stored() -> None:
    """The gradient of batch normalisation's input is there until dead nodes are removed; only a region reads it."""
    body = [
        layers.Input((90,)), layers.Reshape((6, 5, 3)), layers.AveragePooling2D((2, 1)), layers.BatchNormalization(),
        layers.Flatten(), layers.Dense(3), layers.Dense(4),
    ]  # fmt: skip
    model = Sequential(body, backend="numpy")
    model.compile(SGD(0.05), losses.SparseCategoricalCrossentropy(from_logits=True))
    assert regions_of(check(step(model, 13, 90, 4), TensorTiles(H200)))


@needs_gxx
@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("width", "hidden"), [(40, 10), (33, 18)])
def test_predictions_are_those_of_numpy(width: int, hidden: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.cupy.emulator import Emulated

    choose(monkeypatch, rows=16, threads=64, stages=2, slices=2)
    model, rng = dense_network(width, [hidden], 5, dtype=dtype), np.random.default_rng(0)
    given: dict[str, Any] = {}
    for value in model.program("predict", batch_size=37).inputs:
        drawn = rng.integers(0, 256, value.shape) if value.dtype == "uint8" else rng.normal(size=value.shape) * 0.2
        given[value.name] = drawn.astype(value.dtype)
    expected = get_backend("numpy").compile(model.program("predict", batch_size=37))(given)
    kernels = Emulated(model.program("predict", batch_size=37), tiles=TensorTiles(ONE))
    (region,) = regions_of(kernels.plan)
    assert region.product is not None
    assert region.product.gradient is None
    assert region.tiles == 3
    np.testing.assert_allclose(kernels(given)["output"], expected["output"], rtol=SUM, atol=SUM)


@needs_gxx
@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_products_with_rows_keep_float32_whatever_the_size_of_weights_and_gradients(dtype: str) -> None:
    from backends.cupy.emulator import Emulated

    program, given = step(dense_network(48, [10], 5, dtype=dtype), 32, 48, 5)
    rng = np.random.default_rng(2)
    given["dense/kernel"] *= 10.0 ** rng.uniform(-4, 4, (48, 10)).astype("float32")
    given["dense_1/kernel"] *= 10.0 ** rng.uniform(-12, -6, (10, 1)).astype("float32")
    given["learning_rate"] = np.float32(1.0)
    given = {k: np.zeros_like(v) if k.startswith("sgd/") else v for k, v in given.items()}
    kernels = Emulated(program(), tiles=TensorTiles(ONE))
    assert any(region.product is not None for region in regions_of(kernels.plan))
    results = kernels(given)

    w, v, b = (given[k].astype("float64") for k in ("dense/kernel", "dense_1/kernel", "dense/bias"))
    x = given["x"][given["index"]].astype("float64") * (float(np.float32(1 / 255)) if dtype == "uint8" else 1.0)
    y = given["y"][given["index"]]
    h = np.maximum(x @ w + b, 0)
    logits = h @ v + given["dense_1/bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    dy = (p / p.sum(1, keepdims=True) - np.eye(5)[y]) / 32
    gradient = x.T @ ((dy @ v.T) * (h > 0))
    made = -results["sgd/velocity/dense/kernel"].astype("float64")
    assert np.all(np.abs(made - gradient) <= 1e-6 * np.abs(gradient).max(0))  # of each column


@needs_gxx
@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("name", ["dense/kernel", "dense_1/kernel"])
def test_what_is_no_number_stays_none_in_products_with_rows(name: str, dtype: str) -> None:
    from backends.cupy.emulator import Emulated

    program, given = step(dense_network(48, [10], 5, activation="tanh", dtype=dtype), 32, 48, 5)
    given[name][3, 2] = np.nan
    results = Emulated(program(), tiles=TensorTiles(ONE))(given)
    expected = get_backend("numpy").compile(program())(given)
    for key in ("dense/kernel", "dense_1/kernel"):
        np.testing.assert_array_equal(np.isnan(results[key]), np.isnan(expected[key]))
        assert np.isnan(results[key]).any()


def test_the_last_tiles_of_a_whole_set_keeps_all_blocks_busy() -> None:
    (region,) = regions_of(planned(step(dense_network(784, [10], 10), 59_000, 784, 10)))
    tile, used = region.tile, Layout(region).shared
    assert isinstance(tile, ByteRowTile)
    assert tile.nbytes <= used <= 227 * 1024
    assert (tile.batch, tile.terms, tile.columns, tile.back) == (59000, 784, 10, True)
    rounds = -(-region.tiles // tile.blocks)
    assert region.tiles > 0.9 * rounds * tile.blocks  # no round in which most blocks have nothing to do
