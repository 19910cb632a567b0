"""Candidates of the study `kernels`: engines with optimisations switched on one by one, block sizes, data loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicnn.backends._gpu.options import NAIVE, Options
from minicnn.data import Loader
from minicnn.jobs.settings import Settings
from minicnn.measure import Setting
from minicnn.measure.model_trainer import ModelTrainer
from minicnn.measure.trainer import USUAL, Row, Trainer
from minicnn.measure.trainers import trainer

BLOCKS = (32, 64, 128, 256, 512, 1024)
BASE = "numpy"  # computes the references, which every level is compared with

# Levels of the engines that generate CUDA kernels, and of the one that compiles for the CPU.
CUDA_LEVELS: dict[str, dict[str, Any]] = {
    "naive": {"options": NAIVE},
    "fusion alone": {"options": Options(fused=True, tiled=False, graph=False)},
    "tiling alone": {"options": Options(fused=False, tiled=True, tensor_cores=False, graph=False)},
    "graph alone": {"options": Options(fused=False, tiled=False, graph=True)},
    "fusion and tiling": {"options": Options(tensor_cores=False, graph=False)},
    "all but fusion": {"options": Options(fused=False, tensor_cores=False)},
    "all but tiling": {"options": Options(tiled=False)},
    "fusion, tiling and graph": {"options": Options(tensor_cores=False)},
}
CUPY_LEVELS = {
    **CUDA_LEVELS,
    "all, with tensor cores": {"options": Options()},
    "all, products in bfloat16": {"options": Options(products="bfloat16")},
    "all, data from the host": {"options": Options(resident=False, pinned=False)},
    "all, data from the host, copies overlapped": {"options": Options(resident=False)},
}
LEVELS = {
    "cupy": CUPY_LEVELS,
    "numba_cuda": CUDA_LEVELS,
    "numba": {"fused kernels, one thread": {"threads": 1}, "fused kernels, all threads": {}},
}


# For each optimisation the levels with and without it: from the naive one, and as the last one of all.
OPTIMISATIONS: dict[str, tuple[tuple[str, str] | None, tuple[str, str]]] = {
    "fusion": (("fusion alone", "naive"), ("fusion, tiling and graph", "all but fusion")),
    "tiling": (("tiling alone", "naive"), ("fusion, tiling and graph", "all but tiling")),
    "graph": (("graph alone", "naive"), ("fusion, tiling and graph", "fusion and tiling")),
    "tensor cores": (None, ("all, with tensor cores", "fusion, tiling and graph")),
    "products in bfloat16": (None, ("all, products in bfloat16", "all, with tensor cores")),
    "overlap of copies, pinned memory": (
        None, ("all, data from the host, copies overlapped", "all, data from the host")
    ),
    "all threads": (None, ("fused kernels, all threads", "fused kernels, one thread")),
}  # fmt: skip


def ablation(setting: Setting) -> tuple[str, ...]:
    """The candidates of the ablation that can run, as "backend / level"; the references first."""
    here = [f"{engine} / {level}" for engine in LEVELS if engine in setting.candidates for level in LEVELS[engine]]
    return (*[name for name in setting.candidates if name == BASE], *here) if here else ()


def blocks(setting: Setting) -> tuple[str, ...]:
    """The same for the sweep of block sizes."""
    engines = [e for e in ("cupy", "numba_cuda") if e in setting.candidates]
    return tuple(f"{engine} / block {block}" for engine in engines for block in BLOCKS)


def loaders(setting: Setting) -> tuple[str, ...]:
    """The same for the sweep of data loaders, with data in memory beside them."""
    names = []
    for name in setting.candidates:
        library, _, device = name.partition(":")
        if library == "torch.nn":
            pins = ("", ", pinned") if device.startswith("cuda") else ("",)
            names.append(f"{name} / in memory")
            names += [f"torch.nn-loader:{device} / {n} workers{pin}" for n in setting.sizes.workers for pin in pins]
        if library in LEVELS:
            pins = ("", ", pinned") if library == "cupy" else ("",)
            names.append(f"{name} / in memory")
            names += [f"{name} / loader, {n} workers{pin}" for n in setting.sizes.workers for pin in pins]
    return tuple(names)


def candidate(name: str, settings: Settings) -> Trainer:
    """The trainer of a candidate "backend", "backend / level", "backend / block 64", "backend / loader, 2 workers"."""
    base, _, how = name.partition(" / ")
    if how.startswith("block "):
        options = Options(fused=False, tiled=False, graph=False, block=int(how.removeprefix("block ")))
        return trainer(base, settings, {"options": options})
    if how.startswith("loader, "):
        choices = {"options": Options(pinned=how.endswith("pinned"))} if base == "cupy" else {}
        return LoadedTrainer(base, settings, choices, int(how.split()[1]))
    if "workers" in how:
        return trainer(base, settings, {"workers": int(how.split()[0]), "pinned": how.endswith("pinned")})
    return trainer(base, settings, LEVELS.get(base, {}).get(how))


class LoadedTrainer(ModelTrainer):
    """A model that is fed by `minicnn.data.Loader`, batch by batch from the host.

    Args:
        name: Name of the candidate.
        settings: What to train and how.
        options: Of the backend.
        workers: Threads of the loader.
    """

    def __init__(self, name: str, settings: Settings, options: Mapping[str, Any], workers: int) -> None:
        super().__init__(name, settings, USUAL, **options)
        self._loader = Loader(
            self.samples["x_train"], self.samples["y_train"], batch_size=self.settings.batch_size or 0,
            seed=self.settings.seed, last_batch=self.settings.last_batch, workers=workers,
        )  # fmt: skip

    def _fit(self, *callbacks: Any) -> Row:
        return self.fit(self._loader, None, *callbacks)
