"""Python for one element of each primitive's result, in terms of its inputs' elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minicnn.backends._gpu.expressions import row_major
from minicnn.ops.checks import normalize_axes, normalize_axis
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Value


class Operands(Protocol):
    """The inputs of a node, as the text that is being written names them."""

    def at(self, k: int, place: str) -> str:
        """Text for one element of input k."""

    def function(self, k: int) -> str:
        """Name of a function of (p, i) that gives the elements of input k."""

    def define(self, text: str) -> str:
        """Name of a new global, whose definition has {name} where the name goes."""


# Node, number of the result, inputs, index of the element -> text.
Rule = Callable[[Node, int, Operands, str], str]


def type_of(value: Value) -> str:
    """The type of a value's elements."""
    return f"np.{value.dtype}" if value.dtype != "bool" else "bool"


def literal(number: Any, kind: str) -> str:
    """A number of a type."""
    if kind == "bool":
        return str(bool(number))
    if kind not in ("np.float32", "np.float64"):
        return f"{kind}({int(number)})"
    number = float(number)
    if math.isfinite(number):
        return f"{kind}({number!r})"
    return f"{kind}({'-' if number < 0 else ''}np.{'nan' if math.isnan(number) else 'inf'})"


def affine(shape: Sequence[int], strides: Sequence[int], i: str, offset: int = 0) -> str:
    """The element that index i of an array of some shape stands for, given its step along each axis."""
    merged: list[tuple[int, int]] = []  # (length, stride), the outermost first
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if merged and merged[-1][1] == s * n:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    terms, inner = [], 1
    for k in range(len(merged) - 1, -1, -1):
        n, s = merged[k]
        if s:
            term = i if inner == 1 else f"{i} // {inner}"
            term = term if k == 0 else f"{term} % {n}"
            terms.append(f"{term} * {s}" if s != 1 else term)
        inner *= n
    if offset or not terms:
        terms.append(str(offset))
    text = " + ".join(terms)
    return text if text == i else f"index({text})"


def broadcast(shape: Sequence[int], source: Sequence[int], i: str) -> str:
    """Index into an array that is broadcast to a shape."""
    lead = len(shape) - len(source)
    strides = [0] * lead + [s if n > 1 else 0 for n, s in zip(source, row_major(source), strict=True)]
    return affine(shape, strides, i)


def expression(node: Node, result: int, operands: Operands, i: str) -> str:
    """Python for element i of one result of a node."""
    return RULES[node.op.name](node, result, operands, i)


# Elementwise ----------------------------------------------------------------------------------------------------


def _at(node: Node, k: int, operands: Operands, i: str) -> str:
    """Element of input k that is broadcast to element i."""
    return operands.at(k, broadcast(node.outputs[0].shape, node.inputs[k].shape, i))


def _call(template: str) -> Rule:
    """A rule from text with {0}, {1} ... for the elements, {t} for the name of the type and attributes by name."""

    def rule(node: Node, result: int, operands: Operands, i: str) -> str:
        kind = type_of(node.outputs[0])
        attrs = {k: literal(v, kind) for k, v in node.attrs.items() if isinstance(v, bool | int | float)}
        elements = [_at(node, k, operands, i) for k in range(len(node.inputs))]
        return template.format(*elements, T=kind, t=node.outputs[0].dtype, **attrs)

    return rule


_ELEMENTWISE = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "power": "pow_({0}, {1})", "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "negative": "-{0}",
    "abs": "absolute({0})", "sign": "signum({0})", "square": "{0} * {0}", "sqrt": "sqrt({0})",
    "exp": "exp({0})", "expm1": "expm1({0})", "log": "log({0})", "log1p": "log1p({0})",
    "greater": "{0} > {1}", "greater_equal": "{0} >= {1}", "less": "{0} < {1}", "less_equal": "{0} <= {1}",
    "equal": "{0} == {1}", "where": "({1} if {0} else {2})", "cast": "{0}", "relu": "relu_{t}({0})",
    "relu_gradient": "relu_gradient_{t}({0}, {1})", "relu6": "relu6_{t}({0})",
    "leaky_relu": "leaky_relu_{t}({0}, {negative_slope})", "elu": "elu_{t}({0}, {alpha})",
    "sigmoid": "sigmoid_{t}({0})", "tanh": "tanh({0})", "silu": "silu_{t}({0})", "erf": "erf_{t}({0})",
}  # fmt: skip


def _cast(node: Node, result: int, operands: Operands, i: str) -> str:
    x, y = node.inputs[0], node.outputs[0]
    element = operands.at(0, i)
    return f"{element} != 0" if y.dtype == "bool" and x.dtype != "bool" else element


def _gelu(node: Node, result: int, operands: Operands, i: str) -> str:
    name = "gelu_tanh" if node.attrs["approximate"] else "gelu"
    return f"{name}_{node.outputs[0].dtype}({operands.at(0, i)})"


def _decayed(node: Node, p: str, rate: str) -> str:
    kind, decay = type_of(node.outputs[0]), node.attrs["weight_decay"]
    return f"decayed_{node.outputs[0].dtype}({p}, {rate}, {literal(decay, kind)})" if decay else p


def _sgd(node: Node, result: int, operands: Operands, i: str) -> str:
    p, g, rate = (_at(node, k, operands, i) for k in range(3))
    return f"{_decayed(node, p, rate)} - {rate} * {g}"


def _momentum(node: Node, result: int, operands: Operands, i: str) -> str:
    p, v, g, rate = (_at(node, k, operands, i) for k in range(4))
    t = node.outputs[0].dtype
    momentum = literal(node.attrs["momentum"], f"np.{t}")
    velocity = f"momentum_velocity_{t}({v}, {g}, {rate}, {momentum})"
    if result:
        return velocity
    step = f"{momentum} * {velocity} - {rate} * {g}" if node.attrs["nesterov"] else velocity
    return f"{_decayed(node, p, rate)} + {step}"


def _adam(node: Node, result: int, operands: Operands, i: str) -> str:
    p, m, v, g, rate, step = (_at(node, k, operands, i) for k in range(6))
    t, attrs = node.outputs[0].dtype, node.attrs
    kind, betas = f"np.{t}", (attrs["beta_1"], attrs["beta_2"])
    m = f"moving_{t}({literal(betas[0], kind)}, {m}, {g})"
    v = f"moving_{t}({literal(betas[1], kind)}, {v}, {g} * {g})"
    c1, c2 = (f"correction_{t}({step}, {literal(math.log(b), kind)})" if b else literal(1, kind) for b in betas)
    p = f"adam_{t}({_decayed(node, p, rate)}, {m}, {v}, {rate}, {c1}, {c2}, {literal(attrs['epsilon'], kind)})"
    return (p, m, v)[result]


def _rmsprop(node: Node, result: int, operands: Operands, i: str) -> str:
    p, v, a, u, g, rate = (_at(node, k, operands, i) for k in range(6))
    t, attrs = node.outputs[0].dtype, node.attrs
    kind = f"np.{t}"
    rho = literal(attrs["rho"], kind)
    v = f"moving_{t}({rho}, {v}, {g} * {g})"
    a = f"moving_{t}({rho}, {a}, {g})" if attrs["centered"] else a
    spread = f"larger({v} - {a} * {a}, {literal(0, kind)})" if attrs["centered"] else v
    momentum, epsilon = (literal(attrs[name], kind) for name in ("momentum", "epsilon"))
    u = f"rmsprop_step_{t}({spread}, {u}, {g}, {rate}, {momentum}, {epsilon})"
    return (f"{_decayed(node, p, rate)} - {u}", v, a, u)[result]


# Moving elements ------------------------------------------------------------------------------------------------


def _permute(node: Node, result: int, operands: Operands, i: str) -> str:
    strides = row_major(node.inputs[0].shape)
    return operands.at(0, affine(node.outputs[0].shape, [strides[a] for a in node.attrs["axes"]], i))


def _slice(node: Node, result: int, operands: Operands, i: str) -> str:
    strides = row_major(node.inputs[0].shape)
    offset = sum(start * s for (start, _), s in zip(node.attrs["bounds"], strides, strict=True))
    return operands.at(0, affine(node.outputs[0].shape, strides, i, offset))


def _coordinate(shape: Sequence[int], axis: int, i: str) -> str:
    return f"({i} // {math.prod(shape[axis + 1 :])} % {shape[axis]})"


def _pad(node: Node, result: int, operands: Operands, i: str) -> str:
    x, y = node.inputs[0], node.outputs[0]
    conditions, terms = [], []
    for axis, ((before, _), s) in enumerate(zip(node.attrs["widths"], row_major(x.shape), strict=True)):
        place = _coordinate(y.shape, axis, i)
        if y.shape[axis] != x.shape[axis]:
            conditions.append(f"{place} >= {before} and {place} < {before + x.shape[axis]}")
        terms.append(f"({place} - {before}) * {s}")
    if not conditions:
        return operands.at(0, i)
    inside = " and ".join(conditions)
    inner = operands.at(0, f"index({' + '.join(terms)} if {inside} else 0)")
    return f"({inner} if {inside} else {literal(node.attrs['value'], type_of(y))})"


def _concat(node: Node, result: int, operands: Operands, i: str) -> str:
    y = node.outputs[0]
    axis = normalize_axis("concat", node.attrs["axis"], y.ndim)
    inner, n = math.prod(y.shape[axis + 1 :]), y.shape[axis]
    place, text, start = _coordinate(y.shape, axis, i), "", 0
    for k, value in enumerate(node.inputs):
        m = value.shape[axis]
        place_in = f"{i} // {inner * n} * {inner * m} + ({place} - {start}) * {inner} + {i} % {inner}"
        inside = f"{place} < {start + m}" + (f" and {place} >= {start}" if start else "")
        element = operands.at(k, f"index({place_in} if {inside} else 0)")
        start += m
        text += element if k == len(node.inputs) - 1 else f"{element} if {place} < {start} else "
    return f"({text})"


def _repeat(node: Node, result: int, operands: Operands, i: str) -> str:
    x, y, times = node.inputs[0], node.outputs[0], node.attrs["repeats"]
    axis = normalize_axis("repeat", node.attrs["axis"], x.ndim)
    inner = math.prod(x.shape[axis + 1 :])
    place = f"{_coordinate(y.shape, axis, i)} // {times}"
    outer = f"{i} // {inner * y.shape[axis]} * {x.shape[axis]}"
    return operands.at(0, f"index(({outer} + {place}) * {inner} + {i} % {inner})")


def _take(node: Node, result: int, operands: Operands, i: str) -> str:
    row = math.prod(node.outputs[0].shape[1:])
    return operands.at(0, f"index({operands.at(1, f'index({i} // {row})')} * {row} + {i} % {row})")


def _one_hot(node: Node, result: int, operands: Operands, i: str) -> str:
    k, kind = node.attrs["classes"], type_of(node.outputs[0])
    return f"({literal(1, kind)} if {operands.at(0, f'index({i} // {k})')} == {i} % {k} else {literal(0, kind)})"


def _random(node: Node, result: int, operands: Operands, i: str) -> str:
    seed, stream = node.attrs["seed"], node.attrs["stream"] & 0xFFFFFFFF
    keys = f"{seed & 0xFFFFFFFF}, {seed >> 32 & 0xFFFFFFFF}"
    return f"random_uniform_{node.outputs[0].dtype}({i}, {operands.at(0, 'index(0)')}, {stream}, {keys})"


# Reductions -----------------------------------------------------------------------------------------------------


def reduced_index(node: Node, o: str, r: str) -> tuple[int, str]:
    """Number of terms of a reduction, and the input's index of term r of result o."""
    x = node.inputs[0]
    axes = normalize_axes(node.op.name, node.attrs["axes"], x.ndim)
    strides = row_major(x.shape)
    kept = [a for a in range(x.ndim) if a not in axes]
    base = affine([x.shape[a] for a in kept], [strides[a] for a in kept], o)
    term = affine([x.shape[a] for a in axes], [strides[a] for a in axes], r)
    return math.prod(x.shape[a] for a in axes), f"index({base} + {term})"


_SUM = """@device
def {{name}}(p, i):
    total = {T}(0)
    for r in range({n}):
        total += {T}({term})
    return total
"""
_MAX = """@device
def {{name}}(p, i):
    best = {T}({first})
    for r in range(1, {n}):
        best = larger(best, {T}({term}))
    return best
"""


def _reduction(node: Node, result: int, operands: Operands, i: str) -> str:
    n, place = reduced_index(node, "i", "r")
    kind, x = type_of(node.outputs[0]), operands.function(0)
    first = f"{x}(p, {reduced_index(node, 'i', '0')[1]})"
    text = (_MAX if node.op.name == "max" else _SUM).format(T=kind, n=n, term=f"{x}(p, {place})", first=first)
    made = f"{operands.define(text)}(p, {i})"
    return f"{made} / {literal(n, kind)}" if node.op.name == "mean" else made


def _rows(x: Value, axis: int, operands: Operands, k: int, *, kept: bool) -> tuple[str, str]:
    """Name of the function row(p, i, r) of x along an axis, and text of i's place in its row."""
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    outer = f"i // {inner * n if kept else inner} * {inner * n}"
    place = f"index({outer} + r * {inner} + i % {inner})"
    row = operands.define(f"@device\ndef {{name}}(p, i, r):\n    return {operands.function(k)}(p, {place})\n")
    return row, f"// {inner} % {n}"


def _family(operands: Operands, maker: str, *arguments: Any) -> str:
    return operands.define(f"{{name}} = {maker}({', '.join(map(str, arguments))})\n")


def _softmax(node: Node, result: int, operands: Operands, i: str) -> str:
    x = node.inputs[0]
    axis = normalize_axis("softmax", node.attrs["axis"], x.ndim)
    row, place = _rows(x, axis, operands, 0, kept=True)
    element = _family(operands, node.op.name, type_of(x), x.shape[axis], row)
    return f"{element}(p, {i}, {i} {place})"


def _argmax(node: Node, result: int, operands: Operands, i: str) -> str:
    x = node.inputs[0]
    axis = normalize_axis("argmax", node.attrs["axis"], x.ndim)
    row, _ = _rows(x, axis, operands, 0, kept=False)
    return f"{_family(operands, 'argmax', type_of(x), x.shape[axis], row)}(p, {i})"


def _cross_entropy(node: Node, result: int, operands: Operands, i: str) -> str:
    x = node.inputs[0]
    row, _ = _rows(x, x.ndim - 1, operands, 0, kept=False)
    element = _family(operands, node.op.name, type_of(x), x.shape[-1], row)
    return f"{element}(p, {i}, {operands.at(1, i)})"


def _cross_entropy_gradient(node: Node, result: int, operands: Operands, i: str) -> str:
    x = node.inputs[1]
    k = x.shape[-1]
    row, _ = _rows(x, x.ndim - 1, operands, 1, kept=True)
    element = _family(operands, node.op.name, type_of(x), k, row)
    label, dy = (operands.at(j, f"index({i} // {k})") for j in (2, 0))
    return f"{element}(p, {i}, {i} % {k}, {label}, {dy})"


# Windows --------------------------------------------------------------------------------------------------------


def image(shape: Sequence[int], data_format: str) -> str:
    """Text of an image's geometry."""
    axes = Axes.of(data_format)
    return f'Image("{data_format}", {shape[axes.n]}, {shape[axes.h]}, {shape[axes.w]}, {shape[axes.c]})'


def window(node: Node) -> str:
    """Text of a window's geometry."""
    attrs = node.attrs
    kernel = attrs.get("kernel") or node.inputs[1].shape[:2]
    (top, _), (left, _) = attrs["padding"]
    numbers = (*kernel, *attrs["strides"], top, left, *attrs.get("dilation", (1, 1)))
    return f"Window({', '.join(map(str, numbers))})"


def image_pair(node: Node) -> tuple[str, str]:
    """Texts of the images x and y of a node with windows."""
    name = node.op.name
    if name.endswith(("weight_gradient", "weight_gradient_parts")):
        x, y = node.inputs[1].shape, node.inputs[0].shape
    elif name.endswith(("gradient", "scatter")):
        x, y = node.outputs[0].shape, node.inputs[0].shape
    else:
        x, y = node.inputs[0].shape, node.outputs[0].shape
    return image(x, node.attrs["data_format"]), image(y, node.attrs["data_format"])


def _window(node: Node, result: int, operands: Operands, i: str) -> str:
    kind = type_of(node.inputs[0])
    numbers = [node.attrs[a] for a in ("groups", "count_padding") if a in node.attrs]
    is_index = node.op.name == "max_pool2d_index"
    functions = [operands.function(k) for k in range(1 if is_index else len(node.inputs))]
    element = _family(operands, node.op.name, kind, *image_pair(node), window(node), *numbers, *functions)
    return f"{element}(p, {i}, {operands.at(1, i)})" if is_index else f"{element}(p, {i})"


def _matmul(node: Node, result: int, operands: Operands, i: str) -> str:
    (m, n), kind = node.outputs[0].shape, type_of(node.outputs[0])
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    at_a = f"index(r * {m} + i // {n})" if ta else f"index(i // {n} * {k} + r)"
    at_b = f"index(i % {n} * {k} + r)" if tb else f"index(r * {n} + i % {n})"
    term = f"{operands.function(0)}(p, {at_a}) * {operands.function(1)}(p, {at_b})"
    return f"{operands.define(_SUM.format(T=kind, n=k, term=term))}(p, {i})"


RULES: dict[str, Rule] = {name: _call(text) for name, text in _ELEMENTWISE.items()} | {
    "cast": _cast, "gelu": _gelu, "sgd_update": _sgd, "momentum_update": _momentum, "adam_update": _adam,
    "rmsprop_update": _rmsprop, "reshape": lambda node, result, operands, i: operands.at(0, i),
    "broadcast_to": lambda node, result, operands, i: _at(node, 0, operands, i),
    "permute": _permute, "slice_": _slice, "pad": _pad, "concat": _concat, "repeat": _repeat, "take": _take,
    "one_hot": _one_hot, "random_uniform": _random, "sum": _reduction, "mean": _reduction, "max": _reduction,
    "softmax": _softmax, "log_softmax": _softmax, "argmax": _argmax, "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy_gradient, "matmul": _matmul, "conv2d": _window,
    "conv2d_input_gradient": _window, "conv2d_weight_gradient": _window, "depthwise_conv2d": _window,
    "depthwise_conv2d_input_gradient": _window, "depthwise_conv2d_weight_gradient": _window, "max_pool2d": _window,
    "max_pool2d_gradient": _window, "max_pool2d_index": _window, "max_pool2d_scatter": _window,
    "average_pool2d": _window, "average_pool2d_gradient": _window,
}  # fmt: skip
