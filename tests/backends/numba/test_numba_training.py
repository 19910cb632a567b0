"""Whole steps on the numba backend: every zoo network has its kernels, training agrees, and repeats bit for bit."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, zoo
from minicnn.backends import backend_class, get_backend
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.tolerance import tolerance
from small_training import arrays, assert_same_bits, compiled, digits

pytest.importorskip("numba")

SMALL: dict[str, dict[str, Any]] = {"alexnet": {"hidden_units": (64, 64)}, "overfeat": {"hidden_units": (64, 64)}}
SIDES = {"alexnet": 63, "overfeat": 71}
BACKEND = "numba"


def backend(threads: int) -> Any:
    return backend_class(BACKEND)(threads=threads)  # type: ignore[call-arg]


def of_zoo(name: str) -> Model:
    side = SIDES.get(name, 32)
    shape = None if name in ("mlp", "platforms", "kernels", "lenet5") else (side, side, 3)
    return zoo.get_model(
        name, num_classes=10, input_shape=shape, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8",
        backend="numpy", **SMALL.get(name, {}),
    )  # fmt: skip


@pytest.mark.parametrize("name", zoo.names())
def test_no_zoo_network_runs_a_reference(name: str) -> None:
    model = of_zoo(name)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    for kind in ("train", "evaluate", "predict"):
        rows = get_backend(BACKEND).explain(model.program(kind, batch_size=20))  # type: ignore[arg-type]
        assert rows
        assert [f"{node!r}: {how}" for node, how in rows if not how.startswith("kernel: ")] == []


def train(model: Model, steps: int) -> list[float]:
    x, y = digits(23)
    return [float(np.asarray(model.train_on_batch(x, y)["loss"])) for _ in range(steps)]


def test_a_hundred_steps_agree_with_numpy() -> None:
    # Normalisation, pooling, dropout; plain descent, because Adam makes large steps of tiny differences.
    model, expected = compiled(backend(2), "sgd"), compiled("numpy", "sgd")
    losses, reference = train(model, 100), train(expected, 100)
    assert reference[-1] < reference[0]
    rtol, atol = tolerance("float32", 100 * 23 * 16)
    np.testing.assert_allclose(losses, reference, rtol=rtol, atol=atol)
    for name, array in arrays(expected).items():
        np.testing.assert_allclose(arrays(model)[name], array, rtol=rtol, atol=atol, err_msg=name)


def test_evaluation_and_prediction_agree_with_numpy() -> None:
    x, y = digits(41)
    model, expected = compiled(backend(2)), compiled("numpy")
    np.testing.assert_allclose(
        model.predict(x, batch_size=17), expected.predict(x, batch_size=17), rtol=1e-5, atol=1e-5
    )
    found, reference = (m.evaluate(x, y, batch_size=17) for m in (model, expected))
    for name, value in reference.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_every_time(threads: int) -> None:
    one, other = compiled(backend(threads)), compiled(backend(threads))
    assert train(one, 5) == train(other, 5)
    assert_same_bits(arrays(one), arrays(other))


def test_the_callers_arrays_stay_as_they_were() -> None:
    model = compiled("numpy")
    program = model.program(batch_size=23)
    run = backend(2).compile(program)
    x, y = digits(23)
    given = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs} | {"x": x, "y": y}
    given = {v.name: given[v.name] for v in program.inputs}
    before = {name: array.copy() for name, array in given.items()}
    first = run(given)
    kept = {name: array.copy() for name, array in first.items()}
    run(given)
    assert_same_bits(given, before)
    assert_same_bits(first, kept)
    with pytest.raises(ValueError, match=r"shapes that it was traced with"):
        run(given | {"x": x[:5]})


def test_several_threads_of_the_user() -> None:
    model = compiled(backend(2))
    x, _ = digits(40)
    expected = model.predict(x)
    made: list[Any] = []
    callers = [threading.Thread(target=lambda: made.extend(model.predict(x) for _ in range(20))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(made) == 80
    for one in made:
        np.testing.assert_array_equal(one, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_threads_of_its_own() -> None:
    model = compiled(backend(2))
    x, _ = digits(40)
    expected = model.predict(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: what is tested
        child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(model.predict(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(model.predict(x), expected)


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_THREADS", "3")
    assert get_backend(BACKEND).threads == 3  # type: ignore[attr-defined]
    assert backend_class(BACKEND).describe()["threads"] == "3"
    assert "threads=3" in repr(get_backend(BACKEND))
    monkeypatch.setenv("MINICNN_THREADS", "many")
    with pytest.raises(ValueError, match=r"MINICNN_THREADS is an integer of at least 1\. Received: 'many'"):
        get_backend(BACKEND)
    with pytest.raises(ValueError, match=r"threads is an integer of at least 1\. Received: threads=0"):
        backend(0)


@pytest.fixture
def small_source() -> Any:
    from minicnn.backends.numba.kernel import Lines

    out = Lines()
    with out.block("for i in range(start, stop):"):
        out("fstore(y + i * 4, float32(i) * float32(3))")
    return out.source("test", "y")


def _result(source: Any) -> list[float]:
    from minicnn.backends.numba.kernel import compile_source
    from minicnn.backends.numba.threads import KernelList, pool

    y = np.zeros(4, "float32")
    pool(1).run(KernelList([(compile_source(source), np.asarray([y.ctypes.data], np.int64), 4)]))
    return y.tolist()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_damaged_files_are_compiled_anew(
    damage: bytes | None, small_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicnn.backends.numba import kernel, store

    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]
    (file,) = store.folder().glob("*.bin")
    good = file.read_bytes()
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]  # from the disk
    assert file.read_bytes() == good
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    file.write_bytes(flipped if damage is None else damage)
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]
    assert len(file.read_bytes()) == len(good)
    assert [f.name for f in store.folder().iterdir()] == [file.name]  # nothing is left over


def test_without_a_folder_kernels_still_compile(
    small_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicnn.backends.numba import kernel

    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from minicnn.backends.numba import progress

    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    with progress.Progress(2) as line:
        line.next("conv2d")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress(2) as line:
        line.next("conv2d")
    assert "compiling kernel 1 of 2: conv2d" in capsys.readouterr().err
