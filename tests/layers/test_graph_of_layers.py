"""Graphs: branches, sharing, nesting, parts cut out, names and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, ops
from minicnn.layers import Add, Concatenate, Conv2D, Dense, Dropout, Flatten, Input, Layer
from minicnn.layers.functional import Functional
from minicnn.layers.trace import Trace
from minicnn.program import Program
from support.layer_check import run, run_layer
from support.numerics import assert_close
from support.strategies import normal


class Split(Layer):
    """Two results."""

    def call(self, inputs: Any) -> Any:
        half = inputs.shape[-1] // 2
        return inputs[:, :half], inputs[:, half:]


def test_symbolic_tensors() -> None:
    x = Input((28, 28, 1), name="image")
    assert (x.shape, x.sample_shape, x.dtype) == ((None, 28, 28, 1), (28, 28, 1), "float32")
    assert repr(x) == "<SymbolicTensor image: float32, shape (None, 28, 28, 1)>"
    assert repr(Flatten()(x)) == "<SymbolicTensor: float32, shape (None, 784)>"
    assert Input([np.int64(3)]).shape == (None, 3)


@pytest.mark.parametrize("shape", [3, (None, 0), (0,), (2.5,), "ab"])
def test_wrong_input_shapes(shape: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Input takes the shape of one sample as positive integers. .* Leave out the batch"
    ):
        Input(shape)


def test_wrong_input_dtype() -> None:
    with pytest.raises(ValueError, match=r"dtype is one of bool, uint8, .* Received: 'int33'"):
        Input((2,), dtype="int33")


def test_integer_inputs_are_converted() -> None:
    assert Conv2D(2, 3)(Input((4, 4, 1), dtype="uint8")).dtype == "float32"


def test_branches_and_several_inputs() -> None:
    a, b = Input((3,)), Input((2,))
    left, right = Dense(4, name="left")(a), Dense(4, name="right")(b)
    graph = Functional([a, b], [Add()([left, right]), Concatenate()([left, b])])
    result = run(graph, [x := normal((5, 3), 0), y := normal((5, 2), 1)])
    w = result.weights
    l = x @ w["left/kernel"] + w["left/bias"]  # noqa: E741
    r = y @ w["right/kernel"] + w["right/bias"]
    assert_close(result.y[0], l + r, terms=5)
    assert_close(result.y[1], np.concatenate([l, y], axis=1), terms=5)


def test_a_shared_layer_has_one_name_and_one_set_of_weights() -> None:
    a, b, shared = Input((3,)), Input((3,)), Dense(2)
    graph = Functional([a, b], Add()([shared(a), shared(b)]))
    assert [graph.layer_name(v) for v in graph.layers] == ["dense", "add"]
    result = run(graph, [x := normal((5, 3), 0), y := normal((5, 3), 1)])
    assert_close(result.y, (x + y) @ result.weights["dense/kernel"] + 2 * result.weights["dense/bias"], terms=6)


def test_a_layer_with_two_results() -> None:
    x = Input((6,))
    first, second = Split()(x)
    assert first.shape == second.shape == (None, 3)
    y = run_layer(Functional(x, [second, first]), data := normal((2, 6), 0))
    np.testing.assert_array_equal(y[0], data[:, 3:])
    np.testing.assert_array_equal(y[1], data[:, :3])


def test_a_nested_graph_is_a_layer() -> None:
    x = Input((3,))
    inner = Functional(x, Dense(3, name="d")(Dropout(0.5)(x)), name="inner")
    outer_x = Input((3,))
    outer = Functional(outer_x, Dense(1)(inner(inner(outer_x))))
    assert outer.layers[0] is inner
    result = run(outer, data := normal((2, 3), 0))
    w = result.weights
    assert list(w) == ["inner/d/kernel", "inner/d/bias", "dense/kernel", "dense/bias"]
    y = (data @ w["inner/d/kernel"] + w["inner/d/bias"]) @ w["inner/d/kernel"] + w["inner/d/bias"]
    assert_close(result.y, y @ w["dense/kernel"] + w["dense/bias"], terms=27)
    assert {n.scope for n in result.program.nodes} == {"model/inner/d", "model/dense"}


def test_a_nested_graph_with_several_inputs_and_outputs() -> None:
    a, b = Input((2,)), Input((2,))
    inner = Functional([a, b], [Add()([a, b]), b])
    c, d = Input((2,)), Input((2,))
    total, same = inner([c, d])
    y = run_layer(Functional([c, d], [same, total]), [x := normal((3, 2), 0), z := normal((3, 2), 1)])
    np.testing.assert_array_equal(y[0], z)
    np.testing.assert_array_equal(y[1], x + z)


def test_a_graph_inside_a_layer() -> None:
    class Block(Layer):
        def __init__(self) -> None:
            super().__init__()
            x = Input((3,))
            self.body = Functional(x, Dense(2)(x))

        def call(self, inputs: Any) -> Any:
            return self.body(inputs)

    result = run(Block(), normal((2, 3), 0))
    assert list(result.weights) == ["body/dense/kernel", "body/dense/bias"]


def test_a_part_of_a_network() -> None:
    x = Input((4,))
    middle = Dense(3, name="a")(x)
    end = Dense(2, name="b")(middle)
    head = Functional(middle, end)
    assert [v.name for v in head.layers] == ["b"]
    result = run(head, data := normal((2, 3), 0))
    assert_close(result.y, data @ result.weights["b/kernel"] + result.weights["b/bias"], terms=3)
    # An input on the way to another output stands in for what came before it.
    both = Functional([x, middle], [Dense(1, name="c")(x), end])
    assert {v.name for v in both.layers} == {"c", "b"}


def test_an_input_may_be_an_output() -> None:
    x = Input((2,))
    np.testing.assert_array_equal(run_layer(Functional(x, [x, x]), data := np.ones((1, 2)))[1], data)


def test_deep_graphs_need_no_recursion() -> None:
    class Plus(Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + 1.0

    start = x = Input((1,))
    plus = Plus()
    for _ in range(2000):
        x = plus(x)
    assert run_layer(Functional(start, x), np.zeros((1, 1))).item() == 2000


def test_default_names() -> None:
    x = Input((2,))
    layers = [Dense(2), Dense(2, name="dense_1"), Dense(2), Dense(2), Functional(y := Input((2,)), Dense(2)(y))]
    z = x
    for layer in layers:
        z = layer(z)
    graph = Functional(x, z)
    assert [graph.layer_name(v) for v in layers] == ["dense", "dense_1", "dense_2", "dense_3", "model"]


def test_wrong_graphs() -> None:
    x, other = Input((2,)), Input((3,), name="other")
    with pytest.raises(TypeError, match=r"The outputs of a model are symbolic tensors: .* Received: Dense\(2\)\."):
        Functional(x, Dense(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"The inputs of a model are symbolic tensors: .* Received: none"):
        Functional([], x)
    with pytest.raises(ValueError, match=r"depends on Input\(\(3,\)\) 'other', which is not among the inputs"):
        Functional(x, Add()([Dense(2)(x), Dense(2)(other)]))
    with pytest.raises(ValueError, match=r"Layer names of a model are unique. Received: 'a' twice"):
        Functional(x, Dense(2, name="a")(Dense(2, name="a")(x)))
    graph = Functional(x, Dense(2)(x))
    with pytest.raises(ValueError, match=r"A model is called on as many inputs as it has: 1. Received: 2"):
        graph([x, x])
    program = Program()
    with pytest.raises(ValueError, match="as many inputs as it has"):
        graph._graph.trace(Trace(program), [])


def test_what_a_model_holds_besides_layers_is_left_alone() -> None:
    x = Input((2,))
    graph = Functional(x, layer := Dense(2)(x))
    graph.note = [Dense(3)]  # type: ignore[attr-defined]
    y = Input((2,))
    assert list(run(Functional(y, graph(y)), np.ones((1, 2))).weights) == ["model/dense/kernel", "model/dense/bias"]
    assert layer.shape == (None, 2)
    assert ops.REGISTRY


def test_a_sequential_with_a_call_of_its_own_is_refused() -> None:
    class Twice:
        def call(self, inputs: Any) -> Any:
            return inputs * 2

    with pytest.raises(TypeError, match=r"Received: Doubled with a call of its own, .* Derive it from Model\."):
        type("Doubled", (Twice, Sequential), {})
