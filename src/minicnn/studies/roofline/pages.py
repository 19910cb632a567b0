"""Values, verdicts and the rooflines of the page of the study `roofline`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

import numpy as np

from minicnn.measure import Page, Panel, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.figures import quantity
from minicnn.measure.page import Block, Cell, file_name
from minicnn.measure.template import Content
from minicnn.studies.roofline import tables, trained
from minicnn.studies.roofline.ceilings import bandwidth, peaks, way_of
from minicnn.studies.roofline.counting import NETWORKS
from minicnn.studies.roofline.steps import (
    TITLES,
    NetworkStep,
    at_epoch,
    best_of,
    epoch_batch,
    epochs_of,
    largest,
    steps,
    verdict_of,
)
from minicnn.studies.roofline.trained import TEMPLATE
from minicnn.studies.roofline.verdict import NAMES, NONE, TimedKernel, near

Place = tuple[float, float]  # FLOP per byte, FLOP/s
AROUND = ((7, 0), (-7, 0), (0, 5), (0, -5), (5, 3), (5, -3), (-5, 3), (-5, -3))  # points away, where a name may be
# A network's name has the colour of its path: it can lie nearer to another's.
TONES = dict(zip(TITLES.values(), (figures.PALETTE[i] for i in (0, 1, 2, 7)), strict=True))
ACROSS = 24  # letters of a line of the name of a ceiling, where it does not fit on one
HIGH = 12  # rows as high as which a roofline is drawn


def present(page: Page, runs: Sequence[StudyRun]) -> None:
    """The roofline, the claims, steps and epochs of all machines, verdicts, ceilings, counts and memory."""
    every = list(steps(runs))
    places = dict.fromkeys((id(s.run), on_gpu(s.candidate)) for s in reversed(every))
    rooflines = [
        _roofline(gpu, [s for s in every if (id(s.run), on_gpu(s.candidate)) == (key, gpu)]) for key, gpu in places
    ]
    refused: list[Block] = []
    for run in runs:
        for name in NETWORKS:
            reasons = run.results.get(f"training-{name}", {"refused": {}})["refused"]
            refused += page.refused({f"{c} ({name})": why for c, why in reasons.items()})
    counted = {n: counts for n in NETWORKS for run in runs if (counts := run.results.get(f"counts-{n}"))}
    swept, where, leader = trained.sweep(every)
    rated, rate_finding = trained.rates(runs, every)
    accounts, worst = tables.memory(runs)
    diverging, rates = trained.diverging(runs)
    copies, caches = tables.copies(runs)
    values = {
        **_answer(every), **_hypotheses(every), **trained.diverging_values(runs), "swept": where, "worst": worst,
        "leader": leader, "rates_found": rate_finding,
        "caches": caches, "data": trained.data(runs), "some": "" if every else None, "none": None if every else "",
        "counted": next((counts["batches"][1] for counts in counted.values()), None),
    }  # fmt: skip
    content = Content(
        values,
        {"verdicts": _verdicts(every), "machines": trained.machines(every), "steps": trained.steps(every),
         "epochs": trained.epochs(runs), "diverging": diverging, "ways": tables.ways(runs), "copies": copies,
         "launches": tables.launches(runs), "counts": tables.counts(counted), "layers": tables.layers(counted),
         "accounts": accounts},
        {"diverging": rates}, {"rates": rated, "sweep": swept},
        {"first": rooflines[0] if rooflines else [], "others": [b for blocks in rooflines[1:] for b in blocks],
         "refused": refused},
        {"nan": values["nan_holds"], "gpu": (values["gpu_rate"] or 0.0) > (values["cpu_rate"] or 0.0)},
    )  # fmt: skip
    page.extend(TEMPLATE.render(content))


# Under the roofline -------------------------------------------------------------------------------


def _roofline(gpu: bool, steps: Sequence[NetworkStep]) -> list[Block]:
    """The roofline of a place, with the steps of its best candidate; or that it has no ceilings."""
    run, best = steps[0].run, best_of(steps)
    ceilings = run.found("ceilings")
    rates, moved = (peaks(ceilings, gpu), bandwidth(ceilings, gpu)) if ceilings else ({}, None)
    where = (run.gpu or "GPU") if gpu else run.cpu
    values: dict[str, Any] = {"where": where, "file": file_name(where), "best": best, "no_ceilings": "",
                              "reached": None}  # fmt: skip
    panels = {}
    if rates and moved:
        used = way_of(best or "")
        reached = max(s.place[1] for s in steps) / rates[used if used in rates else next(iter(rates))]
        draw = partial(_draw, rates=rates, moved=moved, steps=[s for s in steps if s.candidate == best], used=used)
        panels[f"roofline-{file_name(where)}"] = [Panel("", draw, HIGH)]
        values |= {"no_ceilings": None, "reached": reached}
    return TEMPLATE.render(Content(values, panels=panels), "roofline")


def _draw(axes: Any, rates: Mapping[str, float], moved: float, steps: Sequence[NetworkStep], used: str) -> None:
    blue, grey = figures.FAMILIES[figures.KERNELS], figures.FAMILIES[figures.PUBLISHED]
    points: dict[str, list[Place]] = {}
    for step in steps:
        points.setdefault(TITLES[step.network], []).append(step.place)
    xs = [x for path in points.values() for x, _ in path]
    ys = [y for path in points.values() for _, y in path]
    top = max(rates.values())
    left, right = min(xs) / 5, max([*xs, *(rate / moved for rate in rates.values())]) * 60  # room for names
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min([*ys, moved * left]) / 2, top * 2.5))
    tones = {rate: blue if used in ways else grey for ways, rate in _distinct(rates)}
    for rate, tone in tones.items():
        axes.plot([rate / moved, right], [rate, rate], color=tone, linewidth=figures.LINE)
    axes.plot([left, top / moved], [moved * left, top], color=grey, linewidth=figures.LINE)
    for name, path in points.items():
        axes.plot(*zip(*path, strict=True), color=TONES[name], linewidth=figures.LINE, marker="o", markersize=5)
        for x, y in path:
            words = f"{_rate(y)}, {y / min(moved * x, top):.1%} of the roof over {x:.1f} FLOP per byte"
            figures.answer(axes, f"{name}: {words}", (x, x), (y, y))
    figures.style(axes, "arithmetic intensity (FLOP per byte of the Program)", "rate of a step")
    axes.yaxis.set_major_formatter(lambda y, _: _rate(y))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axes.minorticks_off()
    axes.figure.draw_without_rendering()  # so that it is known where everything is
    for ways, rate in _distinct(rates):
        name = f"{' and '.join(ways)}: {_rate(rate)}"
        texts = name, textwrap.fill(name, ACROSS)
        ground = {"facecolor": figures.PAPER, "edgecolor": "none", "pad": 0.5}  # no line of the grid goes through it
        _name(axes, [(text, (right, rate), (-3, up)) for up, text in product((4, -4), texts)], color=tones[rate],
              bbox=ground)  # fmt: skip
    speed = quantity("GB/s")(moved / 1e9)
    slope = [left ** (1 - share) * (top / moved) ** share for share in (0.75, 0.85, 0.95, 0.65, 0.55)]  # from its foot
    places = [(f"memory:{gap}{speed}", (x, moved * x), (-6, 3)) for gap, x in product(" \n", slope)]
    _name(axes, places, color=grey)
    for name, path in points.items():
        ends = path[-1], path[0], max(path, key=itemgetter(1)), min(path, key=itemgetter(1))
        around = product((1, 2, 3), AROUND, ends)
        _name(axes, [(name, end, (far * away, far * up)) for far, (away, up), end in around],
              color=TONES[name], weight="bold")  # fmt: skip


def _name(axes: Any, places: Sequence[tuple[str, Place, Place]], **style: Any) -> None:
    """Write a name at the first place within the axes that is on no line or text, if there is one.

    Args:
        axes: Where to draw; all lines are drawn, and the layout is known.
        places: What is written, beside which point, and how many points away to the right and upwards.
        style: How it is written.
    """
    boxes = [text.get_window_extent() for text in axes.texts]
    lines = [axes.transData.transform(line.get_xydata()) for line in axes.lines]
    along = np.linspace(0, 1, 100)[:, None]
    inked = np.vstack([*lines, *(a + along * (b - a) for line in lines for a, b in pairwise(line))])
    text = axes.annotate("", (0, 0), (0, 0), textcoords="offset points", **style)
    for words, at, away in places:
        right, up = np.sign(away).astype(int)
        text.set(text=words, ha=("center", "left", "right")[right], va=("center", "bottom", "top")[up])
        text.xy, text.xyann = at, away
        text.set_multialignment(text.get_ha())
        box = text.get_window_extent().padded(2)
        within = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1 - 2, box.y1)
        if within and not box.count_contains(inked) and not box.count_overlaps(boxes):
            return


def _rate(rate: float) -> str:
    return quantity("TFLOP/s")(rate / 1e12) if rate >= 1e12 else quantity("GFLOP/s")(rate / 1e9)


def _distinct(rates: Mapping[str, float]) -> list[tuple[list[str], float]]:
    """Ways of computing whose rates can be told apart in a figure, the slowest first."""
    groups: list[tuple[list[str], float]] = []
    for way, rate in sorted(rates.items(), key=lambda item: item[1]):
        if groups and rate < 1.1 * groups[-1][1]:
            groups[-1] = ([*groups[-1][0], way], rate)
        else:
            groups.append(([way], rate))
    return groups


# What limits a step -------------------------------------------------------------------------------


def _kernels(step: NetworkStep) -> dict[str, float] | None:
    """Shares of a step by what its kernels are near; None where they were not timed, in the batch of the epoch."""
    if step.batch != epoch_batch(step.run, step.network):
        return None
    kept = step.run.results[f"training-{step.network}"].get("kernels", {}).get(step.candidate)
    ceilings, gpu = step.run.found("ceilings"), on_gpu(step.candidate)
    if not kept or not ceilings:
        return None
    kernels = [TimedKernel(k["flops"], k["bytes"], k["seconds"]) for k in kept]
    return near(kernels, step.time.median, peaks(ceilings, gpu)[way_of(step.candidate)], bandwidth(ceilings, gpu))


def _verdicts(every: Sequence[NetworkStep]) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for step in at_epoch(every):
        verdict = verdict_of(step)
        if verdict is None:
            continue
        rates = peaks(step.run.found("ceilings"), on_gpu(step.candidate))
        way = way_of(step.candidate) if way_of(step.candidate) in rates else next(iter(rates))
        intensity, rate = step.place
        row: dict[str, Cell] = {
            "network": TITLES[step.network], "candidate": step.run.label(step.candidate), "batch": step.batch,
            "gflops": rate / 1e9, "intensity": intensity, "way": way, "peak": 100 * rate / rates[way],
            "largest": NAMES[verdict.largest], "share": 100 * verdict.share,
            "bottleneck": NAMES.get(verdict.bottleneck, "none of them"),
        }  # fmt: skip
        rows.append(row | {name: 100 * share for name, share in (_kernels(step) or {}).items()})
    return rows


# Words and claims ---------------------------------------------------------------------------------


def _answer(every: Sequence[NetworkStep]) -> dict[str, Any]:
    """Sentences on the best candidate: its rate, how near it is to its ceilings, and what holds it back."""
    names = ("best", "where", "batch", "rates", "ratios", "slow", "shares", "no_limit", "untimed", "timed", "near",
             "limited", "judged", "limits")  # fmt: skip
    values: dict[str, Any] = dict.fromkeys(names)
    if not every:
        return values
    gpu = any(on_gpu(s.candidate) for s in every)
    there = [s for s in every if on_gpu(s.candidate) == gpu]
    best = best_of(there) or ""
    largest_steps = largest(there, best)
    run = next(iter(largest_steps.values())).run
    values |= {"best": best, "where": run.where(best), "batch": next(iter(largest_steps.values())).batch,
               "rates": ", ".join(f"{TITLES[n]} {s.rate:,.0f}" for n, s in largest_steps.items())}  # fmt: skip
    if rest := [s for s in every if not on_gpu(s.candidate)] if gpu else []:
        slow = largest(rest, best_of(rest) or "")
        cpu = next(iter(slow.values()))
        values["ratios"] = [largest_steps[n].rate / slow[n].rate for n in largest_steps if n in slow]
        values["slow"] = cpu.run.label(cpu.candidate)
    if rates := peaks(run.found("ceilings"), gpu) if run.found("ceilings") else {}:
        peak = rates.get(way_of(best)) or next(iter(rates.values()))
        values["shares"] = [100 * s.place[1] / peak for s in largest_steps.values()]
        verdicts = [v.bottleneck for v in map(verdict_of, largest_steps.values()) if v]
        limits = [v for v in verdicts if v != NONE]
        if limits:
            named = dict.fromkeys(NAMES[v] for v in limits)
            values |= {"limited": len(limits), "judged": len(verdicts), "limits": " or ".join(named)}
        else:
            mine = [s for s in at_epoch(there) if s.run is run and s.candidate == best]
            timed = [(s.batch, shares) for s in mine if (shares := _kernels(s))]
            near_one = [100 * (shares["compute"] + shares["memory"]) for _, shares in timed]
            values |= {"no_limit": "", "timed": [batch for batch, _ in timed], "near": near_one,
                       "untimed": None if timed else ""}  # fmt: skip
    return values


def _hypotheses(every: Sequence[NetworkStep]) -> dict[str, Any]:
    """Values that the claims name: the source left its tables empty."""
    resnets = sorted((s for s in every if s.network == "resnet18"), key=lambda s: s.rate)
    cpu, gpu = (next((s for s in reversed(resnets) if on_gpu(s.candidate) == side), None) for side in (False, True))
    runs = list({id(s.run): s.run for s in every}.values())
    return {
        "cpu_rate": cpu and cpu.rate, "cpu_where": cpu and cpu.run.where(cpu.candidate),
        "gpu_rate": gpu and gpu.rate, "gpu_where": gpu and gpu.run.where(gpu.candidate),
        "top1": [100 * e["top1"] for r in runs for *_, e in epochs_of(r)],
    }  # fmt: skip
