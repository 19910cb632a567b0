from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.callbacks import Callback, Callbacks, History, LambdaCallback
from minicnn.data import Loader
from minicnn.layers import Dense, Input
from support.small_training import compiled, digits

HOOKS = [name for name in dir(Callback) if name.startswith("on_")]


class Recorder(Callback):
    """Writes down every call with the names of its logs."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        for name in HOOKS:
            setattr(self, name, partial(self.note, name))

    def note(self, name: str, *arguments: Any) -> None:
        *number, logs = arguments
        self.calls.append((name, *number, sorted(logs)))

    def close(self) -> None:
        self.calls.append("close")


def test_every_hook_is_called_in_keras_order_with_its_logs() -> None:
    model, (x, y), names = compiled(), digits(8), ["accuracy", "loss"]
    every, functions = Recorder(), Recorder()
    by_functions = LambdaCallback(**{name: partial(functions.note, name) for name in HOOKS})
    model.fit(x, y, 5, 1, verbose=0, callbacks=[every, by_functions], validation_data=(x[:4], y[:4]))
    tested = [("on_test_begin", []), ("on_test_batch_begin", 0, []), ("on_test_batch_end", 0, names),
              ("on_test_end", names)]  # fmt: skip
    after = [*names, *(f"val_{name}" for name in names)]
    assert every.calls == [
        ("on_train_begin", []), ("on_epoch_begin", 0, []),
        ("on_train_batch_begin", 0, []), ("on_train_batch_end", 0, names),
        ("on_train_batch_begin", 1, []), ("on_train_batch_end", 1, names),
        *tested, ("on_epoch_end", 0, after), ("on_train_end", after), "close",
    ]  # fmt: skip
    assert functions.calls == every.calls[:-1]
    every.calls.clear()
    model.evaluate(x[:4], y[:4], 5, callbacks=[every])
    assert every.calls == [*tested, "close"]
    every.calls.clear()
    model.predict(x, 4, callbacks=[every])
    batches = [
        (f"on_predict_batch_{end}", k, made) for k in (0, 1) for end, made in (("begin", []), ("end", ["outputs"]))
    ]
    assert every.calls == [("on_predict_begin", []), *batches, ("on_predict_end", []), "close"]


def test_without_validation_there_is_no_test() -> None:
    recorder = Recorder()
    compiled().fit(*digits(8), verbose=0, callbacks=[recorder])
    assert not {"on_test_begin", "on_test_end"} & {call[0] for call in recorder.calls}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_callbacks_are_closed_when_training_breaks_off(error: type[BaseException]) -> None:
    class Boom(Callback):
        def on_train_batch_begin(self, batch: int, logs: Any) -> None:
            raise error

        def close(self) -> None:
            raise OSError("cannot be closed")

    recorder = Recorder()
    with pytest.raises(OSError, match="cannot be closed"):
        compiled().fit(*digits(), verbose=0, callbacks=[recorder, Boom()])
    assert recorder.calls == [
        ("on_train_begin", []), ("on_epoch_begin", 0, []), ("on_train_batch_begin", 0, []), "close",
    ]  # fmt: skip


def test_stop_training_at_the_start_of_an_epoch_trains_no_batch() -> None:
    model, recorder = compiled(), Recorder()
    stop = LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(model, "stop_training", epoch == 1))
    model.fit(*digits(), 23, 3, verbose=0, callbacks=[stop, recorder])
    assert [c[1] for c in recorder.calls if c[0] == "on_train_batch_end"] == [0]


def test_params_say_what_fit_was_asked_for() -> None:
    recorder = Recorder()
    compiled(seed=4).fit(*digits(), 5, 2, verbose=0, callbacks=[recorder], shuffle=False, last_batch="drop")
    assert recorder.params == {
        "epochs": 2, "steps": 4, "verbose": 0, "batch_size": 5, "shuffle": False, "seed": 4, "last_batch": "drop",
    }  # fmt: skip


def test_params_with_a_loader_and_a_seed() -> None:
    recorder = Recorder()
    compiled().fit(Loader(*digits(), batch_size=5), verbose=0, callbacks=[recorder], seed=9)
    assert (recorder.params["batch_size"], recorder.params["steps"], recorder.params["seed"]) == (None, 5, 9)


def test_samples_seen_counts_those_of_the_epoch() -> None:
    model, seen = compiled(), []
    look = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(model.samples_seen))
    model.fit(*digits(), 10, 2, verbose=0, callbacks=[look])
    assert seen == [10, 20, 23] * 2


@pytest.mark.parametrize("wrong", [History, lambda: None, "early"])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Callbacks are instances of .*Received: .*make an object of it"):
        compiled().fit(*digits(), verbose=0, callbacks=[wrong])


def test_what_a_callback_adds_to_the_logs_is_in_the_history() -> None:
    add = LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(extra=epoch * 2))
    history = compiled().fit(*digits(), 23, 3, verbose=0, callbacks=[add])
    assert history.history["extra"] == [0, 2, 4]
    assert history.epoch == [0, 1, 2]


def test_history_keeps_its_state() -> None:
    history = compiled().fit(*digits(), 23, 3, verbose=0)
    other = History()
    other.set_state(history.get_state())
    assert (other.epoch, other.history) == (history.epoch, history.history)
    other.on_epoch_end(3, {"loss": 1.0})
    assert len(history.epoch) == 3  # a copy


def test_states_go_by_class_and_number() -> None:
    class Counter(Callback):
        def __init__(self, n: int) -> None:
            self.n = n

        def get_state(self) -> dict[str, Any]:
            return {"n": self.n}

        def set_state(self, state: Any) -> None:
            self.n = state["n"]

    model = compiled()
    group = Callbacks([Counter(1), Recorder(), Counter(2)], model, {})
    assert group.get_state() == {"Counter": {"n": 1}, "Counter_2": {"n": 2}}
    group.set_state({"Counter_2": {"n": 5}})
    assert [c.n for c in group.callbacks if isinstance(c, Counter)] == [1, 5]


def test_a_lambda_callback_may_leave_out_everything() -> None:
    history = compiled().fit(*digits(), verbose=0, callbacks=[LambdaCallback(), LambdaCallback(on_epoch_end=None)])
    assert list(history.history) == ["loss", "accuracy"]


def test_a_model_is_not_compiled_while_it_trains() -> None:
    model = Sequential([Input((3,)), Dense(2)])
    model.compile("sgd", "mse")
    again = LambdaCallback(on_epoch_end=lambda epoch, logs: model.compile("sgd", "mse"))
    with pytest.raises(RuntimeError, match=r"compiled before its training or after it\. Received: compile of"):
        model.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=2, verbose=0, callbacks=[again])
    model.compile("sgd", "mse")  # it is no longer in training


def test_a_lambda_callback_takes_the_methods_of_a_callback() -> None:
    with pytest.raises(TypeError, match=r"takes the methods of a Callback\. Received: on_tests_begin"):
        LambdaCallback(on_tests_begin=print)
