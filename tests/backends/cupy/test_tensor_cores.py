"""Kernels on tensor cores, run on the CPU: with float32 operands they are as close to float64 as float32 is."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.networks import NETWORKS
from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends._gpu import tensor_families, tensor_tiling
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.conformance.cases import Case
from minicnn.loop.tracing import METRICS
from minicnn.program import Program
from minicnn.program.passes import lower_precision
from support.kernel_check import case_program, convolutions, products, step_of
from support.numerics import assert_close
from support.plans import MULTIPLY_ADDS
from support.strategies import normal
from support.tolerances import SHORT_SUM, STEP

pytestmark = needs_gxx


PLAIN: dict[str, Any] = {
    "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "data_format": "NHWC",
}  # fmt: skip
few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores also where others would be faster."""
    monkeypatch.setattr(tensor_tiling, "_chosen", {})
    monkeypatch.setattr(tensor_tiling, "without_tensor_cores", lambda *_: math.inf)


@few
@given(convolutions(9, 12, 20))
def test_convolutions(case: Case) -> None:
    check(case)


@few
@given(products(70, 60, 300))
def test_products(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(("m", "n", "k", "ta", "tb"), [
    (13, 2, 4, False, False), (2, 4, 13, True, False), (13, 2, 4, False, True),
])  # fmt: skip
def test_products_read_nothing_beyond_their_operands(m: int, n: int, k: int, ta: bool, tb: bool) -> None:
    """Rows are read eight numbers at a time, and tiles are wider than these. The emulator checks what is read."""
    a, b = normal((k, m) if ta else (m, k), 0), normal((n, k) if tb else (k, n), 0, 1)
    check(Case(ops.matmul, (a, b), {"transpose_a": ta, "transpose_b": tb}, terms=k))


@pytest.mark.parametrize(("channels", "filters"), [(20, 4), (4, 20)])
def test_weight_gradients_read_nothing_beyond_their_operands(channels: int, filters: int) -> None:
    x, dy = normal((1, 3, 5, channels), 0), normal((1, 3, 3, filters), 0, 2)
    check(Case(ops.conv2d_weight_gradient, (dy, x), {**PLAIN, "kernel": (1, 3)}, terms=9))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tiles", [TensorTiles(H200), MULTIPLY_ADDS], ids=["tensor cores", "multiply-adds"])
@pytest.mark.parametrize(("strides", "kernel", "dilation"), [
    ((2, 2), (3, 3), (1, 1)), ((3, 1), (2, 4), (1, 2)), ((1, 2), (1, 5), (1, 1)), ((3, 3), (2, 2), (1, 1)),
])  # fmt: skip
def test_the_input_gradient_of_a_strided_convolution_by_phases(
    strides: tuple[int, int], kernel: tuple[int, int], dilation: tuple[int, int], tiles: Tiles
) -> None:
    padding, image = ((1, 0), (2, 1)), (10, 11)
    oh, ow = (
        (m + sum(p) - d * (k - 1) - 1) // s + 1
        for m, p, d, k, s in zip(image, padding, dilation, kernel, strides, strict=True)
    )
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": 2, "data_format": "NHWC"}
    dy, w = normal((2, oh, ow, 10), 0), normal((*kernel, 3, 10), 0, 1)
    case = Case(ops.conv2d_input_gradient, (dy, w), attrs | {"image": image}, terms=50)
    program, arrays = case_program(case, "float32")
    emulated = Emulated(program, tiles=tiles)
    (tile,) = (group.tile for launch in emulated.plan.launches for group in launch)
    assert (tile.result_rows, tile.result_columns) == (-(-image[0] // strides[0]), -(-image[1] // strides[1])), "phases"
    expected = case.op.reference(*(a.astype("float64") for a in arrays.values()), xp=xp, **case.attrs)
    assert_close(emulated(arrays)["y0"], expected, case.terms, dtype="float32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("width", "channels", "stride", "which", "rows_of_taps"),
    [
        (11, 3, 4, "forward", True), (11, 3, 4, "weight", False),
        (16, 4, 2, "forward", False), (16, 4, 2, "weight", True),
        (9, 7, 1, "forward", True), (9, 7, 1, "weight", True),
        (13, 3, 3, "forward", False), (13, 3, 3, "weight", False),
        (3, 1, 1, "forward", False), (3, 1, 1, "weight", True),
    ],
)  # fmt: skip
def test_windows_on_few_channels(
    width: int, channels: int, stride: int, which: str, rows_of_taps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_families, "_widths", lambda _: (rows_of_taps,))
    attrs = {**PLAIN, "strides": (2, stride), "padding": ((1, 1), (2, 2))}
    x, w = normal((2, 9, 30, channels), 0), normal((3, width, channels, 24), 0, 1)
    dy = normal((2, 5, (34 - width) // stride + 1, 24), 0, 2)
    if which == "forward":
        check(Case(ops.conv2d, (x, w), attrs, terms=3 * width * channels))
    else:
        check(Case(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": (3, width)}, terms=dy.size // 24))


@pytest.mark.parametrize(("image", "channels", "kernel", "stride"), [(224, 3, 11, 4), (224, 3, 7, 2), (224, 3, 3, 1)])
def test_weight_gradients_of_first_layers_have_tiles(image: int, channels: int, kernel: int, stride: int) -> None:
    program, out = Program("first layer"), (image - kernel) // stride + 1
    dy, x = program.input("dy", (32, out, out, 64)), program.input("x", (32, image, image, channels))
    attrs = {**PLAIN, "strides": (stride, stride), "kernel": (kernel, kernel)}
    ops.conv2d_weight_gradient(dy, x, **attrs)
    tile = tensor_families.TensorWeightGradientTile.best(program.nodes[0], H200, "float32")
    assert tile is not None
    assert tile.shared <= H200.shared_block


def check(case: Case) -> None:
    program, arrays = case_program(case, "float32")
    emulated = Emulated(program, tiles=TensorTiles(H200))
    assert any("tensor_" in source.text for source in emulated.sources)
    expected = case.op.reference(*(a.astype("float64") for a in arrays.values()), xp=xp, **case.attrs)
    assert_close(emulated(arrays)["y0"], expected, case.terms, dtype="float32")


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_numpy(network: str) -> None:
    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    found = Emulated(program(), tiles=TensorTiles(H200))(given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=STEP, atol=SHORT_SUM, err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("products", "error"), [("bfloat16", 1e-2), ("float16", 2e-3)])
def test_a_step_in_mixed_precision_is_close_to_that_in_float32(products: str, error: float) -> None:
    program, given = step_of("lenet")
    expected = get_backend("numpy").compile(program())(given)
    mixed = program()
    assert lower_precision(mixed, products, keep=METRICS)
    found = Emulated(mixed, tiles=TensorTiles(H200, precision=products))(given)
    differences = [np.linalg.norm(found[k] - expected[k]) / (np.linalg.norm(expected[k]) + 1e-3) for k in expected]
    assert 1e-6 < max(differences) < error
