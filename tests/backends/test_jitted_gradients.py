"""Gradients of whole networks where a compiler fuses the step: it may compute a value anew, with other roundings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, zoo
from minicnn.backends import get_backend
from minicnn.layers import (
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GlobalMaxPooling2D,
    GroupNormalization,
    Input,
    MaxPooling2D,
)
from support.campaign import FULL
from support.network_gradients import gradient_program, largest_difference, network_gradients


def _batch_normalised() -> Sequential:
    middle = [Conv2D(8, 3), BatchNormalization(), MaxPooling2D(3, 2, "same"), Flatten()]
    return Sequential([Input((28, 28, 1)), *middle, Dense(10)])


def _group_normalised() -> Sequential:
    return Sequential([Input((12, 12, 3)), Conv2D(8, 3), GroupNormalization(2), GlobalMaxPooling2D(), Dense(10)])


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "batch normalisation": (_batch_normalised, (28, 28, 1)),
    "group normalisation": (_group_normalised, (12, 12, 3)),
    "resnet18": (lambda: zoo.get_model("resnet18", num_classes=3, input_shape=(64, 64, 3)), (64, 64, 3)),
}
SMALL = ["batch normalisation", "group normalisation"]
ON_GPU = ["jax:cuda", "torch.compile:cuda"]


def _backend(name: str) -> Any:
    """The backend, if this machine has it. On a CPU, PyTorch's compiler takes minutes: that is for the campaign."""
    library, _, device = name.partition(":")
    pytest.importorskip(library.partition(".")[0])
    try:
        if library != "torch.compile":
            return get_backend(name)
        from support.torch_compile import CompiledTorchBackend

        return CompiledTorchBackend(device, compiler="inductor" if FULL or device == "cuda" else "aot_eager")
    except RuntimeError as error:
        if "must see the device" not in str(error):  # such as one that has no memory left
            raise
        pytest.skip(str(error))


# PyTorch's compiler warns of its own code, and of what would be quicker.
@pytest.mark.filterwarnings(
    "ignore:.*script_method. is deprecated:DeprecationWarning",
    "ignore:TensorFloat32 tensor cores:UserWarning",
    r"ignore:\s*Online softmax is disabled:UserWarning",
)
@pytest.mark.parametrize(
    ("backend", "name", "background"),
    [
        *product(["jax:cpu"], SMALL, [False, True]),
        *([("jax:cpu", "resnet18", False)] if FULL else []),
        ("torch.compile:cpu", "batch normalisation", False),
        *(pytest.param(*case, marks=pytest.mark.gpu) for case in product(ON_GPU, NETWORKS, [False, True])),
    ],
)
def test_gradients(backend: str, name: str, background: bool) -> None:
    compiled = _backend(backend)
    make, shape = NETWORKS[name]
    rng = np.random.default_rng(0)
    samples = 32 if name in SMALL else 8
    model, x, y = make(), rng.standard_normal((samples, *shape)), rng.integers(0, 3, samples)
    if background:  # many equal elements
        x[:, : shape[0] // 2] = 0
    weights = {}
    for path, weight in gradient_program(model, x, y, "float64")[1].items():
        fan = float(np.prod(weight.shape[:-1]))
        spread = (2 / fan) ** 0.5 if len(weight.shape) > 1 else 0.1
        weights[path] = rng.standard_normal(weight.shape) * spread + (len(weight.shape) == 1)
    expected = network_gradients(model, x, y, weights, get_backend("numpy"), "float64")
    error, path = largest_difference(network_gradients(model, x, y, weights, compiled, "float32"), expected)
    assert error < 1e-3, path
