"""The harness that times tiles and fits the model of their times, on times that the model itself makes."""

from __future__ import annotations

import importlib
import json
import math
import re
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minicnn.backends._gpu import costs
from minicnn.backends._gpu.costs import KINDS, Costs, costs_on
from minicnn.backends._gpu.device import H200, KNOWN, Gpu
from minicnn.backends._gpu.errors import FitError
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends.cupy import nvrtc

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fit_tiles")


def times(harness: Any, kind: str, gpu: Gpu, truth: Costs, shapes: int = 7) -> list[dict[str, Any]]:
    """What a GPU would take whose tiles take as long as a model says."""
    rng, made = np.random.default_rng(0), []
    for case, _ in zip(harness.cases(kind, rng), range(shapes), strict=False):
        tiles = harness.sampled(case, gpu, 24, rng)
        assert len({tuple(tile.sizes.items()) for tile in tiles}) == len(tiles) >= 10
        one = asdict(case) | {"tiles": [tile.sizes for tile in tiles], "us": [*range(len(tiles))]}
        timed = harness.Timed.of(one, gpu)  # in another order, which their numbers tell
        modelled = timed.blocks.cycles(gpu, truth, case.precision)
        one["us"] = (modelled[np.argsort(timed.cycles)] / gpu.clock * 1e6).tolist()
        made.append(one)
    return made


def otherwise(kind: str, gpu: Gpu) -> Costs:
    """Constants up to twice and down to half of those of today."""
    today, rng = getattr(costs_on(gpu), kind), np.random.default_rng(len(kind))
    names = [f.name for f in fields(Costs) if f.name not in ("resident", "registers")]
    return replace(today, **{name: getattr(today, name) * 2 ** rng.uniform(-1, 1) for name in names})


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_to_times_of_the_model_chooses_as_it_does(
    kind: str, harness: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = times(harness, kind, H200, otherwise(kind, H200))
    (tmp_path / "times.json").write_text(json.dumps({"gpu": asdict(H200), "timed": stored}))
    harness.main(["--times", str(tmp_path / "times.json"), "--restarts", "1"])
    before, after = re.findall(r"(\d\.\d+) in the mean", capsys.readouterr().out)
    assert float(before) > 1.02
    assert float(after) <= 1.02
    made = json.loads((tmp_path / "times.constants.json").read_text())
    assert made["gpu"] == "H200"
    assert made["float_rows"] == costs.fitted_on(H200)["float_rows"]  # what was not fitted again stays
    fitted = Costs(**made[kind]["constants"])
    timed = [harness.Timed.of(one, H200) for one in stored]
    assert np.mean([one.ratio(H200, fitted) for one in timed]) <= 1.02
    today = getattr(costs_on(H200), kind)
    assert all(abs(math.log(x / y)) < math.log(8.01) for x, y in zip(*map(_numbers, (fitted, today)), strict=True))


def _numbers(some: Costs) -> list[float]:
    return [x for x in asdict(some).values() if x > 0]


def test_constants_of_another_gpu_are_read_where_they_are_put(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = KNOWN["rtx4090"]
    stored = times(harness, "product", gpu, otherwise("product", gpu), shapes=3)
    named = replace(gpu, name="NVIDIA GeForce RTX 4090")
    (tmp_path / "times.json").write_text(json.dumps({"gpu": asdict(named), "timed": stored}))
    harness.main(["--times", str(tmp_path / "times.json"), "--restarts", "0"])
    made = json.loads((tmp_path / "times.constants.json").read_text())
    assert set(made) == {"gpu", "product"}
    both = {**costs._stored(), made["gpu"]: made}
    monkeypatch.setattr(costs, "_stored", lambda: both)
    assert costs_on.__wrapped__(named).product == Costs(**made["product"]["constants"])


def test_a_dry_run_compiles_for_a_gpu_that_is_not_there(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    harness.main(["--dry", "--gpu", "rtx4060", "--kinds", "product"])
    said = capsys.readouterr().out
    assert said.count("registers") == 2
    assert said.count("24 tiles") == 12


def test_an_unknown_kind_is_refused(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(["--kinds", "product,pooling"])
    assert "Received: pooling" in capsys.readouterr().err


class Launched:
    """A runtime whose kernels, in place of what they should, write 1 or, the wrong one, 2; each launch takes 3 us."""

    def __init__(self, misfit: int, wrong: int) -> None:
        self.misfit, self.wrong, self.loaded, self.now = misfit, wrong, 0, 0.0
        self.active = nullcontext

    def load(self, texts: list[KernelText]) -> list[int]:
        assert [text.signature for text in texts] == [("float32*",) * 3]
        self.loaded += 1
        if self.loaded == self.misfit:
            raise FitError("too large")
        return [self.loaded]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.zeros(shape, dtype)

    def view(self, array: Any, offset: int, shape: tuple[int, ...], dtype: str) -> Any:
        return np.frombuffer(array.data, dtype, math.prod(shape), offset).reshape(shape)

    def prepare(self, kernel: int, blocks: int, arguments: list[Any]) -> Any:
        def launch() -> None:
            arguments[-1].reshape(-1)[0] = 2.0 if kernel == self.wrong else 1.0
            self.now += 3e-6

        return launch

    def capture(self, launches: list[Any]) -> Any:
        return lambda: [launch() for launch in launches]

    def event(self, *, timed: bool) -> list[float]:
        assert timed
        return []

    def record(self, event: list[float]) -> None:
        event.append(self.now)

    def synchronize(self, event: list[float]) -> None:
        assert event

    def seconds(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]


@pytest.mark.parametrize(("wrong", "timed"), [(0, 5), (4, 0)])
def test_tiles_that_fit_are_timed_and_must_compute_the_same(
    wrong: int, timed: int, harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "compile_all", lambda *_: [])
    monkeypatch.setattr(harness, "MOST_ELEMENTS", 2**19)
    runtime = Launched(2, wrong)
    backend = SimpleNamespace(gpu=H200, runtime=runtime, asarray=np.asarray, to_numpy=np.asarray)
    stored = harness.measure(["product"], backend, 0, 6, 0, tmp_path / "times.json")
    assert runtime.loaded == (wrong or 6)
    assert [len(one["us"]) for one in stored["timed"]] == [timed] * bool(timed)
    assert all(one["us"] == pytest.approx([3.0] * timed) for one in stored["timed"])
    assert len(stored["wrong"]) == bool(wrong)
    assert json.loads((tmp_path / "times.json").read_text())["wrong"] == stored["wrong"]


def test_pipelined_tiles_are_timed_beside_that_of_today(harness: Any) -> None:
    timed = importlib.import_module("pipelined_tiles")
    for case in [case for _, case in zip(range(3), timed.cases(), strict=False)]:
        today, *ahead = timed.tiles_of(case, H200, 2)
        assert today.stages == 0
        assert [(tile.stages > 0, tile.warpgroups) for tile in ahead] == [(True, k) for k in (False, False, True, True)]
        for tile in (today, *ahead):
            assert ("pipelined_" in timed.kernel_of(case, H200, tile).text) == (tile.stages > 0)
