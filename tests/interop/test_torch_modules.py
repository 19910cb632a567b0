"""PyTorch's modules as models: the same outputs, and the same gradients of every weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn.interop import from_torch
from minicnn.losses import MeanSquaredError
from minicnn.optimizers import SGD
from support.tolerances import ELEMENT, STEP, SUM

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Residual(nn.Module):
    """A residual block, its sum and its flattening written as functions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.second, self.dense = nn.Conv2d(channels, 2 * channels, 1), nn.Linear(2 * channels * 15, 4)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.first(x))) + x
        y = torch.cat([self.second(y)], 1)
        return self.dense(F.dropout(y.view(y.size(0), -1), 0.5, self.training))


class Attention(nn.Module):
    """Channels weighed by their means (squeeze and excitation)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)
        self.end = nn.Linear(channels, 3)

    def forward(self, x: Any) -> Any:
        share = torch.sigmoid(self.wide(F.hardswish(self.narrow(F.adaptive_avg_pool2d(x, 1)))))
        return self.end((F.avg_pool2d(F.max_pool2d(x, 2, 1), 3, stride=1, padding=1) * share).mean([2, 3]))


class Shuffled(nn.Module):
    """Half of the channels convolved, and channels shuffled, as in ShuffleNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.right, self.end = nn.Conv2d(channels // 2, channels // 2, 3, padding=1), nn.Linear(channels, 3)

    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2, dim=1)
        n, c, h, w = torch.cat((left, self.right(right)), dim=1).size()
        x = torch.cat((left, self.right(right)), dim=1).view(n, 2, c // 2, h, w)
        x = torch.transpose(x, 1, 2).contiguous().view(n, c, h, w)
        return self.end(x.mean([2, 3]))


class Scaled(nn.Module):
    """A block of ConvNeXt: channels last for a while, and each times a parameter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(channels, 6), nn.Linear(6, channels)
        self.norm, self.gain = nn.LayerNorm(channels), nn.Parameter(torch.rand(channels, 1, 1))
        self.register_buffer("mean", torch.rand(channels, 1, 1))

    def forward(self, x: Any) -> Any:
        y = (x - self.mean).permute(0, 2, 3, 1)
        y = F.layer_norm(y, (y.shape[-1],), self.norm.weight, bias=self.norm.bias, eps=1e-3)
        x = x + self.gain * self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2) / 2
        return F.softmax(x.flatten(1), dim=1)


def _pools(kind: Callable[..., Any], **options: Any) -> Any:
    return nn.Sequential(nn.Conv2d(2, 3, 3), kind(3, 2, **options), nn.Flatten())


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 2, bias=False)), (6,)),
    "residual": (lambda: Residual(3), (3, 5, 3)),
    "attention": (lambda: Attention(4), (4, 5, 6)),
    "shuffled": (lambda: Shuffled(4), (4, 3, 5)),
    "scaled": (lambda: Scaled(4), (4, 3, 5)),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), nn.PReLU(8), nn.GroupNorm(2, 8),
            nn.Conv2d(8, 16, 3, groups=8, dilation=2, padding="same"), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d((2, 3)),
            nn.LayerNorm([16, 2, 3]), nn.Flatten(), nn.Linear(96, 3), nn.Softmax(-1),
        ),
        (4, 9, 8),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 3, 2, padding=1, output_padding=1), nn.ELU(0.7), nn.Conv2d(3, 2, 3)
        ),
        (2, 4, 5),
    ),
    "maximum in windows beyond the border": (lambda: _pools(nn.MaxPool2d, padding=1, ceil_mode=True), (2, 9, 8)),
    "mean with zeros counted": (lambda: _pools(nn.AvgPool2d, padding=1), (2, 9, 8)),
    "mean in windows beyond the border": (lambda: _pools(nn.AvgPool2d, padding=1, ceil_mode=True), (2, 9, 8)),
    "mean without zeros": (lambda: _pools(nn.AvgPool2d, padding=1, count_include_pad=False), (2, 8, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_outputs_and_gradients_are_the_modules(name: str) -> None:
    torch.manual_seed(5)
    make, shape = MODULES[name]
    module = make().double()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
    model = from_torch(module, shape)
    assert module.training
    x = np.random.default_rng(2).standard_normal((4, *shape))
    with torch.no_grad():
        expected = module.eval()(torch.tensor(x)).numpy()
    np.testing.assert_allclose(model.predict(x.astype("float32")), expected, rtol=STEP, atol=SUM)

    if name == "residual":  # its dropout draws other numbers than PyTorch's
        return
    # One step at rate 1 changes each weight by its gradient.
    model.compile(SGD(1.0), MeanSquaredError(), precision="float64")
    y = np.random.default_rng(3).standard_normal(expected.shape)
    before = model.get_weights()
    ((module.train()(torch.tensor(x)) - torch.tensor(y)) ** 2).mean().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.grad)
    model.train_on_batch(x, y)
    after, gradients = model.get_weights(), from_torch(module, shape).get_weights()
    for path, gradient in gradients.items():
        if "moving" not in path:
            np.testing.assert_allclose(before[path] - after[path], gradient, rtol=STEP, atol=ELEMENT, err_msg=path)


def test_layers_have_the_names_of_the_modules_and_one_used_twice_is_shared() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

        def forward(self, x: Any) -> Any:
            return self.body(self.body(x))

    module = Twice()
    model = from_torch(module, (3,), backend="numpy")
    assert list(model.get_weights()) == ["body.0/kernel", "body.0/bias"]
    x = torch.ones(2, 3)
    with torch.no_grad():
        np.testing.assert_allclose(model.predict(x.numpy()), module(x).numpy(), rtol=SUM, atol=ELEMENT)


def test_a_pooling_on_images_of_two_sizes_reaches_over_each_border_as_it_must() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.norm = nn.MaxPool2d(2, ceil_mode=True), nn.BatchNorm2d(1).eval()

        def forward(self, x: Any) -> Any:
            return self.pool(self.norm(self.pool(x)))

    module, x = Twice(), torch.rand(2, 1, 7, 5)
    model = from_torch(module, (1, 7, 5), backend="numpy")
    assert (module.training, module.norm.training) == (True, False)
    with torch.no_grad():
        np.testing.assert_allclose(model.predict(x.numpy()), module(x).numpy(), rtol=SUM)


def test_everything_without_a_counterpart_is_named_at_once() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fold, self.reflected = nn.PixelShuffle(2), nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return torch.fft.fft(self.reflected(self.fold(x))) + self.gain

    with pytest.raises(ValueError, match="each of its operations is a layer") as error:
        from_torch(Odd(), (4, 6, 6))
    for name in ("module PixelShuffle", "padding_mode='reflect'", "function fft_fft", "function add of gain"):
        assert name in str(error.value)
