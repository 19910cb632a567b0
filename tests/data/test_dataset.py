from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minicnn.data as data
from minicnn.data import DataError, Dataset, files, idx
from support.datafiles import cifar_binary, csv_text, digits, idx_files, photos, write_idx


def parts(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "name": "some",
        "x_train": rng.integers(0, 256, (6, 4, 5, 3), np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2], np.int32),
        "x_test": rng.integers(0, 256, (2, 4, 5, 3), np.uint8),
        "y_test": np.array([2, 0], np.int32),
        "class_names": ("a", "b", "c"),
    } | changes


def test_dataset_describes_itself():
    dataset = Dataset(**parts())
    assert dataset.num_classes == 3
    assert dataset.input_shape == (4, 5, 3)
    assert repr(dataset) == "Dataset('some': 6 training and 2 test images of 4x5x3, 3 classes)"
    with pytest.raises(AttributeError):
        dataset.name = "other"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class_names": ()}, "at least one name"),
        ({"x_train": np.zeros((6, 4, 5, 3), np.float32)}, "x_train is a uint8 .* a float32 array of shape"),
        ({"x_train": [[1]]}, "x_train is a uint8 .* a list"),
        ({"x_test": np.zeros((2, 4, 5), np.uint8)}, r"x_test is a uint8 .* \(2, 4, 5\)"),
        ({"x_test": np.zeros((2, 0, 5, 3), np.uint8)}, r"none of H, W, C zero"),
        ({"y_train": np.zeros(6, np.int64)}, "y_train is an int32 .* a int64"),
        ({"y_train": np.zeros((6, 1), np.int32)}, "y_train is an int32 array of shape"),
        ({"y_train": np.zeros(5, np.int32)}, "6 images, 5 labels"),
        ({"y_test": np.array([0, 3], np.int32)}, "from 0 to 2, .* labels from 0 to 3"),
        ({"y_test": np.array([0, -1], np.int32)}, "labels from -1 to 0"),
        ({"x_test": np.zeros((2, 4, 5, 1), np.uint8)}, "same shape"),
        (
            {"x_train": np.zeros((0, 4, 5, 3), np.uint8), "y_train": np.zeros(0, np.int32)},
            "at least one training image",
        ),
    ],
)
def test_dataset_refuses(changes: dict[str, Any], match: str):
    with pytest.raises(DataError, match=match):
        Dataset(**parts(**changes))


def test_a_dataset_may_have_no_test_images():
    empty = {"x_test": np.zeros((0, 4, 5, 3), np.uint8), "y_test": np.zeros(0, np.int32)}
    assert len(Dataset(**parts(**empty)).x_test) == 0


def test_names_are_those_that_load_knows():
    assert data.names() == [
        "mnist",
        "fashion_mnist",
        "kaggle_digits",
        "cifar10",
        "tiny_imagenet",
        "image_folder",
        "synthetic_digits",
    ]


def test_load_passes_folder_and_options_on(tmp_path, monkeypatch):
    write_idx(tmp_path, idx_files())
    assert data.load("mnist", tmp_path, download=False).name == "mnist"
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path))
    assert len(data.load("mnist").x_train) == 7
    assert len(data.load("synthetic_digits", n_train=30, n_test=20, size=16).x_test) == 20


def test_load_refuses_unknown_names_with_the_nearest():
    with pytest.raises(ValueError, match=r"mnist, fashion_mnist.*'fashion-mnist'.*Did you mean 'fashion_mnist'"):
        data.load("fashion-mnist")


def test_load_refuses_a_folder_for_drawn_data(tmp_path):
    with pytest.raises(ValueError, match="drawn, not read"):
        data.load("synthetic_digits", tmp_path)


@pytest.mark.parametrize("name", ["kaggle_digits", "tiny_imagenet", "mnist", "cifar10"])
def test_missing_data_says_where_it_was_looked_for_and_what_to_do(name, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("MINICNN_DATA", str(other))
    with pytest.raises(DataError, match=f"{name} needs .* Looked in: {other}. Fetch .* data_dir or MINICNN_DATA.$"):
        data.load(name, download=False)
    with pytest.raises(DataError, match=rf"{name} needs .* Looked in: {tmp_path}\. Fetch .*, or leave data_dir out"):
        data.load(name, tmp_path, download=False)


WRITERS = {
    "mnist": lambda folder: write_idx(folder, idx_files()),
    "fashion_mnist": lambda folder: write_idx(folder, idx_files()),
    "kaggle_digits": lambda folder: (folder / "train.csv").write_text(csv_text(*digits(2000, 28, 28))),
    "cifar10": lambda folder: [
        (folder / f"{name}.bin").write_bytes(cifar_binary(*photos(2))) for name in ("data_batch_1", "test_batch")
    ],
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("download", [False, True])
def test_what_a_named_folder_lacks_is_taken_from_nowhere_else(name, download, tmp_path, monkeypatch):
    for folder in ("named", "other"):
        (tmp_path / folder).mkdir()
    WRITERS[name](tmp_path / "other")
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "other"))
    monkeypatch.setattr(files, "download", lambda *args, **options: pytest.fail("nothing is fetched"))
    monkeypatch.setattr(idx, "download", files.download)
    assert data.locate(name) is not None
    assert len(data.load(name).x_train)
    if name != "fashion_mnist":
        assert data.locate(name, tmp_path / "named") is None
    with pytest.raises(DataError, match=rf"{name} needs .* Looked in: {tmp_path / 'named'}\. .*or leave data_dir out"):
        data.load(name, tmp_path / "named", download=download)
    with pytest.raises(DataError, match=r"data_dir names a folder that exists\. Received: ''"):
        data.load(name, "")


def test_a_folder_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"data_dir names a folder that exists.*nowhere"):
        data.load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "neither"))
    with pytest.raises(DataError, match=r"MINICNN_DATA names a folder that exists.*neither"):
        data.load("mnist")
