"""C++ for one element of each primitive's result, in terms of function objects that give its inputs' elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minicnn.ops.checks import normalize_axes, normalize_axis
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Value

# Number of the result, names of the inputs' function objects, index of the element: all as C++.
Rule = Callable[[Node, int, Sequence[str], str], str]

C_TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "uint8": "uint8", "bool": "bool", "uint32": "uint32",
    "int64": "int64", "uint64": "uint64", "int8": "int8", "int16": "int16", "uint16": "uint16",
}  # fmt: skip

MOST_ELEMENTS = 2**31 - 1  # indices are 32 bits wide


def c_type(value: Value) -> str:
    """The C++ type of a value's elements."""
    return C_TYPES[value.dtype]


def literal(number: Any, kind: str) -> str:
    """A number as C++ of a type."""
    if kind == "bool":
        return "true" if number else "false"
    if kind not in ("float", "double"):
        return f"{kind}({int(number)})"
    number = float(number)
    if math.isnan(number):
        return f"({kind}(0) * Limits<{kind}>::infinity())"
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}Limits<{kind}>::infinity())"
    return f"{kind}({number!r})"


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
            term = i if inner == 1 else f"{i} / {inner}u"
            term = term if k == 0 else f"({term}) % {n}u"
            terms.append(f"({term}) * {s}u" if s != 1 else f"({term})")
        inner *= n
    if offset or not terms:
        terms.append(f"{offset}u")
    return " + ".join(terms)


def row_major(shape: Sequence[int]) -> list[int]:
    """Steps along each axis of a contiguous array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return strides[::-1]


def broadcast(shape: Sequence[int], source: Sequence[int], i: str) -> str:
    """Index into an array that is broadcast to a shape."""
    lead = len(shape) - len(source)
    strides = [0] * lead + [s if n > 1 else 0 for n, s in zip(source, row_major(source), strict=True)]
    return affine(shape, strides, i)


def unsupported(node: Node) -> str | None:
    """Why there is no C++ for a node, if so."""
    if node.op.name not in RULES:
        return f"there is no kernel for {node.op.name} yet"
    for value in (*node.inputs, *node.outputs):
        if value.dtype not in C_TYPES:
            return f"kernels have no {value.dtype} yet"
        if value.size > MOST_ELEMENTS:
            return "arrays of kernels have at most 2^31 - 1 elements"
    if any(value.size == 0 for value in (*node.inputs, *node.outputs)):
        return "kernels take no empty arrays"
    return None


def expression(node: Node, result: int, names: Sequence[str], i: str) -> str:
    """C++ for element i of one result of a node."""
    return RULES[node.op.name](node, result, names, i)


def same_index(node: Node, value: Value) -> bool:
    """Whether element i of each result needs element i of an input, and no other."""
    return (node.op.elementwise and value.shape == node.outputs[0].shape) or node.op.name == "reshape"


# Elementwise ------------------------------------------------------------------------------------------------


def _at(node: Node, k: int, names: Sequence[str], i: str) -> str:
    """Element of input k that is broadcast to element i."""
    return f"{names[k]}({broadcast(node.outputs[0].shape, node.inputs[k].shape, i)})"


def _call(template: str) -> Rule:
    """A rule from text with {0}, {1} ... for the elements, {T} for the result's type and attributes by name."""

    def rule(node: Node, result: int, names: Sequence[str], i: str) -> str:
        kind = c_type(node.outputs[0])
        attrs = {k: literal(v, kind) for k, v in node.attrs.items() if isinstance(v, bool | int | float)}
        return template.format(*(_at(node, k, names, i) for k in range(len(names))), T=kind, **attrs)

    return rule


_ELEMENTWISE = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "power": "power({0}, {1})", "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})", "negative": "-{0}",
    "abs": "absolute({0})", "sign": "sign({0})", "square": "square({0})", "sqrt": "root({0})",
    "exp": "exponential({0})", "expm1": "exponential_m1({0})", "log": "logarithm({0})", "log1p": "logarithm_1p({0})",
    "greater": "{0} > {1}", "greater_equal": "{0} >= {1}", "less": "{0} < {1}", "less_equal": "{0} <= {1}",
    "equal": "{0} == {1}", "where": "{0} ? {1} : {2}", "cast": "{T}({0})", "relu": "relu({0})",
    "relu_gradient": "relu_gradient({0}, {1})", "relu6": "relu6({0})",
    "leaky_relu": "leaky_relu({0}, {negative_slope})",
    "elu": "elu({0}, {alpha})", "sigmoid": "sigmoid({0})", "tanh": "hyperbolic_tangent({0})", "silu": "silu({0})",
    "erf": "error_function({0})", "sgd_update": "sgd({0}, {1}, {2}, {weight_decay})",
}  # fmt: skip


def _gelu(node: Node, result: int, names: Sequence[str], i: str) -> str:
    return f"{'gelu_tanh' if node.attrs['approximate'] else 'gelu'}({names[0]}({i}))"


def _momentum(node: Node, result: int, names: Sequence[str], i: str) -> str:
    p, v, g, rate = (_at(node, k, names, i) for k in range(4))
    kind = c_type(node.outputs[0])
    momentum, decay = literal(node.attrs["momentum"], kind), literal(node.attrs["weight_decay"], kind)
    if result:
        return f"momentum_velocity({v}, {g}, {rate}, {momentum})"
    nesterov = literal(node.attrs["nesterov"], "bool")
    return f"momentum_parameter<{kind}, {nesterov}>({p}, {v}, {g}, {rate}, {momentum}, {decay})"


def _adam(node: Node, result: int, names: Sequence[str], i: str) -> str:
    p, m, v, g, rate, step = (_at(node, k, names, i) for k in range(6))
    kind, attrs = c_type(node.outputs[0]), node.attrs
    betas = attrs["beta_1"], attrs["beta_2"]
    m = f"moving({literal(betas[0], kind)}, {m}, {g})"
    v = f"moving({literal(betas[1], kind)}, {v}, square({g}))"
    logs = ", ".join(literal(math.log(b) if b else 0.0, kind) for b in betas)
    corrected = ", ".join(literal(bool(b), "bool") for b in betas)
    rest = f"{logs}, {corrected}, {literal(attrs['epsilon'], kind)}, {literal(attrs['weight_decay'], kind)}"
    return (f"adam<{kind}>({p}, {m}, {v}, {rate}, {kind}({step}), {rest})", m, v)[result]


def _rmsprop(node: Node, result: int, names: Sequence[str], i: str) -> str:
    p, v, a, u, g, rate = (_at(node, k, names, i) for k in range(6))
    kind, attrs = c_type(node.outputs[0]), node.attrs
    rho, centered = literal(attrs["rho"], kind), literal(attrs["centered"], "bool")
    v = f"moving({rho}, {v}, square({g}))"
    a = f"moving({rho}, {a}, {g})" if attrs["centered"] else a
    rest = f"{rate}, {literal(attrs['momentum'], kind)}, {literal(attrs['epsilon'], kind)}, {centered}"
    u = f"rmsprop_step({v}, {a}, {u}, {g}, {rest})"
    return (f"decayed({p}, {rate}, {literal(attrs['weight_decay'], kind)}) - {u}", v, a, u)[result]


# Moving elements --------------------------------------------------------------------------------------------


def _permute(node: Node, result: int, names: Sequence[str], i: str) -> str:
    strides = row_major(node.inputs[0].shape)
    return f"{names[0]}({affine(node.outputs[0].shape, [strides[a] for a in node.attrs['axes']], i)})"


def _slice(node: Node, result: int, names: Sequence[str], i: str) -> str:
    strides, offset = row_major(node.inputs[0].shape), 0
    for (start, _), s in zip(node.attrs["bounds"], strides, strict=True):
        offset += start * s
    return f"{names[0]}({affine(node.outputs[0].shape, strides, i, offset)})"


def _coordinate(shape: Sequence[int], axis: int, i: str) -> str:
    return f"({i} / {math.prod(shape[axis + 1 :])}u % {shape[axis]}u)"


def _pad(node: Node, result: int, names: Sequence[str], i: str) -> str:
    x, y = node.inputs[0], node.outputs[0]
    conditions, terms = [], ["0u"]
    for axis, ((before, _), s) in enumerate(zip(node.attrs["widths"], row_major(x.shape), strict=True)):
        place = f"({_coordinate(y.shape, axis, i)} - {before}u)"  # wraps round where it is negative
        if y.shape[axis] != x.shape[axis]:
            conditions.append(f"{place} < {x.shape[axis]}u")
        terms.append(f"{place} * {s}u")
    inner = f"{names[0]}({' + '.join(terms)})"
    value = literal(node.attrs["value"], c_type(y))
    return f"({' && '.join(conditions)}) ? {inner} : {value}" if conditions else inner


def _concat(node: Node, result: int, names: Sequence[str], i: str) -> str:
    y = node.outputs[0]
    axis = normalize_axis("concat", node.attrs["axis"], y.ndim)
    inner, n = math.prod(y.shape[axis + 1 :]), y.shape[axis]
    place, text, start = _coordinate(y.shape, axis, i), "", 0
    for k, value in enumerate(node.inputs):
        m = value.shape[axis]
        index = f"{i} / {inner * n}u * {inner * m}u + ({place} - {start}u) * {inner}u + {i} % {inner}u"
        start += m
        last = k == len(node.inputs) - 1
        text += f"{names[k]}({index})" if last else f"{place} < {start}u ? {names[k]}({index}) : "
    return text


def _repeat(node: Node, result: int, names: Sequence[str], i: str) -> str:
    x, y, times = node.inputs[0], node.outputs[0], node.attrs["repeats"]
    axis = normalize_axis("repeat", node.attrs["axis"], x.ndim)
    inner = math.prod(x.shape[axis + 1 :])
    place = f"{_coordinate(y.shape, axis, i)} / {times}u"
    return f"{names[0]}(({i} / {inner * y.shape[axis]}u * {x.shape[axis]}u + {place}) * {inner}u + {i} % {inner}u)"


def _take(node: Node, result: int, names: Sequence[str], i: str) -> str:
    row = math.prod(node.outputs[0].shape[1:])
    return f"{names[0]}(uint32({names[1]}({i} / {row}u)) * {row}u + {i} % {row}u)"


def _one_hot(node: Node, result: int, names: Sequence[str], i: str) -> str:
    k = node.attrs["classes"]
    return f"{c_type(node.outputs[0])}(int({names[0]}({i} / {k}u)) == int({i} % {k}u))"


def _random(node: Node, result: int, names: Sequence[str], i: str) -> str:
    seed, stream = node.attrs["seed"], node.attrs["stream"] & 0xFFFFFFFF
    keys = f"{seed & 0xFFFFFFFF}u, {seed >> 32 & 0xFFFFFFFF}u"
    return f"random_uniform<{c_type(node.outputs[0])}>({i}, uint32({names[0]}(0)), {stream}u, {keys})"


# Reductions -------------------------------------------------------------------------------------------------


def reduced_index(node: Node, o: str, r: str) -> tuple[int, str]:
    """Number of terms of a reduction, and the input's index of term r of result o."""
    x = node.inputs[0]
    axes = normalize_axes(node.op.name, node.attrs["axes"], x.ndim)
    strides = row_major(x.shape)
    kept = [a for a in range(x.ndim) if a not in axes]
    base = affine([x.shape[a] for a in kept], [strides[a] for a in kept], o)
    term = affine([x.shape[a] for a in axes], [strides[a] for a in axes], r)
    return math.prod(x.shape[a] for a in axes), f"{base} + {term}"


def _reduction(node: Node, result: int, names: Sequence[str], i: str) -> str:
    n, index = reduced_index(node, i, "r")
    function = "max_of" if node.op.name == "max" else "sum_of"
    kind = c_type(node.outputs[0])
    text = f"{function}<{kind}, {n}>([&](uint32 r) {{ return {names[0]}({index}); }})"
    return f"{text} / {literal(n, kind)}" if node.op.name == "mean" else text


def _row(x: Value, axis: int, name: str, i: str, *, kept: bool) -> tuple[int, str, str]:
    """Length of a row of x along an axis, the function object that gives its elements, and i's place in it."""
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    outer = f"{i} / {inner * n if kept else inner}u * {inner * n}u"
    row = f"[&](uint32 r) {{ return {name}({outer} + r * {inner}u + {i} % {inner}u); }}"
    return n, row, f"{i} / {inner}u % {n}u"


def _softmax(node: Node, result: int, names: Sequence[str], i: str) -> str:
    axis = normalize_axis("softmax", node.attrs["axis"], node.inputs[0].ndim)
    n, row, place = _row(node.inputs[0], axis, names[0], i, kept=True)
    return f"{node.op.name}<{c_type(node.outputs[0])}, {n}>({place}, {row})"


def _argmax(node: Node, result: int, names: Sequence[str], i: str) -> str:
    x = node.inputs[0]
    n, row, _ = _row(x, normalize_axis("argmax", node.attrs["axis"], x.ndim), names[0], i, kept=False)
    return f"argmax_of<{c_type(x)}, {n}>({row})"


def _cross_entropy(node: Node, result: int, names: Sequence[str], i: str) -> str:
    n, row, _ = _row(node.inputs[0], node.inputs[0].ndim - 1, names[0], i, kept=False)
    return f"softmax_cross_entropy<{c_type(node.outputs[0])}, {n}>(int({names[1]}({i})), {row})"


def _cross_entropy_gradient(node: Node, result: int, names: Sequence[str], i: str) -> str:
    k, kind = node.outputs[0].shape[-1], c_type(node.outputs[0])
    row = f"[&](uint32 r) {{ return {names[1]}({i} / {k}u * {k}u + r); }}"
    dy, label = f"{names[0]}({i} / {k}u)", f"int({names[2]}({i} / {k}u))"
    return f"softmax_cross_entropy_gradient<{kind}, {k}>({dy}, {i} % {k}u, {label}, {row})"


# Windows ----------------------------------------------------------------------------------------------------


def image_type(shape: Sequence[int], data_format: str) -> str:
    """C++ type of an image's geometry."""
    axes = Axes.of(data_format)
    return f"Image<{data_format}, {shape[axes.n]}, {shape[axes.h]}, {shape[axes.w]}, {shape[axes.c]}>"


def window_type(node: Node) -> str:
    """C++ type of a window's geometry."""
    attrs = node.attrs
    kernel = attrs.get("kernel") or node.inputs[1].shape[:2]
    (top, _), (left, _) = attrs["padding"]
    numbers = (*kernel, *attrs["strides"], top, left, *attrs.get("dilation", (1, 1)))
    return f"Window<{', '.join(map(str, numbers))}>"


def image_pair(node: Node) -> tuple[str, str]:
    """C++ types of the images x and y of a node with windows."""
    name = node.op.name
    if name.endswith(("weight_gradient", "weight_gradient_parts")):
        x, y = node.inputs[1].shape, node.inputs[0].shape
    elif name.endswith(("gradient", "scatter")):
        x, y = node.outputs[0].shape, node.inputs[0].shape
    else:
        x, y = node.inputs[0].shape, node.outputs[0].shape
    return image_type(x, node.attrs["data_format"]), image_type(y, node.attrs["data_format"])


def _window(node: Node, result: int, names: Sequence[str], i: str) -> str:
    x, y = image_pair(node)
    arguments = [c_type(node.inputs[0]), x, y, window_type(node)]
    arguments += [str(node.attrs["groups"])] if "groups" in node.attrs else []
    arguments += [literal(node.attrs["count_padding"], "bool")] if "count_padding" in node.attrs else []
    return f"{node.op.name}<{', '.join(arguments)}>({', '.join(names)}, {i})"


def _matmul(node: Node, result: int, names: Sequence[str], i: str) -> str:
    (m, n), a, b = node.outputs[0].shape, *names
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    at_a = f"r * {m}u + {i} / {n}u" if ta else f"{i} / {n}u * {k}u + r"
    at_b = f"{i} % {n}u * {k}u + r" if tb else f"r * {n}u + {i} % {n}u"
    return f"sum_of<{c_type(node.outputs[0])}, {k}>([&](uint32 r) {{ return {a}({at_a}) * {b}({at_b}); }})"


RULES: dict[str, Rule] = {name: _call(text) for name, text in _ELEMENTWISE.items()} | {
    "gelu": _gelu, "momentum_update": _momentum, "adam_update": _adam, "rmsprop_update": _rmsprop,
    "reshape": lambda node, result, names, i: f"{names[0]}({i})",
    "broadcast_to": lambda node, result, names, i: _at(node, 0, names, i),
    "permute": _permute, "slice_": _slice, "pad": _pad, "concat": _concat, "repeat": _repeat, "take": _take,
    "one_hot": _one_hot, "random_uniform": _random, "sum": _reduction, "mean": _reduction, "max": _reduction,
    "softmax": _softmax, "log_softmax": _softmax, "argmax": _argmax, "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy_gradient, "matmul": _matmul, "conv2d": _window,
    "conv2d_input_gradient": _window, "conv2d_weight_gradient": _window, "depthwise_conv2d": _window,
    "depthwise_conv2d_input_gradient": _window, "depthwise_conv2d_weight_gradient": _window, "max_pool2d": _window,
    "max_pool2d_gradient": _window, "max_pool2d_index": _window, "max_pool2d_scatter": _window,
    "average_pool2d": _window, "average_pool2d_gradient": _window,
}  # fmt: skip
