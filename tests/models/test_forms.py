"""Forms in which data come: tables, memory maps, no rows, one image, numbers for an input of integers."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.backends import get_backend
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, GlobalAveragePooling2D, Input, Rescaling
from support.model_cases import FAST, assert_same_weights, blobs, to_library
from support.small_training import compiled, digits
from support.tolerances import ELEMENT, SUM

ALL = [*FAST, "numba"]
X, Y = blobs(40, 5, 3)


def classifier(backend: str = "numpy") -> Sequential:
    model = Sequential([Input((5,)), Dense(4, activation="relu"), Dense(3, activation="softmax")], backend=backend)
    model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
    return model


# Tables -------------------------------------------------------------------------------------------


class Table:
    """A table or a column as pandas and Polars have them: no array, but NumPy can make one of it."""

    def __init__(self, values: Any, dtype: str = "columns have types of their own") -> None:
        self._values = np.asarray(values)
        self.dtypes, self.shape = dtype, self._values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)

    def __dataframe__(self) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return iter("abcde")  # the names of the columns

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)  # by name, not by row


def test_tables_train_as_their_arrays_do() -> None:
    weight, wide = np.arange(40) % 3 + 1.0, X.astype("float64")
    table, labels = Table(wide), Table(Y.astype("int64"))
    one, other = classifier(), classifier()
    expected = one.fit(wide, Y, sample_weight=weight, validation_data=(wide, Y), epochs=2, verbose=0)
    found = other.fit(
        table, labels, sample_weight=Table(weight), validation_data=(table, labels), epochs=2, verbose=0
    )  # fmt: skip
    assert found.history == expected.history
    assert_same_weights(other.get_weights(), one.get_weights())
    assert other.evaluate(table, labels) == one.evaluate(wide, Y)
    assert other.train_on_batch(table, labels) == one.train_on_batch(wide, Y)
    np.testing.assert_array_equal(other.predict(table), one.predict(wide))
    one.fit(wide, Y, validation_split=0.25, class_weight={1: 2.0}, verbose=0)
    other.fit(table, labels, validation_split=0.25, class_weight={1: 2.0}, verbose=0)
    other.fit([(table, labels)], verbose=0)
    one.fit([(wide, Y)], verbose=0)
    assert_same_weights(other.get_weights(), one.get_weights())


def test_a_table_of_texts_is_refused() -> None:
    for x, y in ((Table(np.full((40, 5), "a", object)), Y), (X, Table(np.full(40, "a", object)))):
        with pytest.raises(
            TypeError, match=r"integers or floating-point numbers\. Received: Table with dtype object\."
        ):
            classifier().fit(x, y, verbose=0)


def test_a_model_is_built_by_a_table() -> None:
    model = Sequential([Dense(3, activation="softmax")], backend="numpy")
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(Table(X), Table(Y), verbose=0)
    assert model.input_shape == (None, 5)


# Memory maps --------------------------------------------------------------------------------------


def on_disk(folder: Path, name: str, array: Any) -> Any:
    """The same numbers in a file that is mapped into memory."""
    mapped = np.memmap(folder / name, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return np.memmap(folder / name, array.dtype, "r", shape=array.shape)


# XLA compiles for five seconds, and makes of them what it makes of arrays.
AT_NIGHT = pytest.mark.night("tests/models/test_forms.py::test_memory_maps_train_as_arrays_do")


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*(("numpy", d) for d in ("float64", "float16", ">f4", ">f8", ">i2", "uint8", "float32")), ("torch", "uint8"),
     ("torch", ">f8"), pytest.param("jax", "float64", marks=AT_NIGHT), ("numba", "float64")],
)  # fmt: skip
def test_memory_maps_train_as_arrays_do(backend: str, dtype: str, tmp_path: Path) -> None:
    x = (X * 8).round().clip(0, 200).astype(dtype)
    maps = [on_disk(tmp_path, n, a) for n, a in {"x": x, "y": Y.astype("int64"), "w": np.arange(40) % 3 + 1.0}.items()]
    arrays = [np.asarray(a, a.dtype.newbyteorder("=")).copy() for a in maps]
    one, other = classifier(backend), classifier(backend)
    options: dict[str, Any] = {"batch_size": 7, "epochs": 2, "verbose": 0, "validation_split": 0.25}
    expected = one.fit(*arrays[:2], sample_weight=arrays[2], **options)
    found = other.fit(*maps[:2], sample_weight=maps[2], **options)
    assert found.history == expected.history
    for last_batch in ("drop", "pad") if backend == "numpy" else ():
        one.fit(*arrays[:2], batch_size=16, last_batch=last_batch, steps_per_epoch=3, epochs=2, verbose=0)
        other.fit(*maps[:2], batch_size=16, last_batch=last_batch, steps_per_epoch=3, epochs=2, verbose=0)
    assert_same_weights(other.get_weights(), one.get_weights())
    assert other.evaluate(*maps[:2]) == one.evaluate(*arrays[:2])
    np.testing.assert_array_equal(other.predict(maps[0], 7), one.predict(arrays[0], 7))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*((b, d) for b in FAST for d in ("float64", "float16", ">f4", "uint8")), ("numba", "float64")],
)
def test_no_copy_is_taken_of_a_memory_map(
    backend: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.memmap(tmp_path / "x", dtype, "w+", shape=(2**14, 64, 16))  # a hole of 16 to 128 MiB
    y = np.zeros(len(x), "int32")
    model = Sequential([Input((64, 16)), Flatten(), Dense(3, "softmax")], backend=backend)
    model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
    model.fit(x[:64], y[:64], verbose=0)  # compiles
    largest, convert = [0], model.backend.asarray

    def watched(data: Any, dtype: str | None = None) -> Any:
        if not (isinstance(data, np.ndarray) and data.base is not None and backend in ("numpy", "numba")):
            largest.append(data.nbytes)
        return convert(data, dtype)

    monkeypatch.setattr(model.backend, "asarray", watched)
    tracemalloc.start()
    model.fit(x, y, steps_per_epoch=3, verbose=0, validation_split=0.5, validation_steps=2)
    model.evaluate(x, y, steps=2)
    model.predict(x, steps=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(largest) <= 2**20
    assert peak < 2**23


HUGE = """
import resource, sys
import numpy as np
from minicnn import Sequential
from minicnn.layers import Dense, Input
x = np.memmap(sys.argv[1], sys.argv[2], "w+", shape=(10**6, 10**5 // np.dtype(sys.argv[2]).itemsize))
y = np.arange(len(x)) % 3
model = Sequential([Input(x.shape[1:]), Dense(3, "softmax")], backend=sys.argv[3])
model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**29, used + 2**29))
model.fit(x, y, steps_per_epoch=2, verbose=0, validation_data=(x, y), validation_steps=1)
print(model.predict(x, steps=2).shape)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
@pytest.mark.parametrize("dtype", ["float64", ">f2"])
def test_a_hundred_gigabytes(dtype: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HUGE, str(tmp_path / "x"), dtype, "numpy"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(64, 3)\n"


def test_an_error_in_a_memory_map_names_the_batch(tmp_path: Path) -> None:
    x, y = on_disk(tmp_path, "x", X.astype("float64")), Y.copy()
    y[35] = 7
    with pytest.raises(ValueError, match="Labels of a sparse loss are integers from 0 to 2") as error:
        classifier().fit(x, y, shuffle=False, batch_size=8, verbose=0)
    assert "In batch 4 of the epoch" in error.value.__notes__[0]
    with pytest.raises(ValueError, match=r"All inputs, labels and weights have the same number .* Received: 40, 39\."):
        classifier().fit(x, Y[1:], verbose=0)


@pytest.mark.parametrize("backend", ["numpy", "numba"])  # whose arrays are NumPy's
def test_numbers_of_the_other_byte_order(backend: str) -> None:
    model = classifier(backend)
    for dtype in (">f4", ">f8", ">u2"):
        x = (X * 8).round().clip(0).astype(dtype)
        model.fit(x, Y.astype(">i8"), verbose=0, sample_weight=np.ones(40, ">f4"))
        np.testing.assert_array_equal(model.predict(x), model.predict(np.asarray(x, "float32")))


# Strides and shapes -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_strides_of_an_axis_of_length_1_mean_nothing(backend: str) -> None:
    model = Sequential([Input((4, 5, 1)), Flatten(), Dense(2)], backend=backend)
    images = np.arange(60, dtype="float32").reshape(3, 4, 5, 1)
    views = [images[:1][::-1], images[2:1:-1], images[..., ::-1], images[::-1], images[:, ::-1, ::-1]]
    for view in [*views, *(v.astype("uint8") for v in views), images[:, :, :, 0][..., None][:1][::-1]]:
        np.testing.assert_array_equal(model.predict(view), model.predict(np.array(view, order="C")))
    weights = model.get_weights()
    model.set_weights({path: np.flip(w[None], 0)[0] for path, w in weights.items()})
    assert_same_weights(model.get_weights(), weights)
    backend_of = get_backend(backend)
    np.testing.assert_array_equal(backend_of.to_numpy(backend_of.asarray(images[2:1:-1])), images[2:])


def test_a_single_image_is_told_from_images_without_channels() -> None:
    model = Sequential([Input((6, 5, 1)), Flatten(), Dense(2)], backend="numpy")
    with pytest.raises(
        ValueError, match=r"\(N, 6, 5, 1\)\. Received: \(6, 5, 1\)\. The first axis counts .* x\[None\]"
    ):
        model.predict(np.zeros((6, 5, 1)))
    with pytest.raises(ValueError, match=r"Received: \(3, 6, 5\)\. Reshape the data, e\.g\. x\[\.\.\., None\] adds a"):
        model.predict(np.zeros((3, 6, 5)))
    with pytest.raises(ValueError, match=r"x\[None\] gives a single one that axis"):
        Sequential([Input((None, None, 3)), GlobalAveragePooling2D()]).predict(np.zeros((6, 5, 3)))
    with pytest.raises(ValueError, match=r"Received: \(5,\)\. The first axis counts the samples: x\[None\]"):
        classifier().predict(np.zeros(5))


@pytest.mark.parametrize("shape", [(3, 0, 5, 1), (3, 6, 0, 1), (0, 0, 5, 1)])
def test_images_without_pixels_are_refused(shape: tuple[int, ...]) -> None:
    model = Sequential([Input((None, None, 1)), Conv2D(2, 3, padding="same"), GlobalAveragePooling2D()])
    model.compile("sgd", "mse")
    match = rf"at least one element along each axis\. Received: inputs of shape \({shape[0]}, {shape[1]}, {shape[2]}, 1"
    for call in (model.predict, model.predict_on_batch, lambda x: model.fit(x, np.zeros((3, 2)), verbose=0)):
        with pytest.raises(ValueError, match=match):
            call(np.zeros(shape))


# No rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_predictions_of_no_samples_have_no_rows(backend: str) -> None:
    model = classifier(backend)
    given = to_library(X[:0], backend if backend != "numba" else "numpy")
    for x in (given, X[:0], Table(X[:0])):
        for found in (model.predict(x), model.predict(x, steps=1), model.predict_on_batch(x)):
            assert found.shape == (0, 3)
            assert "float32" in str(found.dtype)
    assert isinstance(model.predict(given), type(given))
    np.testing.assert_allclose(model.predict([(X[:4],), (X[:0],), (X[4:6],)]), model.predict(X[:6]), rtol=ELEMENT)
    assert model.predict([(X[:0],)]).shape == (0, 3)


def test_predictions_of_no_samples_follow_their_size() -> None:
    a = Input((None, None, 1), dtype="uint8")
    x = BatchNormalization()(Conv2D(2, 3)(Rescaling(1 / 255)(a)))
    model = Model(a, [x, GlobalAveragePooling2D()(x)], backend="numpy")
    assert [found.shape for found in model.predict(np.zeros((0, 7, 9, 1), "uint8"))] == [(0, 5, 7, 2), (0, 2)]


def test_no_samples_are_refused_elsewhere() -> None:
    model, match = (
        classifier(),
        r"There is at least one sample in inputs\. Received: none, in arrays of shape \(0, 5\)\.",
    )
    for call in (model.evaluate, model.train_on_batch, model.test_on_batch, lambda x, y: model.fit(x, y, verbose=0)):
        with pytest.raises(ValueError, match=match):
            call(X[:0], Y[:0])
    with pytest.raises(ValueError, match=match):
        model.fit(X, Y, validation_data=(X[:0], Y[:0]), verbose=0)
    with pytest.raises(ValueError, match=r"All inputs and labels have the same number of samples\. Received: 0, 40\."):
        model.fit(X, Y[:0], verbose=0)


# Inputs of integers -------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_input_of_integers_takes_whole_numbers_of_any_type(library: str) -> None:
    model = compiled(library)
    images, labels = digits()
    expected = model.predict(images)
    for dtype in ("float32", "float64", "int16"):
        found = model.predict(to_library(images.astype(dtype), "numpy" if dtype == "float64" else library))
        np.testing.assert_allclose(np.asarray(found), expected, rtol=SUM, atol=ELEMENT)
    scaled = to_library((images / 255).astype("float32"), library)
    match = (
        r"declared as uint8 takes whole numbers, .* Received: float32 with fractions, from 0\.?\d* to [01]\.?\d*\. "
        r"Give the numbers before they were scaled, or declare Input\(\.\.\., dtype='float32'\)"
    )
    for call in (
        model.predict, model.predict_on_batch, lambda x: model.fit(x, labels, verbose=0),
        lambda x: model.evaluate(x, labels), lambda x: model.train_on_batch(x, labels),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            call(scaled)
    with pytest.raises(ValueError, match=match):
        model.fit([(np.asarray(scaled), labels)], verbose=0)


def test_fractions_anywhere_are_found() -> None:
    x = np.zeros((2**15, 8, 8, 1), "float32")  # two blocks
    x[-1, -1, -1, 0] = 0.5
    model = Sequential([Input((8, 8, 1), dtype="uint8"), Rescaling(1 / 255), Flatten(), Dense(1)], backend="numpy")
    with pytest.raises(ValueError, match=r"from 0 to 0\.5"):
        model.predict(x)
    x[-1] = np.nan
    assert np.isnan(model.predict(x[-2:])[1]).all()


def _foreign(form: str, array: Any) -> Any:
    """An array of float32 in a form that another library gives it."""
    if form == "memoryview":
        return memoryview(array)
    if form == "requires_grad":
        torch = pytest.importorskip("torch")
        return torch.tensor(array, requires_grad=True)
    library, jax = form.partition(" ")[0], pytest.importorskip("jax.numpy")
    if library == "torch":
        return pytest.importorskip("torch").tensor(array).bfloat16()
    return jax.asarray(array, jax.bfloat16) if library == "jax" else array.astype(jax.bfloat16)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("form", ["memoryview", "requires_grad", "torch bfloat16", "jax bfloat16", "numpy bfloat16"])
def test_arrays_that_numpy_does_not_read_by_itself(form: str, backend: str) -> None:
    """Views of memory, tensors that require a gradient, and bfloat16, which float32 holds."""
    x, y = np.arange(24, dtype="float32").reshape(6, 4) / 8, np.ones((6, 2), "float32")  # exact in bfloat16
    results = []
    for given in ((x, y), (_foreign(form, x), _foreign(form, y))):
        model = Sequential([Input((4,)), Dense(2)], backend=backend)
        model.compile("sgd", "mse")
        model.fit(*given, verbose=0, shuffle=False)
        model.train_on_batch(*given)
        results.append([model.evaluate(*given), to_host(model.predict(given[0])), to_host(model(given[0]))])
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=ELEMENT)
    for ours, theirs in zip(results[1][1:], results[0][1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=ELEMENT)


def to_host(array: Any) -> Any:
    return np.asarray(array.detach() if hasattr(array, "detach") else array)
