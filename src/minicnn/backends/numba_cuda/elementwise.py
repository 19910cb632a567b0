"""Elementwise functions: a kernel for each operation, data types and way the operands lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, Shape, empty
from minicnn.backends.numba_cuda.device import THREADS, Device, kernel
from minicnn.backends.numba_cuda.dtypes import DType
from minicnn.kernels.strides import collapse, row_major

Number = bool | int | float

# Templates of one element: {0}, {1} for the operands, converted to the type {T} they promote to.
# Kinds of operands: b bool, i integer, f float; a result that is not of type T is named.
_ARITHMETIC = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "floor_divide": "{0} // {1}",
    "remainder": "{0} % {1}", "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "pow": "{0} ** {1}",
    "negative": "-{0}", "positive": "{0}", "abs": "absolute({0})", "square": "{0} * {0}", "sign": "signum({0})",
    "conj": "{0}", "real": "{0}",  # of real numbers
}  # fmt: skip
_ROUNDING = {name: f"{name}_{{t}}({{0}})" for name in ("ceil", "floor", "trunc")}
_FLOAT = {
    name: f"{name}({{0}})"
    for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p",
        "log2", "sin", "sinh", "sqrt", "tan", "tanh",
    )
}  # fmt: skip
_FLOAT |= {
    "divide": "{0} / {1}", "atan2": "atan2({0}, {1})", "copysign": "copysign({0}, {1})",
    "hypot": "hypot({0}, {1})", "logaddexp": "log_of_sum({0}, {1})", "reciprocal": "{T}(1) / {0}",
}  # fmt: skip
_BITS = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "bitwise_left_shift": "{0} << {1}", "bitwise_right_shift": "{0} >> {1}", "bitwise_invert": "~{0}",
}  # fmt: skip
_TESTS = {
    "equal": "{0} == {1}", "not_equal": "{0} != {1}", "less": "{0} < {1}", "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}", "greater_equal": "{0} >= {1}",
}  # fmt: skip
_LOGIC = {
    "logical_and": "{0} and {1}",
    "logical_or": "{0} or {1}",
    "logical_xor": "{0} != {1}",
    "logical_not": "not {0}",
}
_NATURE = {
    "isfinite": "{0} - {0} == {T}(0)", "isinf": "{0} == {0} and {0} - {0} != {T}(0)", "isnan": "{0} != {0}",
    "signbit": "copysign({T}(1), {0}) < {T}(0)",
}  # fmt: skip

# Name -> template, kinds of operands, whether the result is bool.
OPERATIONS: dict[str, tuple[str, str, bool]] = {
    **{name: (text, "if", False) for name, text in _ARITHMETIC.items()},
    **{name: (text, "if", False) for name, text in _ROUNDING.items()},
    **{name: (text, "f", False) for name, text in _FLOAT.items()},
    **{name: (text, "bi", False) for name, text in _BITS.items()},
    **{name: (text, "bif", True) for name, text in _TESTS.items()},
    **{name: (text, "b", True) for name, text in _LOGIC.items()},
    **{name: (text, "f" if name == "signbit" else "if", True) for name, text in _NATURE.items()},
    "round": ("rint_{t}({0})", "if", False),
    "nextafter": ("nextafter_{t}({0}, {1})", "f", False),
}
_SPECIAL = {
    ("b", "bitwise_invert"): "not {0}", ("u", "abs"): "{0}", ("u", "sign"): "1 if {0} != 0 else 0",
    ("f", "floor_divide"): "floor_{t}({0} / {1})", ("f", "remainder"): "remainder({0}, {1})",
    ("f", "pow"): "pow_({0}, {1})", ("i", "pow"): "whole_power({0}, {1})", ("u", "pow"): "whole_power({0}, {1})",
}  # fmt: skip


def _function(name: str) -> Callable[..., Array]:
    template, kinds, is_test = OPERATIONS[name]

    def evaluate(*operands: Any) -> Array:
        kind = dtypes.result_type(*operands)
        # Signed and unsigned integers have the same operations.
        family = "i" if kind.kind in "iu" else kind.kind
        if family not in kinds:
            allowed = " or ".join({"b": "bool", "i": "integers", "f": "floats"}[k] for k in kinds)
            raise TypeError(f"{name} is for {allowed}. Received: {kind}. Convert with astype.")
        text = template
        # Whole numbers are rounded already, and always finite.
        if family == "i" and (name in _ROUNDING or name in ("round", "isfinite", "isinf", "isnan")):
            text = {"isfinite": "True", "isinf": "False", "isnan": "False"}.get(name, "{0}")
        text = _SPECIAL.get((kind.kind, name), text)
        return apply(text, operands, kind, np.dtype("bool") if is_test else kind)

    def unary(x: Array, /) -> Array:
        return evaluate(x)

    def binary(x1: Any, x2: Any, /) -> Array:
        return evaluate(x1, x2)

    function: Callable[..., Array] = binary if "{1}" in template else unary
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of the Array API standard, element by element."
    return function


def apply(template: str, operands: Sequence[Any], kind: DType, result: DType) -> Array:
    """A new array of elements by a template, from arrays of any types and Python numbers.

    Args:
        template: Text with {0}, {1} ... for the operands' elements and {T} for the type in which they are computed.
        operands: Arrays that broadcast together, and numbers.
        kind: That type.
        result: Type of the result.
    """
    arrays = [o for o in operands if isinstance(o, Array)]
    numbers = [o for o in operands if not isinstance(o, Array)]
    letters = ["x" if isinstance(o, Array) else "a" for o in operands]
    convert = "bool" if kind.kind == "b" else f"np.{kind.name}"
    # Operands are converted before they meet, as the standard says: int8 + int32 is computed in int32.
    parts = [f"{convert}({one}{letters[:k].count(one)})" for k, one in enumerate(letters)]
    array = empty(np.broadcast_shapes(*(a.shape for a in arrays)), result, same_device(arrays))
    compute(template.format(*parts, T=f"np.{kind.name}", t=kind.name), array, arrays, numbers)
    return array


def same_device(arrays: Sequence[Array]) -> Device:
    """The device of all arrays.

    Raises:
        ValueError: If there are several.
    """
    device = arrays[0].device
    for other in arrays[1:]:
        if other.device is not device:
            raise ValueError(
                f"Arrays that are combined are on one device. Received: {device} and {other.device}. Use to_device."
            )
    return device


def compute(
    text: str, target: Array, arrays: Sequence[Array], numbers: Sequence[Number] = (), whole: Sequence[Array] = ()
) -> None:
    """Write elements into an array.

    Args:
        text: Python for one element in terms of x0, x1 ... (elements of the arrays), a0, a1 ... (the numbers), w0[..],
            w1[..] ... (elements of whole arrays, by number) and i, the element's number in row-major order.
        target: Where the result goes; any strides.
        arrays: Arrays that broadcast to its shape.
        numbers: Numbers.
        whole: Contiguous arrays.
    """
    if not target.size:
        return
    operands = [target, *arrays]
    # Axes that lie one after the other in all arrays become one: fewer divisions for each element.
    shape, steps = collapse(target.shape, [broadcast_steps(a, target.shape) for a in operands])
    axes = range(len(shape))
    parameters: list[tuple[str, str, Any]] = [("n", "int64", target.size)]  # name, type and value of each argument
    parameters += [(f"m{k}", "int64", shape[k]) for k in axes[1:]]
    places = []
    for j, (array, step) in enumerate(zip(operands, steps, strict=True)):
        # Contiguous operands need no place computed at all, which is the usual case.
        place = "i" if any(step) else "0"
        if any(step) and step != row_major(shape):
            place = " + ".join([f"o{j}", *(f"k{k} * s{j}{k}" for k in axes)])
            # Pointers are to the element that comes first in memory.
            parameters.append((f"o{j}", "int64", -sum((n - 1) * s for n, s in zip(shape, step, strict=True) if s < 0)))
            parameters += [(f"s{j}{k}", "int64", step[k]) for k in axes]
        places.append(place)
        parameters.append((f"p{j}", f"{array.dtype.name}*", array.pointer))
    parameters += [(f"w{j}", f"{array.dtype.name}*", array.pointer) for j, array in enumerate(whole)]
    parameters += [(f"a{j}", "float64" if isinstance(v, float) else "int64", v) for j, v in enumerate(numbers)]
    names, signature, arguments = zip(*parameters, strict=True)
    lines = [f"def kernel({', '.join(names)}):", "    for i in range(cuda.grid(1), n, cuda.gridsize(1)):"]
    if any("k0" in place for place in places):
        lines.append("        r0 = i")
        for k in axes[:0:-1]:
            lines.append(f"        k{k} = r{len(shape) - 1 - k} % m{k}")
            lines.append(f"        r{len(shape) - k} = r{len(shape) - 1 - k} // m{k}")
        lines.append(f"        k0 = r{len(shape) - 1}")
    for j, array in enumerate(arrays):
        lines.append(f"        x{j} = p{j + 1}[{places[j + 1]}]{' != 0' if array.dtype.kind == 'b' else ''}")
    value = f"1 if {text} else 0" if target.dtype.kind == "b" else f"np.{target.dtype.name}({text})"
    lines.append(f"        p0[{places[0]}] = {value}")
    blocks = max(1, min(target.device.most_blocks, -(-target.size // THREADS)))
    target.device.launch(kernel("\n".join(lines) + "\n", signature), blocks, THREADS, arguments)


def broadcast_steps(x: Array, shape: Shape) -> Shape:
    """The steps with which an array is read in a shape that it broadcasts to."""
    kept = (0 if n == 1 else s for n, s in zip(x.shape, x.steps, strict=True))
    return (*[0] * (len(shape) - x.ndim), *kept)


def contiguous(x: Array, *, copy: bool = False) -> Array:
    """Array x itself if its elements lie in row-major order, else a copy; always a copy if asked for."""
    if x.contiguous and not copy:
        return x.view(x.shape, row_major(x.shape))
    copied = empty(x.shape, x.dtype, x.device)
    _copy(copied, x)
    return copied


def _copy(box: Array, value: Array) -> None:
    """Write an array into another whose memory it does not share."""
    # The driver copies faster than a kernel.
    if box.contiguous and value.contiguous and (box.shape, box.dtype) == (value.shape, value.dtype):
        box.memory.copy(box.start * box.itemsize, value.memory, value.start * value.itemsize, value.nbytes)
    else:
        compute("x0", box, (value,))


def assign(box: Array, value: Any) -> None:
    """Write an array or number into a view."""
    if isinstance(value, Array):
        if not dtypes.can_cast(value.dtype, box.dtype):
            raise TypeError(f"Elements keep their type. Received: {value.dtype} for {box.dtype}. Convert with astype.")
        if np.broadcast_shapes(box.shape, value.shape) != box.shape:
            raise ValueError(f"A value broadcasts to what it is assigned to. Received: {value.shape} for {box.shape}.")
        # They may overlap, as in x[1:] = x[:-1].
        source = contiguous(value, copy=True) if value.memory is box.memory else value
        _copy(box, source)
    else:
        dtypes.result_type(box.dtype, value)
        compute("a0", box, (), (value,))


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """The array in another type; floats lose their fraction, and anything but 0 is True."""
    kind = dtypes.dtype(dtype)
    moved = x if device is None else x.to_device(device)
    if kind == x.dtype:
        return contiguous(moved, copy=True) if copy else moved
    converted = empty(x.shape, kind, moved.device)
    compute("x0 != 0" if kind.kind == "b" and x.dtype.kind != "b" else "x0", converted, (moved,))
    return converted


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition holds, x2 elsewhere."""
    kind = dtypes.result_type(x1, x2)
    if not isinstance(condition, Array) or condition.dtype.kind != "b":
        raise TypeError("where takes a bool array first. Compare, or convert it with astype.")
    return apply("({1} if x0 else {2})", (condition, x1, x2), kind, kind)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002
    """Array x, no smaller than min and no larger than max."""
    clipped = x if min is None else FUNCTIONS["maximum"](x, min)
    clipped = clipped if max is None else FUNCTIONS["minimum"](clipped, max)
    return contiguous(clipped, copy=True) if clipped is x else astype(clipped, x.dtype, copy=False)


FUNCTIONS: dict[str, Callable[..., Array]] = {name: _function(name) for name in OPERATIONS}


__all__ = ["astype", "clip", "where"]  # and FUNCTIONS
