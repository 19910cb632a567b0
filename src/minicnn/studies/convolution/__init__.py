"""Study `convolution`: which convolution strategy wins where, which layers cost, and which parallelism scales.

F. Knitz, A Guide to CNNs and GPUs, 2017-01-13, after X. Li et al., Performance Analysis of GPU-based Convolutional
Neural Networks, ICPP 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from minicnn.measure import Measurement, Setting, Study
from minicnn.measure.candidates import LIBRARIES, PEERS, on_gpu
from minicnn.ops.strategies import Problem
from minicnn.studies.convolution import breakdown, lanes, pages, parallelism, strategy_pages, sweeps

NETWORKS = {"alexnet": 224, "overfeat": 231, "vgg16": 224, "googlenet": 224}  # with the sides of their images
CLASSES = 1000
LOSS_RTOL = 1e-3  # between candidates, of a batch: sums of up to 25,088 products, layer by layer, in float32


@dataclass(frozen=True)
class ConvolutionStudySizes:
    """Sizes of the study.

    Attributes:
        batch: Images of the problem that all sweeps go through.
        image: Height and width of its images.
        channels: Its channels, and filters.
        kernel: Height and width of its kernel.
        kernels: Kernel sizes of the sweep.
        channel_counts: Channels, and filters, of the sweep.
        images: Heights and widths of the sweep.
        batches: Batch sizes of the sweep.
        rounds: How often each strategy is measured.
        budget_s: Seconds after which no round of a point and direction starts, once each strategy has had three.
        not_in_sweeps: Backends that take part at the point that all sweeps go through only.
        not_in_layers: Backends that do not take part in the breakdown by layers.
        network_image: Height and width of the networks' images; 0 for their own.
        network_batch: Images in a step of the networks.
        iterations: Training iterations of the networks.
        lanes: Filters, and images in a batch, around the widths of vectors and of warps.
    """

    batch: int = 64
    image: int = 32
    channels: int = 64
    kernel: int = 3
    kernels: tuple[int, ...] = (1, 3, 5, 7, 9, 11)
    channel_counts: tuple[int, ...] = (4, 16, 64, 128, 256)
    images: tuple[int, ...] = (8, 16, 32, 64, 128)
    batches: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    rounds: int = 15
    budget_s: float = 20.0
    not_in_sweeps: tuple[str, ...] = field(default=("",), metadata={"known": LIBRARIES})
    not_in_layers: tuple[str, ...] = field(default=("",), metadata={"known": LIBRARIES})
    network_image: int = 0
    network_batch: int = 32
    iterations: int = 10
    lanes: tuple[int, ...] = (15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)


QUICK = ConvolutionStudySizes(
    batch=32, image=16, channels=32, kernels=(1, 3, 5, 7, 11), channel_counts=(4, 8, 32, 128), images=(8, 16, 32, 64),
    batches=(1, 8, 32, 128), rounds=5, budget_s=1.0, not_in_sweeps=("jax",), not_in_layers=("torch", "jax"),
    network_image=80, network_batch=4, lanes=(32, 33),
)  # fmt: skip


def base(sizes: ConvolutionStudySizes) -> Problem:
    """The problem that all sweeps go through."""
    return _with_kernel(
        Problem(sizes.batch, (sizes.image, sizes.image), sizes.channels, sizes.channels, (1, 1)), sizes.kernel
    )


def _with_kernel(problem: Problem, k: int) -> Problem:
    before, after = (k - 1) // 2, k // 2  # the result has the image's size
    return replace(problem, kernel=(k, k), padding=((before, after), (before, after)))


def sweep_of(name: str, sizes: ConvolutionStudySizes) -> list[Problem]:
    """The problems of a sweep."""
    middle = base(sizes)
    if name == "kernel size":
        return [_with_kernel(middle, k) for k in sizes.kernels]
    if name == "channels":
        return [replace(middle, channels=c, filters=c) for c in sizes.channel_counts]
    if name == "image size":
        return [replace(middle, image=(n, n)) for n in sizes.images]
    return [replace(middle, batch=n) for n in sizes.batches]


def check(sizes: ConvolutionStudySizes) -> None:
    """Refuse images that one of the networks is too deep for.

    Raises:
        ValueError: If there is such a network.
    """
    for name in NETWORKS if sizes.network_image else ():
        try:
            breakdown.network(name, sizes.network_image, "numpy", CLASSES)
        except ValueError as error:
            raise ValueError(
                f"network_image is large enough for {', '.join(NETWORKS)}, or 0 for their own sizes. Received: "
                f"{sizes.network_image}, with which in {name} {error}"
            ) from error


def backends_of(setting: Setting) -> tuple[str, ...]:
    """Candidates that are backends."""
    return tuple(name for name in setting.candidates if name.partition(":")[0] not in PEERS)


def measurements(setting: Setting) -> Iterator[Measurement]:
    """All strategies at one point, the other points of sweeps, cores and lanes, the networks, and several ranks."""
    sizes: ConvolutionStudySizes = setting.sizes
    everyone = backends_of(setting)
    some = tuple(name for name in everyone if name.partition(":")[0] not in sizes.not_in_sweeps)
    jobs = {"base": (everyone, [base(sizes)])}
    jobs |= {name: (some, [p for p in sweep_of(name, sizes) if p != base(sizes)]) for name in strategy_pages.SWEEPS}
    for name, (names, problems) in jobs.items():
        inputs: dict[str, Any] = {
            "candidates": names, "problems": [asdict(p) for p in problems], "rounds": sizes.rounds,
            "budget_s": sizes.budget_s,
        }  # fmt: skip
        run = partial(sweeps.measure, names, problems, sizes.rounds, sizes.budget_s)
        yield Measurement(f"strategies-{name}", inputs, run)
    inputs = {"problem": asdict(base(sizes)), "rounds": sizes.rounds, "budget_s": sizes.budget_s}
    on_cores = tuple(name for name in everyone if not on_gpu(name) and name.partition(":")[0] != "jax")
    counts = lanes.core_counts()
    run = partial(lanes.measure_cores, on_cores, base(sizes), counts, sizes.rounds, sizes.budget_s)
    if on_cores:
        yield Measurement("cores", {**inputs, "candidates": on_cores, "cores": counts}, run)
    run = partial(lanes.measure_lanes, some, base(sizes), sizes.lanes, sizes.rounds, sizes.budget_s)
    yield Measurement("lanes", {**inputs, "candidates": some, "lanes": sizes.lanes}, run)
    names = tuple(name for name in setting.candidates if name.partition(":")[0] not in sizes.not_in_layers)
    for name, side in NETWORKS.items():
        image = sizes.network_image or side
        inputs = {"candidates": names, "image": image, "batch": sizes.network_batch}
        run = partial(
            breakdown.measure, names, name, image, sizes.network_batch, sizes.iterations, CLASSES, LOSS_RTOL
        )  # fmt: skip
        yield Measurement(f"layers-{name}", {**inputs, "iterations": sizes.iterations}, run)
    yield Measurement(parallelism.PREDICTED, parallelism.inputs(), parallelism.predict)
    measured = {"candidates": (), "runs": parallelism.MEASURED, "budget_s": parallelism.BUDGET_S}
    yield Measurement(parallelism.RANKED, measured, parallelism.measure)


STUDY = Study(
    title="Convolution: which strategy wins where, which layers cost, which parallelism scales",
    question=(
        "Which way to compute a convolution is the fastest for which kernel size, number of channels, image and batch? "
        "What share of a training step do convolutions take? By which parallelism does it scale?"
    ),
    source=(
        "F. Knitz, A Guide to CNNs and GPUs, 2017, after X. Li et al., Performance Analysis of GPU-based Convolutional "
        "Neural Networks, ICPP 2016."
    ),
    full=ConvolutionStudySizes(),
    quick=QUICK,
    data=("synthetic",),
    measurements=measurements,
    present=pages.present,
    peers=("torch.nn",),
    check=check,
)
