"""Activation functions."""

from __future__ import annotations

import math

from minicnn.ops.arrays import full, masked
from minicnn.ops.checks import normalize_axis, require_float, same_dtype
from minicnn.ops.elementwise import exp, greater, less, maximum, minimum, square, where
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.ops.reduction import sum
from minicnn.program.graph import Node, Spec, Value

# Chebyshev coefficients of log(erfc(z) exp(z * z) / t) in 2 t - 1, t = 2 / (2 + z), computed for this
# file with mpmath at 60 digits; the form of the argument is W. J. Cody's family of maps of [0, inf) to (0, 1].
_ERFC = (
    -0.651326859890854717, 0.64196979235649026, 0.0194764732041858363, -0.00956151478680863164,
    -0.000946595344482036866, 0.000366839497852761452, 0.0000425233248069077716, -0.0000202785781125342432,
    -1.62429000464702551e-6, 1.3036558355805232e-6, 1.56264417220661432e-8, -8.52380959149265425e-8,
    6.5290544390988515e-9, 5.05934349555146894e-9, -9.91364156493033087e-10, -2.27365122293183586e-10,
    9.6467911020155268e-11, 2.39403808303911474e-12, -6.8860275264975534e-12, 8.94487927309072572e-13,
    3.13092139934295808e-13, -1.12708223613672524e-13, 3.81090525518923206e-16, 7.10609761360923699e-15,
    -1.5230282014571043e-15, -9.457494571291234e-17, 1.21023718922427899e-16, -2.81666308774717697e-17,
)  # fmt: skip
_ERFC_TERMS_32 = 13  # the rest is below half a unit in the last place of float32
FAR = 1000.0  # where x < -FAR, what x is multiplied by is 0, in float64 too: FAR stands for infinity in products


def _same_as_input(op: Primitive) -> None:
    @op.shape
    def shape(x: Spec, **_: object) -> Spec:
        return require_float(op.name, x)


@primitive(elementwise=True, flops=1)
def relu(x: Array, *, xp: Namespace) -> Array:
    """Rectified linear unit: y = max(x, 0)."""
    return xp.maximum(x, xp.zeros_like(x))


@relu.gradient
def _(node: Node, dy: Value) -> Value:
    return relu_gradient(dy, node.outputs[0])


@primitive(elementwise=True, flops=1)
def relu_gradient(dy: Array, y: Array, *, xp: Namespace) -> Array:
    """Gradient of relu from its result: finite dy where y > 0, else 0 (also at x = 0)."""
    # From the result rather than the input: the input need not be kept for the backward pass.
    return masked(dy, y > 0, xp)


@relu_gradient.shape
def _(dy: Spec, y: Spec) -> Spec:
    same_dtype("relu_gradient", dy, y)
    if dy.shape != y.shape:
        raise ValueError(f"relu_gradient takes dy and y of one shape. Received: {dy} and {y}.")
    return dy


@relu_gradient.gradient
def _(node: Node, d: Value) -> list[Value | None]:
    return [relu_gradient(d, node.inputs[1]), None]


@primitive(elementwise=True, flops=2)
def relu6(x: Array, *, xp: Namespace) -> Array:
    """Clipped rectified linear unit: y = min(max(x, 0), 6)."""
    zero = xp.zeros_like(x)
    return xp.minimum(xp.maximum(x, zero), zero + 6)


@relu6.gradient
def _(node: Node, dy: Value) -> Value:
    y = node.outputs[0]
    return relu_gradient(where(less(y, 6.0), dy, 0.0), y)


@primitive(elementwise=True, flops=2)
def leaky_relu(x: Array, *, negative_slope: float = 0.3, xp: Namespace) -> Array:
    """Leaky rectifier: y = x where x > 0, negative_slope * x elsewhere."""
    return xp.where(x > 0, x, x * negative_slope)


@leaky_relu.gradient
def _(node: Node, dy: Value) -> Value:
    return where(greater(node.inputs[0], 0.0), dy, dy * node.attrs["negative_slope"])


@primitive(elementwise=True, flops=12)
def elu(x: Array, *, alpha: float = 1.0, xp: Namespace) -> Array:
    """Exponential linear unit: x where x > 0, alpha * (exp(x) - 1) elsewhere (arXiv:1511.07289)."""
    return xp.where(x > 0, x, xp.expm1(xp.minimum(x, xp.zeros_like(x))) * alpha)


@elu.gradient
def _(node: Node, dy: Value) -> Value:
    alpha = node.attrs["alpha"]
    return where(greater(node.inputs[0], 0.0), dy, dy * (node.outputs[0] + alpha))


@primitive(elementwise=True, flops=12)
def sigmoid(x: Array, *, xp: Namespace) -> Array:
    """Logistic function 1 / (1 + exp(-x)), without overflow for any x."""
    # exp of a negative number alone, which cannot overflow.
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, xp.ones_like(x), small) / (small + 1.0)


@sigmoid.gradient
def _(node: Node, dy: Value) -> Value:
    y = node.outputs[0]
    return dy * (y * (1.0 - y))


@primitive(elementwise=True, flops=12)
def tanh(x: Array, *, xp: Namespace) -> Array:
    """Hyperbolic tangent."""
    return xp.tanh(x)


@tanh.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * (1.0 - square(node.outputs[0]))


@primitive(elementwise=True, flops=13)
def silu(x: Array, *, xp: Namespace) -> Array:
    """Sigmoid linear unit x * sigmoid(x), also called swish (arXiv:1606.08415, arXiv:1710.05941)."""
    return xp.maximum(x, full((), -FAR, x, xp)) * sigmoid.reference(x, xp=xp)


@silu.gradient
def _(node: Node, dy: Value) -> Value:
    s = sigmoid(node.inputs[0])
    return dy * (s + node.outputs[0] * (1.0 - s))


@primitive(elementwise=True, flops=13)
def softplus(x: Array, *, xp: Namespace) -> Array:
    """log(1 + exp(x)), which neither overflows nor cancels for any x."""
    return xp.maximum(x, full((), 0.0, x, xp)) + xp.log1p(xp.exp(-xp.abs(x)))


@softplus.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * sigmoid(node.inputs[0])


@primitive(elementwise=True, flops=60)
def erf(x: Array, *, xp: Namespace) -> Array:
    """Error function sign(x) (1 - erfc(|x|)), to within 3 units in the last place of 1."""
    return xp.sign(x) * (1.0 - erfc.reference(xp.abs(x), xp=xp))


@erf.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * exp(-square(node.inputs[0])) * (2.0 / math.sqrt(math.pi))


@primitive(elementwise=True, flops=60)
def erfc(x: Array, *, xp: Namespace) -> Array:
    """Complementary error function 1 - erf(x), for x > 0 to within some units in its own last place.

    The Array API has none. erfc(z) = t exp(-z * z + P(2 t - 1)) for z >= 0, t = 2 / (2 + z), and P a Chebyshev series
    summed by Clenshaw's recurrence; erfc(-z) = 2 - erfc(z). A relative error of x becomes one that is 2 x^2 times as
    large.
    """
    z = xp.minimum(xp.abs(x), full((), 28.0, x, xp))  # erfc(28) is below the least number of float64
    t = 2.0 / (z + 2.0)
    u = 2.0 * t - 1.0
    terms = _ERFC if x.dtype == xp.float64 else _ERFC[:_ERFC_TERMS_32]
    b1, b2 = xp.zeros_like(x), xp.zeros_like(x)
    # Clenshaw's recurrence.
    for c in terms[:0:-1]:
        b1, b2 = 2.0 * u * b1 - b2 + c, b1
    y = t * xp.exp(u * b1 - b2 + terms[0] - z * z)
    return xp.where(x < 0, 2.0 - y, y)


@erfc.gradient
def _(node: Node, dy: Value) -> Value:
    return dy * exp(-square(node.inputs[0])) * (-2.0 / math.sqrt(math.pi))


@primitive(elementwise=True, flops=64)
def gelu(x: Array, *, approximate: bool = False, xp: Namespace) -> Array:
    """Gaussian error linear unit x * Phi(x) (arXiv:1606.08415).

    Args:
        x: Any shape.
        approximate: Use 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) instead of the error function.
    """
    if approximate:  # (1 + tanh(z)) / 2 = sigmoid(2 z), which does not cancel
        least = xp.maximum(x, full((), -FAR, x, xp))
        near = xp.minimum(least, full((), FAR, x, xp))
        inner = (near + 0.044715 * (near * near * near)) * (2 * math.sqrt(2 / math.pi))
        return least * sigmoid.reference(inner, xp=xp)
    # max(x, 0) - |x| Phi(-|x|): what is left of x below 0 is not the difference of two numbers near 1.
    size = xp.minimum(xp.abs(x), full((), FAR, x, xp))
    return xp.maximum(x, full((), 0.0, x, xp)) - size * (0.5 * erfc.reference(size * math.sqrt(0.5), xp=xp))


@gelu.gradient
def _(node: Node, dy: Value) -> Value:
    x = maximum(minimum(node.inputs[0], FAR), -FAR)  # the slope is 0 or 1 beyond
    if node.attrs["approximate"]:
        k = 2 * math.sqrt(2 / math.pi)
        inner = (x + square(x) * x * 0.044715) * k
        slope = (square(x) * (3 * 0.044715) + 1.0) * k
        s = sigmoid(inner)
        return dy * (s + x * (s * sigmoid(-inner)) * slope)
    pdf = exp(square(x) * -0.5) * (1 / math.sqrt(2 * math.pi))
    return dy * (erfc(x * -math.sqrt(0.5)) * 0.5 + x * pdf)


for _op in (relu, relu6, leaky_relu, elu, sigmoid, tanh, silu, softplus, erf, erfc, gelu):
    _same_as_input(_op)


@primitive(flops=14)
def softmax(x: Array, *, axis: int = -1, xp: Namespace) -> Array:
    """exp(x) / sum(exp(x)) along one axis, shifted by the maximum so that nothing overflows."""
    # Less the maximum, which changes no share and keeps exp from overflowing.
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return e / xp.sum(e, axis=axis, keepdims=True)


@softmax.gradient
def _(node: Node, dy: Value) -> Value:
    y = node.outputs[0]
    return y * (dy - sum(dy * y, axes=node.attrs["axis"], keepdims=True))


@primitive(flops=14)
def log_softmax(x: Array, *, axis: int = -1, xp: Namespace) -> Array:
    """Logarithm of softmax along one axis, without forming softmax."""
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


@log_softmax.gradient
def _(node: Node, dy: Value) -> Value:
    return dy - exp(node.outputs[0]) * sum(dy, axes=node.attrs["axis"], keepdims=True)


def _along_axis(op: Primitive) -> None:
    @op.shape
    def shape(x: Spec, *, axis: int) -> Spec:
        normalize_axis(op.name, axis, x.ndim)
        return require_float(op.name, x)


_along_axis(softmax)
_along_axis(log_softmax)
