"""Study `kernels`: what each optimisation of CUDA kernels is worth, and what data loading costs.

C. Camolese, Convolutional Neural Network Implementation on GPU, Ensimag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from minicnn import backends
from minicnn.backends._gpu.options import NAIVE, Options
from minicnn.bench import Column, Comparison, Measurement, Page, Panel, Results, Setting, Study, figures
from minicnn.bench.page import Cell
from minicnn.bench.trainers import ModelTrainer, Row, Trainer, gradient_tolerance, settings_of, trainer
from minicnn.data import Loader
from minicnn.jobs.settings import Settings
from minicnn.jobs.spread import disturbed
from minicnn.studies.platforms import times
from minicnn.tolerance import tolerance as rounded

BLOCKS = (32, 64, 128, 256, 512, 1024)
BASE = "numpy"  # computes the references, which every level is compared with

# Levels of the engines that generate CUDA kernels, and of the one that compiles for the CPU.
CUDA_LEVELS: dict[str, dict[str, Any]] = {
    "naive": {"options": NAIVE},
    "fusion alone": {"options": Options(fused=True, tiled=False, graph=False)},
    "tiling alone": {"options": Options(fused=False, tiled=True, tensor_cores=False, graph=False)},
    "graph alone": {"options": Options(fused=False, tiled=False, graph=True)},
    "fusion and tiling": {"options": Options(tensor_cores=False, graph=False)},
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

# What was published: seconds of 5 epochs of MNIST, accuracy (%) on MNIST and on Fashion-MNIST.
PUBLISHED = {
    "PyTorch, CPU": ("155 to 185", 95.34, 74.91),
    "PyTorch, CUDA (V100)": ("19 to 25", 95.34, 74.91),
    "CUDA, naive (A40, RTX 6000, V100)": ("23.5, 25.1, 41.8", 97.26, 87.18),
    "CUDA, optimised (A40, RTX 6000, V100)": ("5.18, 6.43, 8.50", 98.08, 87.53),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study.

    Attributes:
        epochs: Epochs of the trainings.
        sweep_epochs: Epochs of each level, block size and loader.
        samples: The most samples of the training set and of the test set; 0 for all.
        sweep_samples: The same for each level and block size; 0 for as many as in the trainings.
        loader_samples: The same for each loader; 0 for as many as for the levels.
        workers: Workers of the data loaders.
    """

    epochs: int = 5
    sweep_epochs: int = 3
    samples: int = 0
    sweep_samples: int = 0
    loader_samples: int = 0
    workers: tuple[int, ...] = (0, 2, 4, 8)


def measurements(setting: Setting) -> Iterator[Measurement]:
    """Trainings on each data set; on the first of them the ablation, the block sizes and the loaders."""
    sizes = setting.sizes
    for data in setting.data:
        yield _measurement(setting, f"training-{data}", data, setting.candidates, sizes.epochs, sizes.samples)
    data = setting.data[0]
    few = sizes.sweep_samples or sizes.samples
    for name, candidates in (
        ("ablation", ablation(setting)),
        ("blocks", blocks(setting)),
        ("loaders", loaders(setting)),
    ):
        samples = sizes.loader_samples or few if name == "loaders" else few
        yield _measurement(setting, f"{name}-{data}", data, candidates, sizes.sweep_epochs, samples)


def _measurement(
    setting: Setting, name: str, data: str, candidates: Sequence[str], epochs: int, samples: int
) -> Measurement:
    settings = settings_of("kernels", data, setting.data_dir, epochs=epochs, samples=samples or None)
    return Measurement(
        name, {"settings": asdict(settings), "candidates": candidates}, partial(_train, settings, candidates)
    )


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
    found = []
    for name in setting.candidates:
        library, _, device = name.partition(":")
        if library == "torch.nn":
            pins = ("", ", pinned") if device.startswith("cuda") else ("",)
            found.append(f"{name} / in memory")
            found += [f"torch.nn-loader:{device} / {n} workers{pin}" for n in setting.sizes.workers for pin in pins]
        if library in LEVELS:
            pins = ("", ", pinned") if library == "cupy" else ("",)
            found.append(f"{name} / in memory")
            found += [f"{name} / loader, {n} workers{pin}" for n in setting.sizes.workers for pin in pins]
    return tuple(found)


def candidate(name: str, settings: Settings) -> Trainer:
    """The trainer of a candidate "backend", "backend / level", "backend / block 64", "backend / loader, 2 workers"."""
    base, _, how = name.partition(" / ")
    if how.startswith("block "):
        options = Options(fused=False, tiled=False, graph=False, block=int(how.removeprefix("block ")))
        return trainer(base, settings, {"options": options})
    if how.startswith("loader, "):
        own = {"options": Options(pinned=how.endswith("pinned"))} if base == "cupy" else {}
        return LoadedTrainer(base, settings, own, int(how.split()[1]))
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
        super().__init__(name, settings, options, scaled=False)
        self._loader = Loader(
            self.samples["x_train"], self.samples["y_train"], batch_size=self.settings.batch_size or 0,
            seed=self.settings.seed, last_batch=self.settings.last_batch, workers=workers,
        )  # fmt: skip

    def _fit(self, *callbacks: Any) -> Row:
        return self.fit(self._loader, None, *callbacks)


def _train(settings: Settings, candidates: Sequence[str]) -> dict[str, Any]:
    """Rows of the epochs by candidate; why others are out."""
    if not candidates:
        return {"history": {}, "out": {}}
    history: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    tolerance = gradient_tolerance(settings)
    with Comparison(candidates, candidate, settings) as comparison:
        comparison.check(tolerance, others={n: rounded("bfloat16")[0] for n in candidates if n.endswith("bfloat16")})
        comparison.prepare("evaluate")  # compiles it
        for _ in range(settings.epochs):
            rows = comparison.call("train_epoch")
            for name, found in comparison.call("evaluate").items():
                history[name].append({**rows[name], **{f"test_{key}": value for key, value in found.items()}})
        kept = {name: history[name] for name in comparison.names}
        return {"history": kept, "out": comparison.out}


# Presentation -------------------------------------------------------------------------------------


def present(page: Page, setting: Setting, results: Results) -> None:
    """Trainings beside the published ones; the ablation, the block sizes, the loaders."""
    for place, data in enumerate(setting.data):
        result = results[f"training-{data}"]
        page.section(f"Training on {data}")
        page.refused(result["out"])
        if not place:
            page.words(
                "Two convolutions of 3x3, max-pooling and one dense layer: 50,890 parameters. Batches of 64, shuffled, "
                "plain SGD with learning rate 0.01 on the mean loss, float32, the same first weights and batches "
                "everywhere. Epochs are interleaved; loss and gradients of the first batch were compared before."
            )
        _training(page, setting, data, result)
    data = setting.data[0]
    _ablation(page, setting, data, results[f"ablation-{data}"])
    _blocks(page, setting, data, results[f"blocks-{data}"])
    _loaders(page, setting, data, results[f"loaders-{data}"])


def _training(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    history = result["history"]
    epochs = setting.sizes.epochs
    columns = [
        Column("candidate", "candidate"), Column("total_s", f"{epochs} epochs (s)", "{:.3g}"),
        Column("first_s", "of these the first (s)", "{:.3g}"), Column("epoch_s", "epoch (s)", "{:.3g}"),
        Column("test_s", "testing (s)", "{:.2g}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"), Column("loss", "training loss (nats)", "{:.4f}"),
    ]  # fmt: skip
    seen = next((round(rows[0]["samples_per_s"] * rows[0]["time_s"]) for rows in history.values()), 0)
    rows: list[dict[str, Cell]] = []
    for name in (*setting.candidates, *setting.absent):
        row: dict[str, Cell] = {"candidate": name}
        if name in history:
            epoch_rows = history[name]
            row |= {
                "total_s": sum(r["time_s"] for r in epoch_rows), "first_s": epoch_rows[0]["time_s"],
                "epoch_s": times(epoch_rows),
                "test_s": times(epoch_rows, "test_time_s").median, "accuracy": 100 * epoch_rows[-1]["test_accuracy"],
                "loss": epoch_rows[-1]["loss"],
            }  # fmt: skip
        else:
            keys = ("total_s", "first_s", "epoch_s", "test_s", "accuracy", "loss")
            row |= dict.fromkeys(keys, setting.missing(name, result["out"]))
        rows.append(row)
    for name, (seconds, mnist, fashion) in PUBLISHED.items():
        accuracy = {"mnist": mnist, "fashion_mnist": fashion}.get(data)
        total = seconds if data == "mnist" else None
        rows.append({"candidate": f"published: {name}", "total_s": total, "accuracy": accuracy})
    note = (
        f"An epoch has {seen:,} samples here; in the first a library may still compile, so it counts for the total "
        "alone. Published times are for 5 epochs of 60,000 samples, testing took 0.09 to 0.13 s. Its PyTorch network "
        "is another one (padding, a ReLU on the logits); its CUDA gradients are summed over the batch and partly never "
        "computed, so its speed-up is mostly work left undone. Here all candidates compute the same gradients."
    )
    page.table(f"training-{data}", f"Training on {data}", columns, rows, note)
    page.figure(
        f"training-{data}", f"Training on {data}", _training_panels(history),
        "Time is that of training alone, added up.",
    )  # fmt: skip
    if history:
        page.words(_fastest(history, f"an epoch of {data}"))


def _training_panels(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Panel]:
    def cumulative(axes: Any) -> None:
        axes.set_yscale("log")
        series = {
            name: ([r["epoch"] for r in rows], list(accumulate(r["time_s"] for r in rows)))
            for name, rows in history.items()
        }
        figures.lines(axes, series, "epoch", "time since the start (s)")

    def loss(axes: Any) -> None:
        series = {n: ([r["epoch"] for r in rows], [r["loss"] for r in rows]) for n, rows in history.items()}
        figures.lines(axes, series, "epoch", "training loss (nats)")

    return [Panel("Cumulative time", cumulative), Panel("Loss", loss)]


def _fastest(history: Mapping[str, Sequence[Mapping[str, Any]]], what: str) -> str:
    medians = {name: times(rows).median for name, rows in history.items()}
    order = sorted(medians, key=lambda name: medians[name])
    found = [100 * rows[-1]["test_accuracy"] for rows in history.values()]
    notes = {name: disturbed([row["time_s"] for row in rows]) for name, rows in history.items()}
    return (
        f"`{order[0]}` takes {medians[order[0]]:.3g} s for {what}, `{order[-1]}` {medians[order[-1]]:.3g} s, "
        f"{medians[order[-1]] / medians[order[0]]:.1f} times as long. The test accuracies lie between {min(found):.2f} "
        f"and {max(found):.2f} %." + "".join(f" Of `{name}` {note}." for name, note in notes.items() if note)
    )


def _sweep_table(
    page: Page, setting: Setting, name: str, title: str, result: Mapping[str, Any], wanted: Sequence[str], note: str
) -> None:
    """A row for each candidate of a sweep, whether or not it could run."""
    columns = [
        Column("candidate", "candidate"), Column("epoch_s", "epoch (s)", "{:.3g}"),
        Column("speedup", "speed-up over the first", "{:.2f}"), Column("loss", "training loss (nats)", "{:.4f}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"),
    ]  # fmt: skip
    history = result["history"]
    rows: list[dict[str, Cell]] = []
    for text in wanted:
        row: dict[str, Cell] = {"candidate": text}
        engine = _library(text)
        first = next((n for n in wanted if n in history and _library(n) in (engine, BASE)), text)
        if text in history:
            row |= {
                "epoch_s": times(history[text]), "loss": history[text][-1]["loss"],
                "speedup": times(history[first]).median / times(history[text]).median,
                "accuracy": 100 * history[text][-1]["test_accuracy"],
            }  # fmt: skip
        else:
            base = text if text in result["out"] else engine
            row |= dict.fromkeys(("epoch_s", "speedup", "loss", "accuracy"), setting.missing(base, result["out"]))
        rows.append(row)
    seen = next((round(found[0]["samples_per_s"] * found[0]["time_s"]) for found in history.values()), 0)
    page.table(name, title, columns, rows, f"{note} An epoch has {seen:,} samples here." if seen else note)


def _library(name: str) -> str:
    """Name of a candidate of a sweep without its level or loader: the candidate that it is compared with."""
    return name.partition(" / ")[0].replace("-loader", "")


def _bars(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> Panel:
    spreads = {name: times(rows) for name, rows in history.items()}
    return Panel("Time of an epoch", lambda axes: figures.bars(axes, spreads, "time (s)"), len(spreads))


def _ablation(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    page.section("Ablation of the optimisations")
    page.refused(result["out"])
    page.words(
        "Each level switches on what it names and nothing else. Naive is one thread for each result and one kernel for "
        "each operation; fusion merges operations into one kernel, tiling computes convolutions, products and sums by "
        "tiles in shared memory, graph captures whole steps, and many at once, in CUDA graphs. Tensor cores compute "
        "tiles of convolutions from operands in parts, with float32's accuracy, or with products in bfloat16. Data "
        "stay on the device unless they are said to come from the host, batch by batch; overlapped copies run while "
        "earlier batches are computed."
    )
    known = [e for e in LEVELS if e in backends.names() and e in (*setting.candidates, *setting.absent)]
    base = [name for name in (*setting.candidates, *setting.absent) if name == BASE]
    wanted = [*base, *(f"{engine} / {level}" for engine in known for level in LEVELS[engine])]
    note = (
        f"{BASE} computes the references, one operation after the other; where it took no part, an engine's levels "
        "are compared with its first."
    )
    _sweep_table(page, setting, f"ablation-{data}", f"Levels of optimisation on {data}", result, wanted, note)
    if result["history"]:
        page.figure(f"ablation-{data}", "Levels of optimisation", [_bars(result["history"])], _WHISKERS)
        page.words(_fastest(result["history"], "an epoch"))


_WHISKERS = "Medians of the epochs after the first; whiskers are quartiles."


def _blocks(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    page.section("Block size of the naive level")
    page.refused(result["out"])
    engines = [e for e in ("cupy", "numba_cuda") if e in backends.names()]
    wanted = [f"{engine} / block {block}" for engine in engines for block in BLOCKS]
    note = (
        "Published: with 1,024 threads a block the loss stays at 2.303, which it blames on registers. In fact its "
        "softmax gradient covers all 64 samples of a batch only then, and the summed gradient diverges."
    )
    _sweep_table(page, setting, f"blocks-{data}", f"Threads of a block on {data}", result, wanted, note)
    history = result["history"]
    if history:
        sizes = {e: [b for b in BLOCKS if f"{e} / block {b}" in history] for e in engines}

        def draw(axes: Any) -> None:
            series: dict[str, tuple[list[float], ...]] = {}
            for engine, own in sizes.items():
                spreads = [times(history[f"{engine} / block {b}"]) for b in own]
                bands = [s.median for s in spreads], [s.low for s in spreads], [s.high for s in spreads]
                series[engine] = (list(map(float, own)), *bands)
            figures.lines(axes, series, "threads of a block", "time of an epoch (s)")
            axes.set_xscale("log", base=2)

        page.figure(f"blocks-{data}", "Threads of a block", [Panel("Time of an epoch", draw)], "Bands are quartiles.")


def _loaders(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    page.section("Data loading")
    page.refused(result["out"])
    page.words(
        "Data that do not stay on the device come batch by batch: through PyTorch's DataLoader, which makes single "
        "images in worker processes, or through `minicnn.data.Loader`, which makes whole batches in threads."
    )
    wanted = list(loaders(setting))
    for device in ("cuda",):
        if f"torch.nn:{device}" in setting.absent:
            wanted += [
                f"torch.nn-loader:{device} / {n} workers{pin}"
                for n in setting.sizes.workers
                for pin in ("", ", pinned")
            ]
    note = "Pinned memory is for copies to a GPU. Published: workers 2, 4 and 8, pinned memory on and off."
    _sweep_table(page, setting, f"loaders-{data}", f"Data loaders on {data}", result, wanted, note)
    if result["history"]:
        page.figure(f"loaders-{data}", "Data loaders", [_bars(result["history"])], _WHISKERS)
        page.words(_loading(result["history"]))


def _loading(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    texts = []
    for name in history:
        base, _, how = name.partition(" / ")
        if how != "in memory":
            continue
        library, _, device = base.partition(":")
        own = [n for n in history if n.startswith((f"{base} / loader", f"{library}-loader:{device} / "))]
        if own:
            best = min(own, key=lambda n: times(history[n]).median)
            ratio = times(history[best]).median / times(history[name]).median
            kind = best.partition(" / ")[2]
            texts.append(f"the best loader of `{base}` ({kind}) takes {ratio:.2f} times as long as data in memory")
    text = "; ".join(texts)
    return f"{text[:1].upper()}{text[1:]}." if text else "No loader could be measured."


STUDY = Study(
    title="Kernels: from naive to optimised, step by step",
    question="What is each optimisation worth, and what does loading data cost?",
    source="C. Camolese, Convolutional Neural Network Implementation on GPU, Ensimag.",
    full=Sizes(),
    quick=Sizes(epochs=3, sweep_epochs=3, samples=12_000),
    data=("mnist", "fashion_mnist"),
    others=("kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=present,
    peers=("torch.nn", "jax.lax"),
)
