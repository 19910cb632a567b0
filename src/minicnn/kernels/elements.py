"""Elements of each primitive's result: the one table of them, for every engine.

`element(node, result)` is an expression tree in `i`, the place of the element, in terms of elements of the node's
inputs. To add a kernel for a primitive, add its tree here. The CPU engine takes the elementwise ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from minicnn.kernels import peers, windows
from minicnn.kernels.expressions import (
    SHORT,
    ZERO,
    Binary,
    Call,
    Cast,
    Element,
    Expr,
    I,
    Negative,
    Number,
    R,
    Select,
    both,
    of,
)
from minicnn.kernels.rows import fold, of_row
from minicnn.kernels.strides import collapse, row_major
from minicnn.kernels.transforms import affine_transform
from minicnn.ops.checks import normalize_axes, normalize_axis
from minicnn.program.graph import Node, Value

DTYPES = frozenset(
    ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
)
MOST_ELEMENTS = 2**31 - 1  # places are 32 bits wide, but for those of rows that are gathered from more


def unsupported(node: Node, *, short: bool = True) -> str | None:
    """Why there is no kernel for a node, if so; `short`: whether it may cast float32 from and to 16 bits."""
    if node.op.name not in ELEMENTS and node.op.name not in peers.ELEMENTS:
        return f"there is no kernel for {node.op.name} yet"
    for value in (*node.inputs, *node.outputs):
        if value.dtype not in DTYPES and not (short and _shortens_or_widens(node)):
            return f"kernels have no {value.dtype} yet"
        if value.size > MOST_ELEMENTS and not (node.op.name == "take" and value is node.inputs[0]):
            return "arrays of kernels have at most 2^31 - 1 elements, but for those that rows are gathered from"
    if any(value.size == 0 for value in (*node.inputs, *node.outputs)):
        return "kernels take no empty arrays"
    return None


def _shortens_or_widens(node: Node) -> bool:
    return node.op.name == "cast" and {node.inputs[0].dtype, node.outputs[0].dtype} <= {"float32", *SHORT}


def widens(node: Node | None, *formats: str) -> bool:
    """True if a node makes float32 of numbers that are stored in 16 bits, in one of some formats."""
    return node is not None and node.op.name == "cast" and node.inputs[0].dtype in (formats or SHORT)


def element(node: Node, result: int) -> Expr:
    """Element i of one result of a node."""
    rule = ELEMENTS.get(node.op.name) or peers.ELEMENTS[node.op.name]
    return rule(node, result)


def same_index(node: Node, value: Value) -> bool:
    """True if element i of each result needs element i of an input, and no other."""
    beside = node.op.elementwise or node.op.name in peers.ELEMENTS
    return (beside and value.shape == node.outputs[0].shape) or node.op.name == "reshape"


# Places ---------------------------------------------------------------------------------------------------------


def affine(shape: Sequence[int], strides: Sequence[int], i: Expr, offset: int = 0) -> Expr:
    """The place that index i of an array of some shape stands for, given its step along each axis."""
    # Axes that lie one after the other are one: each more is a division.
    sizes, (steps,) = collapse(shape, [strides])
    terms, inner = list[Expr](), 1
    for k, (n, s) in reversed(list(enumerate(zip(sizes, steps, strict=True)))):
        if s:
            terms.append((i // inner if k == 0 else i // inner % n) * s)
        inner *= n
    if offset or not terms:
        terms.append(of(offset))
    return _sum(terms)


def _sum(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def broadcast(shape: Sequence[int], source: Sequence[int], i: Expr) -> Expr:
    """Place in an array that is broadcast to a shape."""
    if shape == source and math.prod(shape) > 1:
        return i
    lead = len(shape) - len(source)
    strides = [0] * lead + [s if n > 1 else 0 for n, s in zip(source, row_major(source), strict=True)]
    return affine(shape, strides, i)


def _coordinate(shape: Sequence[int], axis: int) -> Expr:
    return I // math.prod(shape[axis + 1 :]) % shape[axis]


# Elementwise ----------------------------------------------------------------------------------------------------

Rule = Callable[[Node, int], Expr]


def _at(node: Node, k: int) -> Expr:
    """Element of input k that is broadcast to element i."""
    return Element(k, broadcast(node.outputs[0].shape, node.inputs[k].shape, I))


def _every(node: Node) -> list[Expr]:
    return [_at(node, k) for k in range(len(node.inputs))]


def _of_elements(make: Callable[..., Expr]) -> Rule:
    return lambda node, result: make(*_every(node))


def _function(name: str, *attrs: str) -> Rule:
    """A scalar function of the inputs' elements and of numbers among the attributes."""

    def rule(node: Node, result: int) -> Expr:
        dtype = node.outputs[0].dtype
        numbers = (Number(node.attrs[a], dtype) for a in attrs)
        return Call(name, (*_every(node), *numbers), dtype)

    return rule


def _cast(node: Node, result: int) -> Expr:
    return Cast(_at(node, 0), node.outputs[0].dtype, node.inputs[0].dtype)


def _gelu(node: Node, result: int) -> Expr:
    name = "gelu_tanh" if node.attrs["approximate"] else "gelu"
    return Call(name, (Element(0, I),), node.outputs[0].dtype)


class _Update:
    """Base of the optimizers' updates: attributes as numbers of the parameter's type, functions in it."""

    def __init__(self, node: Node) -> None:
        self.attrs, self.dtype = node.attrs, node.outputs[0].dtype

    def number(self, value: Any) -> Expr:
        return Number(value, self.dtype)

    def attribute(self, name: str) -> Expr:
        return self.number(self.attrs[name])

    def call(self, name: str, *arguments: Expr) -> Expr:
        return Call(name, arguments, self.dtype)

    def decayed(self, p: Expr, rate: Expr) -> Expr:
        return self.call("decayed", p, rate, self.attribute("weight_decay")) if self.attrs["weight_decay"] else p


def _sgd(node: Node, result: int) -> Expr:
    (p, g, rate), rule = _every(node), _Update(node)
    return rule.call("sgd", rule.decayed(p, rate), g, rate)


def _momentum(node: Node, result: int) -> Expr:
    (p, v, g, rate), rule = _every(node), _Update(node)
    momentum = rule.attribute("momentum")
    velocity = rule.call("velocity", v, g, rate, momentum)
    if result:
        return velocity
    p = rule.decayed(p, rate)
    return p + momentum * velocity - rate * g if node.attrs["nesterov"] else p + velocity


def _adam(node: Node, result: int) -> Expr:
    (p, m, v, g, rate, step), rule = _every(node), _Update(node)
    betas = node.attrs["beta_1"], node.attrs["beta_2"]
    m = rule.call("moving", rule.number(betas[0]), m, g)
    v = rule.call("moving", rule.number(betas[1]), v, rule.call("square", g))
    if result:
        return (m, v)[result - 1]
    step = Cast(step, rule.dtype, node.inputs[5].dtype)
    c1, c2 = (rule.call("correction", step, rule.number(math.log(b))) if b else rule.number(1) for b in betas)
    return rule.call("adam", rule.decayed(p, rate), m, v, rate, c1, c2, rule.attribute("epsilon"))


def _rmsprop(node: Node, result: int) -> Expr:
    (p, v, a, u, g, rate), rule = _every(node), _Update(node)
    v = rule.call("moving", rule.attribute("rho"), v, rule.call("square", g))
    a = rule.call("moving", rule.attribute("rho"), a, g) if node.attrs["centered"] else a
    if result in (1, 2):
        return (v, a)[result - 1]
    spread = rule.call("spread", v, a) if node.attrs["centered"] else v
    u = rule.call("rmsprop_step", spread, u, g, rate, rule.attribute("momentum"), rule.attribute("epsilon"))
    return u if result else rule.decayed(p, rate) - u


# Moving elements ------------------------------------------------------------------------------------------------


def _permute(node: Node, result: int) -> Expr:
    strides = row_major(node.inputs[0].shape)
    return Element(0, affine(node.outputs[0].shape, [strides[a] for a in node.attrs["axes"]], I))


def _slice(node: Node, result: int) -> Expr:
    strides = row_major(node.inputs[0].shape)
    offset = sum(start * s for (start, _), s in zip(node.attrs["bounds"], strides, strict=True))
    return Element(0, affine(node.outputs[0].shape, strides, I, offset))


def _pad(node: Node, result: int) -> Expr:
    x, y = node.inputs[0], node.outputs[0]
    inside, terms = list[Expr](), list[Expr]()
    for axis, ((before, _), s) in enumerate(zip(node.attrs["widths"], row_major(x.shape), strict=True)):
        place, n = _coordinate(y.shape, axis), x.shape[axis]
        if y.shape[axis] != n:
            inside += [place >= before] * (before > 0) + [place < before + n] * (before + n < y.shape[axis])
        terms.append((place - before) * s)
    # Nothing is padded: no condition, and the index as it is.
    if not inside:
        return Element(0, I)
    return Select(functools.reduce(both, inside), Element(0, _sum(terms)), Number(node.attrs["value"], y.dtype))


def _concat(node: Node, result: int) -> Expr:
    y = node.outputs[0]
    axis = normalize_axis("concat", node.attrs["axis"], y.ndim)
    inner, n = math.prod(y.shape[axis + 1 :]), y.shape[axis]
    place, start, parts = _coordinate(y.shape, axis), 0, list[tuple[int, Expr]]()
    for k, value in enumerate(node.inputs):
        m = value.shape[axis]
        at = I // (inner * n) * (inner * m) + (place - start) * inner + I % inner
        start += m
        parts.append((start, Element(k, at)))
    return _selected(place, parts)


def _selected(place: Expr, parts: Sequence[tuple[int, Expr]]) -> Expr:
    """Element at a place of parts with these ends; in halves, as no compiler takes deep expressions."""
    if len(parts) == 1:
        return parts[0][1]
    half = len(parts) // 2
    return Select(place < parts[half - 1][0], _selected(place, parts[:half]), _selected(place, parts[half:]))


def _repeat(node: Node, result: int) -> Expr:
    x, y, times = node.inputs[0], node.outputs[0], node.attrs["repeats"]
    axis = normalize_axis("repeat", node.attrs["axis"], x.ndim)
    inner = math.prod(x.shape[axis + 1 :])
    outer = I // (inner * y.shape[axis]) * x.shape[axis]
    return Element(0, (outer + _coordinate(y.shape, axis) // times) * inner + I % inner)


def _take(node: Node, result: int) -> Expr:
    row = math.prod(node.outputs[0].shape[1:])
    return Element(0, row_place(node, I // row) * row + I % row)


def row_place(take: Node, r: Expr) -> Expr:
    """Row of the input that row r of a gather is; the nearest, where an index that nobody has checked is outside."""
    index: Expr = Element(1, r)
    if take.inputs[1].kind != "input":
        first, last = Number(0, "int32"), Number(take.inputs[0].shape[0] - 1, "int32")
        # Inputs are checked on the host before the step; what the step itself computes nobody has seen.
        index = Select(index > first, Select(index < last, index, last), first)
    return Cast(index, "place" if take.inputs[0].size <= MOST_ELEMENTS else "wide_place")


def _one_hot(node: Node, result: int) -> Expr:
    k, dtype = node.attrs["classes"], node.outputs[0].dtype
    return Select(_label(0, I // k).equals(Cast(I % k, "int32")), Number(1, dtype), Number(0, dtype))


def _label(k: int, place: Expr) -> Expr:
    return Cast(Element(k, place), "int32")


def _random(node: Node, result: int) -> Expr:
    seed, stream = node.attrs["seed"], node.attrs["stream"] & 0xFFFFFFFF
    keys = (of(stream), of(seed & 0xFFFFFFFF), of(seed >> 32 & 0xFFFFFFFF))
    step = Cast(Element(0, ZERO), "place")
    return Call("random_uniform", (I, step, *keys), node.outputs[0].dtype)


# Reductions -----------------------------------------------------------------------------------------------------


def reduced_place(node: Node, i: Expr, r: Expr) -> tuple[int, Expr]:
    """Number of terms of a reduction, and the place in its input of term r of result i."""
    x = node.inputs[0]
    axes = normalize_axes(node.op.name, node.attrs["axes"], x.ndim)
    strides = row_major(x.shape)
    kept = [a for a in range(x.ndim) if a not in axes]
    base = affine([x.shape[a] for a in kept], [strides[a] for a in kept], i)
    term = affine([x.shape[a] for a in axes], [strides[a] for a in axes], r)
    return math.prod(x.shape[a] for a in axes), base + term


def _reduction(node: Node, result: int) -> Expr:
    (n, place), dtype = reduced_place(node, I, R), node.outputs[0].dtype
    term: Expr = Element(0, place)
    if (source := node.inputs[0].dtype) != dtype:
        term = Cast(term, dtype, source)
    total = fold("max" if node.op.name == "max" else "sum", dtype, n, term)
    return total / Number(n, dtype) if node.op.name == "mean" else total


def _of_row(node: Node, k: int, axis: int, dtype: str, *arguments: Expr, kept: bool) -> Expr:
    """A function of the row of input k along an axis; `kept`: the result has that axis, too."""
    x = node.inputs[k]
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    term = Element(k, I // (inner * n if kept else inner) * (inner * n) + R * inner + I % inner)
    return of_row(node.op.name, dtype, n, term, arguments)


def _softmax(node: Node, result: int) -> Expr:
    x = node.inputs[0]
    axis = normalize_axis("softmax", node.attrs["axis"], x.ndim)
    return _of_row(node, 0, axis, node.outputs[0].dtype, _coordinate(x.shape, axis), kept=True)


def _argmax(node: Node, result: int) -> Expr:
    x = node.inputs[0]
    return _of_row(node, 0, normalize_axis("argmax", node.attrs["axis"], x.ndim), x.dtype, kept=False)


def _cross_entropy(node: Node, result: int) -> Expr:
    return _of_row(node, 0, node.inputs[0].ndim - 1, node.outputs[0].dtype, _label(1, I), kept=False)


def _cross_entropy_gradient(node: Node, result: int) -> Expr:
    y = node.outputs[0]
    k = y.shape[-1]
    return _of_row(node, 1, y.ndim - 1, y.dtype, I % k, _label(2, I // k), Element(0, I // k), kept=True)


# Windows and products -------------------------------------------------------------------------------------------


def _matmul(node: Node, result: int) -> Expr:
    m, n = node.outputs[0].shape
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    left = R * m + I // n if ta else I // n * k + R
    right = I % n * k + R if tb else R * n + I % n
    return fold("sum", node.outputs[0].dtype, k, Element(0, left) * Element(1, right))


_SAME = (
    "power", "maximum", "minimum", "abs", "sign", "square", "sqrt", "exp", "expm1", "log", "log1p", "relu",
    "relu_gradient", "relu6", "sigmoid", "tanh", "silu", "softplus", "erf", "erfc",
)  # fmt: skip

ELEMENTS: dict[str, Rule] = {
    "add": _of_elements(lambda a, b: Binary("+", a, b)), "subtract": _of_elements(lambda a, b: Binary("-", a, b)),
    "multiply": _of_elements(lambda a, b: Binary("*", a, b)), "divide": _of_elements(lambda a, b: Binary("/", a, b)),
    "negative": _of_elements(Negative), "greater": _of_elements(lambda a, b: a > b),
    "greater_equal": _of_elements(lambda a, b: a >= b), "less": _of_elements(lambda a, b: a < b),
    "less_equal": _of_elements(lambda a, b: a <= b), "equal": _of_elements(lambda a, b: a.equals(b)),
    "where": _of_elements(Select), **{name: _function(name) for name in _SAME},
    "leaky_relu": _function("leaky_relu", "negative_slope"), "elu": _function("elu", "alpha"),
    "cast": _cast, "gelu": _gelu, "sgd_update": _sgd, "momentum_update": _momentum, "adam_update": _adam,
    "rmsprop_update": _rmsprop, "reshape": lambda node, result: Element(0, I),
    "broadcast_to": lambda node, result: _at(node, 0), "permute": _permute, "slice_": _slice, "pad": _pad,
    "concat": _concat, "repeat": _repeat, "take": _take, "affine_transform": affine_transform,
    "one_hot": _one_hot, "random_uniform": _random,
    "sum": _reduction, "mean": _reduction, "max": _reduction, "softmax": _softmax, "log_softmax": _softmax,
    "argmax": _argmax, "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy_gradient, "matmul": _matmul,
    **dict.fromkeys(windows.NAMES, windows.element),
}  # fmt: skip
