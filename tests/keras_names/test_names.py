"""`minicnn.keras`: one module in place of Keras's, of which the rest of the library knows nothing."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicnn
from minicnn import keras
from minicnn.keras import backend as K  # noqa: N812  as everybody writes it
from minicnn.keras import layers
from support.keras_files import archive, small
from support.tolerances import SUM

X = np.random.default_rng(0).random((6, 8, 8, 3), "float32")
Y = np.asarray([0, 1, 2, 0, 1, 2])


def network(*, last: str = "softmax", **options: Any) -> Any:
    """A small network of Keras 2's and 3's words."""
    return keras.Sequential(
        [
            layers.Conv2D(4, 3, activation=keras.activations.relu, input_shape=(8, 8, 3), **options),
            layers.LeakyReLU(alpha=0.1),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activation=last, kernel_initializer=keras.initializers.HeNormal(seed=3)),
        ]
    )


def test_modules_and_names() -> None:
    assert dir(keras) == keras.__all__ == sorted(keras.__all__)
    for name in keras.__all__:
        assert getattr(keras, name) is not None
    assert keras.layers.Dense is minicnn.layers.Dense
    with pytest.raises(AttributeError, match=r"the names of Keras that mean the same here. Received: 'applications'"):
        keras.applications  # noqa: B018
    for module in ("datasets.mnist", "optimizers.schedules", "optimizers.legacy", "preprocessing.image"):
        importlib.import_module(f"minicnn.keras.{module}")


def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    code = "import sys, minicnn, minicnn.models; sys.exit(any(m.startswith('minicnn.keras') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_script_of_keras_2() -> None:
    model = network(kernel_regularizer=keras.regularizers.l2(1e-3), kernel_constraint=keras.constraints.max_norm(2.0))
    optimizer = keras.optimizers.SGD(learning_rate=0.1, decay=0.5, momentum=0.9)
    assert [optimizer.rate(step) for step in (0, 2)] == pytest.approx([0.1, 0.05])
    model.compile(optimizer, loss=keras.losses.sparse_categorical_crossentropy, metrics=["acc"], jit_compile=False)
    history = model.fit(X, Y, batch_size=None, epochs=2, verbose=0, validation_data=(X, Y))
    assert set(history.history) == {"loss", "acc", "val_loss", "val_acc"}
    assert model.evaluate(X, Y, None, 0, None, None, None, True).keys() == {"loss", "acc"}


def test_classes_that_are_made_in_another_way() -> None:
    made = keras.optimizers.Adam(0.5)
    assert isinstance(made, keras.optimizers.Adam)
    assert type(made) is minicnn.optimizers.Adam
    assert keras.optimizers.Adam.from_config(made.get_config()).learning_rate == 0.5

    class Slower(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    assert isinstance(Slower(0.1), minicnn.optimizers.SGD)
    assert isinstance(layers.LeakyReLU(alpha=0.3), layers.LeakyReLU)
    assert not isinstance(layers.ReLU(), layers.LeakyReLU)
    assert keras.optimizers.Adam.__name__ == "Adam"


def test_arguments_of_compile() -> None:
    model = network()
    model.compile("adam")
    with pytest.raises(ValueError, match=r"A model is trained for a loss. Received: none"):
        model.fit(X, Y, verbose=0)
    model.compile(loss="mse")
    assert type(model.optimizer) is minicnn.optimizers.RMSprop
    model.compile("adam", "mse", None, ["mae"], weighted_metrics=["mse"])
    logs = model.evaluate(X, np.eye(3)[Y], return_dict=True)
    assert list(logs) == ["loss", "mae", "mse"]
    model.compile("adam", "mse", ["mae"])  # minicnn's order
    assert list(model.evaluate(X, np.eye(3)[Y], return_dict=True)) == ["loss", "mae"]
    with pytest.raises(TypeError, match=r"SGD takes the arguments learning_rate.* Received: lr=0.1. Did you mean 'lea"):
        keras.optimizers.SGD(lr=0.1)


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.safetensors"])
def test_files(name: str, tmp_path: Path) -> None:
    """What a file promises by its name it is: others get another ending."""
    model = network(last=keras.activations.softmax)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / f"best_{name}")])
    model.save(tmp_path / name)
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"] * 2
    for path in (name, f"best_{name}"):
        again = keras.models.load_model(tmp_path / path)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    weights = tmp_path / f"weights.{name}"
    model.save_weights(weights)
    other = network()
    other.load_weights(weights)
    np.testing.assert_array_equal(other.predict(X), model.predict(X))


def test_a_file_that_keras_wrote_is_read_and_what_is_read_takes_its_arguments(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    description, content = small()
    (tmp_path / "theirs.weights.h5").write_bytes(content)
    theirs = keras.models.load_model(archive(tmp_path / "theirs.keras", description, content))
    x = np.arange(8, dtype="float32").reshape(2, 4)
    assert isinstance(theirs, keras.Sequential)
    theirs.compile(loss="mse")
    theirs.fit(x, np.zeros((2, 2)), None, verbose=0)
    expected = keras.saving.load_model(tmp_path / "theirs.keras").predict(x, None)
    assert np.any(theirs.predict(x) != expected)
    theirs.load_weights(tmp_path / "theirs.weights.h5")
    np.testing.assert_array_equal(theirs.predict(x), expected)
    theirs.save(tmp_path / "theirs.keras")  # and from now on this is the file
    assert keras.models.load_model(tmp_path / "theirs.keras").optimizer is not None


class Two(keras.Model):  # type: ignore[misc]
    """A model with a `call` of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.flat, self.dense = layers.Flatten(), layers.Dense(3, activation="softmax")

    def call(self, inputs: Any) -> Any:
        return self.dense(self.flat(inputs))


def test_a_file_of_a_subclass_is_read_with_what_it_was_compiled_for(tmp_path: Path) -> None:
    model = Two()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras", {"Two": Two})
    assert again.evaluate(X, Y) == model.evaluate(X, Y)


def test_inputs_by_name() -> None:
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    y = layers.Dense(1)(layers.Concatenate()([a, b]))
    model = keras.Model({"b": b, "a": a}, y)
    given = {"a": X[:, 0, :2, 0], "b": X[:, 1, :3, 1]}
    np.testing.assert_array_equal(model.predict(given), model.predict([given["b"], given["a"]]))
    with pytest.raises(ValueError, match=r"have their keys as names.* as 'c'. Make it by Input\(\.\.\., name='c'\)"):
        keras.Model({"c": a, "b": b}, y)


def test_logs_have_the_names_that_metrics_were_given() -> None:
    model = network()
    model.compile("sgd", "categorical_crossentropy", metrics=["acc", "AUC", "MAE"])
    assert list(model.evaluate(X, np.eye(3)[Y], return_dict=True)) == ["loss", "acc", "AUC", "MAE"]


def test_metrics_that_are_means_of_losses() -> None:
    model = network()
    metrics = [keras.metrics.MeanSquaredError(name="squares"), keras.metrics.CosineSimilarity()]
    model.compile("sgd", "mae", metrics=[*metrics, keras.metrics.CategoricalCrossentropy(label_smoothing=0.1)])
    y = np.eye(3, dtype="float32")[Y]
    logs = model.evaluate(X, y, return_dict=True)
    p = model.predict(X)
    assert list(logs) == ["loss", "squares", "cosine_similarity", "categorical_crossentropy"]
    assert logs["squares"] == pytest.approx(np.mean((y - p) ** 2), rel=SUM)
    assert logs["cosine_similarity"] == pytest.approx(np.mean((y * p).sum(-1) / np.linalg.norm(p, axis=-1)), rel=SUM)


def test_inputs() -> None:
    assert keras.Input((4,), batch_size=3).shape == keras.Input(batch_shape=(3, 4)).shape == (None, 4)
    assert keras.Sequential([keras.InputLayer((4,)), layers.Dense(2)]).output_shape == (None, 2)
    assert keras.Input(shape=5).shape == (None, 5)


@pytest.mark.parametrize("kind", ["losses", "metrics", "optimizers", "initializers", "regularizers", "constraints"])
def test_get_and_serialize(kind: str) -> None:
    names = {
        "losses": "mse", "metrics": "accuracy", "optimizers": "adam", "initializers": "he_normal",
        "regularizers": "l2", "constraints": "non_neg",
    }  # fmt: skip
    module = getattr(keras, kind)
    made = module.get(names[kind])
    again = module.deserialize(module.serialize(made))
    assert type(again) is type(made)
    assert module.get(made) is made


def test_layers_are_described() -> None:
    config = layers.serialize(layers.Dense(3, activation="relu"))
    assert layers.deserialize(config).get_config() == config["config"]


def test_backend() -> None:
    assert (K.image_data_format(), K.floatx(), K.epsilon()) == ("channels_last", "float32", 1e-7)
    K.set_image_data_format("channels_last")
    with pytest.raises(ValueError, match="Each layer has its order of axes"):
        K.set_image_data_format("channels_first")
    K.clear_session()
    assert K.get_value(np.float32(3.0)) == 3.0
    assert K.batch_flatten(X).shape == (6, 192)
    np.testing.assert_allclose(K.l2_normalize(np.asarray([3.0, 4.0])), [0.6, 0.8])
    assert K.int_shape(keras.Input((4,))) == (None, 4)


def test_seeds() -> None:
    def drawn() -> list[Any]:
        keras.utils.set_random_seed(5)
        return [random.random(), *np.random.random(2), *keras.random.normal((2,))]  # noqa: NPY002

    state = np.random.get_state()  # noqa: NPY002
    try:
        assert drawn() == drawn()
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_random_numbers_within_a_layer_and_outside() -> None:
    x = keras.Input((4,))
    noisy = layers.Lambda(lambda t: t + keras.random.normal(keras.ops.shape(t)), output_shape=(4,))(x)
    model = keras.Model(
        x, [noisy, layers.Lambda(lambda t: K.random_uniform((K.shape(t)[0], 4), 1.0, 2.0) + t * 0.0)(x)]
    )
    found, uniform = model.predict(np.zeros((8, 4)))
    assert len(np.unique(found)) == 32
    assert ((uniform >= 1) & (uniform < 2)).all()
    seeds = keras.random.SeedGenerator(3)
    assert (keras.random.uniform((3,), seed=seeds) != keras.random.uniform((3,), seed=seeds)).any()
    assert set(keras.random.bernoulli((100,), seed=1)) == {0.0, 1.0}
    assert sorted(keras.random.shuffle(np.arange(5), seed=1)) == list(range(5))


def test_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = minicnn.data.load("synthetic_digits", n_train=20, n_test=10)
    monkeypatch.setattr(minicnn.data, "load", lambda name, path=None: made)
    for name in ("mnist", "fashion_mnist"):
        (x, y), (x_test, _) = getattr(keras.datasets, name).load_data()
        assert (x.shape, x.dtype, y.shape, y.dtype, x_test.shape) == (
            (20, 28, 28),
            "uint8",
            (20,),
            "uint8",
            (10, 28, 28),
        )
    (_, y), _ = keras.datasets.cifar10.load_data()
    assert y.shape == (20, 1)


def test_a_drawing_as_png(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    keras.utils.plot_model(network(), os.fspath(tmp_path / "model.png"), show_shapes=True, show_layer_names=True)
    with image.open(tmp_path / "model.png") as picture:
        assert picture.width < picture.height
        assert len(set(picture.convert("L").tobytes())) > 2


def test_a_last_axis_of_1_may_be_missing_and_class_numbers_be_floats() -> None:
    images = X[..., 0]
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3, activation="softmax")])
    np.testing.assert_array_equal(model.predict(images), model.predict(images[..., None]))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(images, Y.astype("float64"), validation_data=(images, Y.astype("float32")), verbose=0)
    assert model.evaluate(images, Y.astype("float32")) == model.evaluate(images, Y)
    with pytest.raises(ValueError, match="takes inputs of shape"):
        model.predict(images[:, :4])
    with pytest.raises((ValueError, TypeError), match="class"):
        model.evaluate(images, Y + 0.5)
