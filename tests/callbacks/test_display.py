from __future__ import annotations

import io
import re
import sys
import time
from typing import Any

import numpy as np
import pytest

from minicnn.backends import _progress as compilation
from minicnn.backends.numpy import NumpyBackend
from minicnn.callbacks import Callback, LambdaCallback, Timer, display, progress
from support.small_training import compiled, digits
from support.terminal import pseudo_terminal, screen

LINE = re.compile(
    r"Epoch (\d)/(\d) - \d+\.\d s - \d+ samples/s - loss: \d+\.\d{4} - accuracy: \d\.\d{4}"
    r"( - val_loss: \d+\.\d{4} - val_accuracy: \d\.\d{4})?"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard output; no fixture, because pytest puts its own there after those."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    return screen


def written(screen: io.StringIO) -> str:
    """What was written, without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_one_line_an_epoch_elsewhere_than_on_a_terminal(verbose: str | int, capsys: pytest.CaptureFixture[str]) -> None:
    compiled().fit(*digits(), 5, 2, verbose=verbose, callbacks=[Timer()], validation_data=digits(5))
    lines = capsys.readouterr().out.splitlines()
    assert [LINE.fullmatch(line).groups()[:2] for line in lines] == [("1", "2"), ("2", "2")]  # type: ignore[union-attr]


def test_a_stream_that_can_only_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        """What stands in for sys.stdout, without isatty."""

        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None: ...

    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    model = compiled()
    model.fit(*digits(), 5, 2, validation_data=digits(5))
    model.evaluate(*digits(), verbose=1)
    assert len(LINE.findall(stream.text)) == 2
    assert len(stream.text.splitlines()) == 3


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    compiled().fit(*digits(), verbose=0)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("verbose", [3, -1, "yes", None])
def test_an_unknown_verbosity_is_refused(verbose: Any) -> None:
    with pytest.raises(ValueError, match=r"verbose is 0, 1, 2 or 'auto'. Received: "):
        compiled().fit(*digits(), verbose=verbose)


@pytest.mark.parametrize("verbose", [1, "auto"])
def test_a_bar_on_a_terminal_that_its_line_replaces(monkeypatch: pytest.MonkeyPatch, verbose: str | int) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(display, "_INTERVAL", 0.0)

    class Still(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            assert "Epoch 1/2" in written(terminal)

    compiled().fit(*digits(), 5, 2, verbose=verbose, callbacks=[Still()], validation_data=digits(5))
    text = written(terminal)
    assert re.search(r"Epoch 1/2 .*1/5 \d+ samples/s - loss: \d\.\d{4} - accuracy: ", text)
    assert "5/5 validation" in text
    assert [m.groups()[:2] for m in LINE.finditer(text)] == [("1", "2"), ("2", "2")]
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")  # the cursor


def test_short_epochs_have_a_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled()
    model.fit(*digits(), 5, 1, verbose=0)
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(display, "_INTERVAL", 1000.0)
    model.fit(*digits(), 5, 3, verbose=1, validation_data=digits(5))
    assert "\x1b" not in terminal.getvalue()
    assert len(terminal.getvalue().splitlines()) == 3


def test_verbose_2_has_no_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    compiled().fit(*digits(), 5, 2, verbose=2)
    assert "\x1b" not in terminal.getvalue()
    assert len(terminal.getvalue().splitlines()) == 2


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    for name in [m for m in sys.modules if m.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    compiled().fit(*digits(), 5, 1, verbose=1)
    assert LINE.fullmatch(terminal.getvalue().strip())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_terminal_is_itself_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    terminal = open_terminal(monkeypatch)

    def boom(batch: int, logs: Any) -> None:
        raise error

    with pytest.raises(error):
        compiled().fit(*digits(), 5, 1, verbose=1, callbacks=[LambdaCallback(on_train_batch_end=boom)])
    assert "\x1b[?25l" in terminal.getvalue()
    assert terminal.getvalue().rstrip().rpartition("\x1b[?25")[2].startswith("h")  # the cursor is shown


def test_the_logs_are_read_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    model, reads = compiled(), []
    real = model._training.logs

    def count(totals: Any) -> dict[str, Any]:
        reads.append(time.perf_counter())
        return real(totals)

    monkeypatch.setattr(model._training, "logs", count)
    start = time.perf_counter()
    model.fit(*digits(200), 1, 2, verbose=1)
    seconds = time.perf_counter() - start
    assert len(reads) <= seconds / display._INTERVAL + 1 + 2  # the first look, and the end of each epoch


def test_numbers_of_all_sizes_and_what_is_none() -> None:
    logs = {"a": 0.5, "b": 0.0, "rate": 1e-5, "huge": 1.5e7, "nan": float("nan"), "m": np.eye(2), "n": np.float32(2)}
    assert display._text(logs) == "a: 0.5000 - b: 0.0000 - rate: 1e-05 - huge: 1.5e+07 - nan: nan - n: 2.0000"


def test_progress_gives_at_most_one_callback() -> None:
    assert [len(progress(v)) for v in (0, 1, 2, "auto")] == [0, 1, 1, 1]


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_fit_without_a_console(verbose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw
    assert compiled().fit(*digits(), 6, 1, verbose).epoch == [0]


# Compiling ----------------------------------------------------------------------------------------

SECONDS = 0.2  # for a step


class Compiling(NumpyBackend):
    """NumPy with kernels that take a while to compile."""

    def compile(self, program: Any) -> Any:
        with compilation.Progress(36) as line:
            for k in range(36):
                time.sleep(SECONDS / 36)
                line.next(f"kernel{k}")
        return super().compile(program)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is shown at once, and drawn each time."""
    monkeypatch.setattr(compilation, "PATIENCE", 0.01)
    monkeypatch.setattr(display, "_INTERVAL", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("streams", [("stdout", "stderr"), ("stdout",)], ids=["both", "stdout"])
@pytest.mark.parametrize("verbose", [1, 2])
def test_compiling_leaves_nothing_on_a_terminal(
    streams: tuple[str, ...], verbose: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pseudo_terminal(monkeypatch, *streams) as written:
        compiled(backend=Compiling()).fit(*digits(), 23, 2, verbose, validation_data=digits(5))
        sys.stdout.write("end")
    lines = screen(written[0])
    assert re.fullmatch(r"Compiling 72 kernels took \d\.\d s", lines[0]), "a step of the training, one of the test"
    assert [LINE.fullmatch(line).groups()[:2] for line in lines[1:3]] == [("1", "2"), ("2", "2")]  # type: ignore[union-attr]
    assert lines[3:] == ["end"]
    assert capsys.readouterr().err == ""
    text = re.sub(r"\x1b\[[0-9;]*m", "", written[0])
    if verbose == 1:  # within the bar
        assert re.search(r"Epoch 1/2 .* 0/1 compiling kernel 36 of 36: kernel35", text)
        assert re.search(r"Epoch 1/2 .* 1/1 compiling kernel 36 of 36: kernel35", text)
        assert written[0].count("\x1b[?25l") == written[0].count("\x1b[?25h") > 0
    else:
        assert ("\r\x1b[Kcompiling kernel 36 of 36: kernel35" in text) == ("stderr" in streams)


@pytest.mark.usefixtures("impatient")
def test_a_pipe_says_once_how_long_compiling_took(capsys: pytest.CaptureFixture[str]) -> None:
    history = (
        compiled(backend=Compiling()).fit(*digits(), 23, 2, callbacks=[Timer()], validation_data=digits(5)).history
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert "\r" not in out
    said, *epochs = out.splitlines()
    assert re.fullmatch(r"Compiling 72 kernels took \d\.\d s", said)
    assert len(epochs) == 2
    rate = float(re.search(r"(\d+) samples/s", epochs[0])[1])  # type: ignore[index]
    assert 23 / rate < history["time_s"][0] - 0.9 * SECONDS, "compiling is no work on samples"


def test_a_short_compilation_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    compiled(backend=Compiling()).fit(*digits(), 23, 1)
    assert LINE.fullmatch(capsys.readouterr().out.strip())


@pytest.mark.usefixtures("impatient")
def test_a_model_that_is_used_within_a_training_compiles_in_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = compiled(backend=Compiling())

    def use(epoch: int, logs: Any) -> None:
        inner.predict(digits()[0], batch_size=23)

    with pseudo_terminal(monkeypatch, "stdout", "stderr") as written:
        model = compiled(backend=Compiling())
        model.fit(*digits(), 23, 1, verbose=1, callbacks=[LambdaCallback(on_epoch_begin=use)])
        inner.predict(digits()[0], batch_size=20)  # after it, on a line of its own
    lines = screen(written[0])
    assert lines[0].startswith("Compiling ")
    assert LINE.fullmatch(lines[1])
    assert not any(lines[2:])
