"""Values, verdicts and layers of whole networks of the page of the study `convolution`.

Its strategies are in `strategy_pages`, its part on several ranks in `parallelism`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minicnn.measure import Page, Panel, Spread, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.figures import Mark, family
from minicnn.measure.page import Block, Cell, span
from minicnn.measure.template import Content
from minicnn.ops.strategies import STRATEGIES
from minicnn.studies.convolution import lanes, parallelism, strategy_pages
from minicnn.studies.convolution.breakdown import PARTS, PHASES
from minicnn.studies.convolution.strategy_pages import BASE, TEMPLATE, own_winners, winners
from minicnn.studies.convolution.sweeps import OWN

PUBLISHED_SHARE = 94  # per cent of the time: the most that convolution took
LAYERS = "layers-"  # measurements of whole networks
HOW = {"nodes": "node by node", "merged": "kernels", "apart": "each node apart"}


@dataclass(frozen=True)
class StepByLayers:
    """A training step of a network on a candidate.

    Attributes:
        run: On which machine.
        network: Name of the network.
        candidate: Name of the candidate.
        whole: Seconds of a whole step, as it trains.
        ms: Milliseconds of each phase, summed over its parts.
        shares: Share of each part of all phases' time.
        how: What was timed: "nodes", "merged" or "apart".
        within: Parts whose gradients merged kernels compute where they read them, so that other parts have their time.
    """

    run: StudyRun
    network: str
    candidate: str
    whole: Spread
    ms: Mapping[str, float]
    shares: Mapping[str, float]
    how: str
    within: tuple[str, ...]


def steps(runs: Sequence[StudyRun]) -> Iterator[StepByLayers]:
    """All steps that were timed."""
    for run in runs:
        for name, result in run.results.items():
            if name.startswith(LAYERS):
                for candidate, seconds in result["seconds"].items():
                    how = next((h for h in ("merged", "apart") if candidate in result[h]), "nodes")
                    medians = {phase: {p: Spread.of(seconds[phase][p], 1e3).median for p in PARTS} for phase in PHASES}
                    ms = {phase: sum(parts.values()) for phase, parts in medians.items()}
                    whole = sum(ms.values()) or 1.0
                    shares = {p: sum(parts[p] for parts in medians.values()) / whole for p in PARTS}
                    lost = [p for p in PARTS if medians["forward"][p] and not medians["backward"][p]]
                    within = tuple(lost) if how == "merged" else ()
                    step = Spread.of(result["steps"][candidate])
                    yield StepByLayers(run, name.removeprefix(LAYERS), candidate, step, ms, shares, how, within)


def present(page: Page, runs: Sequence[StudyRun]) -> None:
    """Steps of whole networks, the claims, what their layers take, the strategies, cores, lanes, and parallelism."""
    every = list(steps(runs))
    results = [(run, name, result) for run in runs for name, result in run.results.items() if name.startswith(LAYERS)]
    refused: list[Block] = [words for *_, result in results for words in page.refused(result["refused"])]
    values = _values(every, runs) | lanes.values(runs) | parallelism.values(runs)
    strategies, strategy_rows = strategy_pages.strategies(page, runs)
    lane_rows, lane_panels = lanes.around(runs)
    panels, values["finding"] = _steps(every)
    content = Content(
        values,
        {"layers": _layers(every), **strategy_rows, "cores": lanes.cores_rows(runs), "lanes": lane_rows,
         **parallelism.rows(runs)},
        {"layers": PARTS},
        {"steps": panels, "layers": _shares_panel(every), "lanes": lane_panels,
         "parallelism": parallelism.panels(runs)},
        {"refused": refused, "strategies": strategies},
        {"share": 85 <= max(values["judged_shares"], default=0.0) <= 100,
         "strategies": " at " in (values["won"] or "") and values["several"], **lanes.verdicts(runs)},
    )  # fmt: skip
    page.extend(TEMPLATE.render(content))


def _values(every: Sequence[StepByLayers], runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Values that the words and the claims name."""
    swept = [run for run in sorted(runs, key=lambda r: r.gpu is None) if run.found(BASE)]
    won = own_winners(swept[0]) if swept else []
    judged = [s for s in every if on_gpu(s.candidate)] or every
    texts = [
        f"{low[0]:.2f} ({low[1]}) to {high[0]:.2f} ({high[1]}) times as long by `{ours}` on {where}"
        for ours in ("cupy", "numba")
        for where, low, high in _against(every, ours)
    ]
    wins = []
    for run in runs:
        winning = [str(row["winner"]).startswith(OWN) for row in winners(run)] if run.found(BASE) else []
        wins += [f"at {sum(winning)} of {len(winning)} points on {run.gpu or run.cpu}"] if winning else []
    return {
        "none": None if every else "", "shares": _shares(every) or None, "against": " and ".join(texts) or None,
        "wins": wins, "sizes": _sizes(runs), "notes": _notes(runs, every),
        "judged_shares": [100 * s.shares["convolution"] for s in judged],
        "within": ", with gradients of other layers that its kernels compute" if any(s.within for s in judged) else "",
        "swept": swept[0].gpu or swept[0].cpu if swept else None, "won": "; ".join(won) or None,
        "several": any(part.count(" at ") > 1 for part in won),
        "strategies": "; ".join(f"{s.name}: {s.title}" for s in STRATEGIES.values()),
    }  # fmt: skip


def _sizes(runs: Sequence[StudyRun]) -> str | None:
    texts = []
    for run in [run for run in runs if any(name.startswith(LAYERS) for name in run.results)]:
        size, n = run.setting.sizes.network_image, run.setting.sizes.network_batch
        images = f"images of {size}x{size}" if size else "images of the networks' own size"
        texts.append(f"on the machine with {run.gpu or run.cpu} {n} {images}")
    return "; ".join(texts) or None


def _shares(every: Sequence[StepByLayers]) -> str:
    """Share of convolutions in the time of layers, on a GPU and on a CPU."""
    texts = []
    for gpu in (True, False):
        mine = [s for s in every if on_gpu(s.candidate) == gpu]
        shares = [100 * s.shares["convolution"] for s in mine if s.run is mine[0].run]
        texts += [f"{span(shares, '{:.0f}')} % on {mine[0].run.where(mine[0].candidate)}"] if mine else []
    return " and ".join(texts)


def _against(every: Sequence[StepByLayers], ours: str) -> Iterator[tuple[str, tuple[float, str], tuple[float, str]]]:
    """Machines on which a candidate ran; its step by the best of the others', least and largest, with the network."""
    mine = [s for s in every if s.candidate == ours]
    ratios = []
    for step in (s for s in mine if s.run is mine[0].run):
        others = [s for s in every if s.run is step.run and s.network == step.network and s.candidate != ours]
        ratios += [(step.whole.median / min(s.whole.median for s in others), step.network)] if others else []
    if ratios:
        yield mine[0].run.where(ours), min(ratios), max(ratios)


def _steps(every: Sequence[StepByLayers]) -> tuple[list[Panel], str]:
    """Whole steps, and the finding: that of the fastest engine that there is."""
    marks = [
        Mark(f"{s.network}, {s.run.name(s.candidate)}", s.whole, family(s.candidate), s.run.where(s.candidate))
        for s in every
    ]
    leads = ((ours, *lead) for ours in ("cupy", "numba") for lead in _against(every, ours))
    ours, where, (low, first), (high, last) = next(leads, (None, None, (None, None), (None, None)))
    finding = {"ours": ours, "where": where, "low": low, "low_network": first, "high": high, "high_network": last}
    return figures.grouped(marks, "time of a training step") if marks else [], TEMPLATE.words("finding", finding)


def _layers(every: Sequence[StepByLayers]) -> list[dict[str, Cell]]:
    return [
        {
            "network": s.network, "candidate": s.run.label(s.candidate), "step_ms": s.whole.scaled(1e3),
            "how": "profiler" if s.candidate.startswith("torch.nn") else HOW[s.how],
            **{f"{phase}_ms": ms or None for phase, ms in s.ms.items()},
            **{part: 100 * share for part, share in s.shares.items()},
        }
        for s in every
    ]  # fmt: skip


def _shares_panel(every: Sequence[StepByLayers]) -> list[Panel]:
    """A panel for each machine; where it has many steps, without those of libraries that only lend their arrays."""
    panels = []
    for where in dict.fromkeys(s.run.where(s.candidate) for s in every):
        there = [s for s in every if s.run.where(s.candidate) == where]
        if len(there) > figures.ROWS:
            there = [s for s in there if family(s.candidate) != figures.ARRAYS]
        shown = {f"{s.network}, {s.run.name(s.candidate)}": {p: 100 * v for p, v in s.shares.items()} for s in there}
        panels.append(Panel(where, partial(_draw, shown=shown), len(shown)))
    return panels


def _draw(axes: Any, shown: Mapping[str, Mapping[str, float]]) -> None:
    figures.stacked(axes, shown, "share of the time of layers (%)")
    axes.axvline(PUBLISHED_SHARE, color=figures.INK, linewidth=figures.LINE, linestyle="--")


def _notes(runs: Sequence[StudyRun], every: Sequence[StepByLayers]) -> str | None:
    texts = []
    notes: dict[tuple[str, str], list[str]] = {}
    for s in every:
        for part in s.within:
            notes.setdefault((part, s.run.label(s.candidate)), []).append(s.network)
    texts += [
        f"The gradient of {part} by {label} ({', '.join(networks)}) is computed within the kernels of the "
        "layers before it, and counts as theirs."
        for (part, label), networks in notes.items()
    ]
    out = {f"{n.removeprefix(LAYERS)} by {run.label(c)}": why for run in runs for n, r in run.results.items()
           if n.startswith(LAYERS) for c, why in r["out"].items()}  # fmt: skip
    return " ".join([*texts, *(f"{name} was not timed: {why}." for name, why in out.items())]) or None
