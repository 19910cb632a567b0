"""`minicnn compare`."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import backends, machine
from minicnn.cli import compare
from minicnn.cli.compare import Result
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.measure import Worker
from minicnn.measure.model_trainer import ModelTrainer
from minicnn.measure.spread import Spread
from support.command_line import done, error_of, minicnn, settings_of
from support.in_process import in_this_process
from support.tolerances import DOUBLE, STEP

FILES = {"compare.json", "compare.csv", "compare.png"}
COLUMNS = [
    "backend",
    "time_s",
    "first_time_s",
    "samples_per_s",
    "speedup",
    "test_accuracy",
    "memory_mb",
    "difference",
    "agrees",
]


def small(network: str = "mlp", **given: Any) -> Settings:
    settings = {"epochs": 2, "batch_size": 32, "learning_rate": 0.1, "momentum": 0.5, "samples": 70, "hold_out": 0}
    return settings_of(network, **{**settings, **given})


def written() -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows of the CSV and the JSON of the folder "out"."""
    assert {p.name for p in Path("out").iterdir()} == FILES
    with Path("out/compare.csv").open(newline="") as file:
        return list(csv.DictReader(file)), json.loads(Path("out/compare.json").read_text())


# Real processes -----------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_backends_and_pytorchs_own_modules_agree() -> None:
    pytest.importorskip("torch")
    result = done(
        "compare",
        "mlp",
        "--samples",
        "300",
        "--batch-size",
        "100",
        "--epochs",
        "3",
        "--backends",
        "torch,numpy",
        "--out",
        "out",
    )
    rows, record = written()
    assert list(rows[0]) == COLUMNS
    names = ["torch", "numpy", "torch.nn"]
    assert [row["backend"] for row in rows] == names
    assert record["reference"] == "numpy"
    for row, entry in zip(rows, record["results"], strict=True):
        times = [epoch["time_s"] for epoch in entry["history"]]
        assert float(row["time_s"]) == pytest.approx(Spread.after_first(times).median)
        assert float(row["first_time_s"]) == times[0]
        assert float(row["memory_mb"]) > 1
        assert entry["process_mb"] > entry["memory_mb"]
        assert row["agrees"] == "True"
        assert float(row["difference"]) < STEP
        assert entry["history"][-1]["loss"] < entry["history"][0]["loss"]
        assert {c["what"] for c in entry["checks"]} == (
            set() if entry["name"] == "numpy" else {"loss", "test accuracy"}
        )
    speedups = {row["backend"]: float(row["speedup"]) for row in rows}
    times = {row["backend"]: float(row["time_s"]) for row in rows}
    assert speedups == pytest.approx({name: times["numpy"] / time for name, time in times.items()})
    assert Path("out/compare.png").read_bytes().startswith(b"\x89PNG")
    assert record["machine"]["versions"]["numpy"] == np.__version__
    for name in names:
        assert sum(line.split()[:1] == [name] and "epoch" in line for line in result.stdout.splitlines()) == 3
    assert not any(c in result.output for c in "\x1b\r")


def test_a_candidate_that_fails_does_not_keep_the_others_from_ending() -> None:
    pytest.importorskip("torch")
    result = minicnn(
        "compare",
        "mlp",
        "--samples",
        "60",
        "--epochs",
        "1",
        "--backends",
        "numpy,torch",
        "--precision",
        "mixed_bfloat16",
        "--out",
        "out",
    )
    assert "numpy failed" in error_of(result, 1)
    assert "numpy FAILED: The numpy backend computes in float32 or float64" in result.stdout
    rows, record = written()
    assert [row["backend"] for row in rows] == ["torch"]
    assert record["reference"] == "torch"
    assert [entry["failure"] is None for entry in record["results"]] == [False, True]


def test_all_that_are_found_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_numpy(name: str, *rest: Any) -> type[backends.Backend]:
        if name != "numpy":
            raise ImportError(f"Backend {name!r} needs\n {name}")
        return known(name, *rest)

    known = backends.backend_class
    monkeypatch.setattr(backends, "backend_class", only_numpy)
    monkeypatch.setattr(machine, "warnings", lambda: ["slow"])
    result = done("compare", "mlp", "--samples", "60", "--epochs", "1")
    assert "note: Backend 'jax' needs jax\n".replace("Backend", "jax is left out: Backend") in result.stderr
    assert "note: slow" in result.stderr
    assert "array_api_strict" not in result.stderr
    with Path("runs/compare-mlp-synthetic_digits/compare.csv").open(newline="") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == ["numpy"]
    again = error_of(minicnn("compare", "mlp", "--samples", "60", "--epochs", "1"), 1)
    assert "holds a finished run" in again


@pytest.mark.no_cover
@pytest.mark.night("tests/cli/test_cli_compare.py::test_backends_and_pytorchs_own_modules_agree")
def test_jax_computes_in_float64_too() -> None:
    pytest.importorskip("jax")
    args = ("--samples", "60", "--epochs", "2", "--backends", "numpy,jax", "--precision", "float64", "--out", "out")
    done("compare", "mlp", *args)
    rows, _ = written()
    assert float(rows[1]["difference"]) < DOUBLE


# Who takes part -----------------------------------------------------------------------------------


def test_numpy_comes_first_and_the_peer_is_that_of_three_networks() -> None:
    pytest.importorskip("torch")
    names, _ = compare.usable_backends(small())
    assert names[0] == "numpy"
    assert "array_api_strict" not in names
    assert compare.peers(names, small()) == ["torch.nn"]
    assert compare.peers(names, small("lenet5")) == []
    names, notes = compare.usable_backends(small(precision="mixed_bfloat16"))
    assert "numpy" not in names
    assert compare.peers(names, small(precision="mixed_bfloat16")) == []
    assert "numpy is left out: it computes in float32 or float64" in notes


def test_each_pytorch_device_has_its_peer() -> None:
    assert compare.peers(["numpy", "torch", "torch:cuda:1"], small()) == ["torch.nn", "torch.nn:cuda:1"]
    assert compare.peers(["numpy", "jax"], small()) == []


def test_a_backend_without_its_device_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(backends.Backend):
        name = "absent"
        devices = ("cuda",)

        def __init__(self) -> None:
            raise RuntimeError("no CUDA device")

    monkeypatch.setattr(backends, "names", lambda: ["absent"])
    monkeypatch.setattr(backends, "backend_class", lambda name: Absent)
    assert compare.usable_backends(small()) == ([], ["absent is left out: no CUDA device"])


# Results that are made up -------------------------------------------------------------------------


def made_up(name: str, *, loss: float = 1.0, accuracy: float = 0.5, failure: str | None = None) -> Result:
    history = [
        {
            "epoch": i, "loss": loss / i, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5, "time_s": t,
            "samples_per_s": 1 / t,
        }
        for i, t in ((1, 9.0), (2, 2.0), (3, 4.0))
    ]  # fmt: skip
    facts = {"memory_mb": 1.0, "process_mb": 2.0}
    return Result(name, [] if failure else history, facts, {"loss": 1.0, "accuracy": accuracy}, failure)


def compared(
    monkeypatch: pytest.MonkeyPatch, *results: Result, busy: float = 0.02
) -> tuple[Any, list[dict[str, str]], dict[str, Any]]:
    monkeypatch.setattr(compare, "measured", lambda names, settings, samples: (list(results), settings))
    monkeypatch.setattr(compare, "usable_backends", lambda settings: ([r.name for r in results], []))
    monkeypatch.setattr(compare.Others, "busy", lambda self: busy)
    result = minicnn("compare", "mlp", "--samples", "1000", "--epochs", "3", "--out", "out")
    return result, *written()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"loss": 1.01}, "loss 1.0e-02 (at most"),
        ({"accuracy": 0.504}, "test accuracy 4.0e-03 (at most 3.0e-03)"),
        ({"loss": float("nan")}, "loss nan"),
    ],
)
def test_one_that_disagrees_is_marked(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], what: str) -> None:
    result, rows, record = compared(monkeypatch, made_up("numpy"), made_up("fine"), made_up("odd", **other))
    assert "odd failed or differed" in error_of(result, 1)
    assert [row["agrees"] for row in rows] == ["True", "True", "False"]
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("odd DISAGREES"))
    assert what in line
    assert any(line.split()[:1] == ["odd"] and line.split()[-1] == "DISAGREES" for line in result.stdout.splitlines())
    assert "fine agrees: loss 0.0e+00" in result.stdout
    (failed,) = ([c["what"] for c in e["checks"] if not c["passed"]] for e in record["results"] if e["name"] == "odd")
    assert len(failed) == 1


def test_one_that_is_refused_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = made_up("odd", failure="refused, because its gradient of a/kernel differs")
    result, rows, record = compared(monkeypatch, made_up("numpy"), refused)
    assert "odd failed or differed" in error_of(result, 1)
    assert "odd DISAGREES: refused, because its gradient of a/kernel differs" in result.stdout
    assert [row["backend"] for row in rows] == ["numpy"]
    assert [entry["failure"] is None for entry in record["results"]] == [True, False]


def test_the_first_epoch_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows, _ = compared(monkeypatch, made_up("torch"))
    assert (float(rows[0]["time_s"]), float(rows[0]["first_time_s"])) == (3.0, 9.0)
    assert float(rows[0]["samples_per_s"]) == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_times_beside_other_programs_are_named_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _, record = compared(monkeypatch, made_up("numpy"), made_up("torch"), busy=0.42)
    lines = [line for line in result.stdout.splitlines() if "ther programs" in line]
    assert lines == ["Other programs kept the cores busy for 42% of their time: times may be too long."]
    assert [entry["others"] for entry in record["results"]] == [0.42, 0.42]


def test_without_numpy_the_slowest_is_the_measure_of_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = made_up("slow"), made_up("fast")
    for row in fast.history:
        row["time_s"] /= 2
    result, rows, record = compared(monkeypatch, fast, slow)
    assert [float(row["speedup"]) for row in rows] == [2.0, 1.0]
    assert record["reference"] == "fast"
    assert "over the slowest" in result.stdout


def test_when_all_fail_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Result("numpy", failure="it broke")
    monkeypatch.setattr(compare, "measured", lambda names, settings, samples: ([failed], settings))
    line = error_of(minicnn("compare", "mlp", "--samples", "60", "--backends", "numpy", "--out", "out"), 1)
    assert line == "numpy: it broke"
    assert not Path("out").exists()


# Training in turns --------------------------------------------------------------------------------


def test_candidates_train_all_epochs_in_at_most_ten_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    settings = small(epochs=25, hold_out=10)
    samples = job.load_samples(settings)
    turns: list[int] = []
    train = ModelTrainer.train
    monkeypatch.setattr(ModelTrainer, "train", lambda self, epochs: turns.append(epochs) or train(self, epochs))
    (result,), used = compare.measured(["numpy"], settings, samples)
    assert used is settings
    assert turns == [3] * 8 + [1]
    assert [row["epoch"] for row in result.history] == list(range(1, 26))
    assert set(result.history[0]) == set(job.COLUMNS)
    assert result.test.keys() == {"loss", "accuracy"}
    assert result.test["loss"] != result.history[-1]["val_loss"], "the test is on other samples"
    assert result.facts["process_mb"] > result.facts["memory_mb"] >= 0


def test_a_loss_that_is_no_number_is_a_failure() -> None:
    args = ("--samples", "60", "--epochs", "2", "--lr", "1e30", "--backends", "numpy", "--out", "out")
    line = error_of(minicnn("compare", "mlp", *args), 1)
    assert line.startswith("numpy: The val_loss is a finite number. Received: nan in epoch 1.")


def test_modules_of_the_folder_in_which_it_runs_are_not_those_of_python() -> None:
    Path("random.py").write_text("raise RuntimeError('mine')", "utf-8")
    with Worker("numpy", Counter, "abca") as worker:
        assert worker.call("total") == 4


# Progress -----------------------------------------------------------------------------------------

EPOCH = {"time_s": 2.0, "samples_per_s": 1000.0, "loss": 0.5, "val_accuracy": 0.9}


def test_each_turn_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with compare._Display(["numpy", "torch"], small(epochs=45)) as display:
        display.show("numpy", {**EPOCH, "epoch": 45})
        display.failed(Result("torch", failure="broken"))
    assert capsys.readouterr().out.splitlines() == [
        "numpy  epoch 45/45: 2 s, 1,000 samples/s, loss 0.5000, validation accuracy 90.00%", "torch failed: broken"
    ]  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    with compare._Display(["numpy", "jax"], small(epochs=2)) as display:
        display.show("numpy", {**EPOCH, "epoch": 1})
        display.failed(Result("jax", failure="broken"))
        numpy, jax = display._progress.tasks  # type: ignore[attr-defined]
    assert numpy.completed == 1
    assert "loss 0.5000" in numpy.fields["text"]
    assert jax.fields["text"] == "failed"
