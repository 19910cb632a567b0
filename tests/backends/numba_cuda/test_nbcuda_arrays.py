"""The namespace of numba_cuda against NumPy: values, shapes, types, views, and what is missing."""

from __future__ import annotations

import gc
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.numba_cuda.comparing import DTYPES, FAMILY, Host, same, views
from backends.numba_cuda.running import EITHER, SIMULATED, few
from minicnn.backends import get_backend, infer_backend
from minicnn.backends.numba_cuda import namespace as xp
from minicnn.backends.numba_cuda.arrays import Array
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, OPERATIONS

pytestmark = EITHER


@st.composite
def operands(draw: st.DrawFn, name: str) -> list[tuple[Array, Host]]:
    """Arguments of an elementwise function, which broadcast together."""
    template, kinds, _ = OPERATIONS[name]
    dtype = draw(st.sampled_from([d for d in DTYPES if FAMILY[np.dtype(d).kind] in kinds]))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    found = []
    for k in range(2 if "{1}" in template else 1):
        own = tuple(n if draw(st.integers(0, 3)) else 1 for n in shape)[draw(st.integers(0, len(shape))) if k else 0 :]
        found.append(draw(views(dtype, own, draw(st.integers(0, 999)))))
    return found


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"acosh"}))
@few
@given(data=st.data())
def test_elementwise(name: str, data: st.DataObject) -> None:
    pairs = data.draw(operands(name))
    devices, hosts = zip(*pairs, strict=True)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(*hosts)
    result = np.result_type(*hosts) if expected.dtype != np.bool_ else np.bool_
    same(FUNCTIONS[name](*devices), expected.astype(result), 4)


def test_acosh_and_special_values() -> None:
    x = np.asarray([1.0, 1.5, 7.0], "float32")
    same(xp.acosh(xp.asarray(x)), np.acosh(x), 4)
    special = np.asarray([np.nan, np.inf, -np.inf, -0.0, 0.0, -2.5, 2.5], "float32")
    array = xp.asarray(special)
    for name in ("isnan", "isinf", "isfinite", "signbit", "sign", "abs", "floor", "ceil", "trunc", "round", "negative"):
        same(getattr(xp, name)(array), getattr(np, name)(special))
    other = xp.asarray(np.asarray([1, np.nan, 0, 0, -0.0, np.inf, -1], "float32"))
    for name in ("maximum", "minimum", "less", "equal", "greater_equal", "not_equal"):
        same(getattr(xp, name)(array, other), getattr(np, name)(special, other.numpy()))


@few
@given(data=st.data(), name=st.sampled_from(["sum", "prod", "max", "min", "mean", "var", "std", "all", "any",
       "count_nonzero", "argmax", "argmin"]))  # fmt: skip
def test_reductions(data: st.DataObject, name: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    kinds = {"mean": "f", "var": "f", "std": "f", "all": "bif", "any": "bif", "count_nonzero": "bif"}.get(name, "if")
    dtype = data.draw(st.sampled_from([d for d in DTYPES if FAMILY[np.dtype(d).kind] in kinds]))
    device, host = data.draw(views(dtype, shape, 1))
    one = st.integers(-len(shape), len(shape) - 1)
    axis = data.draw(st.none() | one)
    if axis is None and not name.startswith("arg"):
        axis = data.draw(st.none() | st.sets(st.integers(0, len(shape) - 1)).map(tuple))
    keepdims = data.draw(st.booleans())
    expected = getattr(np, name)(host, axis=axis, keepdims=keepdims)
    same(getattr(xp, name)(device, axis=axis, keepdims=keepdims), expected, host.size)


def test_long_reductions_go_by_blocks() -> None:
    x = np.random.default_rng(0).standard_normal((3, 70)).astype("float32")
    same(xp.sum(xp.asarray(x), axis=1), x.sum(1), 70)
    same(xp.max(xp.asarray(x.T), axis=0), x.T.max(0))
    same(xp.any(xp.asarray(x > 3), axis=1), (x > 3).any(1))


def test_running_sums_and_differences() -> None:
    x = np.arange(24.0, dtype="float32").reshape(2, 3, 4) ** 2
    a = xp.asarray(x)
    for axis in range(3):
        same(xp.cumulative_sum(a, axis=axis), np.cumulative_sum(x, axis=axis), 24)
        same(
            xp.cumulative_sum(a, axis=axis, include_initial=True), np.cumulative_sum(x, axis=axis, include_initial=True)
        )
        same(xp.diff(a, axis=axis), np.diff(x, axis=axis))
    same(xp.cumulative_prod(a[0, 0], dtype="float64"), np.cumulative_prod(x[0, 0], dtype="float64"))
    same(xp.diff(a, n=2, prepend=a[..., :1]), np.diff(x, n=2, prepend=x[..., :1]))


MANIPULATIONS: dict[str, Any] = {
    "reshape": lambda m, x: m.reshape(x, (4, -1)),
    "reshape of a view": lambda m, x: m.reshape(m.permute_dims(x, (2, 0, 1)), (-1,)),
    "permute_dims": lambda m, x: m.permute_dims(x, (2, 0, 1)),
    "matrix_transpose": lambda m, x: m.matrix_transpose(x),
    "moveaxis": lambda m, x: m.moveaxis(x, (0, 2), (1, 0)),
    "expand_dims": lambda m, x: m.expand_dims(x, axis=-1),
    "expand_dims twice": lambda m, x: m.expand_dims(x, axis=(-1, 1)),
    "squeeze": lambda m, x: m.squeeze(x[:, :1], axis=1),
    "broadcast_to": lambda m, x: m.broadcast_to(x[:, :1], (3, 2, 5, 4)),
    "flip": lambda m, x: m.flip(x),
    "flip one": lambda m, x: m.flip(x, axis=-1),
    "concat": lambda m, x: m.concat([x, x[:, :1], m.flip(x)], axis=1),
    "concat flat": lambda m, x: m.concat([x, x[:, :1]], axis=None),
    "stack": lambda m, x: m.stack([x, x + 1], axis=-1),
    "repeat": lambda m, x: m.repeat(x, 3, axis=1),
    "repeat flat": lambda m, x: m.repeat(x, 2),
    "tile": lambda m, x: m.tile(x, (2, 1, 3)),
    "tile more": lambda m, x: m.tile(x, (2, 1, 1, 2)),
    "roll": lambda m, x: m.roll(x, 2, axis=1),
    "roll flat": lambda m, x: m.roll(x, -3),
    "roll two": lambda m, x: m.roll(x, (1, -1), axis=(0, 2)),
    "roll by nothing": lambda m, x: m.roll(x, 0, axis=0),
    "tril": lambda m, x: m.tril(x, k=1),
    "triu": lambda m, x: m.triu(x, k=-1),
    "where": lambda m, x: m.where(x > 5, x, m.zeros_like(x)),
    "vecdot": lambda m, x: m.vecdot(x, x, axis=-1),
    "tensordot": lambda m, x: m.tensordot(x, x, axes=((1, 2), (1, 2))),
    "tensordot by number": lambda m, x: m.tensordot(x, m.permute_dims(x, (2, 1, 0)), axes=1),
    "matmul": lambda m, x: m.matmul(x, m.matrix_transpose(x)),
    "matmul broadcast": lambda m, x: m.matmul(m.expand_dims(x, axis=0), x[0].mT),
    "matmul vector": lambda m, x: m.matmul(x, x[0, 0]),
    "matmul from the left": lambda m, x: m.matmul(x[0, :, 0], x),
    "matmul vectors": lambda m, x: m.matmul(x[0, 0], x[1, 0]),
    "full_like": lambda m, x: m.full_like(x, 7),
    "ones_like": lambda m, x: m.ones_like(x, dtype="int32"),
}  # fmt: skip


@pytest.mark.cover
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("name", MANIPULATIONS)
def test_manipulation_and_products(name: str, dtype: str) -> None:
    x = np.random.default_rng(3).permutation(30).reshape(2, 5, 3).astype(dtype)
    x = np.concatenate([x, x[:, :, :1]], axis=2)
    same(MANIPULATIONS[name](xp, xp.asarray(x)), MANIPULATIONS[name](np, x), 20)


def test_other_manipulation() -> None:
    x = np.arange(6, dtype="int32").reshape(2, 3)
    for found, expected in zip(xp.unstack(xp.asarray(x), axis=1), np.unstack(x, axis=1), strict=True):
        same(found, expected)
    for found, expected in zip(
        xp.broadcast_arrays(xp.asarray(x), xp.asarray(x[:1])), np.broadcast_arrays(x, x[:1]), strict=True
    ):
        same(found, expected)
    for indexing in ("xy", "ij"):
        vectors = [np.arange(n, dtype="float32") for n in (2, 3)]
        made = xp.meshgrid(*map(xp.asarray, vectors), indexing=indexing)
        for found, expected in zip(made, np.meshgrid(*vectors, indexing=indexing), strict=True):
            same(found, expected)
    assert (xp.broadcast_shapes((3, 1), (2,), ()), xp.broadcast_shapes()) == ((3, 2), ())
    rows = np.asarray([2, 0, -1, 2])
    same(xp.take(xp.asarray(x), xp.asarray(rows), axis=1), np.take(x, rows, axis=1))
    same(xp.asarray(x)[xp.asarray([[1, 0], [0, 1]])], x[np.asarray([[1, 0], [0, 1]])])
    places = np.asarray([[0, 2], [-1, 1]])
    same(xp.take_along_axis(xp.asarray(x), xp.asarray(places), axis=1), np.take_along_axis(x, places, axis=1))
    same(xp.clip(xp.asarray(x), 1, 4), np.clip(x, 1, 4))
    same(xp.clip(xp.asarray(x), max=xp.asarray(3, dtype="int32")), np.clip(x, None, 3).astype("int32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_creation(dtype: str) -> None:
    same(xp.zeros((2, 3), dtype=dtype), np.zeros((2, 3), dtype))
    same(xp.ones(4, dtype=dtype), np.ones(4, dtype))
    same(xp.full((), 1, dtype=dtype), np.full((), 1, dtype))
    assert (xp.empty((0, 3), dtype=dtype).shape, xp.empty_like(xp.zeros(3, dtype=dtype)).dtype) == ((0, 3), dtype)
    if dtype != "bool":
        same(xp.arange(1, 12, 3, dtype=dtype), np.arange(1, 12, 3, dtype))
        same(xp.eye(3, 4, k=1, dtype=dtype), np.eye(3, 4, k=1, dtype=dtype))
    for source in DTYPES:
        host = np.asarray([0, 1, 2, 3], source)
        same(xp.astype(xp.asarray(host), dtype), host.astype(dtype))


def test_creation_by_default_types() -> None:
    same(xp.asarray([1, 2]), np.asarray([1, 2], "int64"))
    same(xp.asarray([[1.0], [2.0]]), np.asarray([[1.0], [2.0]]))
    same(xp.asarray(True), np.asarray(True))
    same(xp.arange(3), np.arange(3))
    same(xp.arange(2.0, 0.0, -0.5), np.arange(2.0, 0.0, -0.5))
    same(xp.linspace(0, 1, 7), np.linspace(0, 1, 7))
    same(xp.linspace(1, 2, 4, endpoint=False, dtype="float32"), np.linspace(1, 2, 4, endpoint=False, dtype="float32"))
    same(xp.sum(xp.zeros((0, 3)), axis=0), np.zeros(3))


# Indexing -------------------------------------------------------------------------------------------------------


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Integers, slices, newaxis, at most one ellipsis."""
    parts: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        parts.append(draw(st.integers(-n, n - 1) | st.slices(n)))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), None)
    if draw(st.booleans()):
        parts.append(...)
    return tuple(parts) if len(parts) != 1 or draw(st.booleans()) else parts[0]


@few
@given(data=st.data(), shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
def test_indexing_gives_views_and_takes_assignments(data: st.DataObject, shape: tuple[int, ...]) -> None:
    host = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    device = xp.asarray(host)
    key = data.draw(keys(shape))
    same(device[key], host[key])
    assert device[key].memory is device.memory
    device[key] = 9.0
    host[key] = 9.0
    same(device, host)
    host[key] = (host[key] + 1) * 2
    device[key] = (device[key] + 1.0) * 2.0
    same(device, host)


def test_indices_that_are_refused() -> None:
    x = xp.zeros((2, 3))
    mask = xp.zeros((2, 3)) > 0
    for key in (2, -3, (0, 0, 0), (..., ...), 1.0, True, mask.T, (mask, 0), (mask[0], ...), [0], np.asarray([0]),
                (0, 0, xp.asarray([1])), (xp.asarray([1]), ...), (3, xp.asarray([1]))):  # fmt: skip
        with pytest.raises(IndexError, match="Received"):
            x[key]
    with pytest.raises(IndexError, match="integers, slices"):
        x[xp.asarray([0])] = 1.0
    with pytest.raises(TypeError, match="keep their type"):
        x[0] = xp.zeros(3, dtype="int32")
    with pytest.raises(ValueError, match="broadcasts to what it is assigned to"):
        x[0] = xp.zeros((2, 3))


def test_assignment_from_an_overlapping_view() -> None:
    x = xp.arange(5, dtype="float32")
    x[1:] = x[:-1]
    same(x, np.asarray([0, 0, 1, 2, 3], "float32"))


# The array ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_operators(dtype: str) -> None:
    a, b = np.asarray([5, 7, -3], dtype), np.asarray([2, -3, 2], dtype)
    x, y = xp.asarray(a), xp.asarray(b)
    names = ["add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"]
    names += ["truediv"] if dtype == "float32" else ["and_", "or_", "xor"]
    for name in names:
        function = getattr(operator, name)
        same(function(x, y), function(a, b))
        same(function(x, 2), function(a, 2))
        same(function(2, y), function(np.asarray(2, dtype), b))
    for name in ("neg", "pos", "abs"):
        same(getattr(operator, name)(x), getattr(operator, name)(a))
    same(x @ y, a @ b)
    before = x.memory
    x += y
    x *= 3
    same(x, (a + b) * 3)
    assert x.memory is before


def test_shifts_and_logic() -> None:
    x, a = xp.asarray([1, 5, 200], dtype="int32"), np.asarray([1, 5, 200], "int32")
    same(x << 3, a << 3)
    same(x >> 1, a >> 1)
    same(~x, ~a)
    same(~(x > 2), ~(a > 2))
    same((x > 2) & (x < 100), (a > 2) & (a < 100))


def test_python_numbers_and_errors() -> None:
    one = xp.asarray(3)
    assert (int(one), float(one), bool(one), len(xp.zeros((4, 2)))) == (3, 3.0, True, 4)
    assert [int(v) for v in xp.arange(3)] == [0, 1, 2]
    assert list(range(5))[one] == 3
    assert repr(xp.asarray([1.5])) == "Array([1.5], dtype=float64, device=cuda:0)"
    for call, error, text in (
        (lambda: float(xp.zeros(2)), TypeError, "from one element"),
        (lambda: len(one), TypeError, "arrays with axes"),
        (lambda: np.asarray(xp.zeros(2)), TypeError, "do not move to the host unasked"),
        (lambda: xp.zeros(2) + xp.zeros(2, dtype="int32"), TypeError, "float64 and int32. Convert one with astype"),
        (lambda: xp.zeros(2, dtype="int32") + 1.5, TypeError, "int32 and the Python float 1.5"),
        (lambda: xp.zeros(2) & xp.zeros(2), TypeError, "bitwise_and is for bool or integers. Received: float64"),
        (lambda: xp.nextafter(one, 4), TypeError, "nextafter is for floats. Received: int64"),
        (lambda: xp.nonzero(one), ValueError, "arrays with axes"),
        (lambda: xp.searchsorted(xp.zeros((2, 2)), 1.0), ValueError, "gets a vector"),
        (lambda: xp.searchsorted(xp.zeros(2), 1.0, side="up"), ValueError, "side='up'"),
        (lambda: xp.take(xp.zeros((0, 2)), xp.asarray([0]), axis=0), IndexError, "needs elements along axis 0"),
        (lambda: xp.zeros(2)[xp.asarray(0) == 1].__dlpack__(dl_device=(3, 0)), BufferError, "exported where it is"),
        (lambda: xp.sum(xp.zeros(2) > 0), TypeError, "sum is for numbers. Received: bool"),
        (lambda: xp.mean(xp.arange(3)), TypeError, "mean is for floats. Received: int64"),
        (lambda: xp.max(xp.zeros((0, 2)), axis=0), ValueError, "at least one element"),
        (lambda: xp.argmax(xp.zeros((0, 2)), axis=0), ValueError, "at least one element"),
        (lambda: xp.reshape(xp.zeros(4), (3,)), ValueError, r"as many elements. Received: \(3,\) for \(4,\)"),
        (lambda: xp.reshape(xp.zeros((2, 2)).T, (4,), copy=False), ValueError, "copy=False"),
        (lambda: xp.permute_dims(xp.zeros((2, 2)), (0, 0)), ValueError, "each of 2 axes once"),
        (lambda: xp.sum(xp.zeros((2, 2)), axis=2), IndexError, "An axis is from -2 to 1. Received: 2"),
        (lambda: xp.sum(xp.zeros((2, 2)), axis=(0, -2)), ValueError, "named once"),
        (lambda: xp.squeeze(xp.zeros((2, 1)), axis=0), ValueError, "have length 1"),
        (lambda: xp.broadcast_to(xp.zeros(3), (3, 1)), ValueError, "extends its own"),
        (lambda: xp.concat([xp.zeros((2, 2)), xp.zeros((3, 3))]), ValueError, "along one axis only"),
        (lambda: xp.repeat(xp.zeros(2), xp.asarray([1, 2, 3])), ValueError, "of length 1 or 2. Received: int64"),
        (lambda: xp.matmul(xp.zeros((2, 3)), xp.zeros((2, 3))), ValueError, r"shapes \(2, 3\) and \(2, 3\)"),
        (lambda: xp.matmul(one, one), ValueError, "matrices and vectors"),
        (lambda: xp.matmul(xp.zeros((2, 2)) > 0, xp.zeros((2, 2)) > 0), TypeError, "of numbers"),
        (lambda: xp.tensordot(xp.zeros((2, 3)), xp.zeros((2, 3)), axes=1), ValueError, "the same lengths"),
        (lambda: xp.vecdot(xp.zeros(3), xp.zeros(1)), ValueError, "of one length"),
        (lambda: xp.take(xp.zeros((2, 3)), xp.asarray([0])), ValueError, "an axis unless x is a vector"),
        (lambda: xp.take_along_axis(xp.zeros((2, 3)), xp.asarray([0])), ValueError, "as many axes"),
        (lambda: xp.cumulative_sum(xp.zeros((2, 3))), ValueError, "needs an axis"),
        (lambda: xp.where(xp.zeros(2), 1.0, xp.zeros(2)), TypeError, "a bool array first"),
        (lambda: xp.meshgrid(xp.zeros(2), indexing="yx"), ValueError, "'xy' or 'ij'"),
        (lambda: xp.tril(xp.zeros(2)), ValueError, "of matrices"),
        (lambda: xp.zeros(2).T, ValueError, "T is for matrices"),
        (lambda: xp.zeros(2).mT, ValueError, "mT is for stacks"),
        (lambda: xp.zeros(2, dtype="complex64"), TypeError, "Received: complex64"),
        (lambda: xp.asarray(np.zeros(2, "U3")), TypeError, "Received: str"),
        (lambda: xp.asarray([1.0], copy=False), ValueError, "copied to the GPU"),
        (lambda: xp.asarray(xp.zeros(2), dtype="int32", copy=False), ValueError, "A view has the type"),
        (lambda: xp.result_type(1, 2.0), TypeError, "At least one argument"),
        (lambda: xp.result_type("uint64", "int8"), TypeError, "uint64 and int8"),
        (lambda: xp.isdtype("int8", "int"), ValueError, "A kind is one of bool"),
        (lambda: xp.zeros(2, device="tpu"), ValueError, "Received: 'tpu'"),
        (lambda: xp.zeros(2, device="cuda:99"), ValueError, r"one of the \d+ that CUDA sees"),
        (lambda: xp.zeros(2).__array_namespace__(api_version="1999"), ValueError, "2025.12"),
        (lambda: xp.zeros((1, 2)).__iadd__(xp.zeros((3, 2))), ValueError, "keeps its shape and type"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()


@few
@given(left=st.sampled_from([*DTYPES, "int8", "uint16", "uint32", "uint64"]), right=st.sampled_from(DTYPES))
def test_promotion(left: str, right: str) -> None:
    kinds = {FAMILY[np.dtype(d).kind] for d in (left, right)}
    if len(kinds) > 1 or np.result_type(left, right).kind not in np.dtype(left).kind + np.dtype(right).kind:
        with pytest.raises(TypeError, match="as the Array API standard says"):
            xp.result_type(left, right)
        assert not xp.can_cast(left, right)
    else:
        assert xp.result_type(left, right) == np.result_type(left, right)
        assert xp.can_cast(left, right) == (np.result_type(left, right) == right)


def test_data_types_and_the_namespace() -> None:
    assert xp.isdtype(xp.float32, "real floating")
    assert xp.isdtype(xp.uint8, ("signed integer", xp.uint8))
    assert not xp.isdtype(xp.bool, "numeric")
    assert (xp.finfo(xp.float32).eps, xp.iinfo(xp.int32).max) == (np.finfo("float32").eps, 2**31 - 1)
    array = xp.zeros((2, 3), dtype="float32")
    assert array.__array_namespace__() is array.__array_namespace__(api_version="2025.12") is xp
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["integral"] == np.int64
    assert set(info.dtypes(kind="integral")) == {*info.dtypes(kind=("signed integer", "unsigned integer"))}
    assert info.capabilities()["data-dependent shapes"] is True
    assert (xp.newaxis, xp.pi, xp.e) == (None, np.pi, np.e)
    assert (array.ndim, array.size, array.itemsize, array.nbytes, array.strides) == (2, 6, 4, 24, (12, 4))
    assert infer_backend([np.zeros(2), array]).name == "numba_cuda"  # type: ignore[union-attr]


def test_what_is_missing_says_why() -> None:
    for name, reason in (("linalg", "extension"), ("imag", "no complex"), ("frobnicate", "neither has the standard")):
        with pytest.raises(AttributeError, match=f"numba_cuda has no {name}.*{reason}"):
            getattr(xp, name)


# Other libraries and devices ------------------------------------------------------------------------------------


def test_devices() -> None:
    x = xp.asarray([1.0, 2.0])
    assert x.to_device(x.device) is x
    assert x.to_device("cuda:0") is x
    assert (str(x.device), repr(x.device)) == ("cuda:0", "<cuda:0>")
    assert x.device == "cuda:0" != xp.__array_namespace_info__().devices()
    assert x.device in {"cuda:0"}


def test_interfaces_describe_the_memory() -> None:
    x = xp.asarray(np.arange(12, dtype="float32").reshape(3, 4))[1:, ::2].T
    found = x.__cuda_array_interface__
    assert (found["shape"], found["strides"], found["typestr"], found["version"]) == ((2, 2), (8, 16), "<f4", 3)
    assert found["data"][0] == x.memory.address + 16
    assert xp.zeros(3).__cuda_array_interface__["strides"] is None
    assert x.__dlpack_device__()[0] == (1 if SIMULATED else 2)


def test_arrays_of_other_libraries_are_on_the_device_that_they_name() -> None:
    class Other:
        __cuda_array_interface__ = xp.zeros(3).__cuda_array_interface__

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 99)

    with pytest.raises(ValueError, match="Received: 'cuda:99'"):
        xp.asarray(Other())


@pytest.mark.skipif(not SIMULATED, reason="NumPy reads memory of the host")
def test_dlpack_shares_the_memory() -> None:
    x = xp.asarray(np.arange(12, dtype="float32").reshape(3, 4))
    host = np.from_dlpack(x[1:, ::2].T)
    np.testing.assert_array_equal(host, x.numpy()[1:, ::2].T)
    same(xp.from_dlpack(np.arange(3)), np.arange(3))
    assert xp.from_dlpack(x).memory is x.memory
    copied = np.from_dlpack(x, copy=True)
    x[...] = 0.0
    np.testing.assert_array_equal(copied, np.arange(12).reshape(3, 4))


@pytest.mark.skipif(SIMULATED, reason="the simulator's memory is on the host")
def test_arrays_of_other_libraries_share_the_memory() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    x = xp.asarray(np.arange(12, dtype="float32").reshape(3, 4))
    tensor = torch.from_dlpack(x[1:, ::2].T)
    np.testing.assert_array_equal(tensor.cpu().numpy(), x.numpy()[1:, ::2].T)
    back = xp.from_dlpack(torch.arange(5, device="cuda"))
    same(back * 2, np.arange(5) * 2)


def test_memory_is_given_back() -> None:
    backend = get_backend("numba_cuda")
    gc.collect()
    before = backend.memory()
    x = backend.asarray(np.zeros(1000, "float32"))
    view = x[10:20]
    assert backend.memory() == before + 4000
    del x
    assert backend.memory() == before + 4000
    del view
    assert backend.memory() == before
