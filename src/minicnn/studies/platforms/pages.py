"""Values, tables and figures of the page of the study `platforms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicnn.measure import Page, Panel, Spread, StudyRun, figures
from minicnn.measure.candidates import HYBRID, on_gpu
from minicnn.measure.figures import OWN, Mark, family, quantity
from minicnn.measure.figures import PUBLISHED as HOLLOW
from minicnn.measure.page import Cell
from minicnn.measure.spread import disturbed
from minicnn.measure.template import Content, PageTemplate
from minicnn.studies.platforms.variants import VARIANTS

EPOCH = 60_416  # samples of an epoch of MNIST, with the padding
TEMPLATE = PageTemplate(Path(__file__).with_name("page.md"))


@dataclass(frozen=True)
class Published:
    """A row of what was published, from the study's own CSV files where its report gives means alone.

    Attributes:
        epoch_s: Mean seconds of an epoch, the first included.
        rate: Samples per second, mean.
        mean: Test accuracy (%) as the report has it: the mean of ten epochs, not that after the last.
        last: Test accuracy (%) after the last epoch.
        highest: The highest of the ten.
        process_mb: Memory of the process, at most.
        device_mb: Memory of the device; None where it was not measured.
    """

    epoch_s: float
    rate: float
    mean: float
    last: float
    highest: float
    process_mb: float
    device_mb: float | None = None


PUBLISHED = {
    "Numba CPU, Core Ultra 7": Published(2.093, 30_501, 96.33, 97.42, 97.42, 1366.4),
    "Numba CUDA, RTX 4060": Published(0.927, 71_758, 96.68, 97.56, 97.56, 1157.0),
    "PyTorch CPU, Core Ultra 7": Published(11.27, 5_340, 97.57, 98.50, 98.50, 1704.7),
    "PyTorch CUDA, RTX 4060": Published(8.72, 6_948, 97.21, 98.50, 98.50, 1363.5, 16.9),
    "PyTorch MPS, M4 Pro": Published(9.05, 6_645, 97.31, 98.49, 98.50, 1248.5),
}
# The study's own Numba program, seconds of an epoch measured by itself.
OWN_S = {"the study's Numba, dense layers only, 2 cores": 14.0}

Epochs = Sequence[Mapping[str, Any]]
Found = Sequence[tuple[StudyRun, Mapping[str, Any]]]


def times(rows: Epochs, key: str = "time_s") -> Spread:
    """Median and quartiles over the epochs after the first that were not disturbed."""
    return Spread.after_first([row[key] for row in rows], rate=key == "samples_per_s")


def seen(rows: Epochs) -> int:
    """Samples of an epoch."""
    return round(rows[-1]["samples_per_s"] * rows[-1]["time_s"])


def epoch(rows: Epochs, samples: int = EPOCH) -> Spread:
    """Seconds of as many samples as a whole epoch has."""
    return times(rows).scaled(samples / seen(rows))


def present(page: Page, runs: Sequence[StudyRun]) -> None:
    """All machines beside what was published, the claims, memory, and all epochs, on each data set."""
    for data in runs[0].setting.data:
        results = [(run, run.results[f"training-{data}"]) for run in runs if f"training-{data}" in run.results]
        values = _values(results, runs, data)
        values["finding"] = TEMPLATE.words("finding", values)
        content = Content(
            values, _rows(results, runs, data), panels=_panels(results, data),
            blocks={"refused": page.refused(*(result["out"] for _, result in results))}, holds=_verdicts(values),
        )  # fmt: skip
        page.extend(TEMPLATE.render(content))


def _each(results: Found) -> list[tuple[StudyRun, str, Epochs]]:
    return [(run, name, rows) for run, result in results for name, rows in result["history"].items()]


def _pick(results: Found, name: str, *, gpu: bool | None = None) -> float | None:
    """Median seconds of an epoch of a library, on the machine with a GPU if there is one; None without."""
    for _, candidate, rows in _each(sorted(results, key=lambda pair: pair[0].gpu is None)):
        if candidate.partition(":")[0] == name and gpu in (None, on_gpu(candidate)):
            return epoch(rows).median
    return None


def _values(results: Found, runs: Sequence[StudyRun], data: str) -> dict[str, Any]:
    """Values that the words and the claims name."""
    each = _each(results)
    every = sorted(((epoch(rows).median, run.label(n), n) for run, n, rows in each), key=lambda row: row[0])
    accuracies = [[100 * rows[-1]["test_accuracy"] for rows in result["history"].values()] for _, result in results]
    values: dict[str, Any] = {
        "data": data, "epoch": EPOCH, "some": "" if every else None, "nothing": None if every else "", "mps": None,
        "no_hybrid": "",
        "apart": max((max(those) - min(those) for those in accuracies if len(those) > 1), default=None),
        "best": max((max(those) for those in accuracies if those), default=None),
        "hybrid": next((n for _, _, n in every if HYBRID in n), None),
        "hybrid_s": min((s for s, _, n in every if HYBRID in n and on_gpu(n)), default=None),
        "numba": _pick(results, "numba"), "numba_cuda": _pick(results, "numba_cuda"),
        "cpu": _pick(results, "torch.nn", gpu=False), "gpu": _pick(results, "torch.nn", gpu=True),
        "loader": _pick(results, "torch.nn-loader", gpu=True),
        "loader_cpu": _pick(results, "torch.nn-loader", gpu=False),
        "frozen": max((at for run in runs if (at := _last(run, "frozen", data)) is not None), default=None),
        "process_mb": [max(e["peak_mb"] for e in rows) for *_, rows in each],
        "loader_mb": next((mb for _, n, rows in each if n == "torch.nn-loader:cuda"
                           and (mb := rows[-1]["device_mb"]) is not None), None),
        "means": ", ".join(f"{p.mean:.2f}" for p in PUBLISHED.values()), "gain": None, "disturbed": _disturbed(each),
    }  # fmt: skip
    names = ("fast", "first", "slow", "last", "peer", "loaded", "in_memory")
    values |= dict.fromkeys((*names, "only", "only_s"))
    if values["hybrid_s"]:
        values["no_hybrid"] = None
    if values["cpu"] and values["gpu"]:
        values["gain"] = values["cpu"] / values["gpu"]
    if len(every) == 1:
        values["only_s"], values["only"], _ = every[0]
    elif every:
        (fast, first, name), (slow, last, _) = every[0], every[-1]
        gpu = on_gpu(name)
        peer = next((s for s, _, n in every if n.startswith("torch.nn:") and on_gpu(n) == gpu), None)
        memory, loader = _pick(results, "torch.nn", gpu=gpu), _pick(results, "torch.nn-loader", gpu=gpu)
        values |= dict(zip(names, (fast, first, slow, last, peer, loader, memory), strict=True))
    return values


def _verdicts(values: Mapping[str, Any]) -> dict[str, bool]:
    """Verdicts on claims by our figures."""
    numba, cuda, loader, cpu = (values[name] for name in ("numba", "numba_cuda", "loader", "loader_cpu"))
    peers = [s for s in (numba, values["cpu"], values["gpu"], loader) if s]
    return {
        "fastest": bool(cuda and peers and cuda < min(peers)), "numba": bool(numba and loader and numba < loader),
        "torch": bool(loader and cpu and cpu / loader < 1.3 * 1.5), "needs_cpu": False,
        "accuracy": (values["apart"] or 0.0) > 0.5,
    }  # fmt: skip


def _last(run: StudyRun, name: str, data: str) -> float | None:
    """Test accuracy in % after the last epoch of a variant; None if it was not measured."""
    histories = run.results.get(f"{name}-{data}", {"history": {}})["history"].values()
    return next((100 * rows[-1]["test_accuracy"] for rows in histories), None)


def _disturbed(each: Sequence[tuple[StudyRun, str, Epochs]]) -> str:
    said = ((run.label(name), disturbed([row["time_s"] for row in rows])) for run, name, rows in each)
    return " ".join(f"Of {label} {text}." for label, text in said if text) or "No epoch was disturbed."


# Tables and figures -------------------------------------------------------------------------------


def _rows(results: Found, runs: Sequence[StudyRun], data: str) -> dict[str, list[dict[str, Cell]]]:
    summary: list[dict[str, Cell]] = [
        {**_sums(run, name, rows), "time_s": times(rows), "samples_per_s": times(rows, "samples_per_s"),
         "total_s": sum(e["time_s"] for e in rows), "first_s": rows[0]["time_s"],
         "process_mb": max(e["peak_mb"] for e in rows), "device_mb": rows[-1].get("device_mb")}
        for run, name, rows in _each(results)
    ]  # fmt: skip
    summary += [
        {"candidate": f"published: {name}", "epochs": 10, "seen": EPOCH, "time_s": p.epoch_s, "samples_per_s": p.rate,
         "total_s": 10 * p.epoch_s, "accuracy": p.last, "best": p.highest, "process_mb": p.process_mb,
         "device_mb": p.device_mb}
        for name, p in PUBLISHED.items()
    ]  # fmt: skip
    summary += [
        {"candidate": name, "seen": EPOCH, "time_s": s, "samples_per_s": EPOCH / s} for name, s in OWN_S.items()
    ]
    every: list[dict[str, Cell]] = [
        {**row, "candidate": run.label(name)} for run, name, rows in _each(results) for row in rows
    ]
    return {f"summary-{data}": summary, f"variants-{data}": _variants(runs, data), f"epochs-{data}": every}


def _sums(run: StudyRun, name: str, rows: Epochs) -> dict[str, Cell]:
    """Results of a training."""
    accuracies = [100 * row["test_accuracy"] for row in rows]
    return {"candidate": run.label(name), "epochs": len(rows), "seen": seen(rows), "accuracy": accuracies[-1],
            "best": max(accuracies)}  # fmt: skip


def _variants(runs: Sequence[StudyRun], data: str) -> list[dict[str, Cell]]:
    """The variants beside the training as it is, by the candidate that stands for all."""
    table: list[dict[str, Cell]] = []
    for run in runs:
        histories = {v.title: run.results.get(f"{n}-{data}", {"history": {}})["history"] for n, v in VARIANTS.items()}
        names = {name for history in histories.values() for name in history}
        usual = run.results.get(f"training-{data}", {"history": {}})["history"]
        histories = {"as it is": {n: usual[n] for n in names if n in usual}} | histories
        table += [
            {"variant": title, **_sums(run, name, rows), "loss": rows[-1]["loss"]}
            for title, history in histories.items()
            for name, rows in history.items()
        ]
    return table


def _panels(results: Found, data: str) -> dict[str, list[Panel]]:
    each = _each(results)
    marks = [Mark(run.name(name), epoch(rows), family(name), run.where(name)) for run, name, rows in each]
    for name, seconds in OWN_S.items():
        what, _, where = name.rpartition(", ")
        marks.append(Mark(what, seconds, OWN, where))
    others = "published, on other machines"
    marks += [Mark(name, p.epoch_s, HOLLOW, others) for name, p in PUBLISHED.items()]
    panels = {f"epochs-{data}": figures.grouped(marks, "time of an epoch")}
    if each:
        memory = [
            Mark(run.name(name), max(e["peak_mb"] for e in rows), family(name), run.where(name))
            for run, name, rows in each
        ]
        memory += [Mark(name, p.process_mb, HOLLOW, others) for name, p in PUBLISHED.items()]
        panels[f"memory-{data}"] = figures.grouped(memory, "memory of the process at its peak", quantity("MB"))
    return panels
