"""What a script calls around `fit`: steps an epoch, generators, data sets by number, validation, single batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.callbacks import LambdaCallback
from minicnn.layers import BatchNormalization, Dense, Dropout, Input
from minicnn.utils import PyDataset
from support.model_cases import FAST, Watch, assert_same_weights, blobs, to_library, two_layers
from support.tolerances import ELEMENT, SUM

X, Y = blobs(23, 4, 3)


network = partial(two_layers, hidden=5, last="softmax", loss="sparse_categorical_crossentropy")


def batches(size: int = 5) -> list[tuple[Any, Any]]:
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


class Numbered(PyDataset):
    """The same batches by number; notes which were asked for."""

    def __init__(self) -> None:
        super().__init__(workers=2, max_queue_size=3)
        self.given: list[int] = []
        self.ends = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        self.given.append(index)
        return batches()[index]

    def on_epoch_end(self) -> None:
        self.ends += 1


class Unsized:
    """A loader with a length that cannot be indexed."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        return iter(batches())


def endless() -> Iterator[Any]:
    while True:
        yield from batches()


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("data", [lambda: batches(), Unsized, endless], ids=["list", "loader", "generator"])
@pytest.mark.parametrize("steps", [1, 3, 5, 7])
def test_epochs_of_given_length_go_on_where_the_last_has_ended(backend: str, data: Any, steps: int) -> None:
    model, expected = network(backend), network(backend)
    history = model.fit(data(), epochs=3, steps_per_epoch=steps, verbose=0).history
    stream = endless()
    for loss in history["loss"]:
        epoch = [next(stream) for _ in range(steps)]
        assert expected.fit(epoch, verbose=0).history["loss"] == [pytest.approx(loss, rel=ELEMENT)]
    assert_same_weights(model.get_weights(), expected.get_weights())
    assert model.steps_taken == 3 * steps


@pytest.mark.parametrize("backend", FAST)
def test_steps_of_arrays_are_those_of_whole_epochs(backend: str) -> None:
    model, expected = network(backend), network(backend)
    model.fit(X, Y, 5, 5, 0, steps_per_epoch=3)  # 15 batches: three times all of the data
    expected.fit(X, Y, 5, 3, 0)
    assert_same_weights(model.get_weights(), expected.get_weights())


def test_training_resumed_within_such_an_epoch_goes_on_exactly() -> None:
    for data in ((X, Y), (batches(),), (Unsized(),), (Numbered(),)):
        model, expected, states = network(), network(), []
        keep = Watch(lambda batch, logs, model=expected, states=states: states.append(model.get_state()))
        resume = LambdaCallback(on_train_begin=lambda logs, model=model, states=states: model.set_state(states[3]))
        arguments = {"batch_size": 5, "epochs": 3, "verbose": 0, "steps_per_epoch": 3}
        expected.fit(*data, **arguments, callbacks=keep)
        model.fit(*data, **arguments, callbacks=resume)
        assert model.steps_taken == 9
        assert_same_weights(model.get_weights(), expected.get_weights())


def test_a_data_set_by_number_is_shuffled_by_batches() -> None:
    data = Numbered()
    model, again = network(), network()
    model.fit(data, epochs=2, verbose=0)
    first, second = data.given[-10:-5], data.given[-5:]
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second
    assert data.ends == 2
    for epoch in (first, second):
        again.fit([batches()[i] for i in epoch], verbose=0)
    assert_same_weights(model.get_weights(), again.get_weights())
    model.fit(data, verbose=0, shuffle=False)
    assert data.given[-5:] == list(range(5))
    assert model.evaluate(data) == pytest.approx(model.evaluate(X, Y, 5))
    np.testing.assert_array_equal(model.predict(data), model.predict(X, 5))


def test_a_generator_that_ends() -> None:
    model = network()
    with pytest.raises(
        ValueError, match=r"as many batches as it is to have\. Received: 1 of 2, and no more\. .* fewer"
    ):
        model.fit(iter(batches()), epochs=3, steps_per_epoch=2, verbose=0)
    assert model.steps_taken == 5
    with pytest.raises(ValueError, match=r"Received: generator.*for a generator say how many .*steps_per_epoch"):
        model.fit(endless(), verbose=0)
    with pytest.raises(ValueError, match=r"Received: list_iterator.*validation_steps"):
        model.fit(X, Y, verbose=0, validation_data=iter(batches()))
    assert model.evaluate(iter(batches())) == pytest.approx(model.evaluate(X, Y, 5))  # one pass needs no length


def test_steps_of_an_evaluation_are_the_first() -> None:
    model = network()
    for data in ((X, Y), (batches(),), (Unsized(),), (endless(),), (Numbered(),)):
        assert model.evaluate(*data, batch_size=5, steps=2) == pytest.approx(model.evaluate(X[:10], Y[:10], 5))
    assert model.evaluate(X, Y, 5, steps=100) == model.evaluate(X, Y, 5)
    history = model.fit(X, Y, 5, 1, 0, validation_data=(X, Y), validation_steps=2, validation_batch_size=4).history
    assert history["val_loss"] == [pytest.approx(model.evaluate(X[:8], Y[:8], return_dict=True)["loss"])]
    for inputs in (X, (b for b, _ in batches())):
        np.testing.assert_array_equal(model.predict(inputs, 5, steps=2), model.predict(X[:10], 5))


@pytest.mark.parametrize(("often", "expected"), [(1, 4), (2, 2), (3, 1), (5, 0), ([1, 4], 2), ((3,), 1)])
def test_validation_after_some_epochs(often: Any, expected: int) -> None:
    history = network().fit(X, Y, epochs=4, verbose=0, validation_data=(X, Y), validation_freq=often).history
    assert len(history.get("val_loss", [])) == expected
    assert len(history["loss"]) == 4


def test_the_validation_has_its_own_batch_size() -> None:
    sizes: list[int] = []
    model = network()
    executor = model._training.executor
    evaluate = executor.evaluate
    executor.evaluate = lambda run, totals: (sizes.append(run.feed.batch), evaluate(run, totals))[1]  # type: ignore
    model.fit(X, Y, 5, 1, 0, validation_data=(X, Y), validation_batch_size=12)
    assert sizes == [12, 11]


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps_per_epoch": 0}, {"steps_per_epoch": 1.5}, {"validation_steps": 0}, {"validation_batch_size": 0},
        {"validation_freq": 0}, {"validation_freq": "2"},
    ],
)  # fmt: skip
def test_wrong_counts_of_fit(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))} is an integer of at least 1\. Received"):
        network().fit(X, Y, verbose=0, validation_data=(X, Y), **wrong)


def test_one_callback_or_none() -> None:
    epochs: list[int] = []
    network().fit(X, Y, epochs=2, verbose=0, callbacks=LambdaCallback(on_epoch_end=lambda e, logs: epochs.append(e)))
    network().fit(X, Y, epochs=2, verbose=0, callbacks=None)
    assert epochs == [0, 1]


def test_single_batches() -> None:
    model = network()
    loss, accuracy = model.evaluate(X, Y, 23)
    weights = np.linspace(0, 1, 23)
    assert model.test_on_batch(X, Y) == [loss, accuracy]
    assert model.test_on_batch(X, Y, return_dict=True) == {"loss": loss, "accuracy": accuracy}
    assert model.test_on_batch(X, Y, weights) == model.evaluate(X, Y, 23, sample_weight=weights)
    assert model.train_on_batch(X, Y) == [loss, accuracy]
    weighted = {0: 2.0, 1: 0.5}
    twin = network()
    twin.fit(X, Y, 23, 2, 0, shuffle=False)
    model.train_on_batch(X, Y)
    assert_same_weights(model.get_weights(), twin.get_weights())
    twin.fit(X, Y, 23, 1, 0, shuffle=False, class_weight=weighted)
    model.train_on_batch(X, Y, class_weight=weighted)
    assert_same_weights(model.get_weights(), twin.get_weights())
    assert isinstance(network(metrics=[]).train_on_batch(X, Y), float)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_model_called_on_arrays_predicts(library: str) -> None:
    model = network()
    expected = model.predict(X, 23)
    for made in (model(to_library(X, library)), model.predict_on_batch(to_library(X, library))):
        assert type(made) is type(to_library(X, library))
        np.testing.assert_array_equal(np.asarray(made), expected)
    np.testing.assert_array_equal(model(X.tolist()), expected)
    with pytest.raises(ValueError, match=r"takes inputs of shape \(N, 4\)"):
        model(X[:, :3])
    several = Model([a := Input((4,)), b := Input((2,))], [Dense(2)(a), Dense(3)(b)], backend="numpy")
    assert [made.shape for made in several([X, X[:, :2]])] == [(23, 2), (23, 3)]


def test_a_model_not_built_yet_is_built_by_what_it_is_called_on() -> None:
    assert Sequential([Dense(2)], backend="numpy")(X).shape == (23, 2)


@pytest.mark.parametrize("backend", FAST)
def test_called_as_in_training_layers_draw_anew(backend: str) -> None:

    def made() -> Sequential:
        return Sequential([Input((4,)), Dropout(0.5), BatchNormalization()], backend=backend)

    model, twin = made(), made()
    draws = [model(X, training=True) for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        assert np.any(draws[a] != draws[b])
    for draw in draws:
        np.testing.assert_array_equal(twin(X, training=True), draw)  # one seed, one series
        np.testing.assert_allclose(draw.mean(axis=0), 0, atol=SUM)  # the batch's own statistics
    np.testing.assert_array_equal(model(X), model.predict(X))
    assert_same_weights(model.get_weights(), twin.get_weights())


@pytest.mark.parametrize("backend", FAST)
def test_layers_that_always_act_as_in_training_draw_anew_at_each_prediction(backend: str) -> None:
    x = Input((4,))
    model = Model(x, Dropout(0.5)(x, training=True), backend=backend)
    first, second = model.predict(X), model.predict(X)
    assert np.any(first != second)
    assert 0.3 < np.mean(first == 0) < 0.7
    same = Model(x, Dropout(0.5)(x, training=True), backend="numpy")
    np.testing.assert_array_equal(same.predict(X), first)
    np.testing.assert_array_equal(same.predict(X), second)


def test_labels_that_mean_something_else() -> None:
    model = network()
    with pytest.raises(
        ValueError, match=r"Received: float64 .*One-hot labels take .*'categorical_cross.*y\.argmax\(-1\)"
    ):
        model.fit(X, np.eye(3)[Y], verbose=0)
    with pytest.raises(ValueError, match=r"Received: float64 from .*; whole numbers take y\.astype\(int\)"):
        model.fit(X, Y.astype("float64"), verbose=0)


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    model.predict(X, verbose=0)
    assert capsys.readouterr().out == ""
    model.predict(X, verbose=1)
    assert capsys.readouterr().out.startswith("23 samples predicted - ")
    model.evaluate(X, Y, 32, 2)
    assert capsys.readouterr().out.startswith("loss: ")
    for call in (lambda: model.predict(X, verbose=3), lambda: model.evaluate(X, Y, 32, 3)):
        with pytest.raises(ValueError, match=r"verbose is 0, 1, 2 or 'auto'\. Received: 3"):
            call()


def test_a_pydataset_says_its_number_of_batches_as_keras_lets_it() -> None:
    class ByNumber(Numbered):
        num_batches = 5
        __len__ = PyDataset.__len__

    model = network()
    assert (
        model.fit(ByNumber(), epochs=1, verbose=0).history["loss"]
        == network().fit(Numbered(), verbose=0).history["loss"]
    )
    ByNumber.num_batches = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"says in __len__ or num_batches how many .* Received: ByNumber with neither"):
        len(ByNumber())
