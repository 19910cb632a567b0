"""Tables, figures and words of the study `convolution`: strategies over kernels, channels, images and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minicnn.bench import Column, Page, Panel, Results, Spread, figures
from minicnn.bench.page import Cell
from minicnn.ops.strategies import DIRECTIONS, STRATEGIES
from minicnn.studies.convolution.sweeps import CHANNELS_FIRST, OWN, VENDOR

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


# Strategies ---------------------------------------------------------------------------------------


def points_of(results: Results, name: str) -> list[Point]:
    """The points of a sweep in order; the one that all sweeps go through is measured once for all of them."""
    varied, (base,) = SWEEPS[name], results["strategies-base"]["points"]
    points: list[Point] = results[f"strategies-{name}"]["points"]
    if all(varied(p["problem"]) != varied(base["problem"]) for p in points):
        here = points[0]["candidates"] if points else base["candidates"]
        points = [*points, {**base, "candidates": {k: v for k, v in base["candidates"].items() if k in here}}]
    return sorted(points, key=lambda point: varied(point["problem"]))


def strategies(page: Page, results: Results) -> None:
    """The point that all sweeps go through in full, winners of all points, sweeps as figures and tables."""
    point = results["strategies-base"]["points"][0]
    page.section("Strategies at one point")
    for result in (results["strategies-base"], *(results[f"strategies-{name}"] for name in SWEEPS)):
        for at in result["points"]:
            for backend, found in at["candidates"].items():
                page.refused({f"{way} on {backend}": text for way, text in found["refused"].items()})
    names = "; ".join(f"{s.name}: {s.title}" for s in STRATEGIES.values())
    page.words(
        f"The point that all sweeps go through: {in_words(point['problem'])}; float32. {names}; {OWN}: the kernel of a "
        "backend that has one, with the change of layout before and after. Each strategy is one definition that runs "
        "on the arrays of every backend, in the order of axes that the backend's passes give to images; the library's "
        f"own in that of its row, `{VENDOR}` with channels last. Each is compared with float64 before it is timed, and "
        "all are measured interleaved."
    )
    _base_table(page, point)
    page.figure(
        "base", "Time at the point that all sweeps go through",
        [Panel(d, _bars_of(point, d), len(list(entries(point, d)))) for d in DIRECTIONS],
        "Medians; whiskers are quartiles.",
    )  # fmt: skip
    _memory_table(page, point)
    page.words(_memory_words(point))
    page.section("Who wins where")
    _winners(page, results)
    for name in SWEEPS:
        _sweep(page, name, points_of(results, name))


def _base_table(page: Page, point: Point) -> None:
    columns = [Column("strategy", "strategy"), Column("backend", "backend"), Column("layout", "order of axes")]
    for d, key in KEYS.items():
        columns += [
            Column(f"{key}_ms", f"{d} (ms)", "{:.3g}"), Column(f"{key}_gflops", f"{d} (GFLOP/s)", "{:,.0f}"),
            Column(f"{key}_error", f"{d}: error", "{:.1e}"),
        ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for backend, found in point["candidates"].items():
        for way, times in found["times"].items():
            row: dict[str, Cell] = {"strategy": way, "backend": f"`{backend}`", "layout": found["layouts"][way]}
            for d, key in KEYS.items():
                spread = Spread.of(times[d], 1e3)
                row |= {
                    f"{key}_ms": spread, f"{key}_gflops": point["flops"] / spread.median / 1e6,
                    f"{key}_error": found["errors"][way][d],
                }  # fmt: skip
            rows.append(row)
    left_out = [
        f"{way} on `{backend}`: {why}"
        for backend, found in point["candidates"].items()
        for way, why in found["skipped"].items()
        if way not in (CHANNELS_FIRST, OWN)  # said of the vendor's already
    ]
    left_out += [f"`{b}`: {c['failure']}" for b, c in point["candidates"].items() if "failure" in c]
    note = (
        "GFLOP/s count the multiply-adds of the definition, whatever the strategy does. Errors are the largest "
        "difference from float64, relative to the largest result. Left out: " + "; ".join(left_out) + "."
    )
    prepared = {b: found["prepared"] for b, found in point["candidates"].items() if found.get("prepared")}
    if prepared:
        note += f" Making all of them ready took {', '.join(f'{s:.1f} s on `{b}`' for b, s in prepared.items())}."
    page.table("base", "All strategies at one point", columns, rows, note)


def _bars_of(point: Point, direction: str) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        values = dict(sorted(entries(point, direction), key=lambda item: item[1].median))
        figures.bars(axes, {f"{backend}: {way}": v for (way, backend), v in values.items()}, "time (ms)")
        axes.tick_params(axis="y", labelsize=7)
        axes.set_xscale("log")

    return draw


def _memory_table(page: Page, point: Point) -> None:
    columns = [Column("strategy", "strategy"), Column("backend", "backend"), Column("layout", "order of axes")]
    for d, key in KEYS.items():
        columns += [
            Column(f"{key}_stated", f"{d}: stated (MB)", "{:.2f}"),
            Column(f"{key}_measured", f"{d}: measured (MB)", "{:.2f}"),
        ]
    rows: list[dict[str, Cell]] = []
    for backend, found in point["candidates"].items():
        for way in found["times"]:
            stated, measured = found["workspace"].get(way, {}), found["measured"].get(way, {})
            row: dict[str, Cell] = {"strategy": way, "backend": f"`{backend}`", "layout": found["layouts"][way]}
            for d, key in KEYS.items():
                a, b = stated.get(d), measured.get(d)
                row |= {
                    f"{key}_stated": None if a is None else a / 1e6,
                    f"{key}_measured": None if b is None else b / 1e6,
                }
            rows.append(row)
    note = (
        "Bytes beside operands and result at the moment when most are in use. Stated: as the strategy says, operation "
        "by operation. Measured: what NumPy, CuPy and PyTorch have allocated. A dash: the library does not say. JAX "
        "compiles a strategy as a whole and needs less than stated; so does a kernel of one's own, whose scratch is in "
        "the step's arena."
    )
    page.table("memory", "Memory of all strategies at one point", columns, rows, note)


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


def _winners(page: Page, results: Results) -> None:
    columns = [Column("sweep", "sweep"), Column("at", "at", "{:,d}"), Column("direction", "direction")]
    columns += [
        Column("winner", "fastest"),
        Column("ms", "time (ms)", "{:.3g}"),
        Column("gflops", "GFLOP/s", "{:,.0f}"),
    ]
    columns += [Column("second", "second"), Column("lead", "times faster", "{:.2f}"), Column("own", "fastest in NumPy")]
    rows: list[dict[str, Cell]] = []
    for name, varied in SWEEPS.items():
        for point in points_of(results, name):
            for d in DIRECTIONS:
                order = sorted(entries(point, d), key=lambda item: item[1].median)
                if not order:
                    continue
                (first, spread), (second, behind) = order[0], order[1] if len(order) > 1 else order[0]
                in_numpy = next((way for (way, backend), _ in order if backend == "numpy"), None)
                rows.append({
                    "sweep": name, "at": varied(point["problem"]), "direction": d, "winner": title(first), "ms": spread,
                    "gflops": point["flops"] / spread.median / 1e6, "second": title(second),
                    "lead": behind.median / spread.median, "own": in_numpy,
                })  # fmt: skip
    page.table("winners", "The fastest strategy at each point", columns, rows)
    page.words(_winner_words(results))


def _winner_words(results: Results) -> str:
    """For each backend which strategies win in which sweep, and by how much the vendor leads ours."""
    texts = []
    for backend in results["strategies-base"]["points"][0]["candidates"]:
        parts = []
        for name, varied in SWEEPS.items():
            wins: dict[str, list[int]] = {}
            for point in points_of(results, name):
                ours = {way: s.median for (way, of), s in entries(point, "forward") if of == backend and way in OURS}
                if ours:
                    way = min(ours, key=lambda name: ours[name])
                    wins.setdefault(way, []).append(varied(point["problem"]))
            if wins:
                said = ", ".join(f"{way} at {', '.join(map(str, at))}" for way, at in wins.items())
                parts.append(f"{name}: {said}")
        if parts:
            texts.append(f"On `{backend}`, forward, of our own strategies, {'; '.join(parts)}.")
    return " ".join([*texts, *_lead_words(results)])


def _lead_words(results: Results) -> list[str]:
    """How many times as fast the libraries' own convolutions, and our kernels, are as others."""
    vendors: list[float] = []
    kernels: dict[str, list[float]] = {}
    points = {str(p["problem"]): p for name in SWEEPS for p in points_of(results, name)}  # one is in all sweeps
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
            f"The library's own convolution, in the faster order of axes, is {_of_all(vendors)} as fast as the best of "
            "our strategies on the same arrays."
        )
    return texts + [
        f"The kernel of `{backend}` is {_of_all(leads)} as fast as the fastest of the libraries' own."
        for backend, leads in kernels.items()
    ]


def _of_all(ratios: Sequence[float]) -> str:
    low, median, high = min(ratios), Spread.of(ratios).median, max(ratios)
    return f"{median:.2g} times (median of {len(ratios)} comparisons; {low:.2g} to {high:.2g})"


def _sweep(page: Page, name: str, points: Sequence[Point]) -> None:
    varied = SWEEPS[name]
    page.section(f"Over {name}")
    backends = list(dict.fromkeys(b for p in points for b in p["candidates"]))
    shown = [b for b in backends if any(e[1] == b for p in points for e, _ in entries(p, "forward"))]
    own = [b for b in shown if all(e[0] == OWN for p in points for e, _ in entries(p, "forward") if e[1] == b)]
    for backend in [b for b in shown if b not in own]:
        panels = [Panel(d, _lines_of(points, varied, d, [backend, *own], UNITS[name])) for d in DIRECTIONS]
        page.figure(
            f"{name}-{backend}".replace(" ", "-").replace(":", "-"), f"Over {name} on {backend}", panels,
            "Bands are quartiles. A strategy that is missing at a point cannot compute it"
            + (f"; the kernel of {', '.join(own)} is shown beside." if own else "."),
        )  # fmt: skip
    columns = [Column("at", name, "{:,d}"), Column("strategy", "strategy"), Column("backend", "backend")]
    for d, key in KEYS.items():
        columns += [Column(f"{key}_ms", f"{d} (ms)", "{:.3g}"), Column(f"{key}_mb", f"{d}: memory (MB)", "{:.1f}")]
    columns.append(Column("error", "largest error", "{:.1e}"))
    rows: list[dict[str, Cell]] = []
    for point in points:
        for backend, found in point["candidates"].items():
            for way, times in found["times"].items():
                row: dict[str, Cell] = {"at": varied(point["problem"]), "strategy": way, "backend": f"`{backend}`"}
                for d, key in KEYS.items():
                    nbytes = found["measured"].get(way, {}).get(d, found["workspace"].get(way, {}).get(d))
                    row |= {
                        f"{key}_ms": Spread.of(times[d], 1e3),
                        f"{key}_mb": None if nbytes is None else nbytes / 1e6,
                    }
                row["error"] = max(found["errors"][way].values())
                rows.append(row)
    note = "Memory beside operands and result: measured where it can be, else as stated. Errors as above."
    page.table(name.replace(" ", "-"), f"All strategies over {name}", columns, rows, note)


def _lines_of(
    points: Sequence[Point], varied: Callable[[Mapping[str, Any]], int], direction: str, backends: Sequence[str],
    label: str,
) -> Callable[[Any], None]:  # fmt: skip
    def draw(axes: Any) -> None:
        # In this order, so that colours stay the same.
        names = [*STRATEGIES, CHANNELS_FIRST, *(f"{OWN} ({b})" for b in backends)]
        series: dict[str, tuple[list[float], ...]] = {name: ([], [], [], []) for name in names}
        for point in points:
            for (way, backend), spread in entries(point, direction):
                if backend in backends:
                    xs, ys, lows, highs = series[f"{way} ({backend})" if way == OWN else way]
                    xs.append(varied(point["problem"]))
                    for values, value in zip((ys, lows, highs), (spread.median, spread.low, spread.high), strict=True):
                        values.append(value)
        figures.lines(axes, {n: v for n, v in series.items() if v[0]}, label, "time (ms)")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({varied(point["problem"]) for point in points})
        axes.set_xticks(ticks, [str(t) for t in ticks])

    return draw
