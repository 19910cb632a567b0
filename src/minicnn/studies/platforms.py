"""Study `platforms`: one small CNN on every platform, epoch by epoch.

G. Khanna, A. Harsh, CNN Performance Analysis: CPU-optimized vs GPU-optimized, University of Maryland, 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from minicnn.bench import Column, Comparison, Measurement, Page, Panel, Results, Setting, Spread, Study, figures
from minicnn.bench.page import Cell
from minicnn.bench.trainers import gradient_tolerance, settings_of, trainer
from minicnn.jobs.settings import Settings
from minicnn.jobs.spread import disturbed

COLUMNS = (
    Column("epoch", "epoch"), Column("time_s", "time (s)", "{:.3g}"),
    Column("samples_per_s", "samples per s", "{:,.0f}"), Column("loss", "training loss (nats)", "{:.4f}"),
    Column("accuracy", "training accuracy", "{:.2%}"), Column("test_loss", "test loss (nats)", "{:.4f}"),
    Column("test_accuracy", "test accuracy", "{:.2%}"), Column("process_mb", "process memory (MB)", "{:,.0f}"),
    Column("device_mb", "device memory (MB)", "{:,.1f}"),
)  # fmt: skip

# What was published: seconds of an epoch, samples per second, test accuracy (%), memory of the process (MB).
PUBLISHED = {
    "Numba CPU": (2.093, 30_501, 96.33),
    "Numba CUDA": (0.927, 71_758, 96.68),
    "PyTorch CPU": (11.27, 5_340, 97.57),
    "PyTorch CUDA": (8.72, 6_948, 97.21),
    "PyTorch MPS": (9.05, 6_645, 97.31),
}
# Which of these a candidate of ours stands beside.
BESIDE = {
    "numba": "Numba CPU", "numba_cuda": "Numba CUDA", "torch.nn-loader:cpu": "PyTorch CPU",
    "torch.nn-loader:cuda": "PyTorch CUDA", "torch.nn-loader:mps": "PyTorch MPS",
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study.

    Attributes:
        epochs: Epochs.
        samples: The most samples of the training set and of the test set; 0 for all.
    """

    epochs: int = 10
    samples: int = 0


def measurements(setting: Setting) -> Iterator[Measurement]:
    """The training on each data set: all candidates in one run, epochs interleaved."""
    for data in setting.data:
        settings = settings_of(
            "platforms", data, setting.data_dir, epochs=setting.sizes.epochs, samples=setting.sizes.samples or None
        )
        given = {"settings": asdict(settings), "candidates": setting.candidates}
        yield Measurement(f"training-{data}", given, partial(_train, settings, setting.candidates))


def _train(settings: Settings, candidates: Sequence[str]) -> dict[str, Any]:
    """Rows of the epochs by candidate; why others are out."""
    history: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    tolerance = gradient_tolerance(settings)
    with Comparison(candidates, trainer, settings) as comparison:
        comparison.check(tolerance)
        comparison.prepare("evaluate")  # compiles it
        for _ in range(settings.epochs):
            rows = comparison.call("train_epoch")
            for name, found in comparison.call("evaluate").items():
                tested = {f"test_{key}": value for key, value in found.items()}
                history[name].append({**rows[name], **tested})
        rows = {name: history[name] for name in comparison.names}
        return {"history": rows, "out": comparison.out}


# Presentation -------------------------------------------------------------------------------------


def present(page: Page, setting: Setting, results: Results) -> None:
    """Summary, figure and a table of the epochs for each candidate."""
    for data in setting.data:
        result = results[f"training-{data}"]
        history = result["history"]
        page.section(f"Training on {data}")
        page.refused(result["out"])
        page.words(
            "Each candidate starts from the same weights and sees the same batches of 512, the last one padded; SGD "
            "with learning rate 0.01 and momentum 0.9, float32. Epochs are interleaved, each candidate in a "
            "process of its own; loss and gradients of the first batch were compared before anything was timed."
        )
        _summary(page, setting, data, result)
        page.figure(f"epochs-{data}", f"Training on {data}", _panels(history), _CAPTION)
        page.words(_found(history))
        for name, rows in history.items():
            title = f"Epochs of `{name}` on {data}"
            page.table(f"epochs-{data}-{name.replace(':', '-')}", title, COLUMNS, rows)


_CAPTION = (
    "Time and throughput are those of the training alone. Bars are medians of the epochs after the first, in which a "
    "library may still compile; whiskers are their quartiles. Dashed lines are GPUs."
)


def times(rows: Sequence[Mapping[str, Any]], key: str = "time_s") -> Spread:
    """Median and quartiles over the epochs after the first that were not disturbed."""
    return Spread.after_first([row[key] for row in rows], rate=key == "samples_per_s")


def _summary(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    columns = [
        Column("candidate", "candidate"), Column("time_s", "time per epoch (s)", "{:.3g}"),
        Column("samples_per_s", "samples per s", "{:,.0f}"), Column("first_s", "first epoch (s)", "{:.3g}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"), Column("process_mb", "process memory (MB)", "{:,.0f}"),
        Column("device_mb", "device memory (MB)", "{:,.1f}"), Column("published", "published as"),
        Column("published_s", "published: time per epoch (s)", "{:.3g}"),
        Column("published_rate", "published: samples per s", "{:,.0f}"),
        Column("published_accuracy", "published: test accuracy (%)", "{:.2f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for name in (*setting.candidates, *setting.absent):
        row: dict[str, Cell] = {"candidate": name}
        if name in result["history"]:
            epochs = result["history"][name]
            row |= {
                "time_s": times(epochs), "samples_per_s": times(epochs, "samples_per_s"),
                "first_s": epochs[0]["time_s"], "accuracy": 100 * epochs[-1]["test_accuracy"],
                "process_mb": max(e["peak_mb"] for e in epochs), "device_mb": epochs[-1]["device_mb"],
            }  # fmt: skip
        else:
            missing = setting.missing(name, result["out"])
            row |= dict.fromkeys(("time_s", "samples_per_s", "first_s", "accuracy", "process_mb", "device_mb"), missing)
        if name in BESIDE:
            values = PUBLISHED[BESIDE[name]]
            row |= {"published": BESIDE[name], "published_s": values[0], "published_rate": values[1]}
            row["published_accuracy"] = values[2]
        rows.append(row)
    seen = next((round(e[0]["samples_per_s"] * e[0]["time_s"]) for e in result["history"].values()), 0)
    note = (
        f"An epoch has {seen:,} samples here, with the padding, and 60,416 in the study. Published on a Core Ultra 7 "
        "155H, an RTX 4060 and an M4 Pro, with 1,157 to 1,612 MB of process memory and 16.9 MB on the device (PyTorch "
        "CUDA). Its Numba versions update the dense layers only, so they do less work than ours; its PyTorch versions "
        "load samples one by one, as `torch.nn-loader` does here, and normalise them, which ours do not. Process "
        "memory is the peak with libraries and data."
    )
    page.table(f"summary-{data}", f"All candidates on {data}", columns, rows, note)


def _panels(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Panel]:
    def over_epochs(key: str, label: str, factor: float = 1.0) -> Any:
        series = {
            name: ([row["epoch"] for row in rows], [factor * row[key] for row in rows])
            for name, rows in history.items()
        }
        return lambda axes: figures.lines(axes, series, "epoch", label)

    def throughput(axes: Any) -> None:
        values = {name: times(rows, "samples_per_s") for name, rows in history.items()}
        figures.bars(axes, values, "samples per s, median", "{:,.0f}")

    def logarithmic(draw: Any) -> Any:
        def both(axes: Any) -> None:
            axes.set_yscale("log")
            draw(axes)

        return both

    return [
        Panel("Time per epoch", logarithmic(over_epochs("time_s", "time (s)"))),
        Panel("Throughput per epoch", logarithmic(over_epochs("samples_per_s", "samples per s"))),
        Panel("Test accuracy per epoch", over_epochs("test_accuracy", "test accuracy (%)", 100)),
        Panel("Average throughput", throughput),
    ]


def _found(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the figures show, in words."""
    if not history:
        return "No candidate could be measured."
    medians = {name: times(rows).median for name, rows in history.items()}
    order = sorted(medians, key=lambda name: medians[name])
    fastest, slowest = order[0], order[-1]
    accuracies = [100 * rows[-1]["test_accuracy"] for rows in history.values()]
    text = (
        f"`{fastest}` is the fastest with a median of {medians[fastest]:.3g} s an epoch, `{slowest}` the slowest with "
        f"{medians[slowest]:.3g} s, {medians[slowest] / medians[fastest]:.1f} times as long. The test accuracies lie "
        f"between {min(accuracies):.2f} and {max(accuracies):.2f} %: all train the same thing."
    )
    for device in ("cpu", "cuda", "mps"):
        memory, loader = f"torch.nn:{device}", f"torch.nn-loader:{device}"
        if memory in medians and loader in medians:
            share = 1 - medians[memory] / medians[loader]
            text += (
                f" On {device} PyTorch's modules take {medians[memory]:.3g} s with the data in memory and "
                f"{medians[loader]:.3g} s through a DataLoader: {share:.0%} of that is the loader."
            )
    for name, rows in history.items():
        found = disturbed([row["time_s"] for row in rows])
        text += f" Of `{name}` {found}." if found else ""
    return text


STUDY = Study(
    title="Platforms: one small CNN on every platform",
    question="How long does an epoch take on each platform, if all of them train the same thing?",
    source=(
        "G. Khanna, A. Harsh, CNN Performance Analysis: CPU-optimized vs GPU-optimized, University of Maryland, 2025."
    ),
    full=Sizes(),
    quick=Sizes(epochs=3, samples=20_000),
    data=("mnist",),
    others=("fashion_mnist", "kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=present,
    peers=("torch.nn", "torch.nn-loader", "jax.lax"),
)
