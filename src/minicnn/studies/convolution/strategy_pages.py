"""Strategies of the page of the study `convolution` over kernels, channels, images and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minicnn.measure import Page, Spread, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.page import Block, Cell, file_name
from minicnn.measure.template import Content, PageTemplate
from minicnn.ops.strategies import DIRECTIONS, STRATEGIES, Problem
from minicnn.studies.convolution.sweeps import CHANNELS_FIRST, OWN, VENDOR, useful_flops

TEMPLATE = PageTemplate(Path(__file__).with_name("page.md"))
# For each sweep what varies, from a problem as stored.
SWEEPS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "kernel size": lambda p: int(p["kernel"][0]),
    "channels": lambda p: int(p["channels"]),
    "image size": lambda p: int(p["image"][0]),
    "batch size": lambda p: int(p["batch"]),
}
UNITS = {
    "kernel size": "kernel height and width (pixels)", "channels": "channels and filters",
    "image size": "image height and width (pixels)", "batch size": "images in a batch",
}  # fmt: skip
KEYS = {"forward": "forward", "input gradient": "input", "weight gradient": "weight"}

BASE = "strategies-base"  # the measurement of the point that all sweeps go through
OURS = tuple(name for name in STRATEGIES if name != VENDOR)

Point = Mapping[str, Any]
Entry = tuple[str, str]  # strategy, backend


def entries(point: Point, direction: str) -> Iterator[tuple[Entry, Spread]]:
    """Milliseconds of each strategy that was timed at a point in one direction."""
    for backend, candidate in point["candidates"].items():
        for way, times in candidate["times"].items():
            if times.get(direction):
                yield (way, backend), Spread.of(times[direction], 1e3)


def in_words(problem: Mapping[str, Any]) -> str:
    """A problem in words."""
    n, (h, w), c, f, (kh, kw) = (problem[k] for k in ("batch", "image", "channels", "filters", "kernel"))
    return f"{n} images of {h}x{w}, {c} channels to {f} filters, kernel {kh}x{kw}, stride 1, same size"


def flops_of(point: Point) -> int:
    """Useful FLOPs of a point, in every direction."""
    return useful_flops(Problem(**point["problem"]))


# Strategies ---------------------------------------------------------------------------------------


def swept(run: StudyRun) -> list[str]:
    """The sweeps that were measured."""
    return [name for name in SWEEPS if f"strategies-{name}" in run.results]


def points_of(run: StudyRun, name: str) -> list[Point]:
    """The points of a sweep in order; the one that all sweeps go through is measured once for all of them."""
    varied, (base,) = SWEEPS[name], run.found(BASE)["points"]
    points: list[Point] = run.results[f"strategies-{name}"]["points"]
    if all(varied(p["problem"]) != varied(base["problem"]) for p in points):
        here = points[0]["candidates"] if points else base["candidates"]
        points = [*points, {**base, "candidates": {k: v for k, v in base["candidates"].items() if k in here}}]
    return sorted(points, key=lambda point: varied(point["problem"]))


def strategies(page: Page, runs: Sequence[StudyRun]) -> tuple[list[Block], dict[str, list[dict[str, Cell]]]]:
    """Sweeps of each machine, and rows of the winners and of all strategies at all points."""
    blocks: list[Block] = []
    rows: dict[str, list[dict[str, Cell]]] = {"winners": [], "points": []}
    for run in runs:
        there = [name for name in (BASE, *(f"strategies-{name}" for name in SWEEPS)) if name in run.results]
        if not there or run.found(BASE) is None:
            continue
        backend = _arrays(run)
        where, base = run.where(backend), run.found(BASE)["points"][0]
        lines = {("", UNITS[name]): _lines(run, name, backend) for name in swept(run)}
        sweeps = figures.multiples(lines, "forward pass", log="xy", say=_milliseconds) if lines else []
        values = {
            "leader": f"{where}: {figures.leader(lines.values())}" if lines else None,
            "where": where, "file": file_name(where), "backend": backend, "problem": in_words(base["problem"]),
            "won": "; ".join(own_winners(run)) or None, **_leads(run), **_memory(base),
        }  # fmt: skip
        refused: list[Block] = []
        for at in [at for of in there for at in run.results[of]["points"]]:
            for name, candidate in at["candidates"].items():
                reasons = {f"{way} on {name}": text for way, text in candidate["refused"].items()}
                refused += page.refused(reasons, where=f"for {in_words(at['problem'])}")
        content = Content(values, panels={f"strategies-{file_name(where)}": sweeps}, blocks={"refused": refused})
        blocks += TEMPLATE.render(content, "strategies")
        rows["winners"] += winners(run)
        rows["points"] += [row for name in swept(run) for row in _points(run, name)]
    return blocks, rows


def _milliseconds(ms: float) -> str:
    return figures.duration(ms / 1e3)


def _arrays(run: StudyRun) -> str:
    """The backend on whose arrays our strategies are shown: the first on a GPU, or the first."""
    shown = [b for b, candidate in run.found(BASE)["points"][0]["candidates"].items()
             if any(way in candidate["times"] for way in OURS)]  # fmt: skip
    return next((b for b in shown if on_gpu(b)), shown[0])


def _lines(run: StudyRun, name: str, backend: str) -> figures.Series:
    """Milliseconds of the forward pass over a sweep: strategies, the fastest of the vendors' own, and our kernels."""
    varied = SWEEPS[name]
    series: dict[str, tuple[list[float], list[float], str]] = {}

    def add(label: str, x: float, ms: float, tone: str) -> None:
        xs, ys, _ = series.setdefault(label, ([], [], tone))
        if xs and xs[-1] == x:
            ys[-1] = min(ys[-1], ms)
        else:
            xs.append(x)
            ys.append(ms)

    order = [way for way in STRATEGIES if way in OURS]
    for point in points_of(run, name):
        for (way, of), spread in entries(point, "forward"):
            x = varied(point["problem"])
            if way in OURS and of == backend:
                add(way, x, spread.median, figures.PALETTE[order.index(way) % len(figures.PALETTE)])
            elif way in (VENDOR, CHANNELS_FIRST):  # grey and black: the strategies have a red and a blue
                add("library's own", x, spread.median, figures.PALETTE[-1])
            elif way == OWN:
                add(f"kernel, {of}", x, spread.median, figures.INK)
    return series


def _points(run: StudyRun, name: str) -> list[dict[str, Cell]]:
    """Rows of all strategies at the points of a sweep."""
    rows: list[dict[str, Cell]] = []
    for point in points_of(run, name):
        for backend, candidate in point["candidates"].items():
            for way, times in candidate["times"].items():
                row: dict[str, Cell] = {
                    "sweep": name, "at": SWEEPS[name](point["problem"]), "strategy": way, "backend": run.label(backend),
                    "layout": candidate["layouts"][way],
                }  # fmt: skip
                for d, key in KEYS.items():
                    nbytes = candidate["measured"].get(way, {}).get(d, candidate["workspace"].get(way, {}).get(d))
                    spread = Spread.of(times[d], 1e3)
                    row |= {
                        f"{key}_ms": spread, f"{key}_gflops": flops_of(point) / spread.median / 1e6,
                        f"{key}_mb": None if nbytes is None else nbytes / 1e6,
                        f"{key}_error": candidate["errors"][way][d],
                    }  # fmt: skip
                rows.append(row)
    return rows


def winners(run: StudyRun) -> list[dict[str, Cell]]:
    """Rows of the fastest and the second at each point and in each direction."""
    rows: list[dict[str, Cell]] = []
    backend = _arrays(run)
    for name in swept(run):
        for point in points_of(run, name):
            for d in DIRECTIONS:
                order = sorted(entries(point, d), key=lambda item: item[1].median)
                if not order:
                    continue
                (first, spread), (second, behind) = order[0], order[1] if len(order) > 1 else order[0]
                ours = next((way for (way, of), _ in order if of == backend and way in OURS), None)
                rows.append({
                    "sweep": name, "at": SWEEPS[name](point["problem"]), "direction": d,
                    "winner": f"{first[0]}, {run.label(first[1])}", "ms": spread,
                    "gflops": flops_of(point) / spread.median / 1e6, "second": f"{second[0]}, {run.label(second[1])}",
                    "lead": behind.median / spread.median, "own": ours,
                })  # fmt: skip
    return rows


def _memory(point: Point) -> dict[str, Any]:
    """Distance of the stated memory from the measured, and that of strategies that call an FFT."""
    off: list[float] = []
    transformed: list[float] = []
    for candidate in point["candidates"].values():
        for way, stated in candidate["workspace"].items():
            for d, nbytes in stated.items():
                seen = candidate["measured"].get(way, {}).get(d)
                if nbytes is not None and seen is not None and seen > 1e5:
                    (transformed if way == "fft" else off).append(abs(nbytes - seen) / seen)
    return {"off": max(off, default=None), "offs": len(off), "no_memory": None if off else "",
            "fft": max(transformed, default=None)}  # fmt: skip


def own_winners(run: StudyRun) -> list[str]:
    """For each sweep where which of our own strategies is the fastest forward, on the arrays that are shown."""
    backend, parts = _arrays(run), []
    for name in swept(run):
        wins: dict[str, list[int]] = {}
        for point in points_of(run, name):
            ours = {way: s.median for (way, of), s in entries(point, "forward") if of == backend and way in OURS}
            if ours:
                way = min(ours, key=lambda name: ours[name])
                wins.setdefault(way, []).append(SWEEPS[name](point["problem"]))
        if wins:
            parts.append(f"{name}: " + ", ".join(f"{way} at {', '.join(map(str, at))}" for way, at in wins.items()))
    return parts


def _leads(run: StudyRun) -> dict[str, Any]:
    """Speed of the libraries' own convolutions, and of our kernels, beside others."""
    vendors: list[float] = []
    kernels: dict[str, list[float]] = {}
    points = {str(p["problem"]): p for name in swept(run) for p in points_of(run, name)}  # one is in all sweeps
    for point in points.values():
        for d in DIRECTIONS:
            best: dict[tuple[str, str], float] = {}  # of each kind on each backend
            for (way, backend), spread in entries(point, d):
                at = ("vendor" if way in (VENDOR, CHANNELS_FIRST) else "kernel" if way == OWN else "ours", backend)
                best[at] = min(spread.median, best.get(at, spread.median))
            libraries = [ms for (kind, _), ms in best.items() if kind == "vendor"]
            for (kind, backend), ms in best.items():
                if kind == "vendor" and ("ours", backend) in best:
                    vendors.append(best["ours", backend] / ms)
                elif kind == "kernel" and libraries:
                    kernels.setdefault(backend, []).append(min(libraries) / ms)
    leads = [TEMPLATE.words("kernel", {"ratio": _of_all(v), "backend": b}) for b, v in kernels.items()]
    return {"vendors": _of_all(vendors) if vendors else None, "kernels": " ".join(leads) or None}


def _of_all(ratios: Sequence[float]) -> str:
    low, median, high = min(ratios), Spread.of(ratios).median, max(ratios)
    return f"{median:.0%} (median of {len(ratios)} comparisons; {low:.0%} to {high:.0%})"
