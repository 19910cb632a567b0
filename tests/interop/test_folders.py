"""Models in folders as the Hugging Face Hub keeps them."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, ops
from minicnn.files import SavedModelError
from minicnn.interop import load_pretrained, save_pretrained
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, Input, Layer
from support import fuzzing

X = np.random.default_rng(0).random((3, 6, 6, 1), "float32")


def network() -> Sequential:
    model = Sequential(
        [Input((6, 6, 1)), Conv2D(2, 3, activation="relu"), BatchNormalization(), Flatten(), Dense(3, "softmax")],
        backend="numpy", name="digits",
    )  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
    model.fit(X, [0, 1, 2], verbose=0)
    return model


def test_a_model_comes_back_from_its_folder(tmp_path: Path) -> None:
    model = network()
    folder = tmp_path / "new" / "digits"
    save_pretrained(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = load_pretrained(folder, backend="numpy")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.evaluate(X, [0, 1, 2]) == model.evaluate(X, [0, 1, 2])  # it is compiled
    assert (loaded.name, type(loaded)) == ("digits", Sequential)
    about = json.loads((folder / "config.json").read_text())
    assert about["library_name"] == "minicnn"


def test_the_weights_are_plain_tensors_for_others(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = network()
    save_pretrained(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == model.get_weights().keys()


def test_the_card_says_what_it_is_and_is_not_written_over(tmp_path: Path) -> None:
    model = network()
    save_pretrained(model, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: minicnn\n---\n\n# digits\n")
    assert f"{model.count_params()} weights" in card
    (tmp_path / "README.md").write_text("mine")
    save_pretrained(model, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    save_pretrained(model, tmp_path, card="new")
    assert (tmp_path / "README.md").read_text() == "new"


class Twice(Layer):
    def call(self, inputs: Any) -> Any:
        return ops.multiply(inputs, 2.0)


def test_classes_of_one_s_own_are_named(tmp_path: Path) -> None:
    x = Input((2,))
    save_pretrained(Model(x, Twice()(x), backend="numpy"), tmp_path)
    with pytest.raises(SavedModelError, match="Pass all classes that are not minicnn's own as custom_objects"):
        load_pretrained(tmp_path)
    np.testing.assert_array_equal(
        load_pretrained(tmp_path, custom_objects={"Twice": Twice}).predict([[1.0, 2.0]]), [[2, 4]]
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"library_name": "timm"}', '{"library_name": "minicnn"}', "[" * 500])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    save_pretrained(network(), tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SavedModelError, match=r"config\.json': its model cannot be built"):
        load_pretrained(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save_pretrained(network(), tmp_path / "a")
    save_pretrained(Sequential([Input((6, 6, 1)), Flatten(), Dense(3)], backend="numpy"), tmp_path / "b")
    shutil.copy(tmp_path / "b" / "model.safetensors", tmp_path / "a")
    with pytest.raises(SavedModelError, match="tensor 'conv2d/kernel' is missing"):
        load_pretrained(tmp_path / "a")
    (tmp_path / "b" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        load_pretrained(tmp_path / "b")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_folders_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Whatever is in a file, there is our error, or a model. MINICNN_FUZZ asks for more."""
    save_pretrained(network(), tmp_path)
    path, refusals = tmp_path / name, 0
    good = path.read_bytes()
    for seed in range(int(os.environ.get("MINICNN_FUZZ", "3000")) // 60):
        path.write_bytes(fuzzing.damage(random.Random(seed), good))
        begun = time.process_time()
        try:
            load_pretrained(tmp_path, backend="numpy")
        except SavedModelError:
            refusals += 1
        assert time.process_time() - begun < fuzzing.SECONDS, seed
    assert refusals > 10


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "a/b/c"])
def test_a_path_without_a_folder_is_no_repository(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="A model is in a folder, or in a repository"):
        load_pretrained(name)


def test_a_repository_comes_through_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its cache, which is laid out as a download leaves it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    model, commit = network(), "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--someone--digits"
    save_pretrained(model, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    np.testing.assert_array_equal(load_pretrained("someone/digits").predict(X), model.predict(X))
    np.testing.assert_array_equal(load_pretrained("someone/digits", revision=commit).predict(X), model.predict(X))
