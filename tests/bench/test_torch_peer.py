"""The peer in PyTorch: the order of axes in which it runs."""

from __future__ import annotations

import pytest

from minicnn.bench import torch_peer


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("network", ["mlp", "platforms"])
def test_the_order_of_axes_is_tried_on_copies(network: str, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    module = torch_peer.network(network, (28, 28, 1), 10).to(device)
    before = {name: (weight.clone(), weight.stride()) for name, weight in module.named_parameters()}
    x, y = torch.rand(16, 1, 28, 28, device=device), torch.arange(16, device=device) % 10
    order = torch_peer.faster_order(module, x, y)
    assert order in (torch.channels_last, torch.contiguous_format)
    assert order is torch.channels_last or (device == "cuda" and network == "platforms")
    for name, weight in module.named_parameters():
        value, strides = before[name]
        assert weight.grad is None
        assert weight.stride() == strides
        assert torch.equal(weight, value)
