from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn.callbacks import BackupAndRestore, Callbacks, LambdaCallback, ModelCheckpoint
from minicnn.layers import Dense, Input
from minicnn.models import Sequential
from minicnn.saving import load_model
from support.small_training import arrays, assert_same_bits, compiled, digits, network


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_one_file_an_epoch_with_the_logs_in_its_name(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "{epoch:02d}-{val_loss:.2f}.safetensors")
    history = compiled().fit(*digits(), verbose=0, epochs=3, callbacks=[checkpoint], validation_data=digits(5, seed=1))
    losses = history.history["val_loss"]
    assert names(tmp_path) == [f"{i:02d}-{loss:.2f}.safetensors" for i, loss in enumerate(losses, start=1)]


def test_each_file_is_the_model_of_its_epoch(tmp_path: Path) -> None:
    model = compiled()
    states: list[Any] = []
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: states.append(arrays(model)))
    model.fit(*digits(), verbose=0, epochs=2, callbacks=[note, ModelCheckpoint(tmp_path / "{epoch}")])
    for epoch, state in enumerate(states, start=1):
        assert_same_bits(arrays(load_model(tmp_path / str(epoch))), state)


def test_every_so_many_batches_counted_over_epochs(tmp_path: Path) -> None:
    reads: list[int] = []

    class Once(ModelCheckpoint):
        def _save(self, fields: dict[str, int], logs: Any) -> None:
            reads.append(fields["batch"])
            super()._save(fields, logs)

    compiled().fit(*digits(), 5, 2, verbose=0, callbacks=[Once(tmp_path / "{epoch}-{batch}", save_freq=4)])
    assert names(tmp_path) == ["1-4", "2-3"]
    assert reads == [4, 3]


def test_a_name_without_logs_does_not_wait_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled()
    read: list[int] = []
    real = model._training.logs
    monkeypatch.setattr(model._training, "logs", lambda totals: read.append(1) or real(totals))  # type: ignore[func-returns-value]
    model.fit(*digits(), 5, 1, verbose=0, callbacks=[ModelCheckpoint(tmp_path / "m", save_freq=1)])
    assert len(read) == 1  # at the end of the epoch


@pytest.mark.parametrize(
    ("values", "arguments", "saved"),
    [
        ([3, 2, 2, 1], {}, [1, 2, 4]),
        ([1, 2, 0], {"mode": "max"}, [1, 2]),
        ([3, 2, 1], {"initial_value_threshold": 2}, [3]),
        ([float("nan"), 2, 3], {}, [2]),
    ],
)
def test_only_better_models(values: list[float], arguments: dict[str, Any], saved: list[int], tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}", save_best_only=True, **arguments)
    checkpoint.model = compiled()
    checkpoint.on_train_begin({})
    for epoch, value in enumerate(values):
        checkpoint.on_epoch_begin(epoch, {})
        checkpoint.on_epoch_end(epoch, {"val_loss": value})
    assert names(tmp_path) == [str(n) for n in saved]


def test_the_best_value_is_its_state(tmp_path: Path) -> None:
    first, second = (ModelCheckpoint(tmp_path / "m", "loss", save_best_only=True) for _ in range(2))
    first.model = second.model = compiled()
    first.on_epoch_end(0, {"loss": 1.0})
    second.set_state(first.get_state())
    (tmp_path / "m").unlink()
    second.on_epoch_end(1, {"loss": 1.5})
    assert not names(tmp_path)


def test_weights_alone(tmp_path: Path) -> None:
    model = compiled()
    model.fit(*digits(), verbose=0, callbacks=[ModelCheckpoint(tmp_path / "w", save_weights_only=True)])
    other = network(seed=1)
    other.load_weights(tmp_path / "w")
    assert_same_bits(other.get_weights(), model.get_weights())
    with pytest.raises(ValueError, match=r"holds a 'weights', no model"):
        load_model(tmp_path / "w")


def test_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m"
    compiled().fit(*digits(), verbose=0, callbacks=[ModelCheckpoint(path, verbose=1)])
    assert capsys.readouterr().out == f"Epoch 1: saved {path}.\n"
    assert path.exists()


@pytest.mark.parametrize("name", ["{val_loss:.2f}", "{0}", "{loss:q}", "{epoch"])
def test_a_field_that_there_is_not(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Fields of filepath are .*loss, accuracy, epoch. Received: "):
        compiled().fit(*digits(), verbose=0, callbacks=[ModelCheckpoint(tmp_path / name)])


def test_an_unknown_monitor(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Received: 'val_loss'; there are: loss, accuracy"):
        compiled().fit(*digits(), verbose=0, callbacks=[ModelCheckpoint(tmp_path / "m", save_best_only=True)])
    ModelCheckpoint(tmp_path / "m", "f1")  # what is not looked at needs no mode


def test_within_an_epoch_there_is_no_validation_to_monitor(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of a validation\. Received: monitor='val_loss', save_freq=2\. Use mon"):
        ModelCheckpoint(tmp_path / "m", save_best_only=True, save_freq=2)
    ModelCheckpoint(tmp_path / "m", save_freq=2)
    best = ModelCheckpoint(tmp_path / "m", "loss", save_best_only=True, save_freq=2)
    compiled().fit(*digits(), 5, verbose=0, callbacks=[best])
    assert best.best is not None


@pytest.mark.parametrize("kind", [ModelCheckpoint, BackupAndRestore])
@pytest.mark.parametrize("save_freq", ["epochs", 0, -1, 2.5, None])
def test_save_freq_is_an_epoch_or_a_number(kind: Any, save_freq: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"save_freq is 'epoch' or a number of batches, at least 1. Received: "):
        kind(tmp_path, save_freq=save_freq)


@pytest.mark.parametrize("kind", [ModelCheckpoint, BackupAndRestore])
def test_what_saves_after_epochs_does_not_ask_for_every_batch(kind: Any, tmp_path: Path) -> None:
    assert not Callbacks([kind(tmp_path)], compiled(), {}).watch_batches
    assert Callbacks([kind(tmp_path, save_freq=2)], compiled(), {}).watch_batches


def test_a_model_that_cannot_be_saved_is_refused_before_training(tmp_path: Path) -> None:
    model = Sequential([Input((2,)), Dense(1, activation=lambda x: x * 2.0)], backend="numpy")
    model.compile("sgd", "mse")
    data = np.zeros((4, 2)), np.zeros((4, 1))
    with pytest.raises(TypeError, match=r"Functions cannot be saved"):
        model.fit(*data, verbose=0, callbacks=[ModelCheckpoint(tmp_path / "m")])
    assert model.get_state()["steps_taken"] == 0
    model.fit(*data, verbose=0, callbacks=[ModelCheckpoint(tmp_path / "m", save_weights_only=True)])
    assert names(tmp_path) == ["m"]
