"""Data and arguments that cannot be: the rule, what was received, the remedy; and the model is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.backends import get_backend
from minicnn.layers import Conv2D, Dense, Flatten, Input
from minicnn.losses import SparseCategoricalCrossentropy
from support.model_cases import FAST, assert_same_weights, blobs, linear

X, Y = blobs(10, 5, 3)


def classifier(backend: Any = "numpy") -> Sequential:
    loss = SparseCategoricalCrossentropy(from_logits=True)
    return linear(backend, features=5, units=3, loss=loss, metrics=["accuracy"])


def two_inputs() -> Model:
    a, b = Input((2,)), Input((3,))
    from minicnn.layers import Concatenate

    model = Model([a, b], Dense(1)(Concatenate()([a, b])), backend="numpy")
    model.compile("sgd", "mse")
    return model


class OnDevice:
    """An array in the memory of a device that NumPy cannot reach."""

    shape = (10, 5)
    dtype = np.dtype("float32")

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Unsupported device in DLTensor.")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array__(self, *_: Any, **__: Any) -> Any:
        pytest.fail("a silent copy from the device")


class NumbaOnDevice:
    """One that knows no DLPack, and that NumPy would copy to the host without a word."""

    shape = (10, 5)
    dtype = np.dtype("float32")
    __cuda_array_interface__ = {"shape": (10, 5)}  # noqa: RUF012

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.ones((10, 5), "float32")


BAD_X = {
    "shape": (np.ones((10, 4)), ValueError, r"inputs of shape \(N, 5\)\. Received: \(10, 4\)\. Reshape the data"),
    "axes": (np.ones((10, 5, 1)), ValueError, r"inputs of shape \(N, 5\)\. Received: \(10, 5, 1\)"),
    "flat": (np.ones(5), ValueError, r"inputs of shape \(N, 5\)\. Received: \(5,\)"),
    "number": (3.0, ValueError, r"inputs of shape \(N, 5\)\. Received: \(\)"),
    "empty": (np.ones((0, 5)), ValueError, r"at least one sample in inputs\. Received: none"),
    "empty list": ([], ValueError, r"inputs of shape \(N, 5\)\. Received: \(0,\)"),
    "string": (
        "images.npy",
        TypeError,
        r"Inputs are integers or floating-point numbers\. Received: str with dtype str",
    ),
    "bytes": (b"abc", TypeError, r"Inputs are integers .*Received: bytes with dtype bytes"),
    "none": (None, TypeError, r"Inputs are integers .*Received: NoneType with dtype object"),
    "objects": (np.full((10, 5), "a", object), TypeError, r"Received: ndarray with dtype object\. Convert it"),
    "strings": (np.full((10, 5), "1.5"), TypeError, r"Received: ndarray with dtype str"),
    "complex": (np.ones((10, 5), complex), TypeError, r"Received: ndarray with dtype complex128"),
    "dates": (np.zeros((10, 5), "datetime64[s]"), TypeError, r"with dtype datetime64"),
    "ragged": ([[1.0, 2.0], [3.0]], TypeError, r"nested lists of numbers of one shape\. Received: .*inhomogeneous"),
    "mapping": ({"x": X}, ValueError, r"inputs have the model's names: none\. Received: 'x'\. Give them in"),
    "samples": (list(X), ValueError, r"1 input array\. Received: 10\. np\.stack makes one array"),
    "two": ([X, X], ValueError, r"1 input array\. Received: 2"),
    "device": (OnDevice(), TypeError, r"or in the host's memory\. Received: .*OnDevice for .*\(Unsupported device"),
    "numba": (NumbaOnDevice(), TypeError, r"or in the host's memory\. Received: .*NumbaOnDevice for .*convert"),
}


@pytest.mark.parametrize("what", sorted(BAD_X))
@pytest.mark.parametrize("backend", FAST)
def test_inputs(backend: str, what: str) -> None:
    x, error, message = BAD_X[what]
    model = classifier(backend)
    before = model.get_weights()
    calls: list[Callable[[], Any]] = [
        lambda: model.fit(x, Y, verbose=0), lambda: model.evaluate(x, Y), lambda: model.predict(x),
        lambda: model.train_on_batch(x, Y),
    ]  # fmt: skip
    if what == "empty":  # whose predictions are empty
        del calls[2]
    for call in calls:
        with pytest.raises(error, match=message):
            call()
    assert_same_weights(model.get_weights(), before)


BAD_Y = {
    "range": (Y + 1, ValueError, r"integers from 0 to 2, .*Received: int32 from 1 to 3\. Relabel .*more units"),
    "negative": (Y - 1, ValueError, r"integers from 0 to 2, .*Received: int32 from -1 to 1"),
    "huge": (np.full(10, 2**40), ValueError, r"integers from 0 to 2, .*from 1099511627776"),
    "floats": (Y.astype("float32"), ValueError, r"integers from 0 to 2, .*Received: float32 from 0.0 to 2.0"),
    "one-hot": (np.eye(3, dtype="int32")[Y], ValueError, r"one class number .*labels \(10, 3\).*One-hot labels"),
    "length": (Y[:7], ValueError, r"All inputs and labels have the same number of samples\. Received: 7, 10"),
    "number": (1, ValueError, r"same number of samples\. Received: a single number, 10"),
    "empty": (Y[:0], ValueError, r"same number of samples\. Received: 0, 10"),
    "two": ([Y, Y], ValueError, r"labels for 1 outputs\. Received: 2"),
    "strings": (
        ["cat"] * 10,
        TypeError,
        r"Labels are integers or floating-point numbers\. Received: list with dtype str",
    ),
    "mapping": ({"y": Y}, ValueError, r"labels have the model's names: 'dense'\. Received: 'y'"),
    "none": (None, (ValueError, TypeError), r"pass y as well|Labels are integers"),
}


@pytest.mark.parametrize("what", sorted(BAD_Y))
@pytest.mark.parametrize("backend", FAST)
def test_labels(backend: str, what: str) -> None:
    y, error, message = BAD_Y[what]
    model = classifier(backend)
    before = model.get_weights()
    for call in (lambda: model.fit(X, y, verbose=0), lambda: model.evaluate(X, y), lambda: model.train_on_batch(X, y)):
        with pytest.raises(error, match=message):
            call()
    assert_same_weights(model.get_weights(), before)
    assert model.fit(X, Y, verbose=0).epoch == [0]


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (np.ones(9), ValueError, r"a number for each sample: shape \(10,\)\. Received: \(9,\)"),
        (np.ones((10, 1)), ValueError, r"Received: \(10, 1\)"),
        (2.0, ValueError, r"Received: \(\)"),
        (["a"] * 10, TypeError, r"Sample weights are integers or floating-point numbers"),
    ],
)
def test_sample_weights(weight: Any, error: Any, message: str) -> None:
    model = classifier()
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(error, match=message):
            call(X, Y, sample_weight=weight)


@pytest.mark.parametrize(
    "weights",
    [
        {3: 1.0},
        {-1: 1.0},
        {0: -1.0},
        {0: "a"},
        {0: None},
        {0: float("nan")},
        {"0": 1.0},
        [1.0, 2.0],
        1.0,
        {1.5: 2.0},
        {float("nan"): 2.0},
        {None: 1.0},
        {np.float64(7): 1.0},
    ],
)
def test_class_weights(weights: Any) -> None:
    with pytest.raises(ValueError, match=r"class numbers from 0 to 2 to weights of at least 0\. Received: "):
        classifier().fit(X, Y, verbose=0, class_weight=weights)


def test_class_weights_are_for_one_prediction() -> None:
    model = Sequential([Input((2, 2, 1)), Conv2D(3, 1)], backend="numpy")
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"one output of one prediction .*shape \(2, 2, 3\)\. Use sample_weight"):
        model.fit(np.ones((4, 2, 2, 1)), np.zeros((4, 2, 2), int), verbose=0, class_weight={0: 1.0})


ARGUMENTS = [
    ({"batch_size": 0}, r"batch_size is an integer of at least 1\. Received: batch_size=0"),
    ({"batch_size": 2.5}, r"batch_size is an integer .*batch_size=2.5"),
    ({"batch_size": None}, r"batch_size is an integer .*batch_size=None"),
    ({"epochs": -1}, r"epochs is an integer of at least 0\. Received: epochs=-1"),
    ({"epochs": "3"}, r"epochs is an integer"),
    ({"initial_epoch": -1}, r"initial_epoch is an integer of at least 0"),
    ({"last_batch": "wrap"}, r"last_batch is 'keep', 'drop' or 'pad'\. Received: 'wrap'"),
    (
        {"last_batch": "drop", "batch_size": 11},
        r"An epoch has at least one batch\. Received: 10 samples, batch_size=11",
    ),
    ({"validation_split": 1.0}, r"validation_split is a share of the samples between 0 and 1\. Received: 1.0"),
    ({"validation_split": -0.1}, r"validation_split is a share"),
    ({"validation_split": 0.999}, r"leaves samples for training and validation\. Received: 0.999 of 10 samples"),
    ({"validation_split": 0.2, "validation_data": (X, Y)}, r"validation_split cuts arrays.*Use validation_data"),
    ({"validation_data": X}, r"validation_data is \(x, y\), .*or a loader\. Received: ndarray"),
    ({"validation_data": (X,)}, r"validation_data is \(x, y\)"),
    ({"validation_data": (X, Y + 5)}, r"Labels of a sparse loss"),
    ({"verbose": 3}, r"verbose is 0, 1, 2 or 'auto'\. Received: 3"),
    ({"seed": -1}, r"seed is an integer from 0 to 2\*\*64 - 1\. Received: seed=-1"),
]


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_arguments_of_fit(options: dict[str, Any], message: str) -> None:
    model = classifier()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, **{"verbose": 0, **options})
    assert_same_weights(model.get_weights(), before)


def test_batch_sizes_elsewhere() -> None:
    model = classifier()
    for call in (
        lambda: model.evaluate(X, Y, 0), lambda: model.predict(X, 0), lambda: model.program(batch_size=0),
        lambda: model.summary(batch_size=-1), lambda: model.explain(batch_size=1.5),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"batch_size is an integer of at least 1\. Received: batch_size="):
            call()


def test_lengths_are_checked_before_a_split() -> None:
    with pytest.raises(ValueError, match=r"same number of samples\. Received: 10, 8"):
        classifier().fit(X, Y[:8], verbose=0, validation_split=0.2)


def test_fit_before_compile() -> None:
    model = Sequential([Input((5,)), Dense(3)], backend="numpy")
    for call in (lambda: model.fit(X, Y), lambda: model.evaluate(X, Y), lambda: model.train_on_batch(X, Y)):
        with pytest.raises(RuntimeError, match=r"trained or evaluated after compile\(\)\. Received: a model without"):
            call()
    with pytest.raises(RuntimeError, match="after compile"):
        model.program("train")
    assert model.predict(X).shape == (10, 3)  # which needs no compile


def test_nothing_to_train() -> None:
    model = Sequential([Input((5,)), Flatten()], backend="numpy")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"at least one trainable weight\. Received: a model without"):
        model.fit(X, X, verbose=0)
    assert model.evaluate(X, X, return_dict=True)["loss"] == 0.0


def test_number_and_length_of_several_inputs() -> None:
    model = two_inputs()
    a, b, y = np.ones((4, 2)), np.ones((4, 3)), np.ones(4)
    cases: list[tuple[Any, str]] = [
        (a, r"takes 2 input arrays\. Received: 1"),
        ([a], r"takes 2 input arrays\. Received: 1"),
        ([a, b, b], r"takes 2 input arrays\. Received: 3"),
        ([b, a], r"inputs of shape \(N, 2\)\. Received: \(4, 3\)"),
        ([a, b[:3]], r"All inputs have the same number of samples\. Received: 4, 3"),
        ([a, np.ones((8, 3))], r"same number of samples\. Received: 4, 8"),
    ]
    for x, message in cases:
        for call in (lambda x=x: model.fit(x, y, verbose=0), lambda x=x: model.predict(x, 4)):
            with pytest.raises(ValueError, match=message):
                call()


def test_loaders() -> None:
    model = classifier()
    batch = (X, Y)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: model.fit(iter([batch]), verbose=0), r"has a length, .*of at least 1\. Received: list_iterator"),
        (lambda: model.fit((b for b in [batch]), verbose=0), r"Received: generator\. A list of batches is one"),
        (lambda: model.fit(range(0), verbose=0), r"Received: range of length 0"),
        (lambda: model.fit(range(3), verbose=0), r"\(x, y\) or \(x, y, sample_weight\)\. Received: int"),
        (lambda: model.fit([(X,)], verbose=0), r"Received: tuple of 1"),
        (lambda: model.fit([(X, Y, Y, Y)], verbose=0), r"Received: tuple of 4"),
        (lambda: model.fit([batch], Y, verbose=0), r"A loader gives labels and sample weights itself"),
        (lambda: model.fit([batch], sample_weight=Y, verbose=0), r"A loader gives labels and sample weights itself"),
        (lambda: model.fit([batch], verbose=0, validation_split=0.1), r"validation_split cuts arrays"),
        (lambda: model.predict(iter([])), r"at least one batch to predict\. Received: an empty loader"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_loader_that_runs_dry() -> None:
    class Once:
        def __init__(self) -> None:
            self.batches = iter([(X, Y)])

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            return self.batches

    model = classifier()
    with pytest.raises(ValueError, match=r"at least one batch whenever it is iterated over\. Received: none"):
        model.fit(Once(), epochs=2, verbose=0)
    with pytest.raises(ValueError, match="at least one batch whenever"):
        model.fit(X, Y, epochs=2, validation_data=Once(), verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "adamx"}, r"An optimizer is one of sgd, .*Received: 'adamx'"),
        ({"loss": "crossentropy"}, r"A loss is one of .*Received: 'crossentropy'"),
        ({"metrics": ["precise"]}, r"A metric is one of .*Received: 'precise'"),
        ({"metrics": ["accuracy", "accuracy"]}, r"a log of its own\. Received: accuracy twice\. Give one another name"),
        ({"precision": "float16"}, r"precision is one of float32, float64, mixed_bfloat16, .*\. Received: 'float16'"),
        ({"precision": "mixed_bfloat16"}, r"The numpy backend computes in float32, float64\. Received: precision="),
        ({"loss": ["mse", "mse"]}, r"one entry for each of the 1 outputs\. Received: 2 losses"),
        ({"loss_weights": [1.0, 2.0]}, r"one entry .*2 weights"),
        ({"loss_weights": ["a"]}, r"loss_weights are finite numbers, .*\. Received: \['a'\]"),
        ({"loss_weights": [float("nan")]}, r"loss_weights are finite numbers"),
        ({"loss_weights": [None]}, r"loss_weights are finite numbers.*Received: \[None\]\. Use 1\.0"),
        ({"loss_weights": [[1.0]]}, r"loss_weights are finite numbers.*Received: \[\[1\.0\]\]"),
        ({"loss_weights": "1"}, r"loss_weights are finite numbers.*Received: '1'"),
        ({"loss_weights": float("inf")}, r"loss_weights are finite numbers.*Received: inf"),
        ({"loss_weights": {"dense": None}}, r"loss_weights are finite numbers.*Received: \{'dense': None\}"),
    ],
)
def test_arguments_of_compile(arguments: dict[str, Any], message: str) -> None:
    model = classifier()
    model.fit(X, Y, verbose=0)
    twin = classifier()
    twin.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match=message):
        model.compile(**arguments)
    for m in (model, twin):  # what was compiled before still holds
        m.fit(X, Y, verbose=0)
    assert_same_weights(model.get_weights(), twin.get_weights())
    assert set(model.evaluate(X, Y, return_dict=True)) == {"loss", "accuracy"}


def test_a_single_metric_needs_no_list() -> None:
    model = classifier()
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), "accuracy")
    assert set(model.evaluate(X, Y, return_dict=True)) == {"loss", "accuracy"}
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), None)
    assert set(model.evaluate(X, Y, return_dict=True)) == {"loss"}


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "0", None, True])
def test_seeds(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed is an integer from 0 to 2\*\*64 - 1\. Received: seed="):
        Sequential([Dense(2)], seed=seed)
    x = Input((2,))
    with pytest.raises(ValueError, match="seed is an integer"):
        Model(x, Dense(2)(x), seed=seed)


def test_the_largest_seed_works() -> None:
    model = Sequential([Input((5,)), Dense(3)], backend="numpy", seed=2**64 - 1)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    assert model.fit(X, Y, verbose=0).epoch == [0]


@pytest.mark.parametrize(
    "layers", [[3], [Dense(2), 3], [Input((2,)), Input((2,))], [Dense(2), Input((2,))], Dense(2), [Dense], ["dense"], 3]
)
def test_layers_of_a_sequential(layers: Any) -> None:
    with pytest.raises(TypeError, match=r"a list of layers, of which the first may be Input\(\.\.\.\)\. Received: "):
        Sequential(layers)


@pytest.mark.parametrize("kind", ["fit", "", "TRAIN"])
def test_unknown_programs(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"kind is one of train, evaluate, predict\. Received: "):
        classifier().program(kind)


# A model that waits for its input ---------------------------------------------------------------


def test_what_an_unbuilt_model_cannot_say() -> None:
    model = Sequential([Dense(2)])
    for call in (
        model.summary, model.count_params, model.get_weights, lambda: model.set_weights({"a": X}), model.program,
        lambda: model.input_shape, lambda: model.output_shape, lambda: model.outputs, lambda: model.get_layer("a"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"knows its shapes once it is built\. .*Begin the layers with Input"):
            call()
    with pytest.raises(AttributeError, match=r"'Sequential' object has no attribute 'colour'"):
        model.colour  # noqa: B018


def test_an_unbuilt_model_and_a_loader() -> None:
    model = Sequential([Dense(3)])
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"built from the first arrays it sees\. Received: a loader\. Begin"):
        model.fit([(X, Y)], verbose=0)
    model.build((None, 5))
    assert model.fit([(X, Y)], verbose=0).epoch == [0]


def test_data_that_do_not_fit_an_unbuilt_model_leave_it_unbuilt() -> None:
    model = Sequential([Dense(4), Conv2D(3, 2), Flatten(), Dense(3)], backend="numpy")
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    for bad in (np.ones((10, 7)), np.ones((10, 1, 1, 5)), "text", {"x": X}, np.float32(1)):
        with pytest.raises((ValueError, TypeError)):
            model.fit(bad, Y, verbose=0)
    images = np.ones((10, 3, 3, 2))
    model.fit(images, Y, verbose=0)
    assert model.input_shape == (None, 3, 3, 2)
    assert model.get_weights()["dense/kernel"].shape == (2, 4)


def test_foreign_arrays_on_a_numpy_model() -> None:
    torch = pytest.importorskip("torch")
    model = classifier(get_backend("numpy"))
    assert isinstance(model.predict(torch.tensor(X)), torch.Tensor)
    np.testing.assert_array_equal(model.predict(torch.tensor(X, requires_grad=True)), model.predict(X))
    with pytest.raises(TypeError, match=r"Received: torch\.Tensor for"):
        model.predict(torch.empty(10, 5, device="meta"))


def test_own_arrays_of_another_device() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"Arrays are on the model's device\. Received: a tensor on meta"):
        classifier("torch").predict(torch.empty(10, 5, device="meta"))
