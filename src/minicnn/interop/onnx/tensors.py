"""Arrays of an ONNX graph that is being written: what is done with them becomes operators.

`XP` is a namespace of the Array API on them, as far as the references of primitives use it, so that a reference that is
called with it writes itself down. Shapes are those of one batch size; see `merging` for the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType, SimpleNamespace
from typing import Any

import numpy as np

from minicnn.ops.checks import normalize_axes

Shape = tuple[int, ...]
HostArray = np.ndarray[Any, Any]

MOST_JOINED = 7  # inputs of a Concat: WebGPU gives wrong values for more


@dataclass(frozen=True)
class Operator:
    """One operator: its kind in ONNX, the names of what it reads and makes, and its attributes."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


class Sheet:
    """Operators in the order in which they are written, and the constants that they read.

    Attributes:
        operators: The operators.
        constants: Constants by name, in the order in which they were needed.
        scope: Path of the layer that operators are now written for.
        held: Names of the inputs whose arrays the file holds.
    """

    def __init__(self, held: Collection[str] = ()) -> None:
        self.held = held
        self.operators: list[Operator] = []
        self.constants: dict[str, HostArray] = {}
        self.scope = ""
        self._numbers = Counter[str]()

    def emit(
        self, kind: str, inputs: Sequence[Tensor | None], shape: Sequence[int], dtype: str, **attributes: Any
    ) -> Tensor:
        """Write one operator with one result; an input that is left out is None."""
        stem = f"{self.scope or 'step'}/{kind}"
        self._numbers[stem] += 1
        name = stem if self._numbers[stem] == 1 else f"{stem}_{self._numbers[stem]}"
        result = Tensor(self, name, tuple(shape), dtype)
        names = tuple("" if x is None else x.name for x in inputs)
        self.operators.append(Operator(kind, name, names, (name,), attributes))
        return result

    def constant(self, data: Any, dtype: str | None = None) -> Tensor:
        """A constant; one with the same element everywhere is known as such."""
        array = np.asarray(data, dtype)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = array
        first = array.reshape(-1)[:1]
        alike = array.size > 0 and bool((array == first).all())
        return Tensor(self, name, array.shape, array.dtype.name, first[0].item() if alike else None)

    def leave(self, results: Mapping[str, Tensor]) -> None:
        """Give arrays that leave the graph their names there; what no operator makes, or has a name, is copied."""
        emitted, names = {name for o in self.operators for name in o.outputs}, dict[str, str]()
        for name, x in results.items():
            if x.name in emitted and x.name not in names:
                names[x.name] = name
            else:
                self.operators.append(Operator("Identity", f"{name}/Identity", (x.name,), (name,)))
        self.operators = [
            replace(
                o, inputs=tuple(names.get(n, n) for n in o.inputs), outputs=tuple(names.get(n, n) for n in o.outputs)
            )
            for o in self.operators
        ]

    def integers(self, values: Sequence[int]) -> Tensor:
        """A constant of the type in which ONNX takes shapes, axes and bounds."""
        return self.constant(np.asarray(values, np.int64).reshape(-1))


def _operator(kind: str, dtype: str | None = None, logical: str = "") -> tuple[Any, Any]:
    """Methods of a Tensor for an operator of Python, the second for a Tensor on its right side."""

    def of(x: Tensor) -> str:
        return logical if logical and x.dtype == "bool" else kind

    return (
        lambda self, other: binary(of(self), self, other, dtype),
        lambda self, other: binary(of(self), other, self, dtype),
    )


class Tensor:
    """An array of a graph: a name, a shape and a dtype; Python's operators write operators of ONNX.

    Attributes:
        sheet: Where the graph is written.
        name: Name in the graph.
        shape: Lengths of the axes for one batch size.
        dtype: Name of the element type.
        alike: The element that a constant has everywhere; None where it has others, or is no constant.
    """

    def __init__(self, sheet: Sheet, name: str, shape: Shape, dtype: str, alike: Any = None) -> None:
        self.sheet, self.name, self.shape, self.dtype, self.alike = sheet, name, shape, dtype, alike

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> Tensor:
        """Integers, slices with positive steps and an ellipsis."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if not any(isinstance(k, EllipsisType) for k in keys):
            keys.append(...)
        at = next(i for i, k in enumerate(keys) if isinstance(k, EllipsisType))
        keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        bounds = [
            slice(k, k + 1 or None).indices(n) if isinstance(k, int) else k.indices(n)
            for k, n in zip(keys, self.shape, strict=True)
        ]
        y = sliced(self, bounds)
        kept = tuple(n for n, k in zip(y.shape, keys, strict=True) if not isinstance(k, int))
        return reshape(y, kept)

    __add__, __radd__ = _operator("Add")
    __sub__, __rsub__ = _operator("Sub")
    __mul__, __rmul__ = _operator("Mul")
    __truediv__, __rtruediv__ = _operator("Div")
    __pow__, __rpow__ = _operator("Pow")
    __and__, __rand__ = _operator("BitwiseAnd", logical="And")
    __or__, __ror__ = _operator("BitwiseOr", logical="Or")
    __xor__, __rxor__ = _operator("BitwiseXor", logical="Xor")
    __lt__, _ = _operator("Less", "bool")
    __le__, _ = _operator("LessOrEqual", "bool")
    __gt__, _ = _operator("Greater", "bool")
    __ge__, _ = _operator("GreaterOrEqual", "bool")
    __eq__, _ = _operator("Equal", "bool")
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("the elements of an array are not known while its graph is written")

    def __neg__(self) -> Tensor:
        return _unary("Neg")(self)

    def __rshift__(self, places: int) -> Any:
        """Arithmetic shift: ONNX shifts unsigned integers only, and divides towards zero."""
        return (self & -(1 << places)) / (1 << places)

    def __lshift__(self, places: int) -> Any:
        return self * (1 << places)


def binary(kind: str, a: Any, b: Any, dtype: str | None = None) -> Tensor:
    """An elementwise operator of two arrays, or of one and a number, which takes its dtype."""
    sheet, beside = (a.sheet, a.dtype) if isinstance(a, Tensor) else (b.sheet, b.dtype)
    x, y = (v if isinstance(v, Tensor) else sheet.constant(v, beside) for v in (a, b))
    shape = np.broadcast_shapes(x.shape, y.shape)
    x, y = (_short(v, other, shape) for v, other in ((x, y), (y, x)))
    return sheet.emit(kind, [x, y], shape, dtype or x.dtype)


def _short(x: Tensor, other: Tensor, shape: Shape) -> Tensor:
    """One number for a constant that is the same everywhere, where the other array has the whole shape."""
    return x.sheet.constant(x.alike, x.dtype) if x.alike is not None and x.shape and other.shape == shape else x


# Functions of the namespace -------------------------------------------------------------------------


def _unary(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x.sheet.emit(kind, [x], x.shape, x.dtype)


def _both(kind: str, dtype: str | None = None) -> Callable[[Any, Any], Tensor]:
    return lambda a, b: binary(kind, a, b, dtype)


def astype(x: Tensor, dtype: str) -> Tensor:
    """X in another dtype."""
    return x if x.dtype == dtype else x.sheet.emit("Cast", [x], x.shape, dtype, to=np.dtype(dtype))


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements of x in another shape; lengths may leave one, -1, open."""
    known = math.prod(n for n in shape if n >= 0)
    target = tuple(math.prod(x.shape) // known if n < 0 else n for n in shape)
    if target == x.shape:
        return x
    return x.sheet.emit("Reshape", [x, x.sheet.integers(shape)], target, x.dtype, allowzero=int(0 in target))


def permute_dims(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Axes reordered."""
    if tuple(axes) == tuple(range(x.ndim)):
        return x
    return x.sheet.emit("Transpose", [x], [x.shape[a] for a in axes], x.dtype, perm=list(axes))


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """A new axis of length 1."""
    at = axis % (x.ndim + 1)
    shape = (*x.shape[:at], 1, *x.shape[at:])
    return x.sheet.emit("Unsqueeze", [x, x.sheet.integers([at])], shape, x.dtype)


def sliced(x: Tensor, bounds: Sequence[tuple[int, int, int]]) -> Tensor:
    """The box of x between (start, stop, step) of each axis."""
    cut = [a for a, (n, b) in enumerate(zip(x.shape, bounds, strict=True)) if b != (0, n, 1)]
    if not cut:
        return x
    starts, stops, steps = ([bounds[a][i] for a in cut] for i in range(3))
    shape = tuple(len(range(*b)) for b in bounds)
    inputs = [x, *map(x.sheet.integers, (starts, stops, cut, steps))]
    return x.sheet.emit("Slice", inputs, shape, x.dtype)


def concat(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Arrays joined along an axis, a few at a time."""
    if len(arrays) > MOST_JOINED:
        parts = [concat(arrays[i : i + MOST_JOINED], axis) for i in range(0, len(arrays), MOST_JOINED)]
        return concat(parts, axis)
    first, at = arrays[0], axis % arrays[0].ndim
    if len(arrays) == 1:
        return first
    shape = (*first.shape[:at], sum(x.shape[at] for x in arrays), *first.shape[at + 1 :])
    return first.sheet.emit("Concat", arrays, shape, first.dtype, axis=at)


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Arrays joined along a new axis."""
    return concat([expand_dims(x, axis) for x in arrays], axis)


def sort(x: Tensor, axis: int = -1) -> Tensor:
    """The elements along an axis, the smallest first."""
    at = axis % x.ndim
    result = x.sheet.emit("TopK", [x, x.sheet.integers([x.shape[at]])], x.shape, x.dtype, axis=at, largest=0, sorted=1)
    # The operator has a second result, the places that the elements had.
    operator = x.sheet.operators[-1]
    x.sheet.operators[-1] = replace(operator, outputs=(*operator.outputs, f"{result.name}/places"))
    return result


def pad(x: Tensor, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """X framed by (before, after) elements along each axis."""
    if not any(map(any, widths)):
        return x
    shape = [a + n + b for n, (a, b) in zip(x.shape, widths, strict=True)]
    frame = x.sheet.integers([w[i] for i in range(2) for w in widths])
    return x.sheet.emit("Pad", [x, frame, x.sheet.constant(value, x.dtype)], shape, x.dtype)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """X repeated along axes of length 1, and new ones in front."""
    if x.shape == tuple(shape):
        return x
    lead = len(shape) - x.ndim
    target = [1 if a >= lead and x.shape[a - lead] == n else n for a, n in enumerate(shape)]
    return x.sheet.emit("Expand", [x, x.sheet.integers(target)], shape, x.dtype)


def repeat(x: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element `repeats` times along one axis."""
    at = axis % x.ndim
    shape = (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :])
    longer = broadcast_to(expand_dims(x, at + 1), (*x.shape[: at + 1], repeats, *x.shape[at + 1 :]))
    return reshape(longer, shape)


def take(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Rows of x by an index."""
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return x.sheet.emit("Gather", [x, index], shape, x.dtype, axis=axis)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """A where the condition holds, else b."""
    beside = next(v for v in (a, b) if isinstance(v, Tensor))
    x, y = (v if isinstance(v, Tensor) else condition.sheet.constant(v, beside.dtype) for v in (a, b))
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    x, y = (_short(v, condition, shape) for v in (x, y))
    return condition.sheet.emit("Where", [condition, x, y], shape, x.dtype)


def reduced(kind: str) -> Callable[..., Tensor]:
    """A reduction of the namespace by its operator in ONNX."""

    def reduce(x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        axes = normalize_axes(kind, axis, x.ndim)
        if not axes:
            return x
        kept = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
        return x.sheet.emit(kind, [x, x.sheet.integers(axes)], kept, x.dtype, keepdims=int(keepdims))

    return reduce


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """Place of the first maximum along one axis, as int64."""
    at = axis % x.ndim
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    return x.sheet.emit("ArgMax", [x], shape, "int64", axis=at, keepdims=0, select_last_index=0)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of two matrices."""
    return a.sheet.emit("MatMul", [a, b], (a.shape[0], b.shape[1]), a.dtype)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1; near 0, where that cancels, 2 t / (1 - t) with t = tanh(x / 2)."""
    t = XP.tanh(x * 0.5)
    return where(XP.abs(x) < 1.0, t * 2.0 / (1.0 - t), XP.exp(x) - 1.0)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x); near 0 times x / ((1 + x) - 1), which makes up for the rounding of 1 + x.

    That is the remedy of W. Kahan, given by N. Higham, Accuracy and stability of numerical algorithms, section 1.14.1.
    """
    one_more = x + 1.0
    rounded = one_more - 1.0
    near = where(rounded == 0.0, x, XP.log(one_more) * (x / rounded))
    return where(XP.abs(x) < 1.0, near, XP.log(one_more))


def _filled(like: Tensor, value: float) -> Tensor:
    return like.sheet.constant(np.full(like.shape, value, like.dtype))


def _asarray(x: Tensor, copy: bool = True) -> Tensor:
    return x  # nothing in a graph is overwritten


# References create arrays on the device of another one, whose sheet is what they need: see `minicnn.ops.arrays.place`.
Tensor.device = property(lambda self: self.sheet)  # type: ignore[attr-defined]


def _full(shape: Any, value: float, *, dtype: str, device: Sheet) -> Tensor:
    return device.constant(np.full(shape, value, dtype))


def _zeros(shape: Any, *, dtype: str, device: Sheet) -> Tensor:
    return device.constant(np.zeros(shape, dtype))


def _arange(n: int, *, dtype: str, device: Sheet) -> Tensor:
    return device.constant(np.arange(n, dtype=dtype))


# Operators of ONNX by the functions of the namespace, and by the primitives of the same names: for both directions.
UNARY = {
    "abs": "Abs", "negative": "Neg", "sign": "Sign", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "sigmoid": "Sigmoid", "softplus": "Softplus", "erf": "Erf", "relu": "Relu", "floor": "Floor", "logical_not": "Not",
}  # fmt: skip
BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "pow": "Pow", "maximum": "Max",
    "minimum": "Min", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
}  # fmt: skip
COMPARISONS = {
    "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less", "less_equal": "LessOrEqual",
    "equal": "Equal",
}  # fmt: skip

XP = SimpleNamespace(
    **{name: _unary(kind) for name, kind in UNARY.items()},
    **{name: _both(kind) for name, kind in BINARY.items()},
    **{name: _both(kind, "bool") for name, kind in COMPARISONS.items()},
    **{name: name for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")},
    square=lambda x: x * x, expm1=expm1, log1p=log1p, where=where, astype=astype, asarray=_asarray,
    sum=reduced("ReduceSum"), mean=reduced("ReduceMean"), max=reduced("ReduceMax"), argmax=argmax, matmul=matmul,
    reshape=reshape, permute_dims=permute_dims, expand_dims=expand_dims, concat=concat, stack=stack, take=take,
    sort=sort, repeat=repeat, broadcast_to=broadcast_to, zeros=_zeros, full=_full, arange=_arange,
    zeros_like=lambda x: _filled(x, 0), ones_like=lambda x: _filled(x, 1),
)  # fmt: skip
