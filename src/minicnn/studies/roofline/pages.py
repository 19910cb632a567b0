"""Answer, claims, figures and verdicts of the study `roofline`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

import numpy as np

from minicnn.bench import Column, Page, Panel, Run, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.figures import quantity
from minicnn.bench.page import Cell, Claim, file_name, span
from minicnn.studies.roofline import tables, trained
from minicnn.studies.roofline.ceilings import bandwidth, peaks, way_of
from minicnn.studies.roofline.counting import NETWORKS
from minicnn.studies.roofline.steps import (
    TITLES,
    Step,
    at_epoch,
    best_of,
    epoch_batch,
    epochs_of,
    largest,
    steps,
    verdict_of,
)
from minicnn.studies.roofline.verdict import NAMES, NONE, Kernel, near

Place = tuple[float, float]  # FLOP per byte, FLOP/s
AROUND = ((7, 0), (-7, 0), (0, 11), (0, -11), (5, 9), (5, -9), (-5, 9), (-5, -9))  # points away, where a name may be
HIGH = 12  # rows as high as which a roofline is drawn


def present(page: Page, runs: Sequence[Run]) -> None:
    """The roofline, the claims, steps and epochs of all machines, verdicts, ceilings, counts and memory."""
    every = list(steps(runs))
    places = list(dict.fromkeys((id(s.run), on_gpu(s.candidate)) for s in reversed(every)))
    page.words(_answer(every))
    for i, (key, gpu) in enumerate(places):
        run = next(r for r in runs if id(r) == key)
        own = [s for s in every if s.run is run and on_gpu(s.candidate) == gpu]
        _roofline(page, run, gpu, own)
        if not i:
            page.claims(claims(every))
    if not places:
        page.claims(claims(every))
    for run in runs:
        for name in NETWORKS:
            refused = run.results.get(f"training-{name}", {"refused": {}})["refused"]
            page.blocks += page.refused({f"{c} ({name})": why for c, why in refused.items()})
    _verdicts(page, every)
    trained.present(page, runs, every)
    tables.ceilings(page, runs)
    tables.counts(page, {n: found for n in NETWORKS for run in runs if (found := run.results.get(f"counts-{n}"))})
    tables.memory(page, runs)


# Under the roofline -------------------------------------------------------------------------------


def _roofline(page: Page, run: Run, gpu: bool, own: Sequence[Step]) -> None:
    found, best = run.found("ceilings"), best_of(own)
    rates, moved = (peaks(found, gpu), bandwidth(found, gpu)) if found else ({}, None)
    where = (run.gpu or "GPU") if gpu else run.cpu
    if not rates or not moved or best is None:
        page.words(f"On {where} no candidate that trained has ceilings: NumPy, PyTorch, JAX or CuPy measure them.")
        return
    used = way_of(best)
    reached = max(s.place[1] for s in own) / rates[used if used in rates else next(iter(rates))]
    page.figure(
        f"roofline-{file_name(where)}", f"Under the roofline of {where}",
        [Panel(f"{where}: the networks reach up to {reached:.0%} of the products' rate",
               partial(_draw, rates=rates, moved=moved, own=[s for s in own if s.candidate == best], used=used), HIGH)],
        f"Training steps by `{best}`, 64x64 images, float32; lines are batch sizes from the smallest. FLOPs and bytes "
        "are the Program's, each operation by itself, so merged operations can lie above the slope. Ceilings are "
        "measured; the blue one is the way in which the candidate computes.",
    )  # fmt: skip


def _draw(axes: Any, rates: Mapping[str, float], moved: float, own: Sequence[Step], used: str) -> None:
    blue, grey = figures.FAMILIES[figures.KERNELS], figures.FAMILIES[figures.PUBLISHED]
    points: dict[str, list[Place]] = {}
    for step in own:
        points.setdefault(TITLES[step.network], []).append(step.place)
    xs = [x for path in points.values() for x, _ in path]
    ys = [y for path in points.values() for _, y in path]
    top = max(rates.values())
    left, right = min(xs) / 5, max([*xs, *(rate / moved for rate in rates.values())]) * 20  # room for names
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min([*ys, moved * left]) / 2, top * 2.5))
    for ways, rate in _distinct(rates):
        tone = blue if used in ways else grey
        axes.plot([rate / moved, right], [rate, rate], color=tone, linewidth=figures.LINE)
        axes.annotate(f"{' and '.join(ways)}: {_rate(rate)}", (right, rate), (-3, 3), ha="right", color=tone,
                      textcoords="offset points", size=8)  # fmt: skip
    axes.plot([left, top / moved], [moved * left, top], color=grey, linewidth=figures.LINE)
    upper = left**0.25 * (top / moved) ** 0.75  # three quarters of the way up the slope
    axes.annotate(f"memory: {quantity('GB/s')(moved / 1e9)}", (upper, moved * upper), (-6, 3), size=8, ha="right",
                  textcoords="offset points", color=grey)  # fmt: skip
    for name, path in points.items():
        axes.plot(*zip(*path, strict=True), color=blue, linewidth=figures.LINE, marker="o", markersize=5)
        for x, y in path:
            words = f"{_rate(y)}, {y / min(moved * x, top):.1%} of the roof over {x:.1f} FLOP per byte"
            figures.answer(axes, f"{name}: {words}", (x, x), (y, y))
    figures.style(axes, "arithmetic intensity (FLOP per byte of the Program)", "")
    axes.yaxis.set_major_formatter(lambda y, _: _rate(y))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axes.minorticks_off()
    _name(axes, points)


def _name(axes: Any, paths: Mapping[str, Sequence[Place]]) -> None:
    """Write each name at an end of its path, at the first place that is on no line or text, if there is one."""
    axes.figure.draw_without_rendering()  # so that it is known where everything is
    boxes = [text.get_window_extent() for text in axes.texts]
    lines = [axes.transData.transform(line.get_xydata()) for line in axes.lines]
    along = np.linspace(0, 1, 100)[:, None]
    inked = np.vstack([*lines, *(a + along * (b - a) for line in lines for a, b in pairwise(line))])
    for name, path in paths.items():
        ends = path[-1], path[0], max(path, key=itemgetter(1)), min(path, key=itemgetter(1))
        text = axes.annotate(name, path[-1], (0, 0), textcoords="offset points", va="center", weight="bold")
        for far, (right, up), at in product((1, 2), AROUND, ends):
            text.xy, text.xyann = at, (far * right, far * up)
            text.set_horizontalalignment(("center", "left", "right")[int(np.sign(right))])
            box = text.get_window_extent().padded(2)
            if not box.count_contains(inked) and not box.count_overlaps(boxes):
                break
        boxes.append(box)


def _rate(rate: float) -> str:
    return quantity("TFLOP/s")(rate / 1e12) if rate >= 1e12 else quantity("GFLOP/s")(rate / 1e9)


def _distinct(rates: Mapping[str, float]) -> list[tuple[list[str], float]]:
    """Ways of computing whose rates can be told apart in a figure, the slowest first."""
    found: list[tuple[list[str], float]] = []
    for way, rate in sorted(rates.items(), key=lambda item: item[1]):
        if found and rate < 1.1 * found[-1][1]:
            found[-1] = ([*found[-1][0], way], rate)
        else:
            found.append(([way], rate))
    return found


# What limits a step -------------------------------------------------------------------------------


def _kernels(step: Step) -> dict[str, float] | None:
    """Shares of a step by what its kernels are near; None where they were not timed, in the batch of the epoch."""
    if step.batch != epoch_batch(step.run, step.network):
        return None
    kept = step.run.results[f"training-{step.network}"].get("kernels", {}).get(step.candidate)
    found, gpu = step.run.found("ceilings"), on_gpu(step.candidate)
    if not kept or not found:
        return None
    kernels = [Kernel(k["flops"], k["bytes"], k["seconds"]) for k in kept]
    return near(kernels, step.time.median, peaks(found, gpu)[way_of(step.candidate)], bandwidth(found, gpu))


def _verdicts(page: Page, every: Sequence[Step]) -> None:
    page.section("What holds each network back")
    page.words(
        "For each step the time is taken that its operations would need at the ceilings of the way in which the "
        "candidate computes: those above the ridge at the rate of products, those below it at the bandwidth, launches "
        "at the cost of one on next to nothing, and the input as measured. Something holds a step back if it is at "
        "least half of its time; else nothing does, and what is missing is lost within the kernels. Where kernels' own "
        "times were taken, the last columns say which share of a step is within half of a ceiling."
    )
    columns = [
        Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch", "{:d}"),
        Column("gflops", "GFLOP/s", "{:,.0f}"), Column("intensity", "FLOP per byte", "{:.1f}"),
        Column("way", "ceiling"),
        Column("peak", "of it (%)", "{:.1f}"), Column("largest", "largest floor"),
        Column("share", "its share of the time (%)", "{:.0f}"), Column("bottleneck", "held back by"),
        Column("compute", "kernels near compute (%)", "{:.0f}"), Column("memory", "near memory (%)", "{:.0f}"),
        Column(NONE, "near none (%)", "{:.0f}"), Column("between", "between kernels (%)", "{:.0f}"),
    ]  # fmt: skip
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
    note = (
        "More than 100 % of the time: merged operations move less than is counted operation by operation, and "
        "Winograd's kernels multiply less than the definition says. Launches captured in a graph overlap."
    )
    page.table("verdicts", "What holds each step back", columns, rows, note)


# Answer and claims --------------------------------------------------------------------------------


def _answer(every: Sequence[Step]) -> str:
    if not every:
        return "No candidate could be measured."
    gpu = any(on_gpu(s.candidate) for s in every)
    own = [s for s in every if on_gpu(s.candidate) == gpu]
    best = best_of(own) or ""
    found = largest(own, best)
    run = next(iter(found.values())).run
    rates = peaks(run.found("ceilings"), gpu) if run.found("ceilings") else {}
    listed = ", ".join(f"{TITLES[n]} {s.rate:,.0f}" for n, s in found.items())
    batch = next(iter(found.values())).batch
    text = f"`{best}` on {run.where(best)} trains, in images of 64x64 per second at batch {batch}, {listed}"
    rest = [s for s in every if not on_gpu(s.candidate)] if gpu else []
    if rest:
        slow = largest(rest, best_of(rest) or "")
        ratios = [found[n].rate / slow[n].rate for n in found if n in slow]
        cpu = next(iter(slow.values()))
        text += f", {span(ratios, '{:.0f}')} times what {cpu.run.label(cpu.candidate)} manage"
    text += ". "
    if rates:
        peak = rates.get(way_of(best)) or next(iter(rates.values()))
        shares = {n: s.place[1] / peak for n, s in found.items()}
        text += (
            f"They reach {span([100 * s for s in shares.values()], '{:.1f}')} % of the rate at which it multiplies "
            "matrices. "
        )
        verdicts = [v.bottleneck for v in map(verdict_of, found.values()) if v]
        named = dict.fromkeys(NAMES[v] for v in verdicts if v != NONE)
        if not named:
            text += f"None of these steps is near a ceiling: {_lost(own, run, best)}."
        else:
            count = sum(v != NONE for v in verdicts)
            text += f"{count} of these {len(verdicts)} steps spend half of their time or more on {' or '.join(named)}."
    return text


def _lost(own: Sequence[Step], run: Run, best: str) -> str:
    """Where the time of the best candidate goes, as far as its kernels were timed."""
    mine = [s for s in at_epoch(own) if s.run is run and s.candidate == best]
    timed = [(s, shares) for s in mine if (shares := _kernels(s))]
    if not timed:
        return "what is missing is lost within kernels, not to one resource"
    near_one = [100 * (shares["compute"] + shares["memory"]) for _, shares in timed]
    return (
        f"in a step of {span([s.batch for s, _ in timed], '{:d}')} images kernels that come within half of one take "
        f"{span(near_one, '{:.0f}')} % of the time"
    )


def claims(every: Sequence[Step]) -> list[Claim]:
    """Each claim of the source, judged: it left its tables empty."""
    runs = list({id(s.run): s.run for s in every}.values())
    own = sorted((s for s in every if s.network == "resnet18"), key=lambda s: s.rate)
    cpu, gpu = (next((s for s in reversed(own) if on_gpu(s.candidate) == side), None) for side in (False, True))
    where = f"{gpu.run.where(gpu.candidate)} and {cpu.run.where(cpu.candidate)} of a CPU; " if cpu and gpu else ""
    tops = [100 * e["top1"] for r in runs for *_, e in epochs_of(r)]
    return [
        Claim("Parameters, FLOPs, times, GFLOP/s, utilisation and memory of four networks", "all tables", "left empty",
              "filled in below" if every else None, None, "nothing was published to compare with"),
        trained.diverging_claim(runs),
        Claim("A GPU trains these networks faster than a CPU", "hypothesis", "left empty",
              f"ResNet-18: {gpu.rate:,.0f} and {cpu.rate:,.0f} images per s" if cpu and gpu else None,
              bool(cpu and gpu and gpu.rate > cpu.rate),
              f"{where}a Tesla T4 and an e2-standard-4 were meant"),
        Claim("Top-1 after an epoch of Tiny-ImageNet", "all tables", "left empty",
              f"{span(tops, '{:.1f}')} % on made images" if tops else None, None,
              "made images: see below why some networks do not get beyond chance in so few steps"),
    ]  # fmt: skip
