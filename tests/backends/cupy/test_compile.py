"""Kernels compile for every architecture that is supported; no GPU is needed for that."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.cupy.networks import NETWORKS
from minicnn import Sequential, layers, zoo
from minicnn.backends import _progress
from minicnn.backends._gpu import tensor_tiling
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import EACH_STEP
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program
from support.plans import MULTIPLY_ADDS, plan_of

try:
    nvrtc.version()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    return tmp_path / "cuda"


def test_many_kernels_have_a_line_on_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f'extern "C" __global__ void kernel(float* x) {{ x[0] = {k}; }}' for k in range(3)]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(_progress, "PATIENCE", 1e9)
    compiler.compile_all(texts, "sm_90")
    assert capsys.readouterr().err == ""  # it did not take so long
    monkeypatch.setattr(_progress, "PATIENCE", -1.0)
    compiler.compile_all([*texts, texts[0]], "sm_90")
    assert capsys.readouterr().err == "".join(f"\r\033[Kcompiling kernel {k} of 3" for k in (1, 2, 3)) + "\r\033[K"


# The oldest and the newest one; what is in between is compiled for tensor cores.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_all_kernels_of_a_step(network: str, architecture: str) -> None:
    assert all(compiler.compile_all(_texts(network, tiled=True, fuse=True), architecture))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("precision", "architecture"),
    [("float32", "sm_80"), ("float32", "sm_90"), ("bfloat16", "sm_90"), ("float16", "sm_80")],
)
def test_kernels_on_tensor_cores(precision: str, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_tiling, "_chosen", {})
    monkeypatch.setattr(tensor_tiling, "without_tensor_cores", lambda *_: math.inf)  # where they are slower, too
    tiles = tensor_tiling.TensorTiles(H200, precision=precision)
    texts = _texts("lenet", tiles=tiles, tiled=True, fuse=True)
    assert any("tensor_convolve<" in text for text in texts)
    assert all(compiler.compile_all(texts, architecture))


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.* takes probabilities")
@pytest.mark.parametrize(("hidden", "architecture"), [(10, "sm_75"), (20, "sm_80"), (20, "sm_90")])
def test_row_regions_that_begin_with_bytes(hidden: int, architecture: str) -> None:
    body = [layers.Input((100,), dtype="uint8"), layers.Rescaling(1 / 255), layers.Dense(hidden), layers.Dense(10)]
    model = Sequential(body, backend="numpy")
    model.compile("sgd", "sparse_categorical_crossentropy")
    texts = _program_texts(model.program("train", batch_size=5000), tiled=True, fuse=True)
    assert any("ByteRowTile<Sizes>" in text and "batch = 5000, terms = 100," in text for text in texts)
    assert all(compiler.compile_all(texts, architecture))


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.* takes probabilities")
@pytest.mark.parametrize(("width", "hidden", "architecture"), [(100, 10, "sm_80"), (99, 20, "sm_90")])
def test_row_regions_that_begin_with_rows_of_float32(width: int, hidden: int, architecture: str) -> None:
    model = Sequential([layers.Input((width,)), layers.Dense(hidden), layers.Dense(10)], backend="numpy")
    model.compile("sgd", "sparse_categorical_crossentropy")
    tiles = tensor_tiling.TensorTiles(H200)
    texts = _program_texts(model.program("train", batch_size=5000), tiles=tiles, tiled=True, fuse=True)
    assert any("FloatRowTile<Sizes>" in text and f"batch = 5000, terms = {width}," in text for text in texts)
    assert all(compiler.compile_all(texts, architecture))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", [{"tiled": False, "fuse": False}, {"tiled": True, "fuse": False}], ids=str)
def test_kernels_with_optimisations_switched_off(level: dict[str, bool]) -> None:
    assert all(compiler.compile_all(_texts("normalized", **level), "sm_75"))


def test_the_updates_of_many_parameters_in_one_kernel() -> None:
    model = zoo.get_model("squeezenet1_1", input_shape=(64, 64, 3), backend="numpy")
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True))
    plan = _plan(model.program("train", batch_size=8), tiled=True, fuse=True)
    source = generate(plan, plan.launches[-1], set())
    assert len(plan.launches[-1]) > 50
    assert compiler.compile_kernel(source.text, "sm_75")


def _plan(program: Program, tiles: Tiles = MULTIPLY_ADDS, **level: bool) -> Plan:
    return plan_of(program, tiles, **level)


def _texts(network: str, tiles: Tiles = MULTIPLY_ADDS, **level: bool) -> list[str]:
    return _program_texts(NETWORKS[network]("numpy").program("train", batch_size=16), tiles, **level)


def _program_texts(program: Program, tiles: Tiles = MULTIPLY_ADDS, **level: bool) -> list[str]:
    plan = _plan(program, tiles, **level)
    queued = {id(v) for v in program.inputs if v.name in EACH_STEP}
    return [generate(plan, launch, queued).text for launch in plan.launches]


def test_a_kernel_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void kernel(float* p) { p[0] = 1.0f; }'
    code = compiler.compile_kernel(text, "sm_80")
    assert [f.read_bytes() for f in folder.iterdir()] == [code]

    def never(*_: Any) -> bytes:
        raise AssertionError

    monkeypatch.setattr(compiler, "_compile", never)
    assert compiler.compile_kernel(text, "sm_80") == code
    with pytest.raises(AssertionError):
        compiler.compile_kernel(text, "sm_90")


def test_processes_of_one_machine_share_what_they_compile() -> None:
    texts = [f"text {k}" for k in range(11)]
    assert compiler.in_turn(texts, 2, 1) == texts
    orders = [compiler.in_turn(texts, rank, 3) for rank in range(3)]
    assert all(sorted(order) == sorted(texts) for order in orders)
    # The first is twice as quick; each reads what is there when it comes to it.
    waiting, there, work = [list(order) for order in orders], set[str](), 0
    while len(there) < len(texts):
        begun = []
        for rank in (0, 0, 1, 2):
            waiting[rank] = [text for text in waiting[rank] if text not in there]
            begun += waiting[rank][:1]
            del waiting[rank][:1]
        work, there = work + len(begun), there | set(begun)
    assert work <= len(texts) + 2


def test_the_error_of_a_kernel_shows_what_the_compiler_said() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Received for sm_80: .*missing_name"):
        compiler.compile_kernel('extern "C" __global__ void kernel() { missing_name(); }', "sm_80")
