"""Study `roofline`: where four networks sit under the machine's roofline, and what limits them.

R. Vasant, Performance Benchmarking of Neural Networks Across CPU and GPU Environments, 2025-11-14.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from minicnn.jobs.settings import RECIPES
from minicnn.measure import Measurement, Setting, Study
from minicnn.measure.candidates import LIBRARIES, PEERS
from minicnn.studies.roofline import ceilings, counting, images, pages, training
from minicnn.studies.roofline.counting import NETWORKS

ENGINES = ("cupy", "numba_cuda", "numba")  # the fastest first


@dataclass(frozen=True)
class RooflineSizes:
    """Sizes of the study.

    Attributes:
        image: Height and width of the images; 64 in Tiny-ImageNet.
        batches: Batch sizes of the sweep, the smallest first.
        swept: Networks that are trained at each of them; the others at the batch size of the epoch only.
        rounds: How often each candidate is measured.
        budget_s: Seconds after which no round of a batch size starts, once each candidate has had three.
        samples: Training images of an epoch.
        tests: Test images.
        epoch_batch: Batch size of the epoch, at most: SqueezeNet's is 64, as the source has it.
        account_batch: Batch size at which planned and measured memory are compared.
        copies: Bytes of the arrays that are copied.
        side: Rows of the matrices that are multiplied on a CPU; four times as many on a GPU.
        repeats: Samples of each ceiling.
        left_out: Candidates that do not train the networks, being slow.
        diverging_batches: Batch sizes at which SqueezeNet is looked at for losses that are no numbers.
        diverging_rates: Learning rates of these.
        diverging_steps: Their steps.
    """

    image: int = 64
    batches: tuple[int, ...] = (32, 64, 128, 256)
    swept: tuple[str, ...] = field(default=NETWORKS, metadata={"known": NETWORKS})
    rounds: int = 10
    budget_s: float = 30.0
    samples: int = 100_000
    tests: int = 10_000
    epoch_batch: int = 128
    account_batch: int = 32
    copies: tuple[int, ...] = field(default=tuple(2**k for k in range(13, 30)), metadata={"least": 4})
    side: int = 2048
    repeats: int = 10
    left_out: tuple[str, ...] = field(default=("",), metadata={"known": LIBRARIES})
    diverging_batches: tuple[int, ...] = (64, 128)
    diverging_rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    diverging_steps: int = 100


QUICK = RooflineSizes(
    rounds=2, samples=512, tests=256, epoch_batch=64, account_batch=8, copies=tuple(2**k for k in range(13, 28, 2)),
    side=1536, repeats=5, left_out=("numpy", "torch", "jax"), diverging_steps=20,
)  # fmt: skip


def epoch_batch(sizes: RooflineSizes, network: str) -> int:
    """Batch size of a network's epoch."""
    return min(sizes.epoch_batch, RECIPES[network].batch_size or sizes.epoch_batch)


def check(sizes: RooflineSizes) -> None:
    """Refuse images that one of the networks is too deep for, and an epoch without a whole batch.

    Raises:
        ValueError: If there is such a network, or if there are too few samples.
    """
    for name in NETWORKS:
        if sizes.samples < epoch_batch(sizes, name):
            raise ValueError(
                f"An epoch has a batch at least. Received: samples={sizes.samples} for batches of "
                f"{epoch_batch(sizes, name)} of {name}. Set samples to more, or epoch_batch to fewer."
            )
        try:
            counting.network(name, "numpy", (sizes.image, sizes.image, 3))
        except ValueError as error:
            raise ValueError(
                f"image is large enough for {', '.join(NETWORKS)}. Received: {sizes.image}, with which in {name} "
                f"{error}"
            ) from error


def measurements(setting: Setting) -> Iterator[Measurement]:
    """Ceilings, counts, PyTorch's counts, memory accounts, and each network's training."""
    sizes: RooflineSizes = setting.sizes
    everyone = setting.candidates
    image = (sizes.image, sizes.image, 3)
    sides = {"cpu": sizes.side, "gpu": 4 * sizes.side}
    inputs: dict[str, Any] = {"candidates": everyone, "copies": sizes.copies, "sides": sides, "repeats": sizes.repeats}
    yield Measurement("ceilings", inputs, partial(ceilings.measure, everyone, sizes.copies, sides, sizes.repeats))
    two = (sizes.batches[0], sizes.batches[0] * 2)
    for name in NETWORKS:
        inputs = {"batches": two, "image": image}
        yield Measurement(f"counts-{name}", inputs, partial(_counts, setting.candidates, name, two, image))
    data = setting.data[0]
    inputs = {"batch": sizes.account_batch, "image": image}
    yield Measurement("accounts", inputs, partial(_accounts, sizes.account_batch, image))
    some = tuple(c for c in setting.candidates if c.partition(":")[0] not in sizes.left_out) or setting.candidates
    for name in NETWORKS:
        whole = epoch_batch(sizes, name)
        batches = sizes.batches if name in sizes.swept else (whole,)
        inputs = {
            "candidates": some, "batches": batches, "rounds": sizes.rounds, "budget_s": sizes.budget_s,
            "data": data,
            "samples": sizes.samples, "tests": sizes.tests, "epoch_batch": whole, "image": image,
        }  # fmt: skip
        yield Measurement(f"training-{name}", inputs, partial(_train, sizes, data, setting, some, name, batches, whole))
    ours = [name for name in some if name.partition(":")[0] not in PEERS]
    for one in [name for name in ENGINES if name in ours][:1] or ours[:1]:
        inputs = {
            "candidate": one, "batches": sizes.diverging_batches, "rates": sizes.diverging_rates,
            "steps": sizes.diverging_steps, "data": data, "samples": sizes.samples, "image": image,
        }  # fmt: skip
        yield Measurement("diverging", inputs, partial(_diverging, sizes, data, setting, one))


def _counts(candidates: tuple[str, ...], name: str, batches: tuple[int, int], image: tuple[int, ...]) -> dict[str, Any]:
    counted = counting.count(name, batches, image)
    has_torch = any(c.startswith("torch") for c in candidates)
    return {**counted, "torch": counting.torch_count(name, image) if has_torch else None}


def _accounts(batch: int, image: tuple[int, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="minicnn-") as folder:
        images.prepare(Path(folder), "synthetic", None, batch, 1, image)
        return training.accounts(Path(folder), batch)


def _train(
    sizes: RooflineSizes,
    data: str,
    setting: Setting,
    names: tuple[str, ...],
    name: str,
    batches: tuple[int, ...],
    whole: int,
) -> dict[str, Any]:
    image = (sizes.image, sizes.image, 3)
    with tempfile.TemporaryDirectory(prefix="minicnn-") as folder:
        note, classes = images.prepare(Path(folder), data, setting.data_dir, sizes.samples, sizes.tests, image)
        results = training.measure(names, name, Path(folder), batches, sizes.rounds, sizes.budget_s, whole)
    return {**results, "data": note, "classes": classes, "epoch_batch": whole}


def _diverging(sizes: RooflineSizes, data: str, setting: Setting, candidate: str) -> dict[str, Any]:
    image = (sizes.image, sizes.image, 3)
    with tempfile.TemporaryDirectory(prefix="minicnn-") as folder:
        images.prepare(Path(folder), data, setting.data_dir, sizes.samples, 1, image)
        looked_at = sizes.diverging_batches, sizes.diverging_rates, sizes.diverging_steps
        return training.diverging(candidate, "squeezenet1_1", Path(folder), *looked_at)


STUDY = Study(
    title="Roofline: where four networks sit, and what holds them back",
    question=(
        "How much of the machine do ResNet-18, MobileNetV2, ResNet-50 and SqueezeNet 1.1 use in training, and is it "
        "compute, memory, launches or the input that holds them back?"
    ),
    source=(
        "R. Vasant, Performance Benchmarking of Neural Networks Across CPU and GPU Environments, 2025, which left "
        "every table empty."
    ),
    full=RooflineSizes(),
    quick=QUICK,
    data=("tiny_imagenet",),
    measurements=measurements,
    present=pages.present,
    peers=("torch.nn",),
    check=check,
)
