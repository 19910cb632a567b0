"""Plain tiles and shared sums in the interpreter: products, convolutions, their gradients, sums and maxima."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Model, get_backend, ops
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.plain_tiling import PlainTile
from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends._gpu.tiling import ReductionTile, TileLimits
from minicnn.conformance.cases import Case
from minicnn.kernels import words
from minicnn.kernels.products import product_of
from minicnn.kernels.tiles import TileShape
from minicnn.layers import Conv2D, Input, MaxPooling2D
from minicnn.program import Program
from minicnn.program.graph import Node
from support.interpreted import interpreted
from support.kernel_check import case_program, check_results, convolutions, products, reductions
from support.numerics import assert_close
from support.plans import plan_of
from support.strategies import normal

SHAPES = [TileShape(4, 4, 2, 2, 4), TileShape(16, 2, 2, 1, 2, splits=2), TileShape(2, 8, 1, 2, 8, splits=3)]


@dataclass(frozen=True)
class Small(Tiles):
    """Tiles of blocks of few threads, as the interpreter runs them in no time."""

    gpu: Any = H200
    shape: TileShape = SHAPES[0]

    def _tile(self, node: Node) -> Tile:
        product = product_of(node)
        blocks = self.shape.blocks(product)
        return PlainTile(blocks=blocks, threads=self.shape.threads, splits=self.shape.splits, shape=self.shape)

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
        """See `Tiles.convolution`; no sum of it is split."""
        return None if pool or self.shape.splits > 1 else self._tile(node)

    def weight_gradient(self, node: Node) -> Tile | None:
        """See `Tiles.weight_gradient`."""
        return self._tile(node)

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """See `Tiles.product`."""
        return self._tile(node)

    def reduction(self, results: int, terms: int, *, terms_first: bool) -> Tile:
        """See `Tiles.reduction`."""
        return ReductionTile(
            results=results, terms=terms, columns=2, rows=4, terms_first=terms_first, threads=8,
            blocks=-(-results // 2) * self.shape.splits, splits=self.shape.splits,
        )  # fmt: skip

    def size_region(self, region: RowRegion) -> bool:
        """See `Tiles.size_region`."""
        return False


few = settings(max_examples=6)
# The families of tiles of the CUDA engines, with few threads a block, for a GPU of two multiprocessors.
FEW = TileShape(4, 4, 2, 2, depth=4), TileShape(8, 2, 2, 1, depth=4), TileShape(2, 8, 1, 2, depth=4)
LIMITS = TileLimits(convolution=32, weight_gradient=16, reduction=8, products=FEW, depths=(4, 8))
FAMILIES = Tiles(replace(H200, name="small", multiprocessors=2), limits=LIMITS)


def check(case: Case, tiles: Tiles | TileShape) -> None:
    """Compare what tiles make in the interpreter with the reference."""
    program, arrays = case_program(case, "float32")
    results = interpreted(program, arrays, tiles=tiles if isinstance(tiles, Tiles) else Small(shape=tiles))
    check_results(case, arrays.values(), lambda k: results[f"y{k}"])


@pytest.mark.parametrize("which", ["forward", "input", "weight"])
@few
@given(data=st.data())
def test_convolutions_whose_images_lie_in_shared_memory(which: str, data: st.DataObject) -> None:
    check(data.draw(convolutions(2, 2, 3, which=which)), FAMILIES)


@few
@given(products(7, 6, 20))
def test_products_whose_next_terms_are_under_way(case: Case) -> None:
    check(case, FAMILIES)


@few
@given(reductions(9, 300))
def test_sums_and_maxima_of_split_terms(case: Case) -> None:
    check(case, FAMILIES)


@pytest.mark.parametrize("size", [1, 2, (3, 2)])
def test_a_convolution_pools_on_its_way_out(size: int | tuple[int, int]) -> None:
    image = Input((7, 9, 2))
    model = Model(image, MaxPooling2D(size)(Conv2D(3, 3, padding="same", activation="relu")(image)), backend="numpy")
    x = normal((3, 7, 9, 2), 0)
    x[0, 2, 3, 1] = np.nan
    program, arrays = model.program(batch_size=3), {"x": x, **model.get_weights()}
    assert any(group.pool for group in plan_of(program.copy(), FAMILIES).groups)
    (result,) = interpreted(program, arrays, fuse=True, tiles=FAMILIES).values()
    assert_close(result, model.predict(x), 18, dtype="float32")


@pytest.mark.parametrize("channels", [4, 6])
def test_four_channels_of_a_pooling_s_gradient_are_made_at_once(channels: int) -> None:
    """Also where a row and a column belong to no window; not if these begin where no four of the result do."""
    program, rng, pooling = Program(), np.random.default_rng(0), {"kernel": (2, 3), "strides": (2, 3)}
    x, dy = program.input("x", (2, 7, 10, channels)), program.input("dy", (2, 3, 3, channels))
    program.outputs["y"] = y = ops.max_pool2d(x, **pooling)
    g = ops.max_pool2d_gradient(dy, x, y, **pooling)
    program.outputs["w"] = ops.conv2d_weight_gradient(g, program.input("images", (2, 8, 11, 3)), kernel=(2, 2))
    arrays = {v.name: rng.normal(size=v.shape).astype("float32") for v in program.inputs}
    plan = plan_of(program.copy(), FAMILIES)
    text = "".join(words.text(lowered(plan, launch, set())[0]) for launch in plan.launches)
    assert ("[window ..]" in text) == (channels == 4), text
    expected = get_backend("numpy").compile(program.copy())(arrays)["w"]
    assert_close(interpreted(program, arrays, fuse=True, tiles=FAMILIES)["w"], expected, 140)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("which", ["forward", "input", "weight"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@few
@given(data=st.data())
def test_convolutions(shape: TileShape, which: str, data: st.DataObject) -> None:
    check(data.draw(convolutions(2, 2, 3, which=which)), shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@few
@given(products(7, 6, 20))
def test_products(shape: TileShape, case: Case) -> None:
    check(case, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@few
@given(reductions(9, 300))
def test_sums_and_maxima(shape: TileShape, case: Case) -> None:
    check(case, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@few
@given(data=st.data())
def test_depthwise_weight_gradients(shape: TileShape, data: st.DataObject) -> None:
    check(data.draw(convolutions(6, 2, depthwise=True, which="weight")), shape)


def test_a_sum_of_infinities_and_nan_is_that_of_numpy() -> None:
    x = np.full((2, 300), -np.inf, "float32")
    x[1, 7] = np.nan
    for op in (ops.sum, ops.max):
        program, arrays = case_program(Case(op, (x,), {"axes": (1,), "keepdims": False}), "float32")
        with np.errstate(invalid="ignore"):
            expected = {"sum": np.sum, "max": np.max}[op.name](x, axis=1)
        np.testing.assert_array_equal(interpreted(program, arrays, tiles=Small())["y0"], expected)


def test_rows_that_a_product_gathers_are_found_without_a_division() -> None:
    """As they are, and as columns."""
    program, rng = Program(), np.random.default_rng(0)
    x, index = program.input("x", (20, 6), "uint8"), program.input("index", (5,), "int32")
    rows = ops.cast(ops.take(x, index), dtype="float32") * 0.5
    program.outputs["y"] = ops.matmul(rows, program.input("w", (6, 3)), transpose_a=False, transpose_b=False)
    program.outputs["g"] = ops.matmul(rows, program.input("d", (5, 3)), transpose_a=True, transpose_b=False)
    arrays = {
        "x": rng.integers(0, 9, (20, 6)).astype("uint8"), "index": np.array([3, 19, 0, 3, 7], "int32"),
        "w": rng.normal(size=(6, 3)).astype("float32"), "d": rng.normal(size=(5, 3)).astype("float32"),
    }  # fmt: skip
    text = "".join(words.text(lowered(plan, launch, set())[0]) for plan in [plan_of(program.copy(), Small())]
                   for launch in plan.launches)  # fmt: skip
    assert "/ 6" not in text
    results = interpreted(program, arrays, tiles=Small())
    gathered = arrays["x"][arrays["index"]] * 0.5
    assert_close(results["y"], gathered @ arrays["w"], 6)
    assert_close(results["g"], gathered.T @ arrays["d"], 5)


@pytest.mark.parametrize("shape", [(5, 7, 3), (8, 8, 4)])
def test_a_product_updates_weights_in_place(shape: tuple[int, int, int]) -> None:
    """No thread without a result of its own reads the first weight, which another one overwrites."""
    (m, n, k), program, rng = shape, Program(), np.random.default_rng(0)
    a, b = program.input("a", (k, m)), program.input("b", (k, n))
    w, rate = program.input("w", (m, n), kind="parameter"), program.input("rate", ())
    program.outputs["w"] = new = ops.sgd_update(w, ops.matmul(a, b, transpose_a=True), rate, weight_decay=0.0)
    program.updates["w"] = new
    arrays = {v.name: np.asarray(rng.normal(size=v.shape), "float32") for v in program.inputs}
    plan = plan_of(program.copy(), FAMILIES)
    assert [list(plan.carried(group)) for group in plan.groups] == [["w"]]
    result = interpreted(program, arrays, fuse=True, tiles=FAMILIES)["w"]
    assert_close(result, arrays["w"] - arrays["rate"] * (arrays["a"].T @ arrays["b"]), k)


def test_a_tile_reads_as_a_student_would_write_it() -> None:
    a, b = normal((4, 8), 0), normal((8, 4), 1)
    program, _ = case_program(Case(ops.matmul, (a, b), {"transpose_a": False, "transpose_b": False}), "float32")
    plan = plan_of(program, Small())
    text = words.text(lowered(plan, plan.launches[0], set())[0])
    for line in (
        "left: 48 numbers of float32 in shared memory", "for step in 0 .. 1:", "wait for all threads of the block",
        "s1_1 += a1 * b1", "for k in 0 .. 3:",
    ):  # fmt: skip
        assert line in text, text
