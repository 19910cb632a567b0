"""row-wise regions on numba_cuda: which steps have one, and that what they compute is what NumPy computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from backends.cupy.dense import Made, dense_network, dense_steps, step
from backends.cupy.regions import regions_of
from backends.numba_cuda.running import EITHER, SIMULATED
from minicnn.backends import get_backend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.executable import StepExecutable
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.tiling import LIMITS
from minicnn.backends.numba_cuda import tiling
from minicnn.backends.numba_cuda.backend import NumbaCudaBackend
from support.tolerances import LONG_SUM, SHORT_SUM

pytestmark = EITHER
WIDE = 784 if not SIMULATED else 48


def check(made: tuple[Any, dict[str, Any]]) -> StepExecutable:
    """Compare a step with NumPy's; returns what ran it."""
    program, given = made
    expected = get_backend("numpy").compile(program())(given)
    backend = NumbaCudaBackend(strict=True)
    run: Any = backend.compile(program())
    results = run({k: backend.asarray(a) for k, a in given.items()})
    for name, array in expected.items():
        largest = max(1e-3, float(np.abs(array).max())) if array.size else 1.0
        np.testing.assert_allclose(
            backend.to_numpy(results[name]), array, rtol=LONG_SUM, atol=SHORT_SUM * largest, err_msg=name
        )
    return run


def test_a_step_of_dense_layers_on_bytes_is_a_region_and_an_update() -> None:
    batch = 90 if SIMULATED else 9_000
    run = check(step(dense_network(WIDE, [10], 10), batch, WIDE, 10))
    assert run.launched == 2
    (region,) = regions_of(run._plan)
    assert region.product is not None
    assert region.product.gradient is not None
    assert region.tiles > region.tile.blocks, "a block takes several tiles"
    assert region.batch % region.tile.rows, "and one that is not full"


@settings(
    max_examples=6 if SIMULATED else 10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example is compiled: a smaller one is not worth the time
    suppress_health_check=[HealthCheck.too_slow],
)
@given(dense_steps([1, 3, 16, 20, 33, 40], 17, 40))
def test_a_step_of_dense_layers_is_that_of_numpy(made: Made) -> None:
    check(made)


def test_predictions_are_those_of_numpy() -> None:
    model, rng = dense_network(WIDE, [10], 5), np.random.default_rng(0)
    given: dict[str, Any] = {}
    for value in model.program("predict", batch_size=37).inputs:
        drawn = rng.integers(0, 256, value.shape) if value.dtype == "uint8" else rng.normal(size=value.shape) * 0.2
        given[value.name] = drawn.astype(value.dtype)
    run = check((lambda: model.program("predict", batch_size=37), given))
    (region,) = regions_of(run._plan)
    assert region.product is not None
    assert region.product.gradient is None


def test_labels_that_are_no_class_lose_nothing() -> None:
    program, given = step(dense_network(16, [4], 3), 12, 16, 3)
    given["y"][::2] = 7
    check((program, given))


def test_the_sum_of_a_product_that_was_cut_is_taken_by_the_region() -> None:
    run = check(step(dense_network(1100, [4], 3, dtype="float32"), 6, 1100, 3))
    (region,) = regions_of(run._plan)
    assert region.nodes[0].op.name == "sum"
    assert region.nodes[0].inputs[0].shape[0] > 1


def test_a_product_with_many_columns_is_a_kernel_of_its_own() -> None:
    run = check(step(dense_network(WIDE, [tiling.THREAD_COLUMNS + 1], 5), 20, WIDE, 5))
    assert all(region.product is None for region in regions_of(run._plan))


@pytest.mark.parametrize(
    ("n", "k", "m", "rows"),
    [(59_000, 784, 10, 64), (59_000, 784, 16, 64), (59_000, 784, 17, None), (1_000, 784, 10, 8), (900, 4000, 10, None)],
)  # fmt: skip
def test_a_block_takes_as_many_rows_of_bytes_as_fit(n: int, k: int, m: int, rows: int | None) -> None:
    tiles = tiling.NumbaTiles(H200, limits=LIMITS, simulated=False)
    backend = NumbaCudaBackend()
    backend.tiles = tiles
    program = step(dense_network(k, [m], 5), n, k, 5)[0]()
    product = next(node for node in program.nodes if node.op.name == "matmul")
    assert tiles.takes_rows(product, next(v for v in program.inputs if v.name == "x")) == (rows is not None)
    for region in regions_of(backend.plan(program)):
        tile, blocks = region.tile, min(132, -(-n // (rows or 1)))
        assert region.product is None or (tile.rows, tile.blocks) == (rows, blocks)


@pytest.mark.parametrize("options", [Options(fused=False), Options(tiled=False)])
def test_row_regions_can_be_switched_off(options: Options) -> None:
    program = step(dense_network(16, [4], 3), 12, 16, 3)[0]
    assert not regions_of(NumbaCudaBackend(options=options).plan(program()))


def test_explain_says_which_nodes_a_region_has() -> None:
    program = step(dense_network(16, [4], 3), 12, 16, 3)[0]()
    texts = {node.op.name: text for node, text in NumbaCudaBackend().explain(program)}
    assert texts["softmax_cross_entropy"].startswith("kernel 0: row-wise region")
    assert texts["matmul"].startswith("kernel 0: row-wise region")
