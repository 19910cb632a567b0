"""Every primitive on numba_cuda: the references on its namespace, the kernels at every level of optimisation."""

from __future__ import annotations

import array_api_compat.numpy as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.numba_cuda.running import EITHER, SIMULATED, fewer
from minicnn import ops
from minicnn.backends._gpu.options import NAIVE, Options
from minicnn.backends.numba_cuda import namespace as xp
from minicnn.backends.numba_cuda.backend import NumbaCudaBackend
from minicnn.conformance import cases as op_cases
from minicnn.conformance.cases import Case
from minicnn.ops.convolution import NO_PADDING
from support.kernel_check import CASES, check_kernels, convolutions, products, reductions
from support.numerics import assert_close
from support.strategies import normal

pytestmark = EITHER

LEVELS = {
    "naive": NAIVE,
    "tiled": Options(fused=False, graph=False),
    "fused": Options(tiled=False),
    "all": Options(),
}  # fmt: skip


def once_where_slow(cases: list[Case]) -> list[Case]:
    """Without the other orders of axes of a convolution in the simulator: a permutation there and back."""
    return [c for c in cases if not (SIMULATED and "conv2d" in c.op.name and c.attrs["data_format"] != "NHWC")]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("case", once_where_slow(op_cases.CASES), ids=str)
def test_reference(case: Case) -> None:
    arrays = [a.astype("float32") if a.dtype == "float64" else a for a in case.arrays]
    wide = [a.astype("float64") if a.dtype == "float32" else a for a in arrays]
    expected = case.op.reference(*wide, xp=nx, **case.attrs)
    attrs = {k: "float32" if v == "float64" else v for k, v in case.attrs.items()}
    inputs = [xp.asarray(a) for a in arrays]
    made = case.op.reference(*inputs, xp=xp, **attrs)
    for found, array in zip(*(r if isinstance(r, tuple) else (r,) for r in (made, expected)), strict=True):
        assert all(found.memory is not x.memory for x in inputs), "a view of an input"
        assert_close(found.numpy(), array if found.dtype.kind == "f" else array.astype(found.dtype), case.terms)
    for x, before in zip(inputs, arrays, strict=True):
        np.testing.assert_array_equal(x.numpy(), before)


# One node has little to fuse: where each takes long, the two ends are enough.
@pytest.mark.sampled(50)
@pytest.mark.parametrize("level", ["naive", pytest.param("all", marks=pytest.mark.cover)] if SIMULATED else LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case: Case, level: str) -> None:
    check_kernels(NumbaCudaBackend(options=LEVELS[level]), case)


WIDE = [c for c in once_where_slow(CASES) if c.attrs.get("dtype") in ("float64", None)]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_kernels_in_float64(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case, "float32" if case.op.name in ("random_uniform", "one_hot") else "float64")


small = SIMULATED


@pytest.mark.parametrize("which", ["forward", "input", "weight"])
@fewer
@given(data=st.data())
def test_convolutions(which: str, data: st.DataObject) -> None:
    sizes = (4, 3, 5) if small else (30, 9, 17)
    check_kernels(NumbaCudaBackend(), data.draw(convolutions(*sizes, which=which)))


@fewer
@given(data=st.data())
def test_depthwise_convolutions(data: st.DataObject) -> None:
    sizes = (9, 3) if small else (30, 40)
    check_kernels(NumbaCudaBackend(), data.draw(convolutions(*sizes, depthwise=True)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("which", ["forward", "input", "weight"])
def test_convolutions_whose_channels_are_loaded_by_fours(which: str, strides: tuple[int, int], groups: int) -> None:
    x, w = normal((2, 6, 7, 8), 0), normal((3, 2, 8 // groups, 12 * groups), 0, 1)
    dy = normal((2, (5 - 1) // strides[0], 6, 12 * groups), 0, 2)
    attrs = {"strides": strides, "padding": NO_PADDING, "dilation": (1, 1), "groups": groups, "data_format": "NHWC"}
    case = {
        "forward": Case(ops.conv2d, (x, w), attrs, terms=48),
        "input": Case(ops.conv2d_input_gradient, (dy, w), attrs | {"image": (6, 7)}, terms=144),
        "weight": Case(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": (3, 2)}, terms=48),
    }[which]
    check_kernels(NumbaCudaBackend(), case)


@fewer
@given(products(9, 9, 70) if small else products(200, 150, 3000))
def test_products(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case)


@fewer
@given(reductions(9, 400) if small else reductions(60, 2_000_000))
def test_reductions(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case)
