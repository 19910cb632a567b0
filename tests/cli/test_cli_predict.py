"""`minicnn predict` and `minicnn evaluate`, and the options of `train` that folders of images need."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.layers import Dense, Flatten, GlobalAveragePooling2D, Input, Rescaling
from support.command_line import done, error_of, facts_of, minicnn

Image = pytest.importorskip("PIL.Image")

COLOURS = {"green": (0, 200, 0), "red": (200, 0, 0)}


@pytest.fixture
def folder() -> Path:
    """A folder of images of several sizes, a colour a class."""
    for name, colour in COLOURS.items():
        Path("colours", name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20 + number, 30 - number), colour).save(f"colours/{name}/{number}.png")
    return Path("colours")


@pytest.fixture
def model() -> Path:
    """A model that takes an image for the brighter of its first two channels, and says so by the names of COLOURS."""
    weights = np.array([[-9.0, 9.0], [9.0, -9.0], [0.0, 0.0]])
    made = Sequential([Input((8, 8, 3), dtype="uint8"), Rescaling(1 / 255), GlobalAveragePooling2D(), Dense(2)])
    made.set_weights({"dense/kernel": weights})
    made.class_names = list(COLOURS)
    made.save("colours.safetensors")
    return Path("colours.safetensors")


def test_images_are_told_apart(folder: Path, model: Path) -> None:
    paths = [str(folder / "red" / "0.png"), str(folder / "green" / "3.png")]
    first, second = facts_of("predict", str(model), *paths)
    assert first["image"] == paths[0]
    assert [c["class"] for c in first["classes"]] == ["red", "green"]
    assert first["classes"][0]["probability"] > 0.99
    assert second["classes"][0]["class"] == "green"
    said = done("predict", str(model), *paths).stdout
    assert "red 100.0%" in said
    assert facts_of("predict", str(model), paths[0], "--top", "1", "--invert")[0]["classes"][0]["class"] == "green"


def test_a_model_that_scales_nothing_takes_pixels_from_0_to_1(folder: Path) -> None:
    made = Sequential([Input((4, 4, 3)), Flatten(), Dense(1, kernel_initializer="ones", activation="linear")])
    made.save("sum.safetensors")
    (found,) = facts_of("predict", "sum.safetensors", str(folder / "red" / "0.png"))
    assert found["classes"][0]["class"] == "1"
    assert found["classes"][0]["probability"] == pytest.approx(1 / (1 + np.exp(-16 * 200 / 255)))


def test_an_evaluation_has_the_table_of_the_classes(folder: Path, model: Path) -> None:
    said = done("evaluate", str(model), "--data", "image_folder", "--data-dir", str(folder), "--out", "seen")
    assert "accuracy 100.00%" in said.stdout
    assert "green" in said.stdout
    facts = json.loads(Path("seen/report.json").read_text())
    assert facts["confusion_matrix"] == [[1, 0], [0, 1]]
    assert Path("seen/confusion.svg").read_text().startswith("<svg")
    assert Path("seen/mistakes.svg").exists()
    again = minicnn("evaluate", str(model), "--data", "image_folder", "--data-dir", str(folder), "--out", "seen")
    assert "--overwrite" in error_of(again, 1)


def test_a_folder_of_mixed_sizes_is_trained_from_the_command_line(folder: Path) -> None:
    common = ("train", "lenet5", "--data", "image_folder", "--data-dir", str(folder), "--epochs", "3")
    assert "size=" in error_of(minicnn(*common, "--out", "none"), 1)
    args = ("--size", "16", "--optimizer", "adam", "--lr", "0.01", "--augment", "flip,shift", "--batch-size", "4")
    said = done(*common, *args, "--out", "out").stdout
    assert "adam, lr 0.01, augmented by flip, shift" in said
    record: dict[str, Any] = json.loads(Path("out/run.json").read_text())["settings"]
    assert record["size"] == [16, 16]
    assert record["augment"] == ["flip", "shift"]
    trained = Model.load("out/model.safetensors")
    assert trained.class_names == ("green", "red")
    assert trained.input_shape == (None, 16, 16, 3)
    assert type(trained.optimizer).__name__ == "Adam"
    assert len(facts_of("predict", "out", str(folder / "red" / "0.png"))[0]["classes"]) == 2


def test_an_optimizer_has_its_own_rate_and_no_momentum() -> None:
    small = ("train", "lenet5", "--samples", "50", "--epochs", "1", "--optimizer", "adam")
    assert "adam, lr 0.001" in done(*small, "--out", "a").stdout
    assert "Momentum is that of sgd" in error_of(minicnn(*small, "--momentum", "0.9"), 1)
    assert "Did you mean 'adam'" in error_of(minicnn("train", "lenet5", "--optimizer", "adams"), 2)


@pytest.mark.parametrize("size", ["0", "8,8,8", "a", ""])
def test_what_is_no_size(size: str) -> None:
    assert "A size is N or H,W in pixels" in error_of(minicnn("train", "lenet5", "--size", size), 2)


def test_long_trainings_say_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("train", "platforms", "--samples", "100", "--epochs", "1", "--batch-size", "50", "--seed", "5")
    assert "takes some" not in done(*small, "--out", "silent").stdout
    monkeypatch.setattr("minicnn.cli.train.LONG", 0.0)
    said = done(*small, "--out", "told").stdout
    assert re.search(r"takes some \d+ s, as two steps did", said)
    silent, told = (Model.load(f"{name}/model.safetensors").get_weights() for name in ("silent", "told"))
    assert all(np.array_equal(silent[path], told[path]) for path in silent), "the estimate changes nothing"


def test_errors_name_the_rule(model: Path) -> None:
    Path("empty").mkdir()
    assert "a folder with one named model.safetensors" in error_of(minicnn("predict", "empty", str(model)), 2)
    rows = Sequential([Input((4,)), Dense(2)])
    rows.save("rows.safetensors")
    assert "A classifier of images takes" in error_of(minicnn("predict", "rows.safetensors", str(model)), 1)
    assert "8x8x3" in error_of(minicnn("evaluate", str(model), "--data", "synthetic_digits"), 1)
    assert "an image is BMP" in error_of(minicnn("predict", str(model), str(model)), 1)
