"""What the benchmarks share: which backends there are, and the networks that they train."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import get_backend
from minicnn.backends.base import Backend

GPU_BACKENDS = ["torch:cuda", "cupy", "numba_cuda"]
ON_GPU = 10  # times as many steps: those of `NETWORKS` would take less than what `fit` does around them
BACKENDS = ["numpy", "numba", "torch:cpu", "jax", *GPU_BACKENDS]


def _table() -> Any:
    """The cases of this checkout, also where an older commit is measured, which may have none or others."""
    path = Path(__file__).parents[2] / "src" / "minicnn" / "measure" / "cases.py"
    spec: Any = importlib.util.spec_from_file_location("cases_of_this_checkout", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _table()


# By their names in the results: name of the case, steps of a timed run, samples of a step.
NETWORKS: dict[str, tuple[str, int, int]] = {
    "mlp": ("mlp", 5, 20_000),
    "platforms": ("platforms", 10, 512),
    "kernels": ("kernels", 40, 64),
    "channels12": ("channels12", 10, 512),
    "kernel5": ("channels12_kernel5", 10, 512),
    "stride2": ("channels12_stride2", 20, 96),
    "single": ("channels12_single", 100, 1),
    "resnet18": ("resnet18", 2, 32),
    "resnet50": ("resnet50", 2, 32),
    "mobilenet_v2": ("mobilenet_v2", 2, 32),
    "squeezenet1_1": ("squeezenet1_1", 2, 32),
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
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.optimizers import SGD

    case_name = NETWORKS[name][0]
    model = cases.network(case_name, replace(cases.CASES[case_name], options={}), backend)
    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True))
    return model


def samples(name: str, times: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (N, H, W, C) uint8 and labels (N,) for a timed run.

    Args:
        name: Name of the network.
        times: How often the steps of a run, with the same samples.
    """
    case_name, steps, batch = NETWORKS[name]
    made = cases.CASES[case_name].samples(batch * steps)
    return np.tile(made["x_train"], (times, 1, 1, 1)), np.tile(made["y_train"], times)
