"""Values and verdicts of the page of the study `kernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicnn.measure import Page, StudyRun
from minicnn.measure.page import Block
from minicnn.measure.template import Content
from minicnn.studies.kernels import tables
from minicnn.studies.kernels.tables import ALL, EPOCH, MEASURED, TEMPLATE, history, library, pick
from minicnn.studies.platforms.pages import times

SAME = 0.03  # a change of less is none


def present(page: Page, runs: Sequence[StudyRun]) -> None:
    """One figure of all machines, the claims, then trainings, ablation, block sizes and loaders on each data set."""
    every = runs[0].setting.data
    refused: list[Block] = [
        words for run in runs for result in run.results.values() for words in page.refused(result["out"])
    ]
    shown = [d for d in every if any(f"{what}-{d}" in r.results for what in MEASURED for r in runs)]
    panels, values = tables.panels(runs, every[0], shown)
    values |= _values(runs, every[0])
    rows = tables.rows(runs, shown)
    content = Content(values, rows, dict.fromkeys(rows, shown), panels, {"refused": refused}, _verdicts(values))
    page.extend(TEMPLATE.render(content))


def _values(runs: Sequence[StudyRun], data: str) -> dict[str, Any]:
    """Values that the words and the claims name, of the first data set."""
    seconds = pick(runs, "ablation", data, lambda name: name.startswith("cupy / "))
    naive = seconds.get("cupy / naive")
    gains = {name.partition(" / ")[2]: naive / s for name, s in seconds.items()} if naive else {}
    alone = gains.get("graph alone", 1.0)
    training = pick(runs, "training", data, lambda _: True)
    first = min(training, key=lambda n: training[n], default=None)
    cupy, torch = training.get("cupy"), training.get("torch.nn:cuda")
    beside = torch if cupy else None
    histories = history(runs, "training", data)
    tested = [times(rows, "test_time_s").median for _, h in histories for rows in h.values()]
    last = {
        place: [100 * rows[-1]["test_accuracy"] for run, h in history(runs, "training", place) for rows in h.values()
                if not run.setting.quick or len(runs) == 1]
        for place in ("mnist", "fashion_mnist")
    }  # fmt: skip
    return {
        "data": data, "epoch": EPOCH, "gain": gains.get(ALL), "tiling": gains.get("tiling alone"),
        "fusion": gains.get("fusion alone"), "with_gains": "" if gains else None,
        "graph": f"{alone:.2f} times" if abs(alone - 1) > SAME else "brings nothing",
        "first": first, "first_s": training[first] if first else None,
        "peer": min((s for n, s in training.items() if n.startswith("torch.nn:")), default=None),
        "cupy": cupy, "torch": beside, "naive": naive, "torch_beside": beside, **last,
        "test_least": min(tested, default=None), "test_most": max(tested, default=None),
        "losses": [rows[-1]["loss"] for _, h in history(runs, "blocks", data) for rows in h.values()],
        "loading": _loading(runs, data),
    }  # fmt: skip


def _verdicts(values: Mapping[str, Any]) -> dict[str, bool]:
    """Verdicts on claims by our figures; the published testing and loading cannot be compared."""
    naive, torch = values["naive"], values["torch_beside"]
    refuted = dict.fromkeys(("optimised", "own", "mnist", "fashion_mnist", "blocks"), False)
    return {**refuted, "naive": bool(naive and torch and naive >= torch)}


def _loading(runs: Sequence[StudyRun], data: str) -> str | None:
    """The fastest loader of each library as a multiple of data in memory, where whole epochs were timed."""
    texts = []
    for run, rows in history(runs, "loaders", data):
        if run.setting.sizes.loader_samples:
            continue
        for name in rows:
            base, _, how = name.partition(" / ")
            others = [n for n in rows if library(n) == base and n != name]
            if how == "in memory" and others:
                best = min(others, key=lambda n: times(rows[n]).median)
                ratio = times(rows[best]).median / times(rows[name]).median
                texts.append(f"{run.label(base)}: {best.partition(' / ')[2]} best, {ratio:.2f} times data in memory")
    return "; ".join(texts) or None
