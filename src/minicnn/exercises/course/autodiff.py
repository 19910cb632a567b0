"""Automatic differentiation: values that remember their parents, the order of a backward pass, broadcasting, checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minicnn.exercises.exercise import Array, Example, Exercise, Item, Rng, WrongError, call

CHAPTER = "Automatic differentiation"

# A scalar engine ------------------------------------------------------------------------------------

UNARY: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "exp": (math.exp, math.exp),
}


def _run(recipe: Sequence[tuple[Any, ...]], inputs: Sequence[float], *, overwrite: bool = False) -> Any:
    """The answer; or what it is if each contribution to a gradient replaces the one before."""
    values, parents = list(inputs), [list[tuple[int, float]]() for _ in inputs]
    for operation, *places in recipe:
        a = values[places[0]]
        if operation in UNARY:
            function, slope = UNARY[operation]
            values.append(function(a))
            parents.append([(places[0], slope(a))])
        else:
            b = values[places[1]]
            values.append(a + b if operation == "add" else a * b)
            slopes = (1.0, 1.0) if operation == "add" else (b, a)
            parents.append(list(zip(places, slopes, strict=True)))
    gradients = [0.0] * (len(values) - 1) + [1.0]
    for place in reversed(range(len(values))):
        for parent, slope in parents[place]:  # type: ignore[assignment]
            part = slope * gradients[place]  # type: ignore[operator]
            gradients[parent] = part if overwrite else gradients[parent] + part
    return values[-1], gradients[: len(inputs)]


def _recipe(operations: Sequence[str], steps: int, reuse: bool) -> Callable[[Rng], Example]:
    """Steps of some operations, each on the result before and an input of its own, or with reuse any value."""

    def draw(rng: Rng) -> Example:
        recipe: list[tuple[Any, ...]] = []
        count = steps + 1
        for step in range(steps):
            operation = operations[step % len(operations)]
            first = count + step - 1 if step else 0
            second = int(rng.integers(count + step)) if reuse else step + 1
            recipe.append((operation, first) if operation in UNARY else (operation, first, second))
        return call(recipe, [float(x) for x in rng.uniform(-1.2, 1.2, count)])

    return draw


# The order of a backward pass -------------------------------------------------------------------------


def _graph(rng: Rng, size: int) -> dict[str, list[str]]:
    """A graph whose names say nothing of the order; the last is the result, and some are not needed for it."""
    names = [f"v{i}" for i in rng.permutation(size)]
    graph = {name: [names[int(p)] for p in rng.integers(0, max(i, 1), min(i, 2))] for i, name in enumerate(names)}
    return {name: graph[name] for name in sorted(graph)} | {"result": [names[int(p)] for p in rng.integers(0, size, 2)]}


def _depended_on(graph: Mapping[str, Sequence[str]], result: str) -> list[str]:
    """An order of the values on which a result depends."""
    visited: dict[str, None] = {}
    stack = [(result, iter(graph[result]))]
    while stack:
        rest = stack[-1][1]
        following = next((n for n in rest if n not in visited), None)
        if following is None:
            visited[stack.pop()[0]] = None
        else:
            stack.append((following, iter(graph[following])))
    return list(visited)


def _ordered(case: Example, result: Any) -> None:
    graph, last = case.arguments
    needed = _depended_on(graph, last)
    if not isinstance(result, list) or sorted(map(str, result)) != sorted(needed):
        raise WrongError(f"order(...) should be a list of the {len(needed)} values that the result needs, each once")
    seen: set[str] = set()
    for name in result:
        late = [n for n in graph[name] if n not in seen]
        if late:
            raise WrongError(f"{name!r} is computed from {late[0]!r}, and stands before it")
        seen.add(name)


def _gradients(graph: Mapping[str, Sequence[str]], slopes: Mapping[str, Sequence[float]], result: str) -> Any:
    values = _depended_on(graph, result)[::-1]
    gradients = {name: float(name == result) for name in values}
    for name in values:
        for parent, slope in zip(graph[name], slopes[name], strict=True):
            gradients[parent] += slope * gradients[name]
    return gradients


def _sloped(rng: Rng) -> Example:
    graph = _graph(rng, 9)
    return call(graph, {n: [float(rng.integers(-3, 4)) for _ in parents] for n, parents in graph.items()}, "result")


def _chain(rng: Rng) -> Example:
    length = int(rng.integers(4000, 5000))
    return call({f"v{i}": [f"v{i - 1}"] if i else [] for i in range(length)}, f"v{length - 1}")


# Broadcasting ---------------------------------------------------------------------------------------

SHAPES = (((4, 3), (3,)), ((4, 3), (4, 1)), ((2, 4, 3), (1, 3)), ((5, 2), ()), ((2, 3, 4, 5), (3, 1, 5)))


def _sum_to(dy: Array, shape: tuple[int, ...]) -> Array:
    extra = dy.ndim - len(shape)
    axes = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1))
    return np.sum(dy, axis=axes, keepdims=True).reshape(shape)


def _mean_to(dy: Array, shape: tuple[int, ...]) -> Array:
    return _sum_to(dy, shape) * math.prod(shape) / dy.size


def _two(rng: Rng) -> Example:
    large, small = SHAPES[rng.integers(len(SHAPES))]
    shapes = [(large, small), (small, large), ((4, 1), (3,))][rng.integers(3)]
    a, b = (rng.standard_normal(shape) for shape in shapes)
    return call(rng.standard_normal(np.broadcast_shapes(*shapes)), a, b)


def _to_shape(rng: Rng) -> Example:
    large, small = SHAPES[rng.integers(len(SHAPES))]
    return call(rng.standard_normal(large), small)


# A checker of gradients -------------------------------------------------------------------------------

SLOPES: dict[str, Callable[[Array], Array]] = {
    "squares": lambda x: 2 * x,
    "sines": lambda x: (
        np.cos(x) * np.cumsum(x).reshape(x.shape) + np.cumsum(np.sin(x).ravel()[::-1])[::-1].reshape(x.shape)
    ),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum() - (np.arange(x.size) == 0).reshape(x.shape),
}


def _point(rng: Rng) -> tuple[str, Array]:
    return list(SLOPES)[rng.integers(3)], rng.standard_normal(int(rng.integers(3, 7)))


def _near(case: Example, result: Any) -> None:
    name, x = case.arguments
    right = SLOPES[name](x)
    if not isinstance(result, np.ndarray) or result.shape != x.shape:
        raise WrongError("numeric_gradient(...) should be an array of the shape of x")
    error = float(np.abs(result - right).max() / np.abs(right).max())
    if not error < 1e-7:
        off = ": it is that of a difference to one side" if 1e-7 < error < 1e-3 else ""
        raise WrongError(f"numeric_gradient({name!r}, ...) has a relative error of {error:.2g}, of at most 1e-07{off}")


def _difference(name: str, x: Array, h: float = 1e-5) -> Array:
    losses: dict[str, Callable[[Array], float]] = {
        "squares": lambda x: float(np.sum(x**2)),
        "sines": lambda x: float(np.sum(np.sin(x) * np.cumsum(x))),
        "softmax": lambda x: float(np.log(np.sum(np.exp(x))) - x.flat[0]),
    }
    steps = h * np.eye(x.size).reshape(x.size, *x.shape)
    return np.asarray([(losses[name](x + s) - losses[name](x - s)) / (2 * h) for s in steps]).reshape(x.shape)


def _relative_error(a: Array, b: Array) -> float:
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return float(np.abs(a - b).max()) / size if size else 0.0


def _claims(rng: Rng) -> Example:
    name, x = _point(rng)
    right = SLOPES[name](x)
    wrong = [right * f for f in (1.001, -1.0, 0.5)]
    wrong += [right + 1e-4 * np.abs(right).max() * (np.arange(x.size) == rng.integers(x.size))]
    claims = [right, *wrong, right * (1 + 1e-9)]
    return call(name, x, [claims[i] for i in rng.permutation(len(claims))])


EXERCISES = {
    "scalar_autodiff": Exercise(
        "a scalar autodiff engine", CHAPTER,
        (
            Item("multiplication", 3, "run", _recipe(("mul", "add"), 4, False)),
            Item("functions", 3, "run", _recipe(("mul", "relu", "exp"), 5, False), rounds=8),
            Item("used twice", 4, "run", _recipe(("mul", "add", "relu", "mul"), 7, True), rounds=8),
        ),
        {"run": _run},
        hints=(
            "A product remembers two slopes: with regard to its left factor the right one, and the other way round.",
            "The slope of exp(x) is exp(x) itself; that of relu is 1 where x > 0, else 0.",
            "backward: values[-1].gradient = 1.0, then for each value from the last to the first, for each of its "
            "parents: parent.gradient += slope * value.gradient.",
        ),
        mistakes={
            "run": (
                ("a value that is used twice keeps the last contribution only: add them (+=)",
                 lambda *a: _run(*a, overwrite=True)),
            )
        },
    ),
    "topological_order": Exercise(
        "the order of a backward pass", CHAPTER,
        (
            Item("order", 4, "order", lambda rng: call(_graph(rng, 9), "result"), _ordered),
            Item("gradients", 4, "gradients", _sloped, after="order"),
            Item("deep graph", 2, "order", _chain, _ordered, rounds=1),
        ),
        {"order": _depended_on, "gradients": _gradients},
        hints=(
            "A value may be appended when all values that it is computed from have been: look at these first.",
            "Keep a stack of values whose inputs are being looked at, each with an iterator over these inputs; append "
            "a value and pop it when its iterator is at its end.",
            "For gradients go through the order from the end: of each value, add slope * its gradient to each input.",
        ),
    ),
    "broadcasting": Exercise(
        "gradients of broadcasting", CHAPTER,
        (
            Item("sum", 4, "sum_to", _to_shape, rounds=8),
            Item("addition", 3, "add_gradient", _two, rounds=8),
            Item("multiplication", 3, "multiply_gradient", _two, rounds=8),
        ),
        {
            "sum_to": _sum_to,
            "add_gradient": lambda dy, a, b: (_sum_to(dy, a.shape), _sum_to(dy, b.shape)),
            "multiply_gradient": lambda dy, a, b: (_sum_to(dy * b, a.shape), _sum_to(dy * a, b.shape)),
        },
        hints=(
            "Two kinds of axes are added up: those in front that the smaller shape lacks, and those of length 1 in it.",
            "dy.sum(axis=..., keepdims=True) of all these axes, then reshape.",
            "Multiplication: first dy * b in the large shape, then add up to the shape of a.",
        ),
        mistakes={
            "sum_to": (("contributions are averaged, and should be added up", _mean_to),),
            "multiply_gradient": (
                ("the factors are exchanged: the gradient with regard to a is dy * b",
                 lambda dy, a, b: (_sum_to(dy * a, a.shape), _sum_to(dy * b, b.shape))),
            ),
        },
    ),
    "gradient_check": Exercise(
        "a gradient checker", CHAPTER,
        (
            Item("differences", 4, "numeric_gradient", lambda rng: call(*_point(rng)), _near),
            Item("relative error", 2, "relative_error", lambda rng: call(*rng.standard_normal((2, 5)))),
            Item("check", 4, "check", _claims, rounds=8),
        ),
        {
            "numeric_gradient": _difference, "relative_error": _relative_error,
            "check": lambda name, x, claims: [_relative_error(SLOPES[name](x), c) < 1e-6 for c in claims],
        },
        hints=(
            "One element after the other: copy x, add h to it, and take the loss; then subtract h.",
            "np.ndindex(x.shape) gives the places of all elements, of any shape.",
            "check compares relative_error(numeric_gradient(loss, x), claim) with 1e-6 for each claim.",
        ),
    ),
}  # fmt: skip
