"""Images from files and arrays, as scripts for Keras read and change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import keras
from minicnn.keras import layers, utils
from minicnn.keras.preprocessing.image import ImageDataGenerator
from support.tolerances import STEP, SUM

pytest.importorskip("PIL.Image")
X = np.random.default_rng(0).random((10, 6, 8, 3), "float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of 6 and 4 images, whose grey says which one it is."""
    for k, (name, count) in enumerate({"cat": 6, "dog": 4}.items()):
        (tmp_path / name).mkdir()
        for i in range(count):
            utils.save_img(tmp_path / name / f"{i}.png", np.full((9, 7, 3), 100 * k + i), scale=False)
    return tmp_path


# One image ------------------------------------------------------------------------------------------------------------


def test_there_and_back(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3))
    utils.save_img(tmp_path / "a.png", pixels, scale=False)
    image = utils.load_img(tmp_path / "a.png")
    found = utils.img_to_array(image)
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found, pixels)
    assert utils.img_to_array(image, "channels_first").shape == (3, 5, 4)
    np.testing.assert_array_equal(utils.img_to_array(utils.array_to_img(pixels, scale=False)), pixels)
    grey = utils.load_img(tmp_path / "a.png", "grayscale", (10, 6), "bilinear")
    assert utils.img_to_array(grey).shape == (10, 6, 1)
    assert utils.load_img(tmp_path / "a.png", target_size=(4, 4), keep_aspect_ratio=True).size == (4, 4)


def test_an_array_is_scaled_to_all_greys() -> None:
    found = utils.img_to_array(utils.array_to_img(np.asarray([[[0.0], [0.5], [1.0]]])))
    np.testing.assert_array_equal(found.ravel(), [0, 127, 255])
    assert utils.array_to_img(np.ones((3, 2, 2)), "channels_first").size == (2, 2)


def test_unknown_words(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"color_mode is one of grayscale, rgb, rgba. Received: 'bgr'"):
        utils.load_img(folder / "cat" / "0.png", "bgr")
    with pytest.raises(ValueError, match=r"interpolation is nearest, .* Received: 'smooth'"):
        utils.load_img(folder / "cat" / "0.png", target_size=(2, 2), interpolation="smooth")


def test_normalize() -> None:
    np.testing.assert_allclose(utils.normalize([[3.0, 4.0], [0.0, 0.0]]), [[0.6, 0.8], [0, 0]])


# Folders --------------------------------------------------------------------------------------------------------------


def numbers(batches: Any) -> dict[int, int]:
    """The label of each grey."""
    return {int(x[0, 0, 0]): int(y) for xs, ys in batches for x, y in zip(xs, ys, strict=True)}


EVERY = {**dict.fromkeys(range(6), 0), **{100 + i: 1 for i in range(4)}}


def test_a_folder_as_batches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = utils.image_dataset_from_directory(folder, image_size=(4, 5), batch_size=4, seed=1)
    assert "Found 10 images of 2 classes" in capsys.readouterr().out
    assert (len(batches), batches.class_names, len(batches.file_paths)) == (3, ["cat", "dog"], 10)
    x, y = batches[0]
    assert (x.shape, x.dtype, y.dtype) == ((4, 4, 5, 3), "float32", "int32")
    assert numbers(batches) == EVERY
    order = [*numbers(batches)]
    batches.on_epoch_end()
    assert numbers(batches) == EVERY
    assert [*numbers(batches)] != order
    with pytest.raises(IndexError, match=r"counted from 0 to 2. Received: 3"):
        batches[3]


@pytest.mark.parametrize("shuffle", [True, False])
def test_two_parts_of_a_folder(folder: Path, shuffle: bool) -> None:
    given = {"validation_split": 0.3, "seed": 5, "shuffle": shuffle, "verbose": False}
    parts = [utils.image_dataset_from_directory(folder, subset=s, **given) for s in ("training", "validation")]
    both = utils.image_dataset_from_directory(folder, subset="both", **given)
    for part, other, count in zip(parts, both, (7, 3), strict=True):
        assert len(numbers(part)) == count
        assert numbers(part) == numbers(other)
    assert numbers(parts[0]) | numbers(parts[1]) == EVERY


def test_labels_of_a_folder(folder: Path) -> None:
    for mode, shape in (("categorical", (10, 2)), ("binary", (10, 1))):
        (_, y), *_ = utils.image_dataset_from_directory(folder, label_mode=mode, verbose=False)
        assert (y.shape, y.dtype) == (shape, "float32")
    (x,) = utils.image_dataset_from_directory(folder, label_mode=None, color_mode="grayscale", verbose=False)
    assert x.shape == (10, 256, 256, 1)
    (x, y), *_ = utils.image_dataset_from_directory(folder, labels=list(range(10)), shuffle=False, verbose=False)
    assert y.tolist() == list(range(10))
    with pytest.raises(ValueError, match=r"goes with validation_split. Received: subset='training'"):
        utils.image_dataset_from_directory(folder, subset="training")
    with pytest.raises(ValueError, match=r"one folder for each class. Received: .*, without images"):
        utils.image_dataset_from_directory(folder / "cat")


def test_batches_are_mapped_and_train_a_model(folder: Path) -> None:
    batches = utils.image_dataset_from_directory(folder, image_size=(8, 8), batch_size=4, verbose=False)
    flipped = batches.map(lambda x, y: (layers.Rescaling(1 / 255)(x), y), num_parallel_calls=4).cache().prefetch(2)
    assert max(x.max() for x, _ in flipped) < 1 < max(x.max() for x, _ in batches)
    assert len(list(flipped.take(1))) == 1
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(flipped, epochs=2, validation_data=flipped, verbose=0)
    assert len(history.history["val_accuracy"]) == 2


# ImageDataGenerator ---------------------------------------------------------------------------------------------------


def test_a_generator_of_arrays() -> None:
    flow = ImageDataGenerator(rescale=2.0).flow(X, np.arange(10), batch_size=4, seed=3)
    assert (len(flow), flow.n) == (3, 10)
    xs, ys = (np.concatenate(parts) for parts in zip(*flow, strict=True))
    assert sorted(ys) == list(range(10))
    np.testing.assert_allclose(xs, X[ys] * 2)
    assert (next(flow)[1] == flow[0][1]).all()
    flow.on_epoch_end()
    assert [len(part) for part in ImageDataGenerator().flow(X, np.arange(10), sample_weight=np.ones(10))[0]] == [10] * 3
    (x,) = ImageDataGenerator().flow(X, batch_size=10, shuffle=False)
    np.testing.assert_array_equal(x, X)


def test_moved_images() -> None:
    """What moves is the same image: shifts by whole pixels, mirrors, and turns by a quarter."""
    image = np.random.default_rng(0).random((6, 6, 1), "float32")
    shifted = ImageDataGenerator(width_shift_range=0.4, fill_mode="wrap").random_transform(image, seed=2)
    assert (shifted != image).any()
    np.testing.assert_allclose(shifted.sum(axis=(1, 2)), image.sum(axis=(1, 2)), rtol=SUM)  # rows stay
    mirrored = {ImageDataGenerator(horizontal_flip=True).random_transform(image, seed=s).tobytes() for s in range(9)}
    assert mirrored == {image.tobytes(), image[:, ::-1].tobytes()}
    upside_down = {ImageDataGenerator(vertical_flip=True).random_transform(image, seed=s).tobytes() for s in range(9)}
    assert upside_down == {image.tobytes(), image[::-1].tobytes()}
    zoomed = ImageDataGenerator(zoom_range=(0.5, 0.5)).random_transform(np.full((6, 6, 1), 3.0), seed=0)
    np.testing.assert_allclose(zoomed, 3.0)
    turned = ImageDataGenerator(rotation_range=30, shear_range=10).random_transform(image, seed=0)
    assert turned.shape == image.shape
    bright = ImageDataGenerator(brightness_range=(2, 2)).random_transform(image * 100, seed=0)
    np.testing.assert_allclose(bright, image * 200)
    coloured = ImageDataGenerator(channel_shift_range=0.1).random_transform(image, seed=0)
    assert (coloured != image).any()


def test_standardized_images() -> None:
    generator = ImageDataGenerator(featurewise_center=True, featurewise_std_normalization=True)
    with pytest.raises(RuntimeError, match=r"comes from fit\(x\)"):
        generator.flow(X)[0]
    generator.fit(X)
    (x,) = generator.flow(X, batch_size=10)
    np.testing.assert_allclose(x.mean(axis=(0, 1, 2)), 0, atol=SUM)
    np.testing.assert_allclose(x.std(axis=(0, 1, 2)), 1, rtol=STEP)
    (x,) = ImageDataGenerator(samplewise_center=True, samplewise_std_normalization=True).flow(X, batch_size=10)
    np.testing.assert_allclose(x.mean(axis=(1, 2, 3)), 0, atol=SUM)
    (x,) = ImageDataGenerator(preprocessing_function=lambda image: image + 1).flow(X, batch_size=10, shuffle=False)
    np.testing.assert_allclose(x, X + 1)
    with pytest.raises(TypeError, match="whitens no images"):
        ImageDataGenerator(zca_whitening=True)


@pytest.mark.parametrize("mode", ["categorical", "binary", "sparse", None])
def test_a_generator_of_a_folder(folder: Path, mode: str | None) -> None:
    generator = ImageDataGenerator(validation_split=0.5)
    given = {"target_size": (4, 4), "class_mode": mode, "batch_size": 5, "seed": 1}
    flow = generator.flow_from_directory(folder, subset="training", **given)
    assert (flow.samples, flow.class_indices) == (5, {"cat": 0, "dog": 1})
    assert flow.filenames[0].endswith("3.png")  # the first half of each class is for validation
    batch = flow[0]
    x = batch if mode is None else batch[0]
    labels = {"categorical": (5, 2), "binary": (5,), "sparse": (5,)}
    assert mode is None or batch[1].shape == labels[mode]
    assert set(x[:, 0, 0, 0]) == {3.0, 4.0, 5.0, 102.0, 103.0}
    assert generator.flow_from_directory(folder, **given).samples == 10


def test_a_generator_trains_a_model() -> None:
    model = keras.Sequential([layers.Flatten(input_shape=(6, 8, 3)), layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    flow = ImageDataGenerator(rotation_range=10).flow(X, np.arange(10) % 2, batch_size=4)
    assert len(model.fit(flow, steps_per_epoch=3, epochs=2, verbose=0).history["loss"]) == 2
    assert len(model.fit(flow, epochs=1, verbose=0).history["loss"]) == 1
