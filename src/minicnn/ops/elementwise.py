"""Elementwise arithmetic, comparison and choice, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minicnn.ops.checks import broadcast_shape, require_float, same_dtype
from minicnn.ops.primitive import Array, GradientRule, Namespace, Primitive, primitive
from minicnn.ops.reduction import sum_to_shape
from minicnn.program.graph import Node, Spec, Value


def _unary(name: str, meaning: str, gradient: GradientRule, *, flops: int) -> Primitive:
    """The primitive of a function of one array, which the Array API has by the same name."""

    def reference(x: Array, *, xp: Namespace) -> Array:
        return getattr(xp, name)(x)

    op = _named(reference, name, meaning, flops)
    op.gradient(gradient)

    @op.shape
    def shape(x: Spec) -> Spec:
        return require_float(name, x)

    return op


def _binary(name: str, meaning: str, *, flops: int = 1, function: str = "", dtype: str | None = None) -> Primitive:
    """The primitive of a function of two arrays, by its name in the Array API; the result has their dtype if None."""

    def reference(a: Array, b: Array, *, xp: Namespace) -> Array:
        return getattr(xp, function or name)(a, b)

    op = _named(reference, name, meaning, flops)

    @op.shape
    def shape(a: Spec, b: Spec) -> Spec:
        common = same_dtype(name, a, b)
        return Spec(broadcast_shape(name, a, b), dtype or common)

    return op


def _named(reference: Callable[..., Array], name: str, meaning: str, flops: int) -> Primitive:
    reference.__name__ = reference.__qualname__ = name
    reference.__doc__ = meaning
    return primitive(elementwise=True, flops=flops)(reference)


# Of two arrays ------------------------------------------------------------------------------------

add = _binary("add", "Sum a + b.")
subtract = _binary("subtract", "Difference a - b.")
multiply = _binary("multiply", "Product a * b.")
divide = _binary("divide", "Quotient a / b.")
power = _binary("power", "Power a ** b, for a > 0 where b is not an integer.", flops=10, function="pow")
maximum = _binary("maximum", "Larger of a and b; where they are equal the gradient goes to a.")
minimum = _binary("minimum", "Smaller of a and b; where they are equal the gradient goes to a.")
greater = _binary("greater", "A > b as bool.", dtype="bool")
greater_equal = _binary("greater_equal", "A >= b as bool.", dtype="bool")
less = _binary("less", "A < b as bool.", dtype="bool")
less_equal = _binary("less_equal", "A <= b as bool.", dtype="bool")
equal = _binary("equal", "A == b as bool.", dtype="bool")


@add.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy, a.shape), sum_to_shape(dy, b.shape)]


@subtract.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy, a.shape), sum_to_shape(-dy, b.shape)]


@multiply.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy * b, a.shape), sum_to_shape(dy * a, b.shape)]


@divide.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    da = dy / b
    return [sum_to_shape(da, a.shape), sum_to_shape(-(da * node.outputs[0]), b.shape)]


@power.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    a, b = node.inputs
    y = node.outputs[0]
    da = sum_to_shape(dy * b * power(a, b - 1), a.shape)
    return [da, None if b.kind == "constant" else sum_to_shape(dy * y * log(a), b.shape)]


@maximum.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    first = greater_equal(a, b)
    return [sum_to_shape(where(first, dy, 0), a.shape), sum_to_shape(where(first, 0, dy), b.shape)]


@minimum.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    first = less_equal(a, b)
    return [sum_to_shape(where(first, dy, 0), a.shape), sum_to_shape(where(first, 0, dy), b.shape)]


# Of one array -------------------------------------------------------------------------------------

negative = _unary("negative", "Negation -x.", lambda node, dy: -dy, flops=1)
sign = _unary("sign", "-1, 0 or 1; its derivative is taken as 0.", lambda node, dy: None, flops=1)
abs = _unary(  # noqa: A001 - the Array API's name
    "abs", "Absolute value; the gradient at 0 is 0.", lambda node, dy: dy * sign(node.inputs[0]), flops=1
)
square = _unary("square", "Square x * x.", lambda node, dy: dy * node.inputs[0] * 2.0, flops=1)
sqrt = _unary("sqrt", "Square root.", lambda node, dy: dy * 0.5 / node.outputs[0], flops=4)
exp = _unary("exp", "Exponential function.", lambda node, dy: dy * node.outputs[0], flops=10)
expm1 = _unary("expm1", "exp(x) - 1, accurate near 0.", lambda node, dy: dy * (node.outputs[0] + 1.0), flops=10)
log = _unary("log", "Natural logarithm.", lambda node, dy: dy / node.inputs[0], flops=10)
log1p = _unary("log1p", "log(1 + x), accurate near 0.", lambda node, dy: dy / (node.inputs[0] + 1.0), flops=10)


@primitive(elementwise=True, flops=1)
def where(condition: Array, a: Array, b: Array, *, xp: Namespace) -> Array:
    """A where the condition holds, b elsewhere."""
    return xp.where(condition, a, b)


@where.shape
def _(condition: Spec, a: Spec, b: Spec) -> Spec:
    if condition.dtype != "bool":
        raise TypeError(f"where takes a bool condition. Received: {condition}. Compare first, e.g. with ops.greater.")
    return Spec(broadcast_shape("where", condition, a, b), same_dtype("where", a, b))


@where.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    condition, a, b = node.inputs
    return [None, sum_to_shape(where(condition, dy, 0), a.shape), sum_to_shape(where(condition, 0, dy), b.shape)]


@primitive(elementwise=True)
def cast(x: Array, *, dtype: str, xp: Namespace) -> Array:
    """Array x converted to another dtype, by its name."""
    return xp.astype(x, getattr(xp, dtype))


@cast.shape
def _(x: Spec, *, dtype: str) -> Spec:
    return Spec(x.shape, dtype)


@cast.gradient
def _(node: Node, dy: Value) -> Value | None:
    source = node.inputs[0].dtype
    return cast(dy, dtype=source) if "float" in source else None


def as_float(x: Value, dtype: Any) -> Value:
    """Value x in the given floating-point dtype, converted only if it has another."""
    return x if x.dtype == dtype else cast(x, dtype=dtype)
