"""The peer in PyTorch: the order of axes in which it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minicnn.bench import torch_peer

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("slower", [torch.channels_last, torch.contiguous_format])
def test_the_faster_order_of_axes_is_found_on_copies(slower: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch_peer.network("platforms", (28, 28, 3), 10)
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
    module = torch_peer.network(network, (28, 28, 1), 10)
    assert torch_peer.faster_order(module, torch.rand(2, 1, 28, 28), torch.arange(2)) is torch.channels_last
