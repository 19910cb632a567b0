"""Study `kernels`: what each optimisation of CUDA kernels is worth, and what data loading costs.

C. Camolese, Convolutional Neural Network Implementation on GPU, Ensimag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from minicnn.jobs.settings import Settings
from minicnn.measure import Measurement, Setting, Study
from minicnn.measure.trainers import gradient_tolerance, settings_of, train
from minicnn.studies.kernels import pages
from minicnn.studies.kernels.levels import ablation, blocks, candidate, loaders
from minicnn.tolerance import tolerance as rounded


@dataclass(frozen=True)
class KernelsSizes:
    """Sizes of the study.

    Attributes:
        epochs: Epochs of the trainings.
        sweep_epochs: Epochs of each level, block size and loader.
        samples: The most samples of the training set and of the test set; 0 for all.
        sweep_samples: The same for each level and block size; 0 for as many as in the trainings.
        loader_samples: The same for each loader; 0 for as many as in the trainings, as starting workers takes its time.
        workers: Workers of the data loaders.
    """

    epochs: int = 5
    sweep_epochs: int = 3
    samples: int = 0
    sweep_samples: int = 0
    loader_samples: int = 0
    workers: tuple[int, ...] = (0, 2, 4, 8)


def measurements(setting: Setting) -> Iterator[Measurement]:
    """On each data set the trainings, the ablation, the block sizes and the loaders."""
    sizes = setting.sizes
    few = sizes.sweep_samples or sizes.samples
    for data in setting.data:
        for name, candidates, epochs, samples in (
            ("training", setting.candidates, sizes.epochs, sizes.samples),
            ("ablation", ablation(setting), sizes.sweep_epochs, few),
            ("blocks", blocks(setting), sizes.sweep_epochs, few),
            ("loaders", loaders(setting), sizes.sweep_epochs, sizes.loader_samples or sizes.samples),
        ):
            settings = settings_of("kernels", data, setting.data_dir, epochs=epochs, samples=samples or None)
            inputs = {"settings": asdict(settings), "candidates": candidates}
            if candidates:
                yield Measurement(f"{name}-{data}", inputs, partial(_train, settings, candidates))


def _train(settings: Settings, candidates: Sequence[str]) -> dict[str, Any]:
    coarse = {name: rounded("bfloat16")[0] for name in candidates if name.endswith("bfloat16")}
    return train(candidate, settings, candidates, gradient_tolerance(settings), coarse)


STUDY = Study(
    title="Kernels: from naive to optimised, step by step",
    question="What is each optimisation worth, and what does loading data cost?",
    source="C. Camolese, Convolutional Neural Network Implementation on GPU, Ensimag.",
    full=KernelsSizes(),
    quick=KernelsSizes(epochs=3, sweep_epochs=3, samples=6_000),
    data=("mnist", "fashion_mnist"),
    others=("kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=pages.present,
    peers=("torch.nn", "jax.lax"),
)
