"""The peer in PyTorch: the order of axes in which it runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest

from minicnn.jobs import job
from minicnn.measure import torch_peer
from minicnn.measure.trainer import USUAL
from minicnn.measure.trainers import settings_of

torch = pytest.importorskip("torch")

from minicnn.measure import torch_networks  # noqa: E402


@pytest.mark.parametrize("slower", [torch.channels_last, torch.contiguous_format])
def test_the_faster_order_of_axes_is_found_on_copies(slower: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch_networks.platforms(3, 10)
    before = {name: (weight.clone(), weight.stride()) for name, weight in module.named_parameters()}
    x, y = torch.rand(4, 3, 28, 28), torch.arange(4)
    seen: list[torch.Tensor] = []
    forgotten: list[bool] = []

    def stopwatch(step: Callable[[], None], synchronize: object) -> float:
        step()
        return 2.0 if seen[-1].is_contiguous(memory_format=slower) else 1.0

    module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    monkeypatch.setattr(torch_peer, "TRIED_ON", "cpu")
    monkeypatch.setattr(torch_peer, "stopwatch", stopwatch)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: forgotten.append(True))
    assert {torch_peer.faster_order(module, x, y), slower} == {torch.channels_last, torch.contiguous_format}
    assert forgotten == [True]
    for name, weight in module.named_parameters():
        value, strides = before[name]
        assert weight.grad is None
        assert weight.stride() == strides
        assert torch.equal(weight, value)


@pytest.mark.parametrize(("network", "tried_on"), [("mlp", "cpu"), ("platforms", "cuda")])
def test_channels_last_is_not_tried_without_convolutions_or_elsewhere(
    network: str, tried_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_peer, "TRIED_ON", tried_on)
    monkeypatch.setattr(torch_peer, "stopwatch", None)
    module = getattr(torch_networks, network)(1, 10)
    assert torch_peer.faster_order(module, torch.rand(2, 1, 28, 28), torch.arange(2)) is torch.channels_last


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:This process", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_a_loader_live_from_epoch_to_epoch() -> None:
    settings = settings_of("kernels", "synthetic_digits", samples=48, hold_out=0, batch_size=16)
    samples = job.load_samples(settings)
    trainer = torch_peer.LoaderTrainer("torch.nn-loader:cpu", settings, USUAL, workers=1)
    seen: list[set[int | None]] = []
    for epoch in (0, 1):
        labels = [y.tolist() for _, y in trainer.chosen(epoch)]
        assert labels == [samples["y_train"][rows].tolist() for rows in job.batches(settings, 48, epoch)]
        seen.append({process.pid for process in multiprocessing.active_children()})
    assert len(seen[0]) == 1, "it waits for the next epoch"
    assert seen[0] == seen[1], "starting it again would count as loading"
