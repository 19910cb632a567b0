"""Model files of a few kilobytes that would hang or fill memory: each ends in our error, within 5 s and 1 GB."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.files import MOST_DEPTH, SavedModelError, read_json, read_tensors, write_tensors
from minicnn.layers import Activation, Add, Dense, Input
from minicnn.layers.serialization import MOST_LAYERS
from minicnn.optimizers import Muon
from minicnn.saving import load_model
from minicnn.schedules import CosineDecayRestarts

# Other tests may have loaded libraries with threads, which warn of forks; the children here use none of them.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SECONDS, BYTES = 5.0, 1 << 30

RELU = {"class": "Activation", "config": {"activation": "relu", "name": None}}


def graph(layers: list[Any], calls: list[tuple[int, list[list[int]]]], shape: tuple[int, ...] = (2, 2, 1)) -> Any:
    """A description of a graph with one input and one output."""
    return {
        "inputs": {"tensors": [{"shape": list(shape), "dtype": "float32", "name": None}], "list": False},
        "layers": layers,
        "calls": [{"layer": n, "inputs": sources, "list": len(sources) > 1, "training": None} for n, sources in calls],
        "outputs": {"tensors": [[len(calls) - 1, 0]], "list": False},
    }


def chain(layers: list[Any], shape: tuple[int, ...] = (2, 2, 1)) -> Any:
    return graph(layers, [(i, [[i - 1, 0]]) for i in range(len(layers))], shape)


def layer(name: str, **config: Any) -> Any:
    return {"class": name, "config": {"name": None, **config}}


def nested(inner: Any) -> Any:
    return {"class": "Graph", "config": {"name": None, **inner}}


def doubling(times: int) -> Any:
    """A graph that calls a graph twice, which calls a graph twice ..."""
    made = chain([RELU])
    for _ in range(times):
        made = graph([nested(made)], [(0, [[-1, 0]]), (0, [[0, 0]])])
    return made


def deep(times: int) -> Any:
    made = chain([RELU])
    for _ in range(times):
        made = chain([nested(made)])
    return made


def pooling(size: Any) -> Any:
    return layer("AdaptiveAveragePooling2D", output_size=size, data_format="channels_last")


GRAPHS: dict[str, tuple[Callable[[], Any], str]] = {
    "a pooling to 3e5 places": (lambda: chain([pooling(300_000)]), "the layers of a saved graph fewer"),
    "many smaller ones": (lambda: chain([pooling(n) for n in range(4900, 5000)]), "the layers of a saved graph fewer"),
    "a graph that doubles itself": (lambda: doubling(40), "at most 5,000 layers"),
    "one in the arguments of a layer": (
        lambda: chain([layer("Dense", units=[nested(doubling(40))])]), "at most 5,000 layers",
    ),
    "many in the arguments of layers": (
        lambda: chain([layer("Dense", units=[nested(doubling(11))]) for _ in range(50)]), "at most 5,000 layers",
    ),
    "20,000 layers in a row": (lambda: chain([RELU] * 20_000), "at most 5,000 layers"),
    "graphs 60 deep": (lambda: deep(60), "Graphs nest at most 50 deep"),
    "more weights than the file has": (
        lambda: chain([layer("Dense", units=10**12)], (10**6,)), "no class takes|is missing|cannot be built",
    ),
    "a padding of 1e12": (lambda: chain([layer("ZeroPadding2D", padding=10**12, data_format="channels_last")]), ""),
    "an upsampling by 1e9": (
        lambda: chain([layer("UpSampling2D", size=10**9, data_format="channels_last", interpolation="bilinear")]),
        "a matrix of at most",
    ),
    "many matrices": (
        lambda: graph(
            [layer("UpSampling2D", size=128, data_format="channels_last", interpolation="bilinear")] * 40,
            [(i, [[-1, 0]]) for i in range(40)], (256, 256, 1),
        ),
        "emit at most 20,000 nodes",
    ),
    "an input of 1e18": (lambda: chain([RELU], (10**18,)), ""),
    "a local response over 1e6 channels": (
        lambda: chain([layer("LocalResponseNormalization", size=10**6 + 1)], (2, 2, 3)), "",
    ),
    "a resizing to 1e9": (lambda: chain([layer("Resizing", height=10**9, width=10**9)]), "a matrix of at most"),
    "1e12 classes": (lambda: chain([layer("CategoryEncoding", num_tokens=10**12)], (3,)), ""),
    "a crop of 1e9": (lambda: chain([layer("CenterCrop", height=10**9, width=10**9)]), ""),
    "1e9 repeats": (lambda: chain([layer("Operation", op="repeat", attrs={"repeats": 10**9, "axis": 1})]), ""),
    "a pad of 1e12": (
        lambda: chain([layer("Operation", op="pad", attrs={"widths": [[0, 0], [0, 10**12], [0, 0], [0, 0]]})]), "",
    ),
    "a broadcast to 1e12": (
        lambda: chain([layer("Operation", op="broadcast_to", attrs={"shape": [2, 10**12, 2, 1]})]), "",
    ),
    "a window of 1e9": (
        lambda: chain([layer("MaxPooling2D", pool_size=10**9, padding="same", data_format="channels_last")]), "",
    ),
    "a kernel of 1e9": (lambda: chain([layer("Conv2D", filters=1, kernel_size=10**9, padding="same")]), ""),
    "means for 1e5 channels": (lambda: chain([layer("Normalization", mean=[0.5] * 10**5, variance=1.0)]), ""),
}  # fmt: skip


def described(path: Path, description: Any, kind: str = "Model") -> None:
    """A file without tensors whose checksum fits."""
    about = {"kind": "model", "format": 1, "class": kind, "name": None, "seed": 0, "graph": description,
             "weights": [], "compile": None}  # fmt: skip
    write_tensors(path, {}, about)


def _attempt(path: str, results: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    try:
        load_model(path, "numpy")
        said = "loaded"
    except SavedModelError as error:
        said = f"refused: {error}"
    except BaseException as error:  # the parent tells
        said = f"{type(error).__name__}: {error}"
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.put((said, time.process_time() - start, taken * 1024))


def attempt(path: Path) -> str:
    """What loading says, in a process of its own, within the bounds; its time is that of the processor."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=_attempt, args=(str(path), results))
    process.start()
    process.join(60)
    if process.is_alive() or results.empty():
        process.kill()
        pytest.fail(f"no end within 60 s, or killed: exit code {process.exitcode}")
    said, seconds, taken = results.get()
    assert seconds < SECONDS, said
    assert taken < BYTES, said
    return str(said)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kind", ["Model", "Sequential"])
@pytest.mark.parametrize(("make", "said"), GRAPHS.values(), ids=GRAPHS)
def test_descriptions_that_would_never_end(make: Callable[[], Any], said: str, kind: str, tmp_path: Path) -> None:
    described(tmp_path / "m", make(), kind)
    found = attempt(tmp_path / "m")
    if said:
        assert found.startswith("refused: ")
        assert any(part in found for part in said.split("|")), found
    else:  # numbers alone are no harm: no array of that size is made
        assert found.startswith(("refused: ", "loaded"))


def test_patterns_of_a_file_are_plain_text(tmp_path: Path) -> None:
    """One that takes 2^40 steps as a regular expression is but a text that no path contains."""
    model = Sequential([Input((2,)), Dense(3, name="a" * 40 + "!")], backend="numpy")
    model.compile(Muon(exclude_layers=["(a+)+$", "["]), "mse")
    model.save(tmp_path / "m")
    assert attempt(tmp_path / "m") == "loaded"
    assert len(load_model(tmp_path / "m").optimizer.slots_of("dense[0]/kernel", (2, 3))) == 2


def test_a_schedule_of_two_thousand_million_periods_ends() -> None:
    start = time.process_time()
    for growth in (1.0, 1.0 + 1e-12, 1.0 + 1e-8, 1.5):
        rate = CosineDecayRestarts(0.1, 1, t_mul=growth)(2**31 - 1)
        assert 0 <= rate <= 0.1
    assert time.process_time() - start < 1


def raw(path: Path, header: bytes, body: bytes = b"") -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + body)


def test_a_description_990_deep_says_that_it_is_deep(tmp_path: Path) -> None:
    about = "[" * 989 + "]" * 989
    text = json.dumps({"__metadata__": {"minicnn": json.dumps({"sha256": "0", "x": 0}).replace("0}", about + "}")}})
    raw(tmp_path / "m", text.encode())
    found = attempt(tmp_path / "m")
    assert f"at most {MOST_DEPTH} brackets within brackets" in found
    assert "has changed" not in found


@pytest.mark.parametrize(
    "text", ["[" * 990 + "]" * 990, '{"a":' * 100_000, '["' + "[" * 10**6 + '"', "[" + "[]," * 500_000]
)
def test_json_is_read_within_bounds(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"brackets within brackets|Expecting"):
        read_json(path)
    assert time.process_time() - start < SECONDS


def test_json_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="at most 16 MB long"):
        read_json(path)


def test_a_sparse_file_of_200_gb(tmp_path: Path) -> None:
    size = 200 * 10**9
    path = tmp_path / "m"
    for header in (b"", b'{"a": {"dtype": "F32", "shape": [%d], "data_offsets": [0, %d]}}' % (size // 4, size)):
        raw(path, header)
        try:
            os.truncate(path, size + 8 + len(header))
        except OSError:
            pytest.skip("the file system has no sparse files")
        found = attempt(path)
        assert found.startswith("refused: ")
        assert "a header of 0 bytes" in found or "the rest is a hole" in found or "do not fit into memory" in found


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m")
    assert "it is no regular file" in attempt(tmp_path / "m")


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    x = y = Input((2,))
    for _ in range(MOST_LAYERS + 1):
        y = Activation("relu")(y)
    model = Model(x, y, backend="numpy")
    with pytest.raises(ValueError, match=r"at most 5,000 layers.*Save its weights alone"):
        model.save(tmp_path / "m")
    model.save_weights(tmp_path / "m")
    inner: Any = "x"
    for _ in range(300):
        inner = [inner]
    with pytest.raises(ValueError, match="brackets within brackets"):
        write_tensors(tmp_path / "m", {}, {"x": inner})


def test_deep_and_wide_models_that_are_no_attack(tmp_path: Path) -> None:
    x = Input((3,))
    y = x
    for _ in range(10):
        inner = Input((3,))
        y = Model(inner, Add()([inner, Dense(3)(inner)]))(y)
    for _ in range(100):
        y = Activation("relu")(y)
    model = Model(x, y, backend="numpy")
    model.save(tmp_path / "m")
    data = np.ones((2, 3))
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(data), model.predict(data))
    for _ in range(12):  # a model within a model within ...
        model = Sequential([Input((3,)), model, Activation("relu")], backend="numpy")
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(data), model.predict(data))
    assert read_tensors(tmp_path / "m")[1]["class"] == "Sequential"
