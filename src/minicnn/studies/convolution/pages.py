"""Answer, claims and layers of whole networks of the study `convolution`.

Its strategies are in `strategy_pages`, its part on several ranks in `parallelism`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minicnn.bench import Column, Page, Panel, Run, Spread, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.figures import Mark, family
from minicnn.bench.page import Cell, Claim, span
from minicnn.studies.convolution import lanes, parallelism
from minicnn.studies.convolution.breakdown import PARTS, PHASES
from minicnn.studies.convolution.strategy_pages import BASE, own_winners, strategies, winners
from minicnn.studies.convolution.sweeps import OWN

PUBLISHED_SHARE = 94  # per cent of the time: the most that convolution took
LAYERS = "layers-"  # measurements of whole networks


@dataclass(frozen=True)
class Step:
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

    run: Run
    network: str
    candidate: str
    whole: Spread
    ms: Mapping[str, float]
    shares: Mapping[str, float]
    how: str
    within: tuple[str, ...]


def steps(runs: Sequence[Run]) -> Iterator[Step]:
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
                    yield Step(run, name.removeprefix(LAYERS), candidate, step, ms, shares, how, within)


def present(page: Page, runs: Sequence[Run]) -> None:
    """Steps of whole networks, the claims, what their layers take, and the strategies."""
    every = list(steps(runs))
    page.words(_answer(every, runs))
    marks = [Mark(f"{s.network}, {s.run.label(s.candidate)}", s.whole, family(s.candidate)) for s in every]
    if marks:
        page.figure(
            "steps", "Time of a training step of whole networks",
            [Panel(_title(every), partial(figures.dots, marks=marks), len(marks))],
            f"Medians of steps as they train, without clocks within; lines are quartiles. {_sizes(runs)}",
        )  # fmt: skip
    page.claims([*claims(every, runs), *lanes.claims(runs), parallelism.claim(runs)])
    for run in runs:
        for name, result in run.results.items():
            if name.startswith(LAYERS):
                page.blocks += page.refused(result["refused"])
    _layers(page, runs, every)
    strategies(page, runs)
    lanes.present(page, runs)
    parallelism.present(page, runs)


def _sizes(runs: Sequence[Run]) -> str:
    texts = []
    for run in [run for run in runs if any(name.startswith(LAYERS) for name in run.results)]:
        size, n = run.setting.sizes.network_image, run.setting.sizes.network_batch
        images = f"images of {size}x{size}" if size else "images of the networks' own size"
        texts.append(f"on the machine with {run.gpu or run.cpu} {n} {images}")
    return f"A step has {'; '.join(texts)}: compare rows of one machine."


def _answer(every: Sequence[Step], runs: Sequence[Run]) -> str:
    if not every:
        return "No network could be timed."
    text = f"Of the time of layers convolutions take {_shares(every)}, where up to {PUBLISHED_SHARE} % were published. "
    texts = [
        f"{low[0]:.2f} ({low[1]}) to {high[0]:.2f} ({high[1]}) times as long by `{ours}` on {where}"
        for ours in ("cupy", "numba")
        for where, low, high in _against(every, ours)
    ]
    text += f"A whole step takes {' and '.join(texts)} as by the best of the others there. " if texts else ""
    texts = []
    for run in runs:
        won = [str(row["winner"]).startswith(OWN) for row in winners(run)] if run.found(BASE) else []
        if won:
            texts.append(f"at {sum(won)} of {len(won)} points on {run.gpu or run.cpu}")
    return text + f"A kernel of ours is the fastest way to convolve {', '.join(texts)}." if texts else text


def _shares(every: Sequence[Step]) -> str:
    """Which share of the time of layers convolutions take, on a GPU and on a CPU."""
    texts = []
    for gpu in (True, False):
        own = [s for s in every if on_gpu(s.candidate) == gpu]
        shares = [100 * s.shares["convolution"] for s in own if s.run is own[0].run]
        texts += [f"{span(shares, '{:.0f}')} % on {own[0].run.where(own[0].candidate)}"] if own else []
    return " and ".join(texts)


def _against(every: Sequence[Step], ours: str) -> Iterator[tuple[str, tuple[float, str], tuple[float, str]]]:
    """Where a candidate ran; its step as a multiple of the best of the others', least and largest, with the network."""
    own = [s for s in every if s.candidate == ours]
    ratios = []
    for step in (s for s in own if s.run is own[0].run):
        others = [s for s in every if s.run is step.run and s.network == step.network and s.candidate != ours]
        ratios += [(step.whole.median / min(s.whole.median for s in others), step.network)] if others else []
    if ratios:
        yield own[0].run.where(ours), min(ratios), max(ratios)


def _title(every: Sequence[Step]) -> str:
    """The finding, of the fastest engine that there is."""
    for ours in ("cupy", "numba"):
        for where, (low, first), (high, last) in _against(every, ours):
            return f"A step by {ours} on {where}: {low:.2f} ({first}) to {high:.2f} ({last}) times the others' best"
    return "A training step of whole networks"


def claims(every: Sequence[Step], runs: Sequence[Run]) -> list[Claim]:
    """Each claim of the source, judged."""
    swept = [run for run in sorted(runs, key=lambda r: r.gpu is None) if run.found(BASE)]
    won = own_winners(swept[0]) if swept else []
    judged = [s for s in every if on_gpu(s.candidate)] or every
    shares = [100 * s.shares["convolution"] for s in judged]
    within = ", with gradients of other layers that its kernels compute" if any(s.within for s in judged) else ""
    return [
        Claim("Convolution takes up to 94 % of training time", "layers of AlexNet, VGG, GoogLeNet, OverFeat",
              f"at most {PUBLISHED_SHARE} %", f"{span(shares, '{:.0f}')} % of kernels' time" if shares else None,
              bool(shares) and 85 <= max(shares) <= 100,
              f"of the network in which it takes most{within}; in small batches the dense layers of AlexNet, OverFeat "
              "and VGG weigh more, as their weights are read once a batch"),
        Claim("Which strategy wins depends on kernel size, channels and batch", "comparison of strategies",
              "figures of others",
              f"of ours on {swept[0].gpu or swept[0].cpu}, {'; '.join(won)}" if won else None,
              any(part.count(" at ") > 1 for part in won),
              "FFT gains with the kernel, Winograd with the channels, one product a tap at 1x1; kernels written for "
              "convolution, a library's or ours, are faster than any of them at most points"),
    ]  # fmt: skip


def _layers(page: Page, runs: Sequence[Run], every: Sequence[Step]) -> None:
    page.section("What the layers of whole networks cost")
    page.words(
        f"{_sizes(runs)} 1,000 classes, without dropout, plain SGD, made images, float32; all compute the same loss "
        "from the same weights. Shares are of the time of layers: of nodes one by one on a CPU, of kernels on a GPU. "
        "Where a backend merges nodes into kernels, each kernel's time is divided among its nodes by their operations "
        "and bytes; where it does not tell, each node is compiled and timed by itself, and whole steps take less than "
        "the sum. An activation counts by itself, a bias with its layer."
    )
    columns = [Column("network", "network"), Column("candidate", "candidate"), Column("how", "timed"),
               Column("step_ms", "whole step (ms)", "{:.3g}")]  # fmt: skip
    columns += [Column(f"{phase}_ms", f"{phase} (ms)", "{:.3g}") for phase in PHASES]
    columns += [Column(part, f"{part} (%)", "{:.1f}") for part in PARTS]
    names = {"nodes": "node by node", "merged": "kernels", "apart": "each node apart"}
    rows: list[dict[str, Cell]] = []
    for s in every:
        how = "profiler" if s.candidate.startswith("torch.nn") else names[s.how]
        rows.append({
            "network": s.network, "candidate": s.run.label(s.candidate), "how": how, "step_ms": s.whole.scaled(1e3),
            **{f"{phase}_ms": ms or None for phase, ms in s.ms.items()},
            **{part: 100 * share for part, share in s.shares.items()},
        })  # fmt: skip
    page.table("layers", "Time by kind of layer", columns, rows, "Medians over the iterations. " + _notes(runs, every))
    shown: dict[str, Mapping[str, float]] = {
        f"{s.network}, {s.run.label(s.candidate)}": {p: 100 * v for p, v in s.shares.items()} for s in every
    }
    if shown:
        page.figure(
            "layers", "Shares of the kinds of layers",
            [Panel(f"Convolutions take {_shares(every)}", partial(_draw, shown=shown), len(shown))],
            "Forward, backward and update together; dashed: the most that was published for convolutions.",
        )  # fmt: skip


def _draw(axes: Any, shown: Mapping[str, Mapping[str, float]]) -> None:
    figures.stacked(axes, shown, "share of the time of layers (%)")
    axes.axvline(PUBLISHED_SHARE, color=figures.INK, linewidth=figures.LINE, linestyle="--")


def _notes(runs: Sequence[Run], every: Sequence[Step]) -> str:
    texts = []
    found: dict[tuple[str, str], list[str]] = {}
    for s in every:
        for part in s.within:
            found.setdefault((part, s.run.label(s.candidate)), []).append(s.network)
    texts += [
        f"The gradient of {part} by {label} ({', '.join(networks)}) is computed within the kernels of the "
        "layers before it, and counts as theirs."
        for (part, label), networks in found.items()
    ]
    out = {f"{n.removeprefix(LAYERS)} by {run.label(c)}": why for run in runs for n, r in run.results.items()
           if n.startswith(LAYERS) for c, why in r["out"].items()}  # fmt: skip
    return " ".join([*texts, *(f"{name} was not timed: {why}." for name, why in out.items())])
