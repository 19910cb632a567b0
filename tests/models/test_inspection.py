"""What a model says about itself: summary, Programs, explanations, strict and reference_only backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, get_backend, zoo
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.program import Program
from support.model_cases import blobs, linear

X, Y = blobs(6, 3, 2)


def network(backend: Any = "numpy", *, normalized: bool = True) -> Sequential:
    layers = [
        Input((6, 6, 1)), Conv2D(2, 3, activation="relu"), *[BatchNormalization()] * normalized, MaxPooling2D(),
        Flatten(), Dropout(0.5), Dense(3, name="scores"),
    ]  # fmt: skip
    return Sequential(layers, backend=backend)


def compiled(backend: Any = "numpy") -> Sequential:
    model = network(backend)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def test_summary() -> None:
    # Convolution: 2 FLOP * 9 taps * 32 results, 32 for the bias, 8 for the activation, which follows the pooling.
    assert network(normalized=False).summary(None).splitlines() == [
        "layer                         output shape     params  FLOPs",
        "------------------------------------------------------------",
        "conv2d (Conv2D)               (None, 4, 4, 2)      20    616",
        "max_pooling2d (MaxPooling2D)  (None, 2, 2, 2)       0     32",
        "flatten (Flatten)             (None, 8)             0      0",
        "dropout (Dropout)             (None, 8)             0      0",
        "scores (Dense)                (None, 3)            27     51",
        "------------------------------------------------------------",
        "47 weights, 47 of them trainable; 699 FLOP forward for a batch of 1",
    ]


def test_summary_prints_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    assert model.summary() is None  # type: ignore[func-returns-value]  # else a notebook would show it twice
    text = capsys.readouterr().out
    lines: list[str] = []
    assert model.summary(lines.append) is None  # type: ignore[func-returns-value]
    assert lines[0] + "\n" == text
    assert model.summary(None) + "\n" == text
    assert capsys.readouterr().out == ""


def test_summary_counts_a_batch() -> None:
    text = network().summary(None, batch_size=100)
    assert "a batch of 100" in text
    assert "61.6 k" in network(normalized=False).summary(None, batch_size=100)  # of the convolution
    assert "55 weights, 51 of them trainable" in text


def test_summary_of_nested_and_shared_layers() -> None:
    x = Input((4,))
    inner = Model(x, Dense(4, name="inside")(x), name="block")
    shared = Dense(4, name="shared")
    outer = Model(x, shared(inner(shared(x))))
    lines = outer.summary(None).splitlines()
    assert len([line for line in lines if line.startswith("shared")]) == 1
    assert any(line.startswith("block (Model)") and " 20 " in line for line in lines)
    assert "40 weights" in lines[-1]


def test_programs_of_all_kinds() -> None:
    model = compiled()
    train, evaluate, predict = (model.program(k, batch_size=4) for k in ("train", "evaluate", "predict"))  # type: ignore[arg-type]
    assert {n.phase for n in train.nodes} == {"forward", "backward", "update"}
    assert {n.phase for n in evaluate.nodes} == {n.phase for n in predict.nodes} == {"forward"}
    trainable = {"conv2d/kernel", "conv2d/bias", "batch_normalization/gamma", "scores/kernel"}
    assert trainable < set(train.updates)
    assert {"batch_normalization/moving_mean", "step"} < set(train.updates)
    metrics = {"metric/loss/total", "metric/loss/count", "metric/accuracy/total", "metric/accuracy/count"}
    assert set(evaluate.updates) == metrics
    assert not predict.updates
    assert list(predict.outputs) == ["output"]
    assert predict.outputs["output"].shape == (4, 3)
    assert list(train.outputs) == list(evaluate.outputs) == ["loss"]
    random = {n.op.name for n in train.nodes} - {n.op.name for n in evaluate.nodes}
    assert "random_uniform" in random
    scopes = {n.scope for n in train.nodes}
    assert {"conv2d", "loss", "metrics", "adam"} < scopes
    for program in (train, evaluate, predict):
        assert isinstance(program, Program)
        assert f"Program {program.name!r}" in str(program)
        assert program.memory().peak_bytes > 0


def test_the_kind_follows_from_compile() -> None:
    assert network().program().name == "predict"
    assert compiled().program().name == "train"
    assert compiled().program(batch_size=7).value("x").shape == (7, 6, 6, 1)
    assert compiled().program().value("y").spec.dtype == "int32"


def test_programs_are_made_anew() -> None:
    model = compiled()
    model.program().nodes.clear()
    assert len(model.program().nodes) > 10
    model.fit(np.ones((4, 6, 6, 1)), [0, 1, 2, 0], verbose=0)


def test_explain() -> None:
    explanation = compiled().explain(batch_size=4)
    assert explanation.rows
    text, convolutions = str(explanation), sum("conv2d" in node.op.name for node, _ in explanation.rows)
    assert text.count("kernel: conv2d") == convolutions > 0, "by rows"
    assert text.count("reference: ") == len(explanation.rows) - convolutions
    assert "conv2d" in text
    assert len(compiled().explain("predict").rows) < len(explanation.rows)


def test_explain_tells_kernels_from_references() -> None:
    from minicnn.backends.numpy import NumpyBackend

    class Fast(NumpyBackend):
        """NumPy with a kernel for matrix products of its own."""

        def kernel(self, node: Any) -> Any:
            if node.op.name != "matmul":
                return "only products have a kernel"
            return fast_matmul(node)

    def fast_matmul(node: Any) -> Any:
        def product(a: Any, b: Any) -> Any:
            calls.append(node)
            return node.op.reference(a, b, xp=np, **node.attrs)

        return product

    calls: list[Any] = []
    model = linear(Fast(), units=2)
    explanation = model.explain("predict")
    assert [how for node, how in explanation.rows if node.op.name == "matmul"] == ["kernel: product"]
    assert all("only products" in how for _, how in explanation.rows if how.startswith("reference"))
    model.predict(X)
    assert len(calls) == 1
    reference = linear(Fast(reference_only=True), units=2)
    reference.predict(X)
    assert len(calls) == 1
    assert "reference_only is set" in str(reference.explain())


def test_strict_refuses_references() -> None:
    model = linear(get_backend("numpy", strict=True), units=2)
    before = model.get_weights()
    message = (
        r"strict=True: every node needs a kernel of the numpy backend\. Received \d+ without one, first .*Use strict"
    )
    for call in (
        lambda: model.fit(X, X[:, :2], verbose=0),
        lambda: model.predict(X),
        lambda: model.evaluate(X, X[:, :2]),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()
    np.testing.assert_array_equal(model.get_weights()["dense/kernel"], before["dense/kernel"])
    assert "no kernels" in str(model.explain())  # which asks only


def test_reference_only_computes_the_same() -> None:
    one, two = linear(get_backend("numpy", reference_only=True)), linear()
    for model in (one, two):
        model.fit(X, X[:, :2], 4, 2, 0)
    np.testing.assert_array_equal(one.get_weights()["dense/kernel"], two.get_weights()["dense/kernel"])


def test_shapes() -> None:
    model = network()
    assert model.input_shape == (None, 6, 6, 1)
    assert model.output_shape == (None, 3)
    assert [type(layer).__name__ for layer in model.layers][:2] == ["Conv2D", "BatchNormalization"]
    assert model.built
    assert zoo.get_model("mlp").built


def test_a_model_within_a_model() -> None:
    inner = Sequential([Dense(4, activation="relu"), Dense(2)])
    outer = Sequential([Input((3,)), inner, Dense(1)], backend="numpy")
    assert list(outer.get_weights()) == [
        "model/dense/kernel", "model/dense/bias", "model/dense_1/kernel", "model/dense_1/bias", "dense/kernel",
        "dense/bias",
    ]  # fmt: skip
    outer.compile("sgd", "mse")
    assert outer.fit(X, X[:, 0], verbose=0).epoch == [0]
