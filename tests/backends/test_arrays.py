"""Conversion to and from each backend's arrays, and its devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from support.backends import ON_CPUS, backend_or_skip


@pytest.fixture(params=ON_CPUS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_or_skip(request.param)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_round_trip(backend: Backend, dtype: str, shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = backend.asarray(data)
    assert backend.owns(array)
    assert tuple(array.shape) == shape
    back = backend.to_numpy(array)
    assert isinstance(back, np.ndarray)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, data)


def test_conversion_of_the_dtype(backend: Backend) -> None:
    for source in (np.asarray([1, 2, 3], "uint8"), [1, 2, 3], backend.asarray(np.asarray([1, 2, 3], "int32"))):
        array = backend.asarray(source, "float32")
        assert backend.owns(array)
        assert backend.to_numpy(array).dtype == "float32"
        np.testing.assert_array_equal(backend.to_numpy(array), [1, 2, 3])


def test_own_arrays_pass_through(backend: Backend) -> None:
    array = backend.asarray(np.ones(3, "float32"))
    assert backend.asarray(array) is array
    assert backend.owns(array)
    if not isinstance(array, np.ndarray):
        assert not backend.owns(np.ones(3))


def test_read_only_and_strided_arrays(backend: Backend) -> None:
    data = np.arange(24, dtype="float32").reshape(2, 3, 4)
    data.flags.writeable = False
    for view in (data, data[:, ::-1], data.T, data[..., ::2]):
        np.testing.assert_array_equal(backend.to_numpy(backend.asarray(view)), view)


@pytest.mark.parametrize("name", ["array_api_strict", "torch", "jax"])
def test_the_source_may_be_reused_at_once(name: str) -> None:
    """A batch buffer is filled again while the device may still compute with the last batch."""
    pytest.importorskip(name)
    backend = get_backend(name)
    raw = np.empty(4096 + 64, "uint8")
    start = -raw.ctypes.data % 64  # aligned memory is what a library would be tempted to keep
    data = raw[start : start + 4096].view("float32")
    data[:] = 1
    array = backend.asarray(data)
    typed = backend.asarray(data, "float32")
    data[:] = 2
    np.testing.assert_array_equal(backend.to_numpy(array), 1)
    np.testing.assert_array_equal(backend.to_numpy(typed), 1)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_bfloat16_becomes_float32_on_the_host(name: str) -> None:
    pytest.importorskip(name)
    backend = get_backend(name)
    array = backend.asarray(np.asarray([1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-9], "float32"), "bfloat16")
    assert "bfloat16" in str(array.dtype)
    back = backend.to_numpy(array)
    assert back.dtype == "float32"
    np.testing.assert_array_equal(back, [1, 1 + 2.0**-7, 1])


def test_base_class_leaves_arrays_to_its_children() -> None:
    base = Backend.__new__(Backend)
    for call in (lambda: base.asarray([1]), lambda: base.to_numpy([1]), lambda: base.owns([1])):
        with pytest.raises(NotImplementedError):
            call()
    assert Backend.describe() == {}


def test_unknown_device() -> None:
    with pytest.raises(ValueError, match=r"The numpy backend runs on cpu\. Received: device 'cuda'.*numpy:cpu"):
        get_backend("numpy:cuda")


# torch ----------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_without_the_device(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"PyTorch must see the device.*'cuda:1', found: cpu.*torch:cpu"):
        get_backend("torch:cuda:1")
    with pytest.raises(ValueError, match=r"torch backend runs on cpu or cuda or mps\. Received: device 'xpu'"):
        get_backend("torch:xpu")


def test_torch_tensors_are_not_moved_silently(torch: Any) -> None:
    elsewhere = torch.empty(3, device="meta")
    with pytest.raises(ValueError, match=r"a tensor on meta, the model is on cpu\. Move it with tensor\.to\('cpu'\)"):
        get_backend("torch").asarray(elsewhere)


def test_torch_tensors_that_require_a_gradient(torch: Any) -> None:
    tensor = torch.ones(3, requires_grad=True)
    np.testing.assert_array_equal(get_backend("torch").to_numpy(tensor), 1)


def test_torch_on_a_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls made on CUDA and MPS devices, without one."""
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("mps"))
    cuda, mps = get_backend("torch:cuda:1"), get_backend("torch:mps")
    cuda.synchronize()
    mps.synchronize()
    get_backend("torch").synchronize()
    assert calls == ["cuda:1", "mps"]
    assert (cuda.memory(), mps.memory(), get_backend("torch").memory()) == (123, None, None)
    facts = cuda.describe()
    assert facts["cuda"] == "a GPU"
    assert "mps" in facts
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    for rank in ("0", "1", "2"):  # of the processes of this machine; there is no third GPU
        monkeypatch.setenv("LOCAL_RANK", rank)
        type(cuda)("cuda")
    assert calls == ["cuda:1", "mps", 1]


# jax ------------------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.mark.parametrize("device", ["tpu", "cpu:99"])
def test_jax_without_the_device(jax: Any, device: str) -> None:
    with pytest.raises(RuntimeError, match=rf"JAX must see the device.*Received: '{device}', found: .*cpu.*jax:cpu"):
        get_backend(f"jax:{device}")


def test_jax_refuses_float64_rather_than_losing_digits(jax: Any) -> None:
    with pytest.raises(ValueError, match=r"float64 only where its 64-bit mode is on.*jax_enable_x64"):
        get_backend("jax").asarray(np.ones(3), "float64")


@pytest.mark.usefixtures("jax_in_64_bits")
def test_jax_in_64_bit_mode() -> None:
    backend = get_backend("jax")
    array = backend.asarray([1.0, 1.0 + 2.0**-50], "float64")
    np.testing.assert_array_equal(backend.to_numpy(array), [1, 1 + 2.0**-50])
