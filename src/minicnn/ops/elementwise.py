"""Elementwise arithmetic, comparison and choice, with NumPy's broadcasting."""

from __future__ import annotations

from typing import Any

from minicnn.ops.checks import broadcast_shape, require_float, same_dtype
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.ops.reduction import sum_to_shape
from minicnn.program.graph import Node, Spec, Value


def _binary(op: Primitive) -> None:
    @op.shape
    def shape(a: Spec, b: Spec) -> Spec:
        return Spec(broadcast_shape(op.name, a, b), same_dtype(op.name, a, b))


def _unary(op: Primitive) -> None:
    @op.shape
    def shape(x: Spec) -> Spec:
        return require_float(op.name, x)


def _comparison(op: Primitive) -> None:
    @op.shape
    def shape(a: Spec, b: Spec) -> Spec:
        same_dtype(op.name, a, b)
        return Spec(broadcast_shape(op.name, a, b), "bool")


@primitive(elementwise=True, flops=1)
def add(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Sum a + b."""
    return xp.add(a, b)


@add.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy, a.shape), sum_to_shape(dy, b.shape)]


@primitive(elementwise=True, flops=1)
def subtract(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Difference a - b."""
    return xp.subtract(a, b)


@subtract.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy, a.shape), sum_to_shape(-dy, b.shape)]


@primitive(elementwise=True, flops=1)
def multiply(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Product a * b."""
    return xp.multiply(a, b)


@multiply.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    return [sum_to_shape(dy * b, a.shape), sum_to_shape(dy * a, b.shape)]


@primitive(elementwise=True, flops=1)
def divide(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Quotient a / b."""
    return xp.divide(a, b)


@divide.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    da = dy / b
    return [sum_to_shape(da, a.shape), sum_to_shape(-(da * node.outputs[0]), b.shape)]


@primitive(elementwise=True, flops=10)
def power(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Power a ** b, for a > 0 where b is not an integer."""
    return xp.pow(a, b)


@power.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    a, b = node.inputs
    y = node.outputs[0]
    da = sum_to_shape(dy * b * power(a, b - 1), a.shape)
    return [da, None if b.kind == "constant" else sum_to_shape(dy * y * log(a), b.shape)]


@primitive(elementwise=True, flops=1)
def maximum(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Larger of a and b; where they are equal the gradient goes to a."""
    return xp.maximum(a, b)


@maximum.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    first = greater_equal(a, b)
    return [sum_to_shape(where(first, dy, 0), a.shape), sum_to_shape(where(first, 0, dy), b.shape)]


@primitive(elementwise=True, flops=1)
def minimum(a: Array, b: Array, *, xp: Namespace) -> Array:
    """Smaller of a and b; where they are equal the gradient goes to a."""
    return xp.minimum(a, b)


@minimum.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    first = less_equal(a, b)
    return [sum_to_shape(where(first, dy, 0), a.shape), sum_to_shape(where(first, 0, dy), b.shape)]


for _op in (add, subtract, multiply, divide, power, maximum, minimum):
    _binary(_op)


@primitive(elementwise=True, flops=1)
def negative(x: Array, *, xp: Namespace) -> Array:
    """Negation -x."""
    return xp.negative(x)


@negative.gradient
def _(node: Node, dy: Value) -> Value:
    return -dy


@primitive(elementwise=True, flops=1)
def abs(x: Array, *, xp: Namespace) -> Array:  # noqa: A001 - the Array API's name
    """Absolute value; the gradient at 0 is 0."""
    return xp.abs(x)


@abs.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * sign(node.inputs[0])


@primitive(elementwise=True, flops=1)
def sign(x: Array, *, xp: Namespace) -> Array:
    """-1, 0 or 1; its derivative is taken as 0."""
    return xp.sign(x)


@sign.gradient
def _(node: Node, dy: Value) -> None:
    return None


@primitive(elementwise=True, flops=1)
def square(x: Array, *, xp: Namespace) -> Array:
    """Square x * x."""
    return xp.square(x)


@square.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * node.inputs[0] * 2.0


@primitive(elementwise=True, flops=4)
def sqrt(x: Array, *, xp: Namespace) -> Array:
    """Square root."""
    return xp.sqrt(x)


@sqrt.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * 0.5 / node.outputs[0]


@primitive(elementwise=True, flops=10)
def exp(x: Array, *, xp: Namespace) -> Array:
    """Exponential function."""
    return xp.exp(x)


@exp.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * node.outputs[0]


@primitive(elementwise=True, flops=10)
def expm1(x: Array, *, xp: Namespace) -> Array:
    """exp(x) - 1, accurate near 0."""
    return xp.expm1(x)


@expm1.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * (node.outputs[0] + 1.0)


@primitive(elementwise=True, flops=10)
def log(x: Array, *, xp: Namespace) -> Array:
    """Natural logarithm."""
    return xp.log(x)


@log.gradient
def _(node: Node, dy: Value) -> Value:
    return dy / node.inputs[0]


@primitive(elementwise=True, flops=10)
def log1p(x: Array, *, xp: Namespace) -> Array:
    """log(1 + x), accurate near 0."""
    return xp.log1p(x)


@log1p.gradient
def _(node: Node, dy: Value) -> Value:
    return dy / (node.inputs[0] + 1.0)


for _op in (negative, abs, sign, square, sqrt, exp, expm1, log, log1p):
    _unary(_op)


@primitive(elementwise=True, flops=1)
def greater(a: Array, b: Array, *, xp: Namespace) -> Array:
    """A > b as bool."""
    return xp.greater(a, b)


@primitive(elementwise=True, flops=1)
def greater_equal(a: Array, b: Array, *, xp: Namespace) -> Array:
    """A >= b as bool."""
    return xp.greater_equal(a, b)


@primitive(elementwise=True, flops=1)
def less(a: Array, b: Array, *, xp: Namespace) -> Array:
    """A < b as bool."""
    return xp.less(a, b)


@primitive(elementwise=True, flops=1)
def less_equal(a: Array, b: Array, *, xp: Namespace) -> Array:
    """A <= b as bool."""
    return xp.less_equal(a, b)


@primitive(elementwise=True, flops=1)
def equal(a: Array, b: Array, *, xp: Namespace) -> Array:
    """A == b as bool."""
    return xp.equal(a, b)


for _op in (greater, greater_equal, less, less_equal, equal):
    _comparison(_op)


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
    return [
        None,
        sum_to_shape(where(condition, dy, 0), a.shape),
        sum_to_shape(where(condition, 0, dy), b.shape),
    ]


@primitive(elementwise=True)
def cast(x: Array, *, dtype: str, xp: Namespace) -> Array:
    """X converted to another dtype, by its name."""
    return xp.astype(x, getattr(xp, dtype))


@cast.shape
def _(x: Spec, *, dtype: str) -> Spec:
    return Spec(x.shape, dtype)


@cast.gradient
def _(node: Node, dy: Value) -> Value | None:
    source = node.inputs[0].dtype
    return cast(dy, dtype=source) if "float" in source else None


def as_float(x: Value, dtype: Any) -> Value:
    """X in the given floating-point dtype, converted only if it has another."""
    return x if x.dtype == dtype else cast(x, dtype=dtype)
