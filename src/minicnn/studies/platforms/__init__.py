"""Study `platforms`: one small CNN on every platform, epoch by epoch.

G. Khanna, A. Harsh, CNN Performance Analysis: CPU-optimized vs GPU-optimized, University of Maryland, 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from minicnn.jobs.settings import Settings
from minicnn.measure import Measurement, Setting, Study
from minicnn.measure.candidates import PEERS
from minicnn.measure.trainer import USUAL, Work
from minicnn.measure.trainers import gradient_tolerance, settings_of, train, trainer
from minicnn.studies.platforms import pages
from minicnn.studies.platforms.variants import VARIANTS

ENGINES = ("cupy", "numba_cuda", "numba")


@dataclass(frozen=True)
class PlatformsSizes:
    """Sizes of the study.

    Attributes:
        epochs: Epochs.
        samples: The most samples of the training set and of the test set; 0 for all.
    """

    epochs: int = 10
    samples: int = 0


def measurements(setting: Setting) -> Iterator[Measurement]:
    """The training on each data set: all candidates in one run, epochs interleaved; then each variant, by one."""
    for data in setting.data:
        settings = settings_of(
            "platforms", data, setting.data_dir, epochs=setting.sizes.epochs, samples=setting.sizes.samples or None
        )
        inputs = {"settings": asdict(settings), "candidates": setting.candidates}
        yield Measurement(f"training-{data}", inputs, partial(_train, settings, setting.candidates, USUAL))
        for name, variant in VARIANTS.items() if standing(setting) else ():
            inputs = {"settings": asdict(settings), "candidates": standing(setting), "network": variant.network}
            run = partial(_train, settings, standing(setting), Work(network=variant.network))
            yield Measurement(f"{name}-{data}", inputs, run)


def standing(setting: Setting) -> tuple[str, ...]:
    """The candidate that stands for all where accuracies are asked for: the fastest kernels there are."""
    backends = [name for name in setting.candidates if name.partition(":")[0] not in PEERS]
    return tuple([name for name in ENGINES if name in backends] or backends)[:1]


def _train(settings: Settings, candidates: Sequence[str], work: Work) -> dict[str, Any]:
    return train(partial(trainer, work=work), settings, candidates, gradient_tolerance(settings, work))


STUDY = Study(
    title="Platforms: one small CNN on every platform",
    question="How long does an epoch take on each platform, if all of them train the same thing?",
    source=(
        "G. Khanna, A. Harsh, CNN Performance Analysis: CPU-optimized vs GPU-optimized, University of Maryland, 2025."
    ),
    full=PlatformsSizes(),
    quick=PlatformsSizes(epochs=3, samples=20_000),
    data=("mnist",),
    others=("fashion_mnist", "kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=pages.present,
    peers=("torch.nn", "torch.nn-loader", "jax.lax"),
    hybrids=True,
)
