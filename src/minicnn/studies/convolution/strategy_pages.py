"""Tables, figures and words of the study `convolution`: strategies over kernels, channels, images and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minicnn.bench import Column, Page, Run, Spread, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.page import Cell, file_name
from minicnn.ops.strategies import DIRECTIONS, STRATEGIES, Problem
from minicnn.studies.convolution.sweeps import CHANNELS_FIRST, OWN, VENDOR, useful_flops

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


def title(entry: Entry) -> str:
    """A strategy on a backend in words."""
    way, backend = entry
    return f"{way} (`{backend}`)"


def entries(point: Point, direction: str) -> Iterator[tuple[Entry, Spread]]:
    """What was timed at a point in one direction, with milliseconds."""
    for backend, found in point["candidates"].items():
        for way, times in found["times"].items():
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


def swept(run: Run) -> list[str]:
    """The sweeps that were measured."""
    return [name for name in SWEEPS if f"strategies-{name}" in run.results]


def points_of(run: Run, name: str) -> list[Point]:
    """The points of a sweep in order; the one that all sweeps go through is measured once for all of them."""
    varied, (base,) = SWEEPS[name], run.found(BASE)["points"]
    points: list[Point] = run.results[f"strategies-{name}"]["points"]
    if all(varied(p["problem"]) != varied(base["problem"]) for p in points):
        here = points[0]["candidates"] if points else base["candidates"]
        points = [*points, {**base, "candidates": {k: v for k, v in base["candidates"].items() if k in here}}]
    return sorted(points, key=lambda point: varied(point["problem"]))


def strategies(page: Page, runs: Sequence[Run]) -> None:
    """Sweeps as figures, winners of all points, and all strategies at all points."""
    page.section("Strategies")
    names = "; ".join(f"{s.name}: {s.title}" for s in STRATEGIES.values())
    page.words(
        f"{names}; {OWN}: the kernel of a backend that has one, with the change of layout before and after. Each "
        "strategy is one definition that runs on the arrays of every backend, in the order of axes that the backend's "
        f"passes give to images; the library's own in that of its row, `{VENDOR}` with channels last. Each is compared "
        "with float64 before it is timed, and all are measured interleaved."
    )
    every: dict[str, list[dict[str, Cell]]] = {"winners": [], "points": []}
    for run in runs:
        there = [name for name in (BASE, *(f"strategies-{name}" for name in SWEEPS)) if name in run.results]
        if not there or run.found(BASE) is None:
            continue
        backend = _arrays(run)
        where = run.where(backend)
        lines = {(UNITS[name], ""): _lines(run, name, backend) for name in swept(run)}
        base = run.found(BASE)["points"][0]
        if lines:
            page.figure(
                f"strategies-{file_name(where)}", f"Strategies on {where}",
                figures.multiples(lines, log="xy", say=lambda ms: figures.duration(ms / 1e3)),
                f"Forward pass on {where}: our strategies on the arrays of `{backend}`, the fastest of the libraries' "
                f"own convolutions, and our kernels. Each sweep goes through {in_words(base['problem'])}.",
            )  # fmt: skip
        page.words(f"On {where}: {_winner_words(run)}")
        page.words(_memory_words(base))
        for at in [at for of in there for at in run.results[of]["points"]]:
            for name, found in at["candidates"].items():
                page.blocks += page.refused(
                    {f"{way} on {name}": text for way, text in found["refused"].items()},
                    where=f"for {in_words(at['problem'])}",
                )
        every["winners"] += winners(run)
        every["points"] += [row for name in swept(run) for row in _points(run, name)]
    page.table("winners", "The fastest strategy at each point", _WINNERS, every["winners"])
    note = (
        "GFLOP/s count the multiply-adds of the definition with pixels of the image, whatever the strategy does; those "
        "with padding do not count. Errors are the largest difference from float64, relative to the largest result. "
        "Memory beside operands and result: measured where it can be, else as stated."
    )
    page.table("points", "All strategies at all points", _POINTS, every["points"], note)


def _arrays(run: Run) -> str:
    """The backend on whose arrays our strategies are shown: the first on a GPU, or the first."""
    shown = [b for b, found in run.found(BASE)["points"][0]["candidates"].items()
             if any(way in found["times"] for way in OURS)]  # fmt: skip
    return next((b for b in shown if on_gpu(b)), shown[0])


def _lines(run: Run, name: str, backend: str) -> figures.Series:
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
            elif way in (VENDOR, CHANNELS_FIRST):
                add("library's own", x, spread.median, figures.FAMILIES[figures.TORCH])
            elif way == OWN:
                add(f"kernel, {of}", x, spread.median, figures.FAMILIES[figures.KERNELS])
    return series


def _points(run: Run, name: str) -> list[dict[str, Cell]]:
    """Rows of all strategies at the points of a sweep."""
    rows: list[dict[str, Cell]] = []
    for point in points_of(run, name):
        for backend, found in point["candidates"].items():
            for way, times in found["times"].items():
                row: dict[str, Cell] = {
                    "sweep": name, "at": SWEEPS[name](point["problem"]), "strategy": way, "backend": run.label(backend),
                    "layout": found["layouts"][way],
                }  # fmt: skip
                for d, key in KEYS.items():
                    nbytes = found["measured"].get(way, {}).get(d, found["workspace"].get(way, {}).get(d))
                    spread = Spread.of(times[d], 1e3)
                    row |= {
                        f"{key}_ms": spread, f"{key}_gflops": flops_of(point) / spread.median / 1e6,
                        f"{key}_mb": None if nbytes is None else nbytes / 1e6,
                        f"{key}_error": found["errors"][way][d],
                    }  # fmt: skip
                rows.append(row)
    return rows


_POINTS = [
    Column("sweep", "sweep"), Column("at", "at", "{:,d}"), Column("strategy", "strategy"), Column("backend", "backend"),
    Column("layout", "order of axes"),
    *(Column(f"{key}_{what}", f"{d}{head}", template) for d, key in KEYS.items() for what, head, template in (
        ("ms", " (ms)", "{:.3g}"), ("gflops", " (GFLOP/s)", "{:,.0f}"), ("mb", ": memory (MB)", "{:.1f}"),
        ("error", ": error", "{:.1e}"))),
]  # fmt: skip
_WINNERS = [
    Column("sweep", "sweep"), Column("at", "at", "{:,d}"), Column("direction", "direction"),
    Column("winner", "fastest"), Column("ms", "time (ms)", "{:.3g}"), Column("gflops", "GFLOP/s", "{:,.0f}"),
    Column("second", "second"), Column("lead", "times faster", "{:.2f}"), Column("own", "fastest of ours"),
]  # fmt: skip


def winners(run: Run) -> list[dict[str, Cell]]:
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
                own = next((way for (way, of), _ in order if of == backend and way in OURS), None)
                rows.append({
                    "sweep": name, "at": SWEEPS[name](point["problem"]), "direction": d,
                    "winner": f"{first[0]}, {run.label(first[1])}", "ms": spread,
                    "gflops": flops_of(point) / spread.median / 1e6, "second": f"{second[0]}, {run.label(second[1])}",
                    "lead": behind.median / spread.median, "own": own,
                })  # fmt: skip
    return rows


def _memory_words(point: Point) -> str:
    off: list[float] = []
    transformed: list[float] = []  # of strategies that call an FFT
    for found in point["candidates"].values():
        for way, stated in found["workspace"].items():
            for d, nbytes in stated.items():
                seen = found["measured"].get(way, {}).get(d)
                if nbytes is not None and seen is not None and seen > 1e5:
                    (transformed if way == "fft" else off).append(abs(nbytes - seen) / seen)
    if not off:
        return "No backend here tells what it allocates, so the stated memory could not be compared with the measured."
    words = f"Where memory was measured, the stated is within {max(off):.1%} of it, in {len(off)} cases"
    if transformed:
        words += f"; that of the FFT is within {max(transformed):.1%}: what its library takes for itself is not stated"
    return f"{words}."


def _winner_words(run: Run) -> str:
    """Which of our strategies win in which sweep, and by how much the vendors lead them."""
    won = "; ".join(own_winners(run))
    texts = [f"forward, of our own strategies on `{_arrays(run)}`, {won}."] if won else []
    return " ".join([*texts, *_lead_words(run)])


def own_winners(run: Run) -> list[str]:
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


def _lead_words(run: Run) -> list[str]:
    """How many times as fast the libraries' own convolutions, and our kernels, are as others."""
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
    texts = []
    if vendors:
        texts.append(
            "The best of our strategies takes, on the same arrays, "
            f"{_of_all(vendors)} of the time of the library's own convolution in the faster order of axes."
        )
    return texts + [
        f"The fastest of the libraries' own takes {_of_all(leads)} of the time of the kernel of `{backend}`."
        for backend, leads in kernels.items()
    ]


def _of_all(ratios: Sequence[float]) -> str:
    low, median, high = min(ratios), Spread.of(ratios).median, max(ratios)
    return f"{median:.0%} (median of {len(ratios)} comparisons; {low:.0%} to {high:.0%})"
