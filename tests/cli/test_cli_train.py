"""`minicnn train`."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import data, machine
from minicnn.cli.runs import RunFolder
from minicnn.extras import install
from minicnn.models import Model
from support.command_line import error_of, minicnn, settings_of
from support.datafiles import idx_files, write_idx

FILES = {"model.safetensors", "history.csv", "curves.png", "run.json"}
COLUMNS = ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "time_s", "samples_per_s"]
SMALL = ("--samples", "300", "--epochs", "2", "--batch-size", "50")


def trained(*args: str) -> tuple[str, list[dict[str, float]], dict[str, Any]]:
    """Output, history and record of a training that must succeed, in the folder "out"."""
    result = minicnn("train", *args, "--out", "out")
    assert result.exit_code == 0, result.output
    with Path("out/history.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    return result.stdout, rows, json.loads(Path("out/run.json").read_text())


def test_a_training_leaves_all_its_files_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "warnings", list)
    output, rows, record = trained("platforms", *SMALL, "--lr", "0.05")
    assert {p.name for p in Path("out").iterdir()} == FILES
    assert list(rows[0]) == COLUMNS
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[1]["loss"] < rows[0]["loss"]
    for row in rows:
        assert all(map(math.isfinite, row.values()))
        assert 0 <= row["val_accuracy"] <= 1
        assert row["samples_per_s"] == pytest.approx(300 / row["time_s"])
    assert Path("out/curves.png").read_bytes().startswith(b"\x89PNG")
    assert record["settings"]["learning_rate"] == 0.05
    assert record["settings"]["momentum"] == 0.9
    assert record["machine"]["versions"]["numpy"] == np.__version__
    assert record["test"] == {"loss": rows[-1]["val_loss"], "accuracy": rows[-1]["val_accuracy"]}
    lines = output.splitlines()
    assert "53,866 weights" in lines[0]
    assert lines[1].startswith("Epoch 1/2 - ")
    assert lines[2].startswith("Epoch 2/2 - ")
    assert lines[3].startswith(f"test accuracy {record['test']['accuracy']:.2%}")
    assert len(lines) == 4
    assert not any(c in output for c in "\x1b\r")


def test_the_model_that_is_written_is_the_one_that_was_judged() -> None:
    _, _, record = trained("platforms", *SMALL)
    model = Model.load("out/model.safetensors")
    digits = data.load("synthetic_digits", n_train=300, n_test=300)
    accuracy = np.mean(model.predict(digits.x_test).argmax(axis=1) == digits.y_test)
    assert accuracy == pytest.approx(record["test"]["accuracy"])


def test_a_seed_fixes_the_training() -> None:
    losses = []
    for seed in ("1", "1", "2"):
        _, rows, _ = trained("mlp", *SMALL, "--seed", seed, "--overwrite")
        losses.append(rows[-1]["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_results_are_not_overwritten_unless_asked_for() -> None:
    args = ("train", "mlp", "--samples", "60", "--epochs", "1")
    assert minicnn(*args).exit_code == 0
    folder = Path("runs/mlp-synthetic_digits-numpy")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert before.keys() == FILES
    line = error_of(minicnn(*args, "--seed", "1"), 1)
    assert "holds a finished run" in line
    assert "--overwrite" in line
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert minicnn(*args, "--seed", "1", "--overwrite").exit_code == 0
    assert (folder / "history.csv").read_bytes() != before["history.csv"]


def test_files_of_others_stay_in_the_folder() -> None:
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    trained("mlp", "--samples", "60", "--epochs", "1")
    assert {p.name for p in Path("out").iterdir()} == FILES | {"notes.txt"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("mlp", "--lr", "1e30", "--epochs", "3"), "Give a lower --lr"),
        (("mlp", "--precision", "mixed_bfloat16"), "The numpy backend computes in float32 or float64"),
        (("alexnet", "--epochs", "1"), "needs an image at least as large"),
        (("mlp", "--backend", "numpy:cuda"), "The numpy backend runs on cpu"),
        (("mlp", "--data", "image_folder"), "image_folder"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(args: tuple[str, ...], said: str) -> None:
    assert said in error_of(minicnn("train", *args[:1], "--samples", "40", *args[1:], "--out", "a/b"), 1)
    assert not Path("a").exists()


def test_a_folder_that_somebody_else_fills_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken"), RunFolder(tmp_path / "a/b", ("x",), overwrite=False) as staging:  # noqa: PT012
        (staging / "x").write_text("half")
        (tmp_path / "a/other").mkdir()
        raise RuntimeError("broken")
    assert not (tmp_path / "a/b").exists()
    assert (tmp_path / "a/other").exists()


def test_something_is_left_to_train_on(tmp_path: Path) -> None:
    write_idx(tmp_path / "data", idx_files(n_train=7))
    args = ("train", "kernels", "--data", "mnist", "--data-dir", "data", "--hold-out", "7")
    assert "Received: 7 of the 7 training samples of mnist" in error_of(minicnn(*args), 1)


def test_damaged_data_are_named(tmp_path: Path) -> None:
    files = idx_files()
    files["x_train"] = files["x_train"][:-1]
    write_idx(tmp_path / "data", files)
    line = error_of(minicnn("train", "mlp", "--data", "mnist", "--data-dir", "data"), 1)
    assert "train-images-idx3-ubyte: " in line
    assert not Path("runs").exists()


def test_a_named_folder_must_hold_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "other", idx_files())
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "other"))
    line = error_of(minicnn("train", "mlp", "--data", "mnist", "--data-dir", "data"), 1)
    assert "mnist needs the files" in line
    assert "Looked in: data. " in line
    assert not Path("runs").exists()


def test_a_missing_library_is_told_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert error_of(minicnn("train", "mlp"), 1) == f"This command needs matplotlib: {install('cli')}."


def test_the_study_mlp_takes_one_step_an_epoch_and_holds_samples_out() -> None:
    output, rows, record = trained("mlp", "--samples", "120", "--epochs", "3")
    assert "120 training, 120 validation and 120 test images" in output
    assert record["settings"] | {"batch_size": 120, "hold_out": 1000, "learning_rate": 0.1} == record["settings"]
    assert record["test"]["loss"] != rows[-1]["val_loss"]


def test_samples_held_out_are_not_trained_on(tmp_path: Path) -> None:
    from minicnn.jobs import job

    write_idx(tmp_path / "data", idx_files(n_train=20, n_test=6))
    settings = settings_of("mlp", data="mnist", data_dir=str(tmp_path / "data"), hold_out=5)
    found = data.load("mnist", tmp_path / "data")
    samples = job.load_samples(settings)
    held = [i for i, image in enumerate(found.x_train) if (samples["x_val"] == image).all((1, 2, 3)).any()]
    assert len(held) == 5
    assert np.array_equal(samples["x_val"], found.x_train[held])
    assert np.array_equal(samples["y_train"], np.delete(found.y_train, held))
    assert np.array_equal(samples["x_test"], found.x_test)
    few = job.load_samples(settings_of("mlp", data="mnist", data_dir=str(tmp_path / "data"), hold_out=0, samples=5))
    assert len(few["x_train"]) == 5
    assert few["x_val"] is few["x_test"]
    assert len(few["x_test"]) == 5


def test_samples_are_held_out_at_random_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's training samples at even places are harder: every 60th of 60,000 is one of them."""
    from minicnn.jobs import job

    odd = (np.arange(6000) % 2).astype(np.int32)
    x = np.random.default_rng(0).integers(0, 256, (6000, 5, 5, 1)).astype(np.uint8)
    found = data.Dataset("none", x, odd, x[:4], odd[:4], ("a", "b"))
    monkeypatch.setattr(data, "load", lambda *args, **options: found)
    held = [job.load_samples(settings_of("mlp", hold_out=100, seed=seed)) for seed in (0, 0, 1)]
    assert 30 < held[0]["y_val"].sum() < 70
    assert np.array_equal(held[0]["x_val"], held[1]["x_val"])
    assert not np.array_equal(held[0]["x_val"], held[2]["x_val"])
    assert 1300 < job.load_samples(settings_of("kernels", hold_out=0, samples=3000))["y_train"].sum() < 1700


def test_without_test_images_something_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.jobs import job

    x, y = np.zeros((4, 5, 5, 1), np.uint8), np.zeros(4, np.int32)
    found = data.Dataset("none", x, y, x[:0], y[:0], ("a", "b"))
    monkeypatch.setattr(data, "load", lambda *args, **options: found)
    with pytest.raises(ValueError, match="Give --hold-out"):
        job.load_samples(settings_of("kernels", hold_out=0))
    assert len(job.load_samples(settings_of("kernels", hold_out=1))["x_val"]) == 1


@pytest.mark.parametrize(
    ("network", "batch", "rate", "momentum", "epochs"),
    [
        ("kernels", 64, 0.01, 0.0, 5),
        ("platforms", 512, 0.01, 0.9, 10),
        ("mlp", None, 0.1, 0.0, 500),
        ("vgg11", 64, 0.01, 0.9, 5),
    ],
)
def test_each_network_has_its_recipe(
    network: str, batch: int | None, rate: float, momentum: float, epochs: int
) -> None:
    settings = settings_of(network)
    assert (settings.batch_size, settings.learning_rate, settings.momentum, settings.epochs) == (
        batch,
        rate,
        momentum,
        epochs,
    )
    assert settings_of(network, momentum=0.0, epochs=1).momentum == 0.0


def test_the_backend_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("MINICNN_BACKEND", "torch")
    output, _, record = trained("mlp", "--samples", "60", "--epochs", "1", "--precision", "float64")
    assert record["backend"] == "torch"
    assert "torch:cpu, float64" in output
    monkeypatch.setenv("MINICNN_BACKEND", "nunpy")
    assert "MINICNN_BACKEND" in error_of(minicnn("train", "mlp"), 2)


def test_mistaken_kernels_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "warnings", lambda: ["slow"])
    result = minicnn("train", "mlp", "--samples", "60", "--epochs", "1")
    assert result.exit_code == 0
    assert result.stderr == "note: slow\n"


def test_names_are_completed_by_the_shell() -> None:
    import click

    from minicnn.cli.options import BACKEND

    context = click.Context(click.Command("train"))
    items = BACKEND.shell_complete(context, click.Argument(["x"]), "nump")
    assert [item.value for item in items] == ["numpy"]
