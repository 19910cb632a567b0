"""Plain tiles and shared sums in the interpreter: products, convolutions, their gradients, sums and maxima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.tile_families import PlainTile, ReductionTile, Tile
from minicnn.backends._gpu.tiles import Tiles
from minicnn.conformance.cases import Case
from minicnn.kernels import words
from minicnn.kernels.products import product_of
from minicnn.kernels.tiles import TileShape
from minicnn.program.graph import Node
from support.interpreted import interpreted
from support.kernel_check import case_program, check_results, convolutions, products, reductions
from support.plans import plan_of
from support.strategies import normal

SHAPES = [TileShape(4, 4, 2, 2, 4), TileShape(8, 2, 2, 1, 4, splits=2), TileShape(2, 8, 1, 2, 8, splits=3)]


@dataclass(frozen=True)
class Small(Tiles):
    """Tiles of blocks of four to eight threads, as the interpreter runs them in no time."""

    gpu: Any = H200
    shape: TileShape = SHAPES[0]
    plain: bool = True

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


def check(case: Case, shape: TileShape) -> None:
    """Compare what tiles make in the interpreter with the reference."""
    program, arrays = case_program(case, "float32")
    results = interpreted(program, arrays, plain=Small(shape=shape))
    check_results(case, arrays.values(), lambda k: results[f"y{k}"])


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
        np.testing.assert_array_equal(interpreted(program, arrays, plain=Small())["y0"], expected)


def test_a_tile_reads_as_a_student_would_write_it() -> None:
    a, b = normal((4, 8), 0), normal((8, 4), 1)
    program, _ = case_program(Case(ops.matmul, (a, b), {"transpose_a": False, "transpose_b": False}), "float32")
    plan = plan_of(program, Small())
    text = words.text(lowered(plan, plan.launches[0], set())[0])
    for line in (
        "left: 20 numbers of float32 in shared memory", "for step in 0 .. 1:", "wait for all threads of the block",
        "s1_1 += a1 * b1", "for k in 0 .. 3:",
    ):  # fmt: skip
        assert line in text, text
