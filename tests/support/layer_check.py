"""Run layers alone, and check what every layer promises."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.configured import decode, encode
from minicnn.layers import Input, Layer
from minicnn.layers.graph import Graph
from minicnn.layers.trace import Trace
from minicnn.layers.weight import Weight
from minicnn.program import Program, Value
from support.gradcheck import check_gradients
from support.numerics import assert_close

Array = np.ndarray[Any, Any]


@dataclass
class Run:
    """What one run of a layer made.

    Attributes:
        y: Result, or a list of them.
        weights: Weights that it used, by path within the layer.
        updates: New values of the weights that the layer assigned, likewise.
        program: The Program.
    """

    y: Any
    weights: dict[str, Array]
    updates: dict[str, Array]
    program: Program


class _Trace(Trace):
    """A trace whose step counter is a given value."""

    counter: Value

    def step(self) -> Value:
        return self.counter


def declared(layer: Layer, *shapes: Sequence[int]) -> dict[str, Weight]:
    """Weights that a layer declares for inputs of the given sample shapes, by path within the layer."""
    return trace_layer(layer, [np.zeros((1, *s), "float32") for s in shapes])[1]


def trace_layer(
    layer: Layer, xs: Sequence[Array], *, training: bool = False, dtype: str = "float32", seed: int = 0
) -> tuple[Program, dict[str, Weight], Trace]:
    """A Program of the layer alone, its weights by path within the layer, and the trace."""
    inputs = [Input(x.shape[1:]) for x in xs]
    graph = Graph(inputs, layer(inputs if takes_list(layer) or len(xs) > 1 else inputs[0]))
    program = Program("layer")
    trace = Trace(program, training=training, dtype=dtype, seed=seed)
    values = [program.input(f"x{i}", x.shape, x.dtype.name) for i, x in enumerate(xs)]
    for i, y in enumerate(graph.trace(trace, values)):
        program.outputs[f"y{i}"] = y
    program.updates |= trace.updates
    prefix = f"{graph.names[layer]}/"
    return program, {p.removeprefix(prefix): w for p, w in trace.declared.items()}, trace


def takes_list(layer: Layer) -> bool:
    """Whether a layer is called on a list."""
    return type(layer).__module__ == "minicnn.layers.merging"


def draw_weights(weights: Mapping[str, Weight], dtype: str, seed: int = 0) -> dict[str, Array]:
    """Random weights: normal numbers, and positive ones for variances."""
    result = {}
    for i, (path, weight) in enumerate(weights.items()):
        rng = np.random.default_rng([seed, i])
        array = rng.uniform(0.5, 2.0, weight.shape) if "variance" in path else rng.standard_normal(weight.shape)
        result[path] = array.astype(dtype)
    return result


def run(
    layer: Layer,
    x: Any,
    *,
    training: bool = False,
    weights: Mapping[str, Any] | None = None,
    seed: int = 0,
    step: int = 0,
) -> Run:
    """Run a layer on NumPy, in the dtype of x.

    Args:
        layer: The layer.
        x: Input with a batch axis, or a list of them.
        training: Whether it is a training step.
        weights: Weights by path within the layer; the others are random.
        seed: Seed of the model.
        step: Number of the training step.
    """
    several = isinstance(x, list)
    xs = [np.asarray(v) for v in (x if several else [x])]
    dtype = xs[0].dtype.name
    program, known, trace = trace_layer(layer, xs, training=training, dtype=dtype, seed=seed)
    given = {k: np.asarray(v, dtype) for k, v in (weights or {}).items()}
    assert set(given) <= set(known), f"weights are {list(known)}"
    used = {**draw_weights(known, dtype), **given}
    prefix = next(iter(trace.declared), "/").partition("/")[0] + "/"
    arrays = {f"x{i}": v for i, v in enumerate(xs)} | {prefix + k: v for k, v in used.items()}
    arrays["step"] = np.asarray(step, "int32")
    made = get_backend("numpy").compile(program)(arrays)
    ys = [made[name] for name in program.outputs]
    for value, y in zip(program.outputs.values(), ys, strict=True):
        assert (value.shape, value.dtype) == (y.shape, y.dtype.name)
    updates = {name.removeprefix(prefix): made[name] for name in program.updates}
    return Run(ys[0] if len(ys) == 1 else ys, used, updates, program)


def run_layer(layer: Layer, x: Any, **options: Any) -> Any:
    """Result of a layer; see `run`."""
    return run(layer, x, **options).y


def run_layer_check(
    layer: Layer,
    *shapes: Sequence[int],
    output: Sequence[int],
    weights: Mapping[str, Sequence[int]] | None = None,
    statistics: Sequence[str] = (),
    gradient: bool = True,
    training: bool = False,
    rtol: float = 1e-7,
) -> None:
    """Check a layer's shapes, weights, configuration and gradients.

    Args:
        layer: The layer.
        shapes: Shape of one sample of each input.
        output: Shape of one sample of the result.
        weights: Shapes of the weights by path within the layer.
        statistics: Weights that are not trainable.
        gradient: Whether the gradients of inputs and trainable weights are compared with differences.
        training: Whether that is in training.
        rtol: Of the gradients.
    """
    # All elements of all inputs differ from each other and from 0.
    sizes = [int(np.prod((3, *s))) for s in shapes]
    pool = np.random.default_rng(1).permutation(np.linspace(-2.0, 2.0, sum(sizes) // 2 * 2 + 2))
    xs = [
        part[:n].reshape(3, *s) for part, n, s in zip(np.split(pool, np.cumsum(sizes)[:-1]), sizes, shapes, strict=True)
    ]
    several = takes_list(layer) or len(xs) > 1
    known = declared(layer, *shapes)
    assert {p: w.shape for p, w in known.items()} == {p: tuple(s) for p, s in (weights or {}).items()}
    assert {p for p, w in known.items() if not w.trainable} == set(statistics)

    inputs = [Input(s) for s in shapes]
    symbolic = layer(inputs if several else inputs[0])
    assert (symbolic.shape, symbolic.dtype) == ((None, *output), "float32")
    given = [x.astype("float32") for x in xs]
    once = run(layer, given if several else given[0], training=training)
    assert (once.y.shape, once.y.dtype.name) == ((3, *output), "float32")

    check_config(layer, shapes)
    if gradient:
        _check_layer_gradients(layer, xs, known, training, rtol)


def check_config(layer: Layer, shapes: Sequence[Sequence[int]]) -> Layer:
    """Check that a layer survives JSON: class, arguments, weights and results; returns the copy."""
    config = encode(layer)
    copy = decode(json.loads(json.dumps(config)))
    assert type(copy) is type(layer)
    assert encode(copy) == config
    for name in config["config"]:
        value = getattr(layer, name)
        assert getattr(copy, name) == value or isinstance(value, Layer)
    xs = [np.random.default_rng(i).standard_normal((2, *s)) for i, s in enumerate(shapes)]
    x = xs if takes_list(layer) or len(xs) > 1 else xs[0]
    for training in (False, True):
        first, second = run(layer, x, training=training), run(copy, x, training=training)
        np.testing.assert_array_equal(first.y, second.y)
        assert list(first.weights) == list(second.weights)
    return copy


def _check_layer_gradients(
    layer: Layer, xs: Sequence[Array], known: Mapping[str, Weight], training: bool, rtol: float
) -> None:
    arrays = draw_weights(known, "float64")
    trainable = [p for p, w in known.items() if w.trainable]
    others = [p for p in known if p not in trainable]
    paths = {w: f"layer/{p}" for p, w in known.items()}

    def function(counter: Value, *values: Value) -> Any:
        named = dict(zip([*trainable, *others], values[len(xs) :], strict=True))
        trace = _Trace(counter.program, training=training, dtype="float64", paths=dict(paths))
        trace.counter = counter
        trace.weights = {f"layer/{p}": v for p, v in named.items()}
        trace.declared = {f"layer/{p}": known[p] for p in named}
        several = takes_list(layer) or len(xs) > 1
        return layer._emit(trace, "layer", list(values[: len(xs)]) if several else values[0])

    count = 1 + len(xs) + len(trainable)
    check_gradients(
        function,
        np.asarray(5, "int32"),
        *xs,
        *(arrays[p] for p in [*trainable, *others]),
        wrt=range(1, count),
        rtol=rtol,
    )


def assert_formats_agree(
    layer: type[Layer], x: Array, *, axis: bool = False, training: bool = False, **arguments: Any
) -> None:
    """Check that "channels_first" gives the "channels_last" result of an (N, H, W, C) input, transposed.

    Args:
        layer: Class of the layer.
        x: Images (N, H, W, C).
        axis: Whether the layer has an `axis` rather than a `data_format`.
        training: Whether it is a training step.
        arguments: Further arguments of the layer.
    """
    formats = [{"axis": -1}, {"axis": 1}] if axis else [{"data_format": f} for f in ("channels_last", "channels_first")]
    last = run(layer(**arguments, **formats[0]), x, training=training)
    first = run(
        layer(**arguments, **formats[1]), np.transpose(x, (0, 3, 1, 2)), training=training, weights=last.weights
    )
    y = first.y if first.y.ndim < 4 else np.transpose(first.y, (0, 2, 3, 1))
    assert_close(y, last.y, terms=100)
    assert list(first.updates) == list(last.updates)
    for path, update in first.updates.items():
        assert_close(update, last.updates[path], terms=100)
