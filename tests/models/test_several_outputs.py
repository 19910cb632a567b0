"""Models with several inputs and outputs: losses and their weights, metrics of each output, labels, validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.layers import Add, Concatenate, Dense, Input
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.metrics import TopKCategoricalAccuracy
from minicnn.optimizers import SGD
from support.model_cases import FAST, UNCOMPILED, assert_same_weights
from support.tolerances import ELEMENT, SUM

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((17, 3)).astype("float32"), RNG.standard_normal((17, 2)).astype("float32")
CLASSES = RNG.integers(0, 4, 17).astype("int32")
TARGET = RNG.standard_normal((17, 2)).astype("float32")
WEIGHT = np.linspace(0, 1, 17)


def branched(backend: Any = "numpy", **options: Any) -> Model:
    """Two inputs, a trunk, a class and a number pair as outputs."""
    a, b = Input((3,), name="a"), Input((2,), name="b")
    trunk = Dense(5, activation="tanh", name="trunk")(Concatenate()([a, b]))
    trunk = Add()([trunk, Dense(5, name="short")(b)])
    model = Model([a, b], [Dense(4, name="digit")(trunk), Dense(2, name="place")(trunk)], backend=backend, seed=2)
    arguments: dict[str, Any] = {
        "loss": [SparseCategoricalCrossentropy(from_logits=True), "mse"],
        "metrics": [["accuracy", TopKCategoricalAccuracy(2)], ["mae"]], "loss_weights": [1.0, 0.25],
    }  # fmt: skip
    model.compile(SGD(0.1, 0.9), precision="float64" if backend == "numpy" else "float32", **{**arguments, **options})
    return model


@pytest.mark.parametrize("backend", FAST)
def test_logs_by_hand(backend: str) -> None:
    model = branched(backend)
    logits, place = model.predict([A, B])
    expected_digit = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(17), CLASSES]
    expected_place = ((place - TARGET) ** 2).mean(axis=1)
    found = model.evaluate([A, B], [CLASSES, TARGET], 5, sample_weight=WEIGHT, return_dict=True)
    names = ["loss", "digit_loss", "place_loss", "digit_accuracy", "digit_top_k_categorical_accuracy", "place_mae"]
    assert list(found) == names
    expected = {
        "digit_loss": np.mean(WEIGHT * expected_digit),
        "place_loss": np.mean(WEIGHT * expected_place),
        "digit_accuracy": np.average(logits.argmax(axis=1) == CLASSES, weights=WEIGHT),
        "place_mae": np.average(np.abs(place - TARGET).mean(axis=1), weights=WEIGHT),
    }
    expected["loss"] = expected["digit_loss"] + 0.25 * expected["place_loss"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=SUM), name


def test_the_gradient_is_that_of_the_weighted_sum() -> None:
    step = 1e-6
    model = branched()
    before = model.get_weights()
    model.train_on_batch([A, B], [CLASSES, TARGET])
    after = model.get_weights()
    for path in ("trunk/kernel", "short/bias", "digit/kernel", "place/bias"):
        index = (0,) * before[path].ndim
        losses = []
        for sign in (1, -1):
            moved = before[path].copy()
            moved[index] += sign * step
            model.set_weights({**before, path: moved})
            losses.append(model.evaluate([A, B], [CLASSES, TARGET], return_dict=True)["loss"])
        numeric = (losses[0] - losses[1]) / (2 * step)
        assert (before[path] - after[path])[index] == pytest.approx(0.1 * numeric, rel=ELEMENT), path


@pytest.mark.parametrize("weight", [0.25, np.float32(0.25), [0.25], (0.25,), np.array([0.25]), {"dense": 0.25}])
def test_the_loss_weight_of_one_output(weight: Any) -> None:
    model = Sequential([Input((3,)), Dense(2)], backend="numpy")
    model.compile("sgd", "mse", loss_weights=weight)
    twin = Sequential([Input((3,)), Dense(2)], backend="numpy")
    twin.compile("sgd", "mse")
    assert model.evaluate(A, TARGET) == pytest.approx(0.25 * twin.evaluate(A, TARGET))
    with pytest.raises(ValueError, match=r"one entry for each of the 2 outputs\. .*1 weights"):
        branched(loss_weights=0.25)


def test_a_loss_weight_of_zero_leaves_an_output_untrained() -> None:
    model = branched(loss_weights=[1, 0])
    before = model.get_weights()
    model.fit([A, B], [CLASSES, TARGET], 5, 1, 0)
    after = model.get_weights()
    np.testing.assert_array_equal(after["place/kernel"], before["place/kernel"])
    assert np.any(after["digit/kernel"] != before["digit/kernel"])


def test_one_loss_and_one_list_of_metrics_serve_all_outputs() -> None:
    model = branched(loss="mse", metrics=["mae"], loss_weights=None)
    found = model.evaluate([A, B], [np.zeros((17, 4)), TARGET], return_dict=True)
    assert list(found) == ["loss", "digit_loss", "place_loss", "digit_mae", "place_mae"], "losses first"
    assert found["loss"] == pytest.approx(found["digit_loss"] + found["place_loss"])


def test_metrics_of_some_outputs() -> None:
    model = branched(metrics=[[], "mae"])
    found = model.evaluate([A, B], [CLASSES, TARGET], return_dict=True)
    assert list(found) == ["loss", "digit_loss", "place_loss", "place_mae"]
    with pytest.raises(ValueError, match=r"one entry for each of the 2 outputs\. Received: 2 losses, metrics for 1"):
        branched(metrics=[["mae"]])


@pytest.mark.parametrize("metrics", [["mse", "mae"], [["mse"], "mae"], {"place": ["mae"], "digit": "mse"}])
def test_a_list_of_metrics_with_an_entry_for_each_output(metrics: Any) -> None:
    found = branched(loss="mse", metrics=metrics).evaluate([A, B], [np.zeros((17, 4)), TARGET], return_dict=True)
    assert list(found) == ["loss", "digit_loss", "place_loss", "digit_mse", "place_mae"]
    found = branched(loss="mse", metrics=[None, "mae"]).evaluate([A, B], [np.zeros((17, 4)), TARGET], return_dict=True)
    assert list(found) == ["loss", "digit_loss", "place_loss", "place_mae"]


def test_logs_of_metrics_are_in_the_order_of_the_names_of_outputs() -> None:
    x = Input((3,))
    model = Model(x, [Dense(2, name="zz")(x), Dense(2, name="aa")(x)])
    model.compile("sgd", "mse", ["mae"])
    given = np.ones((5, 3)), [np.ones((5, 2))] * 2
    assert list(model.evaluate(*given, return_dict=True)) == ["loss", "zz_loss", "aa_loss", "aa_mae", "zz_mae"]


def test_names_of_outputs_are_each_there_once() -> None:
    x, a, b = Input((4,)), Dense(4, name="a"), Dense(4, name="a_1")
    assert Model(x, [b(x), a(x), a(a(x))]).output_names == ["a_1", "a", "a_2"]


@pytest.mark.parametrize("backend", UNCOMPILED)
def test_training_from_arrays_and_loaders(backend: str) -> None:
    one, two = branched(backend), branched(backend)
    history = one.fit([A, B], [CLASSES, TARGET], 5, 2, 0, shuffle=False, validation_split=0.3).history
    assert list(history) == [
        *(n for n in history if n[:4] != "val_"),
        *(f"val_{n}" for n in history if n[:4] != "val_"),
    ]
    assert history["loss"][1] < history["loss"][0]
    parts = [slice(0, 5), slice(5, 10), slice(10, 11)]
    loader = [([A[p], B[p]], [CLASSES[p], TARGET[p]]) for p in parts]
    same = two.fit(loader, epochs=2, verbose=0, validation_data=([A[11:], B[11:]], [CLASSES[11:], TARGET[11:]])).history
    for name, values in history.items():
        np.testing.assert_allclose(same[name], values, rtol=SUM, err_msg=name)
    for path, w in one.get_weights().items():
        np.testing.assert_allclose(two.get_weights()[path], w, rtol=SUM, atol=ELEMENT)


def test_tuples_are_as_good_as_lists() -> None:
    one, two = branched(), branched()
    one.fit([A, B], [CLASSES, TARGET], 5, 1, 0)
    two.fit((A.tolist(), B.tolist()), (CLASSES.tolist(), TARGET.tolist()), 5, 1, 0)
    assert_same_weights(two.get_weights(), one.get_weights())


def test_class_weights_are_for_one_output() -> None:
    with pytest.raises(ValueError, match=r"class_weight is for a model with one output .*\(4,\), \(2,\)"):
        branched().fit([A, B], [CLASSES, TARGET], verbose=0, class_weight={0: 1.0})


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (CLASSES, r"labels for 2 outputs\. Received: 1"),
        ([CLASSES, TARGET, TARGET], r"labels for 2 outputs\. Received: 3"),
        ([TARGET, CLASSES], r"Labels of a sparse loss are integers from 0 to 3"),
        ([CLASSES, TARGET[:5]], r"same number of samples\. Received: 5, 17"),
        ([CLASSES, TARGET[:, :1]], r"targets \(17, 1\), predictions \(17, 2\)"),
    ],
)
def test_labels_that_do_not_fit(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        branched().evaluate([A, B], y)


def test_shapes() -> None:
    model = branched()
    assert model.input_shape == [(None, 3), (None, 2)]
    assert model.output_shape == [(None, 4), (None, 2)]
    x = Input((3,))
    assert Model([x], Dense(2)(x)).input_shape == [(None, 3)]
    assert Model(x, [Dense(2)(x)]).output_shape == [(None, 2)]


def test_an_input_that_is_an_output_too() -> None:
    x = Input((3,))
    model = Model(x, [x, Dense(2)(x)], backend="numpy")
    same, _ = model.predict(A)
    np.testing.assert_array_equal(same, A)


def test_everything_by_name() -> None:
    by_place = branched()
    by_name = branched(
        loss={"place": "mse", "digit": SparseCategoricalCrossentropy(from_logits=True)},
        metrics={"digit": ["accuracy", TopKCategoricalAccuracy(2)], "place": "mae"}, loss_weights={"place": 0.25},
    )  # fmt: skip
    assert by_name.output_names == ["digit", "place"]
    named, labels = {"b": B, "a": A}, {"place": TARGET, "digit": CLASSES}
    histories = [
        by_place.fit([A, B], [CLASSES, TARGET], 5, 2, 0, validation_data=([A, B], [CLASSES, TARGET])).history,
        by_name.fit(named, labels, 5, 2, 0, validation_data=(named, labels)).history,
    ]
    assert histories[0] == histories[1]
    assert by_name.evaluate(named, labels) == by_place.evaluate([A, B], [CLASSES, TARGET])
    np.testing.assert_array_equal(by_name.predict(named)[0], by_place.predict([A, B])[0])


@pytest.mark.parametrize("wrong", [{"loss": {"digit": "mse"}}, {"metrics": {"x": []}}, {"loss_weights": {"x": 1.0}}])
def test_names_that_no_output_has(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"has the names of the outputs as keys.*the outputs are 'digit', 'place'\."):
        branched(**wrong)


def test_arrays_by_names_that_the_model_has_not() -> None:
    with pytest.raises(ValueError, match=r"labels have the model's names: 'digit', 'place'\."):
        branched().fit([A, B], {"digit": CLASSES}, verbose=0)
