"""Tables and figures of the study `kernels`, each with all data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from minicnn.measure import Panel, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.figures import FAMILIES, OWN, Mark, duration, family
from minicnn.measure.figures import PUBLISHED as HOLLOW
from minicnn.measure.page import Cell
from minicnn.measure.template import PageTemplate
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

MEASURED = ("training", "ablation", "blocks", "loaders")
TEMPLATE = PageTemplate(Path(__file__).with_name("page.md"))

History = Mapping[str, Sequence[Mapping[str, Any]]]
Found = Sequence[tuple[StudyRun, History]]
Rows = dict[str, dict[str, Cell]]


def history(runs: Sequence[StudyRun], what: str, data: str) -> Found:
    """Epochs by candidate of a measurement, of each machine that has them."""
    histories = [(run, run.results[f"{what}-{data}"]["history"]) for run in runs if f"{what}-{data}" in run.results]
    return [(run, rows) for run, rows in histories if rows]


def pick(runs: Sequence[StudyRun], what: str, data: str, wanted: Callable[[str], bool]) -> dict[str, float]:
    """Median seconds of a whole epoch by candidate, of the first machine that has any such."""
    for _, rows in sorted(history(runs, what, data), key=lambda pair: pair[0].gpu is None):
        medians = {name: epoch_of(epochs).median for name, epochs in rows.items() if wanted(name)}
        if medians:
            return medians
    return {}


def library(name: str) -> str:
    """Name of a candidate of a sweep without its level or loader: the candidate that it is compared with."""
    return name.partition(" / ")[0].replace("-loader", "")


def rows(runs: Sequence[StudyRun], every: Sequence[str]) -> dict[str, list[dict[str, Cell]]]:
    """The rows of all tables by name; columns of each data set have its name before them."""
    tables = {"training": _trainings(runs, every), "optimisations": _optimisations(runs, every)}
    tables |= {sweep: _sweep(runs, sweep, every) for sweep in MEASURED[1:]}
    return {name: list(table.values()) for name, table in tables.items()}


def panels(
    runs: Sequence[StudyRun], first: str, every: Sequence[str]
) -> tuple[dict[str, Sequence[Panel]], dict[str, Any]]:
    """The panels of all figures by name, and which data set each sweep's figure is about."""
    values: dict[str, Any] = {"change": None, "unlearned": UNLEARNED, **dict.fromkeys(MEASURED[1:])}
    shown: dict[str, Sequence[Panel]] = {}
    shown[f"epochs-{first}"], values["finding"] = _epochs(runs, first)
    shown[f"cumulative-{first}"], values["cumulative"] = _cumulative(runs, first) if every else ((), "")
    for sweep in MEASURED[1:]:
        data = values[f"{sweep}_data"] = next((data for data in every if history(runs, sweep, data)), None)
        if data is None:
            continue
        results = history(runs, sweep, data)
        if sweep == "blocks":
            shown[f"{sweep}-{data}"], values["change"] = _blocks(results)
        else:
            shown[f"{sweep}-{data}"] = figures.grouped(_marks(results, by_library=True), "time of an epoch")
            values[sweep] = _finding(sweep, results)
    return shown, values


def _marks(results: Found, *, by_library: bool = False) -> list[Mark]:
    """A mark for each epoch, in a group for each machine, or for each library on it."""
    marks = []
    for run, candidates in results:
        for name, epochs in candidates.items():
            label, group = run.name(name), run.where(name)
            if by_library:
                of, _, level = label.partition(" / ")
                library, loader, _ = of.partition(" DataLoader")
                label = f"{level or 'as it is'}{',' if loader else ''}{loader}"
                group = f"{library.removesuffix(' modules')}, {group}"
            marks.append(Mark(label, epoch_of(epochs), family(name), group))
    return marks


def _epochs(runs: Sequence[StudyRun], data: str) -> tuple[list[Panel], str]:
    """An epoch by every candidate, by the naive levels, as published, and by the study's own programs; the finding."""
    marks = _marks(history(runs, "training", data))
    naive = [
        (run, {n: candidates[n] for n in candidates if n.endswith("/ naive")})
        for run, candidates in history(runs, "ablation", data)
    ]
    marks += _marks(naive)
    fastest = min(marks, key=lambda mark: mark.spread.median, default=None)
    if data == "mnist":
        marks += [Mark(n, sum(s) / 2 / EPOCHS, HOLLOW, "published, on other machines")
                  for n, (s, *_) in PUBLISHED.items()]  # fmt: skip
        published = OWN_S.items() if any(run.gpu for run in runs) else ()
        marks += [Mark(*(n.rpartition(", ")[0], seconds, OWN, n.rpartition(", ")[2])) for n, seconds in published]
    first = f"{fastest.label}, {fastest.group}" if fastest else None
    finding = {"first": first, "first_s": fastest.spread.median} if fastest else {}
    return figures.grouped(marks, "time of an epoch") if marks else [], TEMPLATE.words("finding", finding)


def _each(runs: Sequence[StudyRun], what: str, every: Sequence[str]) -> Iterator[tuple[str, StudyRun, History, str]]:
    """Data set, run, its history, and candidate of all that was measured."""
    for data in every:
        for run, candidates in history(runs, what, data):
            for name in candidates:
                yield data, run, candidates, name


def _put(rows: Rows, label: str, data: str, cells: Mapping[str, Cell]) -> None:
    rows.setdefault(label, {"candidate": label}).update({f"{data}_{key}": cell for key, cell in cells.items()})


def _trainings(runs: Sequence[StudyRun], every: Sequence[str]) -> Rows:
    rows: Rows = {}
    for data, run, candidates, name in _each(runs, "training", every):
        epochs = candidates[name]
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
    return rows


def _cumulative(runs: Sequence[StudyRun], data: str) -> tuple[list[Panel], str]:
    """Seconds since the start against epochs: the fastest on a CPU, naive, optimised, and with pinned memory."""
    series: dict[str, tuple[list[int], list[float], str]] = {}

    def add(label: str, rows: Sequence[Mapping[str, Any]], tone: str) -> None:
        sums = list(accumulate(r["time_s"] * EPOCH / seen(rows) for r in rows))
        series[label] = (list(range(1, len(sums) + 1)), sums, tone)

    on_cpu = {
        n: (run.label(n), candidates[n]) for _, run, candidates, n in _each(runs, "training", [data]) if not on_gpu(n)
    }
    if on_cpu:
        fastest = min(on_cpu, key=lambda name: epoch_of(on_cpu[name][1]).median)
        add(*on_cpu[fastest], FAMILIES[family(fastest)])
    for _, run, candidates, name in _each(runs, "ablation", [data]):
        if name in CUMULATIVE:
            add(f"{CUMULATIVE[name]}, {run.where(name)}", candidates[name], FAMILIES[figures.KERNELS])
    if len(series) > 1 and data == "mnist":
        for name, seconds in OWN_S.items():
            series[name] = (list(range(1, EPOCHS + 1)), [k * seconds for k in range(1, EPOCHS + 1)], FAMILIES[OWN])
    ends = {name.rpartition(", ")[0]: (xs[-1], ys[-1]) for name, (xs, ys, _) in series.items()}
    (count, naive), (same, optimised) = ends.get("naive", (0, 0.0)), ends.get("optimised", (0, 0.0))
    both = {"count": count, "naive": naive, "optimised": optimised} if count and count == same else {}
    draw = partial(figures.paths, series=series, xlabel="epoch", ylabel="time since the start", log="y", say=duration)
    return [Panel("", draw)] if len(series) > 1 else [], TEMPLATE.words("cumulative", both)


def _finding(sweep: str, results: Found) -> str:
    """The finding of a sweep: the fastest candidate against the one that it is compared with."""
    for _, candidates in sorted(results, key=lambda pair: pair[0].gpu is None):
        for first in [n for n in candidates if n.endswith(("/ naive", "/ in memory"))]:
            rest = {n: times(candidates[n]).median for n in candidates if library(n) == library(first) and n != first}
            if rest:
                best = min(rest, key=lambda n: rest[n])
                ratio = times(candidates[first]).median / rest[best]
                values = {"library": library(first), "best": best.partition(" / ")[2]}
                return TEMPLATE.words(sweep, values | {"ratio": 1 / ratio if sweep == "loaders" else ratio})
    return TEMPLATE.words(sweep, {"epoch": EPOCH})


def _optimisations(runs: Sequence[StudyRun], every: Sequence[str]) -> Rows:
    """Gain of each optimisation by itself, from the naive level, and as the last one."""
    rows: Rows = {}
    for data in every:
        for run, candidates in history(runs, "ablation", data):
            for engine in LEVELS:
                seconds = {
                    n.partition(" / ")[2]: times(candidates[n]).median
                    for n in candidates
                    if n.startswith(f"{engine} / ")
                }
                for what, steps in OPTIMISATIONS.items():
                    for key, step in zip(("alone", "last"), steps, strict=True):
                        if step and all(level in seconds for level in step):
                            label = f"{what}: {run.label(engine)}"
                            row = rows.setdefault(label, {"what": what, "engine": run.label(engine)})
                            row[f"{data}_{key}"] = seconds[step[1]] / seconds[step[0]]
    return rows


def _sweep(runs: Sequence[StudyRun], sweep: str, every: Sequence[str]) -> Rows:
    rows: Rows = {}
    for data, run, candidates, name in _each(runs, sweep, every):
        epochs = candidates[name]
        first = next(n for n in candidates if library(n) in (library(name), BASE))
        _put(rows, run.label(name), data, {
            "epoch_s": times(epochs), "speedup": times(candidates[first]).median / times(epochs).median,
            "test_s": times(epochs, "test_time_s").median, "loss": epochs[-1]["loss"],
            "accuracy": 100 * epochs[-1]["test_accuracy"],
        })  # fmt: skip
        rows[run.label(name)] |= {"seen": seen(epochs)}
    return rows


def _blocks(results: Found) -> tuple[list[Panel], float]:
    """Time against the size of a block, and by which share it changes."""
    seconds = {}
    for run, candidates in results:
        for i, engine in enumerate(LEVELS):
            sizes = [b for b in BLOCKS if f"{engine} / block {b}" in candidates]
            if sizes:
                rows = [candidates[f"{engine} / block {b}"] for b in sizes]
                seconds[run.label(engine)] = (sizes, [epoch_of(r).median for r in rows], figures.PALETTE[i])
    change = max(max(ys) / min(ys) - 1 for _, ys, _ in seconds.values())
    draw = partial(
        figures.paths, series=seconds, xlabel="threads of a block", ylabel="time of an epoch", log="x",
        say=lambda s: duration(s) if s else "0", upward=(0.0, 1.1 * max(max(ys) for _, ys, _ in seconds.values())),
    )  # fmt: skip
    return [Panel("", draw)], change
