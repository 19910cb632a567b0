"""The peer: the studies' networks in PyTorch's own modules and optimizer, as anybody would write them.

It shares the first weights, the order of the samples and the settings with minicnn, and none of its code for training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.cli.job import COLUMNS, Samples
from minicnn.cli.options import Settings
from minicnn.data import batch_indices, epoch_order

NAME = "torch.nn"
NETWORKS = ("mlp", "platforms", "kernels")
PRECISIONS = ("float32", "float64")

Weights = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Trained:
    """What came out of a training: rows of epochs, the test, and weights after one step and at the end."""

    rows: list[dict[str, Any]]
    test: dict[str, float]
    first: dict[str, np.ndarray[Any, Any]]
    final: dict[str, np.ndarray[Any, Any]]


def takes_part(settings: Settings) -> bool:
    """Whether there is a peer for a training."""
    return settings.network in NETWORKS and settings.precision in PRECISIONS


def network(name: str, input_shape: tuple[int, ...], num_classes: int) -> Any:
    """One of `NETWORKS` as a `torch.nn.Sequential` that takes images (N, C, H, W) and returns logits.

    Args:
        name: Name of the network.
        input_shape: Shape (H, W, C) of an image.
        num_classes: Number of classes.
    """
    from torch import nn

    H, W, C = input_shape
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(H * W * C, 10), nn.ReLU(), nn.Linear(10, num_classes))
    if name == "platforms":
        features = 16 * (((H - 2) // 2 - 2) // 2) * (((W - 2) // 2 - 2) // 2)
        return nn.Sequential(
            nn.Conv2d(C, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, num_classes),
        )  # fmt: skip
    features = 32 * ((H - 4) // 2) * ((W - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(C, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(features, num_classes),
    )  # fmt: skip


def train(
    settings: Settings, samples: Samples, weights: Weights, tell: Callable[[dict[str, Any]], None], device: str = "cpu"
) -> Trained:
    """Train the network with PyTorch, eagerly, channels last, the data on the device.

    Args:
        settings: What to train and how.
        samples: The samples.
        weights: First weights by path, in minicnn's layout and order.
        tell: Called with the row of each epoch.
        device: PyTorch's name of the device.
    """
    import torch
    from torch import nn

    torch.backends.cudnn.allow_tf32 = False  # float32 means float32 here, too
    dtype = getattr(torch, settings.precision)
    model = network(settings.network, samples.input_shape, samples.num_classes)
    layers = _layers(model, samples.input_shape)
    model = model.to(dtype=dtype)
    _set(layers, weights)
    model = model.to(device=device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate, settings.momentum)
    count = len(samples["x_train"])
    batch = settings.batch_size or count

    def images(name: str) -> Any:  # uint8 (N, C, H, W), strided as channels last
        return torch.from_numpy(samples[f"x_{name}"].copy()).to(device).permute(0, 3, 1, 2)

    def labels(name: str) -> Any:
        return torch.from_numpy(samples[f"y_{name}"].astype(np.int64)).to(device)

    def forward(x: Any, y: Any) -> tuple[Any, Any]:
        logits = model(x.to(dtype) / 255)
        return nn.functional.cross_entropy(logits, y), (logits.argmax(1) == y).sum()

    def evaluate(name: str) -> dict[str, float]:
        x, y = data[name]
        with torch.no_grad():
            parts = [(len(b), *forward(a, b)) for a, b in zip(x.split(batch), y.split(batch), strict=True)]
        loss = sum(n * float(v) for n, v, _ in parts) / len(y)
        return {"loss": loss, "accuracy": sum(int(hits) for *_, hits in parts) / len(y)}

    data = {name: (images(name), labels(name)) for name in ("train", "val", *(["test"] if samples.held_out else []))}
    x, y = data["train"]
    rows: list[dict[str, Any]] = []
    first: dict[str, np.ndarray[Any, Any]] = {}
    for epoch in range(settings.epochs):
        start = time.perf_counter()
        loss_sum, hits_sum, seen = (
            torch.zeros((), dtype=dtype, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
            0,
        )
        order = epoch_order(count, shuffle=batch < count, seed=settings.seed, epoch=epoch)
        for index in batch_indices(order, batch, settings.last_batch):
            chosen = torch.from_numpy(index).to(device)
            loss, hits = forward(x[chosen], y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(index)
            hits_sum += hits
            seen += len(index)
            if not first:
                first = _get(layers, weights)
        values = [float(loss_sum) / seen, int(hits_sum) / seen]
        taken = time.perf_counter() - start
        val = evaluate("val")
        row = (epoch + 1, *values, val["loss"], val["accuracy"], taken, seen / taken)
        rows.append(dict(zip(COLUMNS, row, strict=True)))
        tell(rows[-1])
    test = evaluate("test") if samples.held_out else val
    return Trained(rows, test, first, _get(layers, weights))


# Layouts ------------------------------------------------------------------------------------------

Layer = tuple[Any, tuple[int, ...] | None]


def _layers(model: Any, input_shape: tuple[int, ...]) -> list[Layer]:
    """The layers with weights, the first dense one with the shape (C, H, W) of what is flattened for it."""
    import torch

    H, W, C = input_shape
    x, flat, found = torch.zeros(1, C, H, W), None, []
    for layer in model:
        if isinstance(layer, torch.nn.Flatten):
            flat = tuple(x.shape[1:])
        x = layer(x)
        if hasattr(layer, "weight"):
            found.append((layer, flat))
            flat = None
    return found


def _set(layers: list[Layer], weights: Weights) -> None:
    """Copy weights, in minicnn's order (kernel, bias of each layer) and layout, into PyTorch's modules."""
    import torch

    arrays = iter(weights.values())
    with torch.no_grad():
        for layer, flat in layers:
            kernel = next(arrays)
            if kernel.ndim == 4:  # (KH, KW, C, F) -> (F, C, KH, KW)
                kernel = kernel.transpose(3, 2, 0, 1)
            elif flat:  # (H * W * C, units) -> (units, C * H * W)
                C, H, W = flat
                kernel = kernel.reshape(H, W, C, -1).transpose(3, 2, 0, 1).reshape(kernel.shape[::-1])
            else:
                kernel = kernel.T
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
            layer.bias.copy_(torch.from_numpy(next(arrays)))


def _get(layers: list[Layer], weights: Weights) -> dict[str, np.ndarray[Any, Any]]:
    """The inverse of `_set`: weights by path, in minicnn's layout."""
    arrays = []
    for layer, flat in layers:
        kernel = layer.weight.detach().cpu().numpy()
        if kernel.ndim == 4:
            kernel = kernel.transpose(2, 3, 1, 0)
        elif flat:
            kernel = kernel.reshape(-1, *flat).transpose(2, 3, 1, 0).reshape(kernel.shape[::-1])
        else:
            kernel = kernel.T
        arrays += [kernel.copy(), layer.bias.detach().cpu().numpy().copy()]
    return dict(zip(weights, arrays, strict=True))
