from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.callbacks import CSVLogger, LambdaCallback, Timer
from support.small_training import compiled, digits


def rows(path: Path, separator: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text()), delimiter=separator))


def test_the_csv_file_holds_the_history_exactly(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    history = compiled().fit(
        *digits(), verbose=0, epochs=3, callbacks=[CSVLogger(path)], validation_data=digits(5, seed=1)
    )
    found = rows(path)
    assert list(found[0]) == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert [int(row["epoch"]) for row in found] == [0, 1, 2]
    for key, values in history.history.items():
        assert [float(row[key]) for row in found] == values


def test_each_row_is_in_the_file_when_its_epoch_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lengths: list[int] = []
    look = LambdaCallback(on_epoch_end=lambda epoch, logs: lengths.append(len(rows(path))))
    compiled().fit(*digits(), verbose=0, epochs=3, callbacks=[CSVLogger(path), look])
    assert lengths == [1, 2, 3]


def test_a_file_is_replaced_unless_asked_to_append(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    model, logger = compiled(), CSVLogger(path)
    for _ in range(2):
        model.fit(*digits(), verbose=0, epochs=2, callbacks=[logger])
    assert len(rows(path)) == 2
    model.fit(*digits(), verbose=0, initial_epoch=2, epochs=3, callbacks=[CSVLogger(path, append=True)])
    assert [row["epoch"] for row in rows(path)] == ["0", "1", "2"]


def test_append_to_a_file_whose_last_line_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch;loss\n0;2.5")
    compiled().fit(*digits(), verbose=0, initial_epoch=1, epochs=3, callbacks=[CSVLogger(path, ";", append=True)])
    assert [row["epoch"] for row in rows(path, ";")] == ["0", "1", "2"]
    assert rows(path, ";")[0]["loss"] == "2.5"


@pytest.mark.parametrize("separator", ["ab", "", None, 3, '"', "\n", "\r"])
def test_a_separator_is_one_character(separator: Any) -> None:
    with pytest.raises(ValueError, match=r"separator of CSVLogger is one character, .* Received: separator=.* Use ','"):
        CSVLogger("log.csv", separator)


def test_append_to_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    for name in ("new.csv", "empty.csv"):
        path = tmp_path / name
        if name == "empty.csv":
            path.touch()
        compiled().fit(*digits(), verbose=0, callbacks=[CSVLogger(path, append=True)])
        assert list(rows(path)[0]) == ["epoch", "loss", "accuracy"]


def test_appended_rows_follow_the_columns_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,other,loss\n0,1,2\n")
    compiled().fit(*digits(), verbose=0, callbacks=[CSVLogger(path, append=True)])
    assert list(rows(path)[1]) == ["epoch", "other", "loss", "accuracy"]
    assert rows(path)[0] == {"epoch": "0", "other": "1", "loss": "2", "accuracy": "NA"}
    assert rows(path)[1]["other"] == "NA"
    assert float(rows(path)[1]["loss"]) > 0


def test_other_separators_and_what_is_missing_or_new_later(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    logger = CSVLogger(path, separator=";")
    logger.on_train_begin({})
    logger.on_epoch_end(0, {"loss": 1.5, "note": "a;b", "matrix": np.eye(2, dtype=int)})
    logger.on_epoch_end(1, {"new": 7, "loss": 0.5})
    assert path.read_text() == ('epoch;loss;note;matrix;new\n0;1.5;"a;b";[[1, 0], [0, 1]];NA\n1;0.5;NA;NA;7\n')


def test_validation_that_comes_later_has_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    history = compiled().fit(
        *digits(), verbose=0, epochs=5, callbacks=[CSVLogger(path)], validation_data=digits(5, seed=1),
        validation_freq=2,
    ).history  # fmt: skip
    found = rows(path)
    assert list(found[0]) == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert [row["val_loss"] for row in found] == ["NA", *(str(v) for v in history["val_loss"][:1]), "NA",
                                                  *(str(v) for v in history["val_loss"][1:]), "NA"]  # fmt: skip
    assert [float(row["loss"]) for row in found] == history["loss"]


def test_columns_come_to_rows_that_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes('loss,"two\nlines"\r\n1,"a\r\nb ""c"""\r\n\r\n2,\udcff'.encode("utf-8", "surrogateescape"))
    logger = CSVLogger(path, append=True)
    logger.on_train_begin({})
    logger.on_epoch_end(4, {"loss": 0.5})
    logger.on_epoch_end(5, {"loss": 0.25, "x": "é"})
    assert path.read_bytes() == (
        'loss,"two\nlines",epoch,x\n1,"a\r\nb ""c""",NA,NA\n2,\udcff,NA,NA\n0.5,NA,4,NA\n0.25,NA,5,é\n'
    ).encode("utf-8", "surrogateescape")


def test_a_file_that_is_taken_away_is_begun_again(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "log.csv")
    logger.on_train_begin({})
    logger.on_epoch_end(0, {"loss": 1.0})
    (tmp_path / "log.csv").unlink()
    logger.on_epoch_end(1, {"loss": 2.0})
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n1,2.0\n"


@given(st.integers(1, 5), st.integers(0, 3), st.booleans(), st.data())
def test_a_resumed_file_is_that_of_a_training_that_was_not_interrupted(
    backed_up: int, lost: int, append: bool, data: st.DataObject
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.csv")
        if append:
            path.write_text("epoch,loss\n-1,9.0\n")
        logger, state = CSVLogger(path, append=append), {}
        logger.on_train_begin({})
        late = data.draw(st.integers(0, 8))  # epoch from which there is one more column
        logs = [{"loss": epoch / 3} | ({"late": epoch} if epoch >= late else {}) for epoch in range(8)]
        for epoch in range(backed_up + lost):
            logger.on_epoch_end(epoch, logs[epoch])
            if epoch == backed_up - 1:
                state = logger.get_state()
        torn = path.read_bytes()
        path.write_bytes(torn[: len(torn) - data.draw(st.integers(0, 3))] if lost else torn)
        again = CSVLogger(path, append=append)
        again.on_train_begin({})
        again.set_state(state)
        for epoch in range(backed_up, 8):
            again.on_epoch_end(epoch, logs[epoch])
        expected = [{"epoch": "-1", "loss": "9.0"}] * append
        expected += [{"epoch": str(epoch)} | {k: str(v) for k, v in log.items()} for epoch, log in enumerate(logs)]
        names = {name: "NA" for log in expected for name in log}
        assert rows(path) == [names | row for row in expected]


def test_the_timer_measures_training_alone() -> None:
    class Slow(LambdaCallback):
        def on_test_begin(self, logs: Any) -> None:
            time.sleep(0.2)

    sleep = Slow(on_train_batch_end=lambda batch, logs: time.sleep(0.01))
    start = time.perf_counter()
    history = compiled().fit(*digits(), 5, 2, verbose=0, callbacks=[Timer(), sleep], validation_data=digits(5, seed=1))
    taken = time.perf_counter() - start
    times = history.history["time_s"]
    assert all(t >= 0.05 for t in times)
    assert sum(times) <= taken - 0.4
    assert history.history["samples_per_s"] == [23 / t for t in times]


def test_the_timer_without_validation_waits_for_the_device() -> None:
    model, waits = compiled(), []

    class Backend(type(model.backend)):  # type: ignore[misc]
        def synchronize(self) -> None:
            waits.append(len(self_logs))

    self_logs: list[Any] = []
    model = compiled(backend=Backend())
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: self_logs.append(batch))
    model.fit(*digits(), 5, 2, verbose=0, callbacks=[note, Timer()])
    assert waits == [5, 10]


def test_a_timer_goes_on_from_its_state() -> None:
    first, second = Timer(), Timer()
    start = time.perf_counter()
    first.on_epoch_begin(0, {})
    time.sleep(0.05)
    state = first.get_state()
    interrupted = time.perf_counter()
    time.sleep(0.05)  # between interruption and resumption no time is counted
    resumed = time.perf_counter()
    second.on_epoch_begin(0, {})
    second.set_state(state)
    second.model = compiled()
    logs: dict[str, Any] = {}
    second.on_epoch_end(0, logs)
    assert 0.05 <= logs["time_s"] <= interrupted - start + time.perf_counter() - resumed
