"""What the benchmarks share: which backends there are, and the networks that they train."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from functools import cache
from typing import Any

import numpy as np

from minicnn import Sequential, get_backend, layers, zoo
from minicnn.backends.base import Backend

GPU_BACKENDS = ["torch:cuda", "cupy", "numba_cuda"]
ON_GPU = 10  # times as many steps: those of `NETWORKS` would take less than what `fit` does around them
BACKENDS = ["numpy", "numba", "torch:cpu", "jax", *GPU_BACKENDS]

# Network: shape of an image, classes, samples of a step, steps of a timed run.
NETWORKS: dict[str, tuple[tuple[int, int, int], int, int, int]] = {
    "mlp": ((28, 28, 1), 10, 20_000, 5),
    "platforms": ((28, 28, 1), 10, 512, 10),
    "kernels": ((28, 28, 1), 10, 64, 40),
    "channels12": ((28, 28, 1), 10, 512, 10),
    "kernel5": ((28, 28, 1), 10, 512, 10),
    "stride2": ((32, 32, 3), 10, 96, 20),
    "single": ((28, 28, 1), 10, 1, 100),
    "resnet18": ((64, 64, 3), 200, 32, 2),
    "resnet50": ((64, 64, 3), 200, 32, 2),
    "mobilenet_v2": ((64, 64, 3), 200, 32, 2),
    "squeezenet1_1": ((64, 64, 3), 200, 32, 2),
}
SMALL = ["mlp", "platforms", "kernels", "channels12", "kernel5", "stride2", "single"]
DEEP = ["resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1"]


def backend_or_skip(name: str) -> Backend:
    """A backend by name; one whose library and device are there must work, or the benchmark fails.

    Raises:
        NotImplementedError: If the library or the GPU is not on this machine; asv then skips the benchmark.
    """
    library = name.partition(":")[0]
    if importlib.util.find_spec(library) is None:
        message = f"{library} is not installed"
        raise NotImplementedError(message)
    if name in GPU_BACKENDS and not gpu():
        message = f"{name} needs an NVIDIA GPU"
        raise NotImplementedError(message)
    return get_backend(name)


@cache
def gpu() -> bool:
    """Whether this machine has a GPU, as its driver says and no backend."""
    driver = shutil.which("nvidia-smi")
    if driver is None:
        return False
    done = subprocess.run([driver, "--list-gpus"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and "GPU" in done.stdout


def network(name: str, backend: Backend) -> Any:
    """One of `NETWORKS`, compiled; images are uint8."""
    image, classes, _, _ = NETWORKS[name]
    scaled: list[Any] = [layers.Rescaling(1 / 255)]
    if name in ("channels12", "kernel5", "stride2", "single"):
        kernel, stride = (5 if name == "kernel5" else 3), (2 if name == "stride2" else 1)
        conv = {"activation": "relu", "strides": stride}
        pool = [layers.MaxPooling2D()] if stride == 1 else []
        stack = [
            layers.Conv2D(12, kernel, **conv), *pool, layers.Conv2D(24, kernel, **conv),
            *([layers.MaxPooling2D()] if pool else []), layers.Flatten(), layers.Dense(128, "relu"),
        ]  # fmt: skip
        inputs = layers.Input(image, dtype="uint8")
        model: Any = Sequential([inputs, *scaled, *stack, layers.Dense(classes)], backend=backend)
    else:
        model = zoo.get_model(
            name, num_classes=classes, input_shape=image, backend=backend, preprocessing=scaled, input_dtype="uint8"
        )
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.optimizers import SGD

    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True))
    return model


def samples(name: str, times: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (N, H, W, C) uint8 and labels (N,) for a timed run; they take the same time as real ones.

    Args:
        name: Name of the network.
        times: How often the steps of a run, with the same samples.
    """
    image, classes, batch, steps = NETWORKS[name]
    generator = np.random.default_rng(0)
    count = batch * steps
    x = generator.integers(0, 256, (count, *image), np.uint8)
    y = generator.integers(0, classes, count).astype(np.int32)
    return np.tile(x, (times, 1, 1, 1)), np.tile(y, times)
