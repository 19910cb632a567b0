"""What users rely on when they write layers of their own, and what happens when they slip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.configured import decode, encode
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, Input, Layer, ReLU
from minicnn.layers.functional import Functional
from minicnn.layers.trace import Trace
from minicnn.names import snake_case
from minicnn.program import Program
from support.layer_check import check_config, declared, run, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal


class Scale(Layer):
    """A weight, declared in build."""

    def __init__(self, start: str = "ones", *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.start = start

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight("gain", input_shape[-1:], self.start)

    def call(self, inputs: Any) -> Any:
        return inputs * self.gain


class Residual(Layer):
    """Sublayers in attributes, in lists, in lists of lists, in a dict, and one behind an underscore."""

    def __init__(self, width: int, depth: int = 2, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.width, self.depth = width, depth
        self.stem = Dense(width)
        self.blocks = [[Dense(width), BatchNormalization()] for _ in range(depth)]
        self.named = {"scale": Scale(), "relu": ReLU()}
        self._head = Dense(width, name="top")

    def call(self, inputs: Any) -> Any:
        x = self.stem(inputs)
        for dense, norm in self.blocks:
            x = x + self.named["relu"](norm(dense(x)))
        return self._head(self.named["scale"](x))


def test_a_weight_and_its_gradient() -> None:
    run_layer_check_custom(Scale(), (2, 3), (2, 3), {"gain": (3,)})


def run_layer_check_custom(layer: Layer, shape: Any, output: Any, weights: Any, **more: Any) -> None:
    """As `run_layer_check`, for classes that only this file knows."""
    from support.layer_check import _check_layer_gradients

    known = declared(layer, shape)
    assert {p: w.shape for p, w in known.items()} == weights
    for training in (False, True):
        x = normal((3, *shape), 0)
        assert run_layer(layer, x, training=training).shape == (3, *output)
        _check_layer_gradients(layer, [x], known, training, 1e-6)


def test_sublayers_in_every_kind_of_container() -> None:
    weights: dict[str, Any] = {"stem/kernel": (3, 4), "stem/bias": (4,)}
    for i in range(2):
        weights |= {f"blocks_{i}_0/kernel": (4, 4), f"blocks_{i}_0/bias": (4,)}
        weights |= {f"blocks_{i}_1/{n}": (4,) for n in ("gamma", "beta", "moving_mean", "moving_variance")}
    weights |= {"named_scale/gain": (4,), "top/kernel": (4, 4), "top/bias": (4,)}
    run_layer_check_custom(Residual(4), (3,), (4,), weights)


def test_a_composite_is_saved_by_its_own_arguments() -> None:
    layer = Residual(4, depth=1, name="res")
    config = encode(layer)
    assert config == {"class": "Residual", "config": {"width": 4, "depth": 1, "name": "res"}}
    copy = decode(config, {"Residual": Residual})
    assert (type(copy), encode(copy)) == (Residual, config)


def test_a_shared_sublayer_has_one_set_of_weights() -> None:
    class Twice(Layer):
        def __init__(self, inner: Layer, *, name: str | None = None) -> None:
            super().__init__(name=name)
            self.inner = inner
            self.again = inner

        def call(self, inputs: Any) -> Any:
            return self.again(self.inner(inputs))

    result = run(Twice(Dense(3)), x := normal((2, 3), 0))
    kernel, bias = result.weights["inner/kernel"], result.weights["inner/bias"]
    assert len(result.weights) == 2
    assert_close(result.y, (x @ kernel + bias) @ kernel + bias, terms=9)


def test_tied_weights() -> None:
    class Tied(Layer):
        def build(self, input_shape: Any) -> None:
            self.encoder = self.add_weight("w", (input_shape[-1], 2))
            self.decoder = self.encoder

        def call(self, inputs: Any) -> Any:
            return ops.matmul(ops.matmul(inputs, self.encoder), self.decoder, transpose_b=True)

    result = run(Tied(), x := normal((2, 3), 0))
    assert list(result.weights) == ["w"]
    assert_close(result.y, x @ result.weights["w"] @ result.weights["w"].T, terms=6)


def test_weights_with_one_path_are_an_error() -> None:
    class Clash(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Dense(3, name="dense"), Dense(3, name="dense")

        def call(self, inputs: Any) -> Any:
            return self.b(self.a(inputs))

    with pytest.raises(
        ValueError, match=r"Weights of a model have different paths. Received: 'clash/dense/kernel' twice"
    ):
        Clash()(Input((3,)))


class Counter(Layer):
    """Counts its own calls, and adds the count."""

    def build(self, input_shape: Any) -> None:
        self.count = self.add_weight("count", (), "zeros", trainable=False)

    def call(self, inputs: Any) -> Any:
        self.assign("count", self.count + 1.0)
        return inputs + self.count


def test_assign_replaces_the_weight() -> None:
    result = run(Counter(), np.zeros((1, 2)), weights={"count": 5})
    assert (result.y.tolist(), result.updates["count"].item()) == ([[5, 5]], 6)


def test_a_later_call_sees_what_an_earlier_one_assigned() -> None:
    layer, x = Counter(), Input((1,))
    graph = Functional(x, [layer(x), layer(x)])
    result = run(graph, np.zeros((1, 1)), weights={"counter/count": 5})
    assert [y.item() for y in result.y] == [5, 6]
    assert result.updates["counter/count"].item() == 7


def test_training_reaches_sublayers() -> None:
    class Block(Layer):
        def __init__(self, mode: bool | None) -> None:
            super().__init__()
            self.mode = mode
            self.inner = Outer()

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs, training=self.mode)

    class Outer(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.drop = Dropout(0.5)

        def call(self, inputs: Any) -> Any:  # does not know about training
            return self.drop(inputs)

    x = np.ones((1, 64))
    for mode, training, drops in (
        (None, True, True), (None, False, False), (False, True, False), (True, False, True),
    ):  # fmt: skip
        assert (run_layer(Block(mode), x, training=training) == 0).any() == drops


def test_training_given_to_a_symbolic_call_is_kept() -> None:
    x = Input((64,))
    graph = Functional(x, [Dropout(0.5)(x), Dropout(0.5)(x, training=False), Dropout(0.5)(x, training=True)])
    for training, expected in ((True, [True, False, True]), (False, [False, False, True])):
        y = run(graph, np.ones((1, 64)), training=training).y
        assert [bool((v == 0).any()) for v in y] == expected


def test_random_numbers_of_a_layer() -> None:
    class Noise(Layer):
        def call(self, inputs: Any, *, training: bool = False) -> Any:
            return inputs + self.random_uniform(inputs.shape) if training else inputs

    y = run_layer(Noise(), np.zeros((100, 10)), training=True)
    assert 0 <= y.min() < 0.01
    assert 0.99 < y.max() < 1
    assert run_layer(Noise(), np.zeros((2, 1))).tolist() == [[0], [0]]


# Slips ------------------------------------------------------------------------------------------


def test_layers_take_one_kind_of_inputs() -> None:
    with pytest.raises(TypeError, match=r"called on symbolic tensors .* Received: list, list. Give it one kind"):
        Dense(2)([[1.0], [2.0]])
    with pytest.raises(TypeError, match="Received: SymbolicTensor, int"):
        Dense(2)([Input((2,)), 3])


def test_values_belong_into_a_call() -> None:
    value = Program().input("x", (1, 2))
    with pytest.raises(TypeError, match="Received: Value"):
        Dense(2)(value)


def test_assign_and_random_uniform_belong_into_call() -> None:
    with pytest.raises(RuntimeError, match="assign and random_uniform belong inside call"):
        Counter().assign("count", None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="assign and random_uniform belong inside call"):
        Dense(2).random_uniform((2,))


@pytest.mark.parametrize("case", ["trainable", "unknown", "shape"])
def test_assign_checks(case: str) -> None:
    class Wrong(Layer):
        def build(self, input_shape: Any) -> None:
            self.w = self.add_weight("w", (2,), trainable=case == "trainable")

        def call(self, inputs: Any) -> Any:
            self.assign("v" if case == "unknown" else "w", inputs if case == "shape" else self.w)
            return inputs

    with pytest.raises(
        ValueError, match="assign takes the name of an attribute that holds a weight with trainable=False"
    ):
        Wrong()(Input((2,)))


def test_weights_are_not_declared_in_call() -> None:
    class Late(Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * self.add_weight("w", (2,))

    with pytest.raises(RuntimeError, match=r"Weights are declared in build. Received: add_weight\('w'\) inside call"):
        Late()(Input((2,)))


def test_a_result_has_the_batch_first() -> None:
    class Total(Layer):
        def call(self, inputs: Any) -> Any:
            return ops.sum(inputs, axes=0, keepdims=True)

    class Nothing(Layer):
        def call(self, inputs: Any) -> Any:
            return {"y": inputs}

    for layer in (Total(), Nothing()):
        with pytest.raises(
            ValueError, match="A layer returns a Value, or a list of them, whose first axis is the batch"
        ):
            layer(Input((2,)))


def test_call_must_be_written() -> None:
    with pytest.raises(NotImplementedError):
        Layer()(Input((2,)))


@pytest.mark.parametrize("name", ["", "a/b", 3])
def test_names(name: Any) -> None:
    with pytest.raises(ValueError, match="A layer's name is a string without '/'"):
        Dense(2, name=name)


def test_get_config_needs_the_attributes() -> None:
    class Hidden(Layer):
        def __init__(self, size: int, **more: Any) -> None:
            super().__init__()
            self._size = size

    with pytest.raises(TypeError, match=r"Received: Hidden without 'size'\. Set self\.size, or override get_config"):
        Hidden(3).get_config()


def test_further_keyword_arguments_are_part_of_the_config_if_they_are_given() -> None:
    class Open(Layer):
        def __init__(self, size: int, **more: Any) -> None:
            super().__init__(name=more.get("name"))
            self.size = size

    assert Open(3).get_config() == {"size": 3}
    assert Open(3, name="n").get_config() == {"size": 3, "name": "n"}


def test_an_error_inside_names_the_innermost_layer() -> None:
    class Outer(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.convolve = Conv2D(2, 3)

        def call(self, inputs: Any) -> Any:
            return self.convolve(inputs)

    with pytest.raises(ValueError, match="Conv2D takes images") as caught:
        Outer()(Input((2, 2)))
    assert caught.value.__notes__ == ["In layer 'outer/convolve' (Conv2D)."]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Conv2D", "conv2d"), ("Conv2DTranspose", "conv2d_transpose"), ("SeparableConv2D", "separable_conv2d"),
     ("GlobalMaxPooling2D", "global_max_pooling2d"), ("ReLU", "re_lu"), ("ELU", "elu"), ("Dense", "dense"),
     ("BatchNormalization", "batch_normalization"), ("MyMLPBlock", "my_mlp_block"), ("_Hidden", "_hidden")],
)  # fmt: skip
def test_names_from_classes(name: str, expected: str) -> None:
    assert snake_case(name) == expected


def test_a_layer_in_two_traces_is_built_once() -> None:
    layer, calls = Scale(), []
    build = layer.build
    layer.build = lambda shape: (calls.append(shape), build(shape))[0]  # type: ignore[method-assign]
    for _ in range(2):
        layer._emit(trace := Trace(program := Program()), "scale", program.input("x", (4, 3)))
        assert list(trace.declared) == ["scale/gain"]
    assert calls == [(None, 3)]


def test_several_inputs_reach_build_as_a_list() -> None:
    class Bilinear(Layer):
        def build(self, input_shape: Any) -> None:
            (_, a), (_, b) = input_shape
            self.w = self.add_weight("w", (a, b))

        def call(self, inputs: Any) -> Any:
            x, y = inputs
            return ops.sum(ops.matmul(x, self.w) * y, axes=-1, keepdims=True)

    result = run(Bilinear(), [x := normal((2, 3), 0), y := normal((2, 4), 1)])
    assert_close(result.y, ((x @ result.weights["w"]) * y).sum(-1, keepdims=True), terms=12)


def test_checks_of_the_checks() -> None:
    # The helper notices a layer whose arguments do not survive.
    class Lossy(Dense):
        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "units": self.units + 1}

    with pytest.raises(ValueError, match="'Lossy'"):
        check_config(Lossy(2), [(3,)])
    with pytest.raises(AssertionError):
        run_layer_check(Dense(2), (3,), output=(3,), weights={"kernel": (3, 2), "bias": (2,)})
    with pytest.raises(AssertionError):
        run_layer_check(Dense(2), (3,), output=(2,), weights={"kernel": (3, 2)})
