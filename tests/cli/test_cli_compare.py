"""`minicnn compare`."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import backends, machine
from minicnn.cli import candidates, compare, worker
from minicnn.cli.candidates import Result
from minicnn.jobs.job import load_samples
from minicnn.jobs.settings import Settings
from minicnn.measure.spread import Spread
from support.command_line import done, error_of, minicnn, settings_of

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
    pytest.importorskip("jax")
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
        "torch,numpy,jax",
        "--out",
        "out",
    )
    rows, record = written()
    assert list(rows[0]) == COLUMNS
    names = ["torch", "numpy", "jax", "torch.nn"]
    assert [row["backend"] for row in rows] == names
    assert record["reference"] == "numpy"
    for row, entry in zip(rows, record["results"], strict=True):
        times = [epoch["time_s"] for epoch in entry["history"]]
        assert float(row["time_s"]) == pytest.approx(Spread.after_first(times).median)
        assert float(row["first_time_s"]) == times[0]
        assert float(row["memory_mb"]) > 1
        assert entry["process_mb"] > entry["memory_mb"]
        assert row["agrees"] == "True"
        assert float(row["difference"]) < 1e-4
        assert entry["history"][-1]["loss"] < entry["history"][0]["loss"]
        assert {c["what"] for c in entry["checks"]} == (
            set()
            if entry["name"] == "numpy"
            else {"first weights", "first update", "loss", "final weights", "test accuracy"}
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
    def only_numpy(name: str) -> type[backends.Backend]:
        if name != "numpy":
            raise ImportError(f"Backend {name!r} needs\n {name}")
        return known(name)

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
def test_jax_computes_in_float64_too() -> None:
    pytest.importorskip("jax")
    args = ("--samples", "60", "--epochs", "2", "--backends", "numpy,jax", "--precision", "float64", "--out", "out")
    done("compare", "mlp", *args)
    rows, _ = written()
    assert float(rows[1]["difference"]) < 1e-13


# Who takes part -----------------------------------------------------------------------------------


def test_numpy_comes_first_and_the_peer_last() -> None:
    pytest.importorskip("torch")
    names, _ = candidates.found(small(), with_peer=True)
    assert names[0] == "numpy"
    assert names[-1] == "torch.nn"
    assert "array_api_strict" not in names
    assert "torch.nn" not in candidates.found(small(), with_peer=False)[0]
    assert "torch.nn" not in candidates.found(small("lenet5"), with_peer=True)[0]
    names, notes = candidates.found(small(precision="mixed_bfloat16"), with_peer=True)
    assert "numpy" not in names
    assert "torch.nn" not in names
    assert "numpy is left out: it computes in float32 or float64" in notes


def test_each_pytorch_device_has_its_peer() -> None:
    assert candidates.peers(["numpy", "torch", "torch:cuda:1"], small()) == ["torch.nn", "torch.nn:cuda:1"]
    assert candidates.peers(["numpy", "jax"], small()) == []


def test_a_backend_without_its_device_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(backends.Backend):
        name = "absent"
        devices = ("cuda",)

        def __init__(self) -> None:
            raise RuntimeError("no CUDA device")

    monkeypatch.setattr(backends, "names", lambda: ["absent"])
    monkeypatch.setattr(backends, "backend_class", lambda name: Absent)
    assert candidates.found(small(), with_peer=True) == ([], ["absent is left out: no CUDA device"])


# Results that are made up -------------------------------------------------------------------------


def made_up(name: str, *, loss: float = 1.0, step: float = 0.1, start: float = 1.0, accuracy: float = 0.5) -> Result:
    history = [
        {
            "epoch": i,
            "loss": loss / i,
            "accuracy": 0.5,
            "val_loss": 1.0,
            "val_accuracy": 0.5,
            "time_s": t,
            "samples_per_s": 1 / t,
        }
        for i, t in ((1, 9.0), (2, 2.0), (3, 4.0))
    ]
    weights = {
        f"{stage}/w": np.full(3, value, np.float32)
        for stage, value in (("start", start), ("first", 1 + step), ("final", 2.0))
    }
    facts = {
        "history": history,
        "memory_mb": 1.0,
        "process_mb": 2.0,
        "test": {"loss": 1.0, "accuracy": accuracy},
        "reduction": 100,
    }
    return Result(name, facts, weights)


def compared(
    monkeypatch: pytest.MonkeyPatch, results: dict[str, Result]
) -> tuple[Any, list[dict[str, str]], dict[str, Any]]:
    monkeypatch.setattr(candidates, "run", lambda name, *args: results[name])
    monkeypatch.setattr(candidates, "found", lambda settings, with_peer: (list(results), []))
    result = minicnn("compare", "mlp", "--samples", "1000", "--epochs", "3", "--out", "out")
    return result, *written()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"loss": 1.01}, "loss 1.0e-02 (at most"),
        ({"step": 0.101}, "first update 1.0e-02 (at most"),
        ({"start": 1 + 2**-23}, "first weights differ"),
        ({"accuracy": 0.504}, "test accuracy 4.0e-03 (at most 3.0e-03)"),
        ({"loss": float("nan")}, "loss nan"),
    ],
)
def test_one_that_disagrees_is_marked(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], what: str) -> None:
    results = {"numpy": made_up("numpy"), "fine": made_up("fine"), "odd": made_up("odd", **other)}
    result, rows, record = compared(monkeypatch, results)
    assert "odd failed or differed" in error_of(result, 1)
    assert [row["agrees"] for row in rows] == ["True", "True", "False"]
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("odd DISAGREES"))
    assert what in line
    assert any(line.split()[:1] == ["odd"] and line.split()[-1] == "DISAGREES" for line in result.stdout.splitlines())
    assert "fine agrees: first weights equal, first update 0.0e+00" in result.stdout
    (failed,) = ([c["what"] for c in e["checks"] if not c["passed"]] for e in record["results"] if e["name"] == "odd")
    assert len(failed) == 1


def test_the_first_epoch_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows, _ = compared(monkeypatch, {"torch": made_up("torch")})
    assert (float(rows[0]["time_s"]), float(rows[0]["first_time_s"])) == (3.0, 9.0)
    assert float(rows[0]["samples_per_s"]) == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_times_beside_other_programs_are_named_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, quiet = made_up("numpy"), made_up("torch")
    busy.others, quiet.others = 0.42, 0.02
    result, _, record = compared(monkeypatch, {"numpy": busy, "torch": quiet})
    lines = [line for line in result.stdout.splitlines() if "other programs" in line]
    assert lines == ["numpy: other programs kept the cores busy for 42% of their time: its times may be too long."]
    assert [entry["others"] for entry in record["results"]] == [0.42, 0.02]


def test_without_numpy_the_slowest_is_the_measure_of_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = made_up("slow"), made_up("fast")
    for row in fast.facts["history"]:
        row["time_s"] /= 2
    result, rows, record = compared(monkeypatch, {"fast": fast, "slow": slow})
    assert [float(row["speedup"]) for row in rows] == [2.0, 1.0]
    assert record["reference"] == "fast"
    assert "over the slowest" in result.stdout


def test_when_all_fail_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "run", lambda name, *args: Result(name, {}, {}, "it broke"))
    line = error_of(minicnn("compare", "mlp", "--samples", "60", "--backends", "numpy", "--out", "out"), 1)
    assert line == "numpy: it broke"
    assert not Path("out").exists()


# The worker ---------------------------------------------------------------------------------------


def test_a_worker_tells_how_far_it_is_and_ends_with_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERVAL", 0.0)
    settings = small()
    samples = load_samples(settings)
    candidates.write_samples(samples, tmp_path)
    order = {
        "name": "numpy",
        "settings": asdict(settings),
        "samples": str(tmp_path),
        "num_classes": 10,
        "held_out": False,
        "weights": str(tmp_path / "weights.npz"),
    }
    result = done("worker", stdin=json.dumps(order))
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["step"] * 3 + ["epoch"] + ["step"] * 3 + ["epoch", "end"]
    assert [e["done"] for e in events if e["event"] == "step"] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    end = events[-1]
    assert end["test"]["accuracy"] == end["history"][-1]["val_accuracy"]
    assert end["reduction"] >= 784
    with np.load(tmp_path / "weights.npz") as weights:
        stages = {name.partition("/")[0] for name in weights}
        assert stages == {"start", "first", "final"}
        paths = [name.removeprefix("start/") for name in weights if name.startswith("start/")]
        changed = [not np.array_equal(weights[f"start/{p}"], weights[f"first/{p}"]) for p in paths]
        assert all(changed)


def test_modules_of_the_folder_in_which_it_runs_are_not_those_of_python(tmp_path: Path) -> None:
    Path("random.py").write_text("raise RuntimeError('mine')", "utf-8")
    settings = small()
    samples = load_samples(settings)
    candidates.write_samples(samples, tmp_path)
    assert candidates.run("numpy", settings, samples, tmp_path, lambda event: None).failure is None


def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> tuple[Result, list[dict[str, Any]]]:
    """What becomes of a worker that runs other code."""
    real = candidates.subprocess.Popen
    monkeypatch.setattr(
        candidates.subprocess, "Popen", lambda command, **rest: real([sys.executable, "-c", code], **rest)
    )
    events: list[dict[str, Any]] = []
    settings = small()
    return candidates.run("numpy", settings, load_samples(settings), tmp_path, events.append), events


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import sys; sys.exit('x\\nerror: no memory')", "no memory"),
        ("import sys; sys.exit('Segmentation fault')", "its process ended with code 1: Segmentation fault"),
        ("import os; os._exit(3)", "its process ended with code 3"),
        ("pass", "its process ended with code 0"),
    ],
)
def test_a_worker_that_ends_early_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, failure: str
) -> None:
    assert launched(monkeypatch, tmp_path, code)[0].failure == failure


def test_lines_of_libraries_between_the_events_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "numpy.npz", **{"start/w": np.zeros(1)})
    code = 'print("Welcome!"); print(1); print(\'{"event": "step", "done": 1}\'); print(\'{"event": "end", "x": 2}\')'
    result, events = launched(monkeypatch, tmp_path, code)
    assert result.failure is None
    assert result.facts["x"] == 2
    assert events == [{"event": "step", "done": 1}]


def test_ctrl_c_in_a_worker_ends_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        launched(monkeypatch, tmp_path, "import sys; sys.exit(130)")


# Progress -----------------------------------------------------------------------------------------

EPOCH = {"event": "epoch", "time_s": 2.0, "samples_per_s": 1000.0, "loss": 0.5, "val_accuracy": 0.9}


def test_many_epochs_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with compare._Display(["numpy"], small(epochs=45)) as display:
        for epoch in range(1, 46):
            display.show("numpy", {**EPOCH, "epoch": epoch})
            display.show("numpy", {"event": "step", "done": epoch + 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[-1] == "numpy  epoch 45/45: 2 s, 1,000 samples/s, loss 0.5000, validation accuracy 90.00%"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    with compare._Display(["numpy", "jax"], small(epochs=2)) as display:
        display.show("numpy", {"event": "step", "done": 0.5})
        assert display._progress.tasks[0].completed == 0.5  # type: ignore[attr-defined]
        display.show("numpy", {**EPOCH, "epoch": 1})
        display.end(made_up("numpy"))
        display.end(Result("jax", {}, {}, "broken"))
        numpy, jax = display._progress.tasks  # type: ignore[attr-defined]
    assert numpy.completed == 1
    assert numpy.stop_time is not None
    assert "loss 0.5000" in numpy.fields["text"]
    assert jax.fields["text"] == "failed"
