"""Tables and figures of the study `kernels`, each with all data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from minicnn.bench import Column, Page, Panel, Run, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.figures import FAMILIES, OWN, Mark, duration, family
from minicnn.bench.figures import PUBLISHED as HOLLOW
from minicnn.bench.page import Cell
from minicnn.studies.kernels.levels import BASE, BLOCKS, LEVELS, OPTIMISATIONS
from minicnn.studies.platforms.pages import epoch, seen, times

EPOCH = 60_000  # samples
epoch_of = partial(epoch, samples=EPOCH)
EPOCHS = 5  # of what was published
ALL = "all, with tensor cores"  # the level of `cupy` that trains

# What was published: seconds of 5 epochs of MNIST, at least and at most; accuracy (%) on MNIST and on Fashion-MNIST.
PUBLISHED = {
    "PyTorch, CPU": ((155.0, 185.0), 95.34, 74.91),
    "PyTorch, V100": ((19.0, 25.0), 95.34, 74.91),
    "CUDA, naive, A40": ((23.5, 23.5), 97.26, 87.18),
    "CUDA, naive, RTX 6000": ((25.1, 25.1), 97.26, 87.18),
    "CUDA, naive, V100": ((41.8, 41.8), 97.26, 87.18),
    "CUDA, optimised, A40": ((5.18, 5.18), 98.08, 87.53),
    "CUDA, optimised, RTX 6000": ((6.43, 6.43), 98.08, 87.53),
    "CUDA, optimised, V100": ((8.50, 8.50), 98.08, 87.53),
}
UNLEARNED = 2.303  # published loss (nats) with 1,024 threads a block
# The study's own programs, seconds of an epoch of MNIST measured by themselves on an H200.
OWN_S = {"the study's CUDA, naive, H200": 4.87, "the study's CUDA, optimised, H200": 1.16}
# Levels of the cumulative chart, with what they are called there.
CUMULATIVE = {
    "cupy / naive": "naive", f"cupy / {ALL}": "optimised",
    "cupy / all, data from the host, copies overlapped": "optimised, pinned",
}  # fmt: skip

NOTES = {
    "training": (
        "Training",
        "Two convolutions of 3x3, max-pooling and one dense layer: 50,890 parameters. Batches of 64, shuffled, plain "
        "SGD with learning rate 0.01 on the mean loss, float32, the same first weights and batches everywhere. In the "
        "first epoch a library may still compile, so it counts for the total alone. Totals and accuracies of rows with "
        "fewer samples or epochs do not compare with those of whole trainings. The study's own programs were measured "
        "by themselves.",
    ),
    "ablation": (
        "Levels of optimisation",
        "Each level switches on what it names and nothing else. Naive is one thread for each result and one kernel for "
        "each operation; fusion merges operations into one kernel, tiling computes convolutions, products and sums by "
        "tiles in shared memory, graph captures whole steps, and many at once, in CUDA graphs. Tensor cores compute "
        "tiles from operands in parts, with float32's accuracy, or with products in bfloat16. Data stay on the device "
        f"unless they are said to come from the host. {BASE} computes the references.",
    ),
    "blocks": (
        "Threads of a block, naive level",
        "Published: with 1,024 threads a block the loss stays at 2.303.",
    ),
    "loaders": (
        "Data loading",
        "Batch by batch through PyTorch's DataLoader, which makes single images in worker processes, or through "
        "`minicnn.data.Loader`, which makes whole batches in threads. Pinned memory is for copies to a GPU.",
    ),
}  # fmt: skip

History = Mapping[str, Sequence[Mapping[str, Any]]]
Found = Sequence[tuple[Run, History]]
Rows = dict[str, dict[str, Cell]]


def history(runs: Sequence[Run], what: str, data: str) -> Found:
    """Epochs by candidate of a measurement, of each machine that has them."""
    found = [(run, run.results[f"{what}-{data}"]["history"]) for run in runs if f"{what}-{data}" in run.results]
    return [(run, rows) for run, rows in found if rows]


def pick(runs: Sequence[Run], what: str, data: str, wanted: Callable[[str], bool]) -> dict[str, float]:
    """Median seconds of a whole epoch by candidate, of the first machine that has any such."""
    for _, rows in sorted(history(runs, what, data), key=lambda pair: pair[0].gpu is None):
        found = {name: epoch_of(epochs).median for name, epochs in rows.items() if wanted(name)}
        if found:
            return found
    return {}


def library(name: str) -> str:
    """Name of a candidate of a sweep without its level or loader: the candidate that it is compared with."""
    return name.partition(" / ")[0].replace("-loader", "")


def present(page: Page, runs: Sequence[Run]) -> None:
    """The trainings, the cumulative chart, what each optimisation brings, and the sweeps."""
    every = [d for d in runs[0].setting.data if any(f"{what}-{d}" in r.results for what in NOTES for r in runs)]
    if not every:
        return
    _trainings(page, runs, every)
    _cumulative(page, runs, every[0])
    for sweep in ("ablation", "blocks", "loaders"):
        _sweep(page, runs, sweep, every)
        if sweep == "ablation":
            _optimisations(page, runs, every)


def _each(runs: Sequence[Run], what: str, every: Sequence[str]) -> Iterator[tuple[str, Run, History, str]]:
    """Data set, run, its history, and candidate of all that was measured."""
    for data in every:
        for run, own in history(runs, what, data):
            for name in own:
                yield data, run, own, name


def _of_all(every: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Columns that each data set has."""
    return [Column(f"{d}_{c.key}", f"{c.head}: {d}", c.template) for d in every for c in columns]


def _put(rows: Rows, label: str, data: str, cells: Mapping[str, Cell]) -> None:
    rows.setdefault(label, {"candidate": label}).update({f"{data}_{key}": cell for key, cell in cells.items()})


def _trainings(page: Page, runs: Sequence[Run], every: Sequence[str]) -> None:
    rows: Rows = {}
    for data, run, own, name in _each(runs, "training", every):
        epochs = own[name]
        _put(rows, run.label(name), data, {
            "total_s": sum(r["time_s"] for r in epochs), "epoch_s": times(epochs),
            "test_s": times(epochs, "test_time_s").median, "accuracy": 100 * epochs[-1]["test_accuracy"],
            "loss": epochs[-1]["loss"],
        })  # fmt: skip
        rows[run.label(name)] |= {"epochs": len(epochs), "seen": seen(epochs)}
    for name, ((low, high), mnist, fashion) in PUBLISHED.items():
        total: Cell = f"{low:g} to {high:g}" if low < high else low
        known: Rows = {"mnist": {"total_s": total, "accuracy": mnist}, "fashion_mnist": {"accuracy": fashion}}
        for data in [d for d in known if d in every]:
            _put(rows, f"published: {name}", data, known[data])
            rows[f"published: {name}"] |= {"epochs": EPOCHS, "seen": EPOCH}
    for name, seconds in OWN_S.items() if "mnist" in every else ():
        _put(rows, name, "mnist", {"epoch_s": seconds, "total_s": EPOCHS * seconds})
        rows[name] |= {"epochs": EPOCHS, "seen": EPOCH}
    columns = [Column("candidate", "candidate"), Column("epochs", "epochs"), Column("seen", "samples", "{:,d}")]
    columns += _of_all(every, [
        Column("total_s", "total (s)", "{:.3g}"), Column("epoch_s", "epoch (s)", "{:.3g}"),
        Column("test_s", "testing (s)", "{:.2g}"), Column("accuracy", "test accuracy (%)", "{:.2f}"),
        Column("loss", "training loss (nats)", "{:.4f}"),
    ])  # fmt: skip
    title, note = NOTES["training"]
    page.section(title)
    page.table("training", title, columns, list(rows.values()), note)


def _cumulative(page: Page, runs: Sequence[Run], data: str) -> None:
    """Seconds since the start against epochs: the fastest on a CPU, naive, optimised, and with pinned memory."""
    series: dict[str, tuple[list[int], list[float], str]] = {}

    def add(label: str, rows: Sequence[Mapping[str, Any]], tone: str) -> None:
        sums = list(accumulate(r["time_s"] * EPOCH / seen(rows) for r in rows))
        series[label] = (list(range(1, len(sums) + 1)), sums, tone)

    on_cpu = {n: (run.label(n), own[n]) for _, run, own, n in _each(runs, "training", [data]) if not on_gpu(n)}
    if on_cpu:
        fastest = min(on_cpu, key=lambda name: epoch_of(on_cpu[name][1]).median)
        add(*on_cpu[fastest], FAMILIES[family(fastest)])
    for _, run, own, name in _each(runs, "ablation", [data]):
        if name in CUMULATIVE:
            add(f"{CUMULATIVE[name]}, {run.where(name)}", own[name], FAMILIES[figures.KERNELS])
    if len(series) > 1 and data == "mnist":
        for name, seconds in OWN_S.items():
            series[name] = (list(range(1, EPOCHS + 1)), [k * seconds for k in range(1, EPOCHS + 1)], FAMILIES[OWN])
    if len(series) > 1:
        page.figure(
            f"cumulative-{data}", f"Cumulative time of epochs of {data}",
            [Panel(_whole(series), partial(
                figures.paths, series=series, xlabel="epoch", ylabel="", log="y", say=duration
            ))],
            f"Epochs of {EPOCH:,} samples, shorter ones scaled, with what is compiled in the first.",
        )  # fmt: skip


def _whole(series: Mapping[str, tuple[list[int], list[float], str]]) -> str:
    """The finding of the cumulative chart: ours naive and optimised, after as many epochs as both have."""
    ends = {name.rpartition(", ")[0]: (xs[-1], ys[-1]) for name, (xs, ys, _) in series.items()}
    (count, naive), (same, optimised) = ends.get("naive", (0, 0.0)), ends.get("optimised", (0, 0.0))
    if not count or count != same:
        return "Time since the start"
    return f"{count} epochs take {duration(naive)} with naive kernels, {duration(optimised)} with optimised ones"


def _finding(sweep: str, title: str, found: Found) -> str:
    """The finding of a sweep: the fastest candidate against the one that it is compared with."""
    for _, own in sorted(found, key=lambda pair: pair[0].gpu is None):
        for first in [n for n in own if n.endswith(("/ naive", "/ in memory"))]:
            rest = {n: times(own[n]).median for n in own if library(n) == library(first) and n != first}
            if rest:
                best = min(rest, key=lambda n: rest[n])
                ratio, how = times(own[first]).median / rest[best], best.partition(" / ")[2]
                if sweep == "loaders":
                    return f"With {library(first)} the fastest loader takes {1 / ratio:.1f} times data in memory"
                return f"{library(first)}: {how}, is {ratio:,.0f} times as fast as naive kernels"
    return f"{title}: seconds for {EPOCH:,} samples"


def _optimisations(page: Page, runs: Sequence[Run], every: Sequence[str]) -> None:
    """What each optimisation brings by itself, from the naive level, and as the last one."""
    rows: dict[str, dict[str, Cell]] = {}
    for data in every:
        for run, own in history(runs, "ablation", data):
            for engine in LEVELS:
                seconds = {n.partition(" / ")[2]: times(own[n]).median for n in own if n.startswith(f"{engine} / ")}
                for what, steps in OPTIMISATIONS.items():
                    for key, step in zip(("alone", "last"), steps, strict=True):
                        if step and all(level in seconds for level in step):
                            label = f"{what}: {run.label(engine)}"
                            row = rows.setdefault(label, {"what": what, "engine": run.label(engine)})
                            row[f"{data}_{key}"] = seconds[step[1]] / seconds[step[0]]
    columns = [Column("what", "optimisation"), Column("engine", "candidate"), *_of_all(every, [
        Column("alone", "by itself (times as fast)", "{:.2f}"), Column("last", "added last (times as fast)", "{:.2f}"),
    ])]  # fmt: skip
    if rows:
        page.table("optimisations", "What each optimisation brings", columns, list(rows.values()),
                   "By itself: switched on alone, against the naive level. Added last: with all below it in the table "
                   "of levels, against the same without it.")  # fmt: skip


def _sweep(page: Page, runs: Sequence[Run], sweep: str, every: Sequence[str]) -> None:
    rows: Rows = {}
    for data, run, own, name in _each(runs, sweep, every):
        epochs = own[name]
        first = next(n for n in own if library(n) in (library(name), BASE))
        _put(rows, run.label(name), data, {
            "epoch_s": times(epochs), "speedup": times(own[first]).median / times(epochs).median,
            "test_s": times(epochs, "test_time_s").median, "loss": epochs[-1]["loss"],
            "accuracy": 100 * epochs[-1]["test_accuracy"],
        })  # fmt: skip
        rows[run.label(name)] |= {"seen": seen(epochs)}
    if not rows:
        return
    title, note = NOTES[sweep]
    page.section(title)
    columns = [Column("candidate", "candidate"), Column("seen", "samples", "{:,d}"), *_of_all(every, [
        Column("epoch_s", "epoch (s)", "{:.3g}"), Column("speedup", "times the first's rate", "{:.2f}"),
        Column("test_s", "testing (s)", "{:.2g}"), Column("loss", "training loss (nats)", "{:.4f}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"),
    ])]  # fmt: skip
    page.table(sweep, title, columns, list(rows.values()), note)
    found = next((found for data in every if (found := history(runs, sweep, data))), [])
    data = next(data for data in every if history(runs, sweep, data))
    if sweep == "blocks":
        _blocks(page, data, found)
        return
    marks = [
        Mark(run.label(name), epoch_of(epochs), family(name)) for run, own in found for name, epochs in own.items()
    ]
    page.figure(
        f"{sweep}-{data}", f"{title} on {data}",
        [Panel(_finding(sweep, title, found), partial(figures.dots, marks=marks), len(marks))],
        f"Seconds for {EPOCH:,} samples: medians of the epochs after the first, scaled; lines are quartiles.",
    )  # fmt: skip


def _blocks(page: Page, data: str, found: Found) -> None:
    """Time and loss against the size of a block."""
    seconds, losses = {}, {}
    for run, own in found:
        for i, engine in enumerate(LEVELS):
            sizes = [b for b in BLOCKS if f"{engine} / block {b}" in own]
            if sizes:
                rows = [own[f"{engine} / block {b}"] for b in sizes]
                seconds[run.label(engine)] = (sizes, [epoch_of(r).median for r in rows], figures.PALETTE[i])
                losses[run.label(engine)] = (sizes, [r[-1]["loss"] for r in rows], figures.PALETTE[i])
    change = max(max(ys) / min(ys) - 1 for _, ys, _ in seconds.values())
    losses["published"] = ([BLOCKS[-1]], [UNLEARNED], FAMILIES[HOLLOW])

    def draw(axes: Any, series: Mapping[str, Any], ylabel: str, say: Callable[[float], str] | None) -> None:
        figures.paths(axes, series, "threads of a block", ylabel, log="x", say=say)
        axes.set_ylim(0, 1.1 * max(max(ys) for _, ys, _ in series.values()))

    panels = [
        Panel("Time of an epoch", partial(
            draw, series=seconds, ylabel="", say=lambda s: duration(s) if s else "0")),
        Panel("Training loss", partial(draw, series=losses, ylabel="loss after the last epoch (nats)", say=None)),
    ]  # fmt: skip
    page.figure(
        f"blocks-{data}", f"{NOTES['blocks'][0]} on {data}", panels,
        f"The block size changes an epoch of {EPOCH:,} samples by up to {change:.0%}, and the loss not at all.",
    )  # fmt: skip
