"""Arrays of PyTorch, JAX, CuPy and Numba on the GPU of a model of `cupy` or `numba_cuda`: taken over where they are."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import get_backend
from minicnn.layers import Conv2D, Dense, Flatten, Input
from minicnn.tolerance import tolerance

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

X = np.random.default_rng(0).random((20, 8, 8, 2), "float32")
Y = np.arange(20, dtype="int32") % 3
PAIRS = [("cupy", "torch"), ("cupy", "jax"), ("cupy", "numba"), ("numba_cuda", "torch"), ("numba_cuda", "jax"),
         ("numba_cuda", "cupy"), ("numba_cuda", "numba")]  # fmt: skip


def on_gpu(library: str, array: Any) -> Any:
    """An array of a library on the first GPU."""
    if library == "torch":
        return torch.tensor(array, device="cuda")
    if library == "jax":
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX sees no GPU")
        return jax.numpy.asarray(array)
    if library == "cupy":
        return pytest.importorskip("cupy").asarray(array)
    return pytest.importorskip("numba.cuda").to_device(array)


def on_host(array: Any) -> Any:
    """An array of any of the libraries on the host."""
    if hasattr(array, "detach"):
        return array.detach().cpu().numpy()
    if hasattr(array, "copy_to_host"):
        return array.copy_to_host()
    return array.numpy() if hasattr(array, "numpy") else array.get() if hasattr(array, "get") else np.asarray(array)


def address(array: Any) -> int:
    """Where an array begins."""
    return int(array.__cuda_array_interface__["data"][0])


def backend_of(name: str) -> Any:
    pytest.importorskip(name)
    return get_backend(name)


def network(name: str) -> Sequential:
    middle = [Conv2D(4, 3, activation="relu"), Flatten(), Dense(3, activation="softmax")]
    model = Sequential([Input((8, 8, 2)), *middle], backend=backend_of(name))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_a_context_that_another_library_took_away(name: str) -> None:
    """Compiles, trains and predicts on a thread that has none."""
    driver = ctypes.CDLL("libcuda.so.1")
    results = []
    for taken in (False, True):
        model = network(name)
        for call in (lambda: model.fit(X, Y, batch_size=10, verbose=0), lambda: results.append(model.predict(X))):
            if taken:
                assert driver.cuCtxSetCurrent(None) == 0
            call()
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize(("name", "library"), PAIRS)
def test_training_and_predictions(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as with arrays of the host; outputs are the library's, on the GPU."""
    results = []
    for x, y in ((X, Y), (on_gpu(library, X), on_gpu(library, Y))):
        model = network(name)
        losses = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]
        if library != "numba":  # whose arrays are not those of the standard, which loaders are told by
            losses += model.fit([(x, y)], verbose=0).history["loss"]
        losses += [*model.train_on_batch(x, y), *model.evaluate(x, y)]
        results.append([losses, *model.get_weights(), model.predict(x, batch_size=8), model(x)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(on_host(theirs) if hasattr(theirs, "shape") else theirs, ours)
    if library != "numba":
        for output in results[1][-2:]:
            assert type(output) is type(on_gpu(library, X))
            assert address(output)


@pytest.mark.parametrize(("name", "library"), PAIRS)
def test_the_memory_is_shared(name: str, library: str) -> None:
    array = on_gpu(library, X)
    assert address(backend_of(name).over(array)) == address(array)


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_work_on_another_stream_is_waited_for(name: str) -> None:
    """What fills the input takes a while on a stream of its own, and what reads the output is on it, too."""
    model, given = network(name), on_gpu("torch", X)
    expected = model.predict(X + 1)
    for _ in range(5):
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # cycles: some 0.1 s
            output = model.predict(given + 1)
            np.testing.assert_array_equal((output * 1).cpu().numpy(), expected)


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
@pytest.mark.parametrize("form", ["requires_grad", "bfloat16", "float16", "float64", "uint8", "strided", "offset"])
def test_forms(form: str, name: str) -> None:
    model, x = network(name), on_gpu("torch", np.round(X * 64) / 64)  # which are exact in bfloat16
    if form == "requires_grad":
        given = x.clone().requires_grad_()
    elif form == "strided":
        given = x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
    elif form == "offset":
        given = torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape)
    elif form == "uint8":
        x = torch.round(x * 8)
        given = x.to(torch.uint8)
    else:
        given = x.to(getattr(torch, form))
    output = model.predict(given)
    assert output.device == given.device
    rtol, atol = tolerance("float32", 8 * 8 * 4)
    np.testing.assert_allclose(on_host(output), on_host(model.predict(x)), rtol, atol)
    assert len(model.fit(given, on_gpu("torch", Y), verbose=0).history["loss"]) == 1


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_another_gpu_is_named(name: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with pytest.raises(ValueError, match=r"Arrays are on the model's device\. Received: .*cuda:1"):
        network(name).predict(torch.tensor(X, device="cuda:1"))
