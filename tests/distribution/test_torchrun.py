"""Ranks that torchrun has started, which talk through torch.distributed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minicnn.distribution import DataParallel, ModelParallel, Pipeline, TorchCommunicator
from minicnn.distribution.communicators import Ranks
from support.campaign import FULL
from support.distributed import STAGES, data, digest, normalized, trained
from support.launchers import patience, results, torchrun

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.no_cover, pytest.mark.usefixtures("one_torch_thread")]  # which each rank has, too


def test_weights_are_the_same_bits_on_any_number_of_ranks() -> None:
    given = {
        "normalized": DataParallel(8), "split": ModelParallel(4),
        "staged": Pipeline(STAGES, shards=4),
    }  # fmt: skip
    alone = {name: trained(name, "torch", distribution, 2) for name, distribution in given.items()}
    for ranks in (2, 3) if FULL else (2,):
        made = results(torchrun(ranks, "train", "torch", "2", *given, "fast"), ranks)
        # gloo's own sums, which are in no tree.
        assert made.pop("fast")[1] == pytest.approx(trained("fast", "torch", DataParallel(ranks), 2)[1])
        assert made == alone


def test_an_engine_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"transport is 'gloo', 'nccl' or None.*Received: transport='mpi'\."):
        TorchCommunicator(transport="mpi")


def test_ranks_that_nccl_does_not_connect() -> None:
    """What is told, with a PyTorch that sees a GPU which another rank has; and which tensors NCCL would sum."""

    def refuse(**_: Any) -> None:
        raise RuntimeError("Duplicate GPU detected")

    ranks: Any = object.__new__(TorchCommunicator)
    Ranks.__init__(ranks, 1, 2, 30.0)
    ranks._torch = SimpleNamespace(cuda=SimpleNamespace(set_device=lambda device: None))
    ranks._dist, ranks._of_gpus = SimpleNamespace(new_group=refuse), None
    with pytest.raises(RuntimeError, match=r"Received by rank 1 on cuda:0: Duplicate GPU detected\. Start as many"):
        ranks._connected(SimpleNamespace(device=torch.device("cuda:0")))
    for on_gpus in (True, False):
        ranks._on_gpus = on_gpus
        taken = [ranks.takes(SimpleNamespace(name="torch", device=d)) for d in ("cpu", "cuda", "cuda:1", "mps")]
        assert taken == [True, on_gpus, on_gpus, False]
        assert not ranks.takes(SimpleNamespace(name="numpy", device="cpu"))


@pytest.mark.night("tests/distribution/test_mpi.py::test_a_killed_training_goes_on_with_another_number_of_ranks")
@pytest.mark.parametrize("how", ["hang", "raise", "kill"] if FULL else ["hang"])
def test_a_restart_by_the_launcher_resumes_the_training(how: str, tmp_path: Path) -> None:
    """One rank hangs or fails at one step of the first attempt; the others end, and all are started again."""
    start, timeout = time.monotonic(), patience(4)
    done = torchrun(2, how, "4", str(tmp_path / "backup"), restarts=1, TIMEOUT=str(timeout))
    undisturbed = normalized("numpy", DataParallel(8))
    undisturbed.fit(*data(), 12, 3, verbose=0)
    assert done.stdout.split() == [digest(undisturbed)], done.stderr
    if how == "raise":
        assert "OSError: the disk is gone" in done.stderr
    if how == "hang":
        assert f"within timeout={timeout} seconds. Received by rank" in done.stderr
        assert "no answer from rank 1" in done.stderr
        assert time.monotonic() - start < 22 * timeout  # of two attempts


@pytest.mark.night("tests/distribution/test_torchrun.py::test_weights_are_the_same_bits_on_any_number_of_ranks")
def test_fifty_jobs_end_with_status_0() -> None:
    for _ in range(50):
        assert torchrun(2, "train", "numpy", "1", "dense").returncode == 0
