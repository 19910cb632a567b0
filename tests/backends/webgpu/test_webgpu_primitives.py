"""Every primitive on webgpu, by elements and by tiles, against its reference in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.webgpu.running import few
from minicnn import ops
from minicnn.backends._gpu.options import NAIVE
from minicnn.backends.webgpu.backend import WebGpuBackend
from minicnn.conformance.cases import Case
from minicnn.program import Program
from support.kernel_check import CASES, check_kernels, convolutions, products, reductions
from support.numerics import assert_close
from support.strategies import normal
from support.tolerances import ELEMENT

WITHOUT_KERNEL = {"affine_transform_gradient", "take_gradient"}


@pytest.mark.sampled(90)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case: Case) -> None:
    check_kernels(WebGpuBackend(), case)


@pytest.mark.parametrize("case", [c for c in CASES if "2d" in c.op.name or c.op.name in ("matmul", "sum")], ids=str)
def test_kernels_by_elements(case: Case) -> None:
    check_kernels(WebGpuBackend(options=NAIVE), case)


@pytest.mark.parametrize("which", ["forward", "input", "weight"])
@few
@given(data=st.data())
def test_convolutions(which: str, data: st.DataObject) -> None:
    check_kernels(WebGpuBackend(strict=True), data.draw(convolutions(12, 5, 17, which=which)))


@few
@given(data=st.data())
def test_depthwise_convolutions(data: st.DataObject) -> None:
    check_kernels(WebGpuBackend(strict=True), data.draw(convolutions(9, 5, depthwise=True)))


@few
@given(products(200, 150, 700))
def test_products(case: Case) -> None:
    check_kernels(WebGpuBackend(strict=True), case)


@few
@given(reductions(20, 60_000))
def test_reductions(case: Case) -> None:
    check_kernels(WebGpuBackend(strict=True), case)


FUNCTIONS = {
    "exp": (ops.exp, np.linspace(-104, 88.7, 4000)), "expm1": (ops.expm1, np.linspace(-20, 20, 4000)),
    "log": (ops.log, np.geomspace(1e-37, 3e38, 4000)), "log1p": (ops.log1p, np.linspace(-0.999, 30, 4000)),
    "tanh": (ops.tanh, np.linspace(-12, 12, 4000)), "erf": (ops.erf, np.linspace(-6, 6, 4000)),
    "erfc": (ops.erfc, np.linspace(-6, 9, 4000)), "sqrt": (ops.sqrt, np.geomspace(1e-37, 3e38, 4000)),
}  # fmt: skip


def computed(op: Any, *arrays: np.ndarray[Any, Any]) -> Any:
    """What kernels make of arrays."""
    program = Program()
    values = [program.input(f"x{k}", a.shape, a.dtype.name) for k, a in enumerate(arrays)]
    program.outputs["y"] = op(*values)
    backend = WebGpuBackend(strict=True)
    return backend.to_numpy(backend.compile(program)({f"x{k}": a for k, a in enumerate(arrays)})["y"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_all_their_range(name: str) -> None:
    op, x = FUNCTIONS[name]
    x = x.astype("float32")
    import array_api_compat.numpy as xp

    expected = op.reference(x.astype("float64"), xp=xp)
    far = np.abs(expected) < np.finfo("float32").tiny  # what an adapter may take for zero
    assert_close(np.where(far, 0, computed(op, x)), np.where(far, 0, expected), 1)


SPECIAL = np.asarray([np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0], "float32")


@pytest.mark.parametrize("name", [
    "exp", "log", "log1p", "tanh", "sqrt", "abs", "sign", "erf", "erfc", "expm1", "relu", "square", "argmax",
    "max",
])  # fmt: skip
def test_infinities_and_nan_are_those_of_numpy(name: str) -> None:
    import array_api_compat.numpy as xp

    op = getattr(ops, name)
    with np.errstate(all="ignore"):
        expected = {"argmax": np.argmax, "max": np.max}.get(name, partial(op.reference, xp=xp))(SPECIAL)
    np.testing.assert_allclose(computed(op, SPECIAL), expected, rtol=ELEMENT)


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum])
def test_nan_wins(op: Any) -> None:
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    expected = {"maximum": np.maximum, "minimum": np.minimum}[op.name](a, b)
    np.testing.assert_array_equal(computed(op, a, b), expected)


@pytest.mark.parametrize("name", ["power", "less", "less_equal", "greater", "greater_equal", "equal"])
def test_infinities_and_nan_of_pairs_are_those_of_numpy(name: str) -> None:
    import array_api_compat.numpy as xp

    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    op = getattr(ops, name)
    with np.errstate(all="ignore"):
        expected = op.reference(a, b, xp=xp)
    np.testing.assert_allclose(computed(op, a, b), expected, rtol=ELEMENT)


def test_nan_is_true() -> None:
    np.testing.assert_array_equal(computed(lambda x: ops.cast(x, dtype="bool"), SPECIAL), SPECIAL.astype(bool))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "bool", "int32", "uint32"])
@pytest.mark.parametrize("count", [1, 7, 1030])
def test_arrays_of_few_bits_are_read_and_written(dtype: str, count: int) -> None:
    """Neighbours of a word are other threads'."""
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 120, count).astype(dtype)
    twice = computed(lambda v: ops.concat(v, v, axis=0), x)
    np.testing.assert_array_equal(twice, np.concatenate([x, x]))
    assert twice.dtype == x.dtype


def test_random_numbers_are_those_of_every_backend() -> None:
    import array_api_compat.numpy as xp

    attrs = {"shape": (1001,), "seed": 2**40 + 7, "stream": 5, "dtype": "float32"}
    step = np.asarray(3, "int32")
    expected = ops.random_uniform.reference(step, xp=xp, **attrs)
    np.testing.assert_array_equal(computed(lambda s: ops.random_uniform(s, **attrs), step), expected)


def test_an_array_of_many_blocks() -> None:
    """More blocks than a dispatch has in one direction."""
    x = np.arange(65536 * 256 + 300, dtype="uint8")
    np.testing.assert_array_equal(computed(lambda v: ops.cast(v, dtype="int32"), x), x)


def test_a_large_product() -> None:
    a, b = (normal((512, 512), k).astype("float32") for k in range(2))
    attrs = {"transpose_a": False, "transpose_b": True}
    check_kernels(WebGpuBackend(strict=True), Case(ops.matmul, (a, b), attrs, terms=512))
