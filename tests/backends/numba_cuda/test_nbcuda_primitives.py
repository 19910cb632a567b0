"""Every primitive on numba_cuda: the references on its namespace, the kernels at every level of optimisation."""

from __future__ import annotations

import array_api_compat.numpy as nx
import numpy as np
import pytest
from hypothesis import given

import op_cases
from backends.numba_cuda.running import EITHER, SIMULATED, few
from kernel_check import CASES, check_kernels, convolutions, products, reductions
from minicnn.backends.numba_cuda import NAIVE, NumbaCudaBackend, Options
from minicnn.backends.numba_cuda import namespace as xp
from numerics import assert_close
from op_cases import Case

pytestmark = EITHER

LEVELS = {
    "naive": NAIVE,
    "tiled": Options(fused=False, graph=False),
    "fused": Options(tiled=False),
    "all": Options(),
}  # fmt: skip


@pytest.mark.parametrize("case", op_cases.CASES, ids=str)
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


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case: Case, level: str) -> None:
    check_kernels(NumbaCudaBackend(options=LEVELS[level]), case)


@pytest.mark.parametrize("case", [c for c in CASES if c.attrs.get("dtype") in ("float64", None)], ids=str)
def test_kernels_in_float64(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case, "float32" if case.op.name in ("random_uniform", "one_hot") else "float64")


small = SIMULATED


@few
@given(convolutions(4, 3, 5) if small else convolutions())
def test_convolutions(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case)


@few
@given(products(9, 9, 70) if small else products(200, 150, 3000))
def test_products(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case)


@few
@given(reductions(9, 400) if small else reductions(60, 2_000_000))
def test_reductions(case: Case) -> None:
    check_kernels(NumbaCudaBackend(), case)
