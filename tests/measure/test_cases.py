"""The table of cases: each network is the same in minicnn, in PyTorch and in plain JAX, and benchmarks train it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from minicnn import zoo
from minicnn.layers import Dropout
from minicnn.measure import cases
from minicnn.measure.cases import CASES
from minicnn.tolerance import tolerance
from support.in_process import in_this_process
from support.scripts import ROOT, script
from support.tolerances import STEP, SUM

PLAIN = [name for name, case in CASES.items() if not case.deep]


@pytest.mark.parametrize("name", PLAIN)
def test_a_case_is_one_network_in_all_libraries(name: str) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    from minicnn.measure import jax_peer, torch_networks

    case = CASES[name]
    model = cases.network(name, backend="numpy")
    x = case.samples(2)["x_train"]
    expected = model.predict(x)
    weights = model.get_weights()
    module = torch_networks.build(name, case.image, case.classes, weights).eval()
    with torch.no_grad():
        found = module(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255).numpy()
    np.testing.assert_allclose(found, expected, rtol=STEP, atol=SUM)
    arrays = list(weights.values())
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    logits = jax_peer.logits(case, pairs, jax.numpy.asarray(x, np.float32) / 255)
    np.testing.assert_allclose(np.asarray(logits), expected, rtol=STEP, atol=SUM)


def test_cases_of_the_zoo_are_its_networks_without_dropout() -> None:
    deep = [name for name, case in CASES.items() if case.deep]
    assert {"mlp", "platforms", "kernels", *deep} <= set(zoo.names(aliases=True))
    for name in ("mobilenet_v2", "squeezenet1_1"):
        model = cases.network(name, replace(CASES[name], image=(48, 48, 3)))
        assert [layer.rate for layer in model.layers if isinstance(layer, Dropout)] == [0.0]


def test_the_history_has_networks_of_the_table() -> None:
    common = script("asv_bench/benchmarks/common.py")
    assert {case for case, *_ in common.NETWORKS.values()} <= CASES.keys()
    x, y = common.samples("stride2")
    assert (x.shape, y.shape) == ((1920, 32, 32, 3), (1920,))
    assert common.network("stride2", "numpy").predict(x[:2]).shape == (2, 10)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def imported(name: str) -> ModuleType:
        __import__(name)
        return sys.modules[name]

    return imported


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that takes no time, and candidates in this process."""
    in_this_process(monkeypatch)
    monkeypatch.setitem(CASES, "platforms", replace(CASES["platforms"], batch=8, steps=3))
    monkeypatch.setitem(CASES, "mlp", replace(CASES["mlp"], batch=16))


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["platforms", "mlp"])
def test_peers_on_the_cpu_are_checked_and_timed(scripts: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    peers = scripts("cpu_peers")
    monkeypatch.setitem(peers.CANDIDATES, "minicnn", ("numpy", {}))  # Numba would compile for seconds
    short = peers.CANDIDATES["minicnn, bfloat16"][1]
    monkeypatch.setitem(peers.CANDIDATES, "minicnn, bfloat16", ("torch", short))
    candidates = [name for name in peers.CANDIDATES if "compiled" not in name]  # which takes a C++ compiler minutes
    found = peers.measure(name, candidates, 2, 1, batch=4)
    assert list(found) == candidates
    for candidate, row in found.items():
        assert 0 < row["best_ms"] <= row["low_ms"] <= row["median_ms"] <= row["high_ms"]
        rtol = tolerance("bfloat16")[0] if "bfloat16" in candidate else peers.LOSS_RTOL
        assert row["loss"] == pytest.approx(found["torch"]["loss"], rel=rtol)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["platforms", "mlp"])
def test_peers_of_a_gpu_agree_in_a_dry_run(scripts: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    peers = scripts("gpu_peers")
    monkeypatch.setattr(peers, "MANY", 20)
    case = replace(peers.CASES[name], batch=16 if name == "platforms" else 24, steps=2)
    candidates = ["minicnn cupy", "PyTorch graph", "JAX"]
    found = peers.measure(name, case, candidates, 2, dry=True, patience=None)
    assert [row.get("failed") for row in found.values()] == [None] * 3
    losses = [row["loss"] for row in found.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=STEP)


def test_refused_candidates_of_a_gpu_are_shown_and_count_nowhere(scripts: Any) -> None:
    peers = scripts("gpu_peers")
    row = {"median_ms": 2.0, "refused": "its losses differ"}
    rows = {"minicnn cupy": {"median_ms": 3.0}, "PyTorch graph": row, "JAX": {"median_ms": 6.0}}
    text = peers.table({"platforms": rows})
    assert "| PyTorch graph | 2.0* |" in text
    assert "| `platforms` | 3.0 | 6.0 (JAX) | 2.00 |" in text


@pytest.mark.usefixtures("small")
def test_losses_may_differ_by_what_rounding_makes_of_them(scripts: Any) -> None:
    pytest.importorskip("torch")
    peers = scripts("gpu_peers")
    trainer = peers.contender(
        "minicnn cupy", "platforms", replace(peers.CASES["platforms"], batch=8, steps=2), dry=True
    )
    assert trainer.sensitivity(2, 0.0) == [0.0, 0.0]
    first = trainer.model.get_weights()
    moved = trainer.sensitivity(2, 1e-3)
    assert 0 < max(moved) < 0.1
    for path, array in trainer.model.get_weights().items():
        np.testing.assert_array_equal(array, first[path])


def test_stored_results_are_read_by_the_scripts(scripts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, row in (("cpu_peers", "| `stride2`, an epoch, batch 512 |"), ("gpu_peers", "| `stride2` |")):
        scripts(name).main(["--table", str(ROOT / "benchmarks" / "results" / f"{name}.json")])
        assert row in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cpu_peers", "gpu_peers"])
@pytest.mark.parametrize(
    ("argument", "error"), [(["none"], "the cases are "), (["--rounds", "1"], "at least 2 rounds")]
)
def test_arguments_that_cannot_be_are_refused(
    scripts: Any, name: str, argument: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scripts(name).main(argument)
    assert error in capsys.readouterr().err
