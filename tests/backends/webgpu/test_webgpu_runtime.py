"""The runtime of webgpu: memory in slabs, copies to anywhere, timestamps, and errors of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backends.webgpu.running  # noqa: F401 - skips all of this where there is no adapter
from backends.cupy.networks import NETWORKS, data
from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends.webgpu.adapters import adapters
from minicnn.backends.webgpu.backend import WebGpuBackend
from minicnn.backends.webgpu.runtime import WebGpuRuntime, runtime_of
from minicnn.measure.operations import apart, step_inputs
from minicnn.program import Program


@pytest.fixture
def fresh() -> Iterator[WebGpuRuntime]:
    """A device of its own on the first adapter."""
    yield WebGpuRuntime(adapters()[0], 0)
    gc.collect()


def test_memory_is_given_back_and_given_again() -> None:
    runtime = runtime_of(0)
    gc.collect()
    before = runtime.used()
    arrays = [runtime.empty((1000,), "float32") for _ in range(3)]
    places = {runtime.address(a) for a in arrays}
    assert runtime.used() == before + 3 * 4096
    assert len(places) == 3
    del arrays
    gc.collect()
    assert runtime.used() == before
    assert runtime.address(runtime.empty((3000,), "float32")) is not None
    assert runtime.used() == before


def test_neighbours_in_a_slab_keep_their_elements(fresh: WebGpuRuntime) -> None:
    """Bytes that begin and end within words, from the host and by kernels."""
    expected = np.arange(64, dtype="uint8")
    whole = fresh.empty((64,), "uint8")
    fresh.send(expected, whole)
    for start, count in ((3, 6), (5, 1), (8, 8), (1, 63), (13, 30)):
        part = fresh.view(whole, start, (count,), "uint8")
        new = np.arange(200, 200 + count, dtype="uint8")
        fresh.send(new, part)
        expected[start : start + count] = new
        np.testing.assert_array_equal(fresh.read(whole), expected)
        np.testing.assert_array_equal(fresh.read(part), new)
    other = fresh.empty((64,), "uint8")
    fresh.clear(other)
    fresh.copy(fresh.view(whole, 3, (9,), "uint8"), fresh.view(other, 6, (9,), "uint8"))
    assert fresh.read(other).tolist() == [0] * 6 + expected[3:12].tolist() + [0] * 49


def test_a_step_may_need_more_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    x = program.input("x", (4096, 64))
    y = ops.exp(x)
    program.outputs["z"] = ops.sum(ops.matmul(y, ops.matmul(y, ops.matmul(x, y, transpose_a=True)), transpose_a=True))
    run = np.random.default_rng(0).normal(0, 0.1, (4096, 64)).astype("float32")
    results = []
    for piece in (1 << 27, 1 << 20):
        backend = WebGpuBackend()
        monkeypatch.setattr(backend.runtime.slabs, "most", piece)
        executable: Any = backend.compile(program.copy())
        assert executable.arena_bytes > 1 << 20
        results.append(float(backend.to_numpy(executable({"x": run})["z"])))
        del executable
        gc.collect()
    assert results[0] == results[1]


def test_an_array_larger_than_a_binding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("webgpu")
    monkeypatch.setattr(backend.runtime.slabs, "most", 4096)  # type: ignore[attr-defined]
    rule = r"An array fits into one binding of .*: 4,096 bytes\. "
    with pytest.raises(ValueError, match=rf"{rule}Received: float32\[2,1000\], of 8,000 bytes\. Use fewer units"):
        backend.asarray(np.zeros((2, 1000), "float32"))


def test_a_full_memory_is_an_error_of_our_own(fresh: WebGpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    def full(**_: Any) -> Any:
        raise wgpu.GPUOutOfMemoryError("not enough memory left")

    monkeypatch.setattr(fresh._device, "create_buffer", full)
    with pytest.raises(MemoryError, match=r"A step's arrays fit in the memory of the GPU\. Received: not enough"):
        fresh.empty((1 << 20,), "float32")


def test_a_lost_device_is_an_error_of_our_own(fresh: WebGpuRuntime) -> None:
    array = fresh.empty((4,), "float32")
    fresh._device.destroy()
    for use in (lambda: fresh.read(array), lambda: fresh.send(np.zeros(4, "float32"), array)):
        with pytest.raises(RuntimeError, match=r"The GPU's device stays while a model uses it\. Received: .* is lost"):
            use()


def test_adapters_by_number() -> None:
    assert repr(get_backend("webgpu:0")) == "<backend webgpu:adapter:0>"
    with pytest.raises(ValueError, match=r"one of the \d+ that `minicnn info` lists. Received: 'webgpu:99'"):
        get_backend("webgpu:99")
    facts = WebGpuBackend.describe()
    assert {"wgpu", "webgpu:0"} <= facts.keys()


def test_every_node_can_be_timed() -> None:
    model = NETWORKS["mlp"]("webgpu")
    x, y = (a[:4] for a in data())
    program = model.program("train", batch_size=4)
    given = step_inputs(model, program, {"x": x, "y": y, "learning_rate": np.float32(0.1)})
    assert all(min(n.seconds) > 0 for n in apart(model.backend, program, given, repeats=1))
    executable: Any = model.backend.compile(program.copy())
    arrays = {k: model.backend.asarray(a) for k, a in given.items()}
    times = executable.launch_times(arrays, 2)
    assert len(times) == executable.launched
    assert all(len(seconds) == 2 and min(seconds) >= 0 for _, seconds in times)
