"""Tables, figures and words of the study `convolution`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minicnn.bench import Column, Page, Panel, Results, Spread, figures
from minicnn.bench.page import Cell
from minicnn.ops.strategies import DIRECTIONS, STRATEGIES
from minicnn.studies.convolution.breakdown import PARTS, PHASES
from minicnn.studies.convolution.sweeps import OWN

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
PUBLISHED_SHARE = 94  # per cent of the time: the most that convolution took
KEYS = {"forward": "forward", "input gradient": "input", "weight gradient": "weight"}

Point = Mapping[str, Any]
Entry = tuple[str, str]  # strategy, backend


def title(entry: Entry) -> str:
    """A strategy on a backend in words."""
    way, backend = entry
    return f"{way} (`{backend}`)"


def entries(point: Point, direction: str) -> Iterator[tuple[Entry, Spread]]:
    """What was timed at a point in one direction, with milliseconds."""
    for backend, found in point["contenders"].items():
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
        here = points[0]["contenders"] if points else base["contenders"]
        points = [*points, {**base, "contenders": {k: v for k, v in base["contenders"].items() if k in here}}]
    return sorted(points, key=lambda point: varied(point["problem"]))


def strategies(page: Page, results: Results) -> None:
    """The point that all sweeps go through in full, winners of all points, sweeps as figures and tables."""
    point = results["strategies-base"]["points"][0]
    page.section("Strategies at one point")
    for result in (results["strategies-base"], *(results[f"strategies-{name}"] for name in SWEEPS)):
        for at in result["points"]:
            for backend, found in at["contenders"].items():
                page.refused({f"{way} on {backend}": text for way, text in found["refused"].items()})
    names = "; ".join(f"{s.name}: {s.title}" for s in STRATEGIES.values())
    page.words(
        f"The point that all sweeps go through: {in_words(point['problem'])}; float32. {names}; {OWN}: the kernel of a "
        "backend that has one, with the change of layout before and after. Each strategy is one definition that runs "
        "on the arrays of every backend, in the order of axes that the backend's passes give to images; the vendor's "
        "has channels last. Each is compared with float64 before it is timed, and all take turns."
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
    for backend, found in point["contenders"].items():
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
        for backend, found in point["contenders"].items()
        for way, why in found["skipped"].items()
        if way != OWN
    ]
    left_out += [f"`{b}`: {c['failure']}" for b, c in point["contenders"].items() if "failure" in c]
    note = (
        "GFLOP/s count the multiply-adds of the definition, whatever the strategy does. Errors are the largest "
        "difference from float64, relative to the largest result. Left out: " + "; ".join(left_out) + "."
    )
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
    for backend, found in point["contenders"].items():
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
        "by operation. Measured: what NumPy and PyTorch have allocated. A dash: the library does not say. JAX compiles "
        "a strategy as a whole and needs less than stated; so does a kernel of one's own, whose scratch is in the "
        "step's arena."
    )
    page.table("memory", "Memory of all strategies at one point", columns, rows, note)


def _memory_words(point: Point) -> str:
    off: list[float] = []
    for found in point["contenders"].values():
        for way, stated in found["workspace"].items():
            for d, nbytes in stated.items():
                seen = found["measured"].get(way, {}).get(d)
                if nbytes is not None and seen is not None and seen > 1e5:
                    off.append(abs(nbytes - seen) / seen)
    if not off:
        return "No backend here tells what it allocates, so the stated memory could not be compared with the measured."
    return f"Where memory was measured, the stated is within {max(off):.1%} of it, in {len(off)} cases."


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
    for backend in results["strategies-base"]["points"][0]["contenders"]:
        parts = []
        for name, varied in SWEEPS.items():
            wins: dict[str, list[int]] = {}
            for point in points_of(results, name):
                ours = [(e, s) for e, s in entries(point, "forward") if e[1] == backend and e[0] in STRATEGIES]
                ours = [(e, s) for e, s in ours if e[0] != "vendor"]
                if ours:
                    way = min(ours, key=lambda item: item[1].median)[0][0]
                    wins.setdefault(way, []).append(varied(point["problem"]))
            if wins:
                said = ", ".join(f"{way} at {', '.join(map(str, at))}" for way, at in wins.items())
                parts.append(f"{name}: {said}")
        if parts:
            texts.append(f"On `{backend}`, forward, of our own strategies, {'; '.join(parts)}.")
    leads = []
    for name in SWEEPS:
        for point in points_of(results, name):
            for d in DIRECTIONS:
                found = dict(entries(point, d))
                for (way, backend), spread in found.items():
                    if way == "vendor":
                        rest = [s.median for e, s in found.items() if e[1] == backend and e[0] not in ("vendor", OWN)]
                        leads += [min(rest) / spread.median] if rest else []
    if leads:
        leads.sort()
        texts.append(
            f"The library's own convolution is {leads[len(leads) // 2]:.1f} times as fast as the best of ours on the "
            f"same arrays (median of {len(leads)} comparisons, {leads[0]:.1f} to {leads[-1]:.1f})."
        )
    return " ".join(texts)


def _sweep(page: Page, name: str, points: Sequence[Point]) -> None:
    varied = SWEEPS[name]
    page.section(f"Over {name}")
    backends = list(dict.fromkeys(b for p in points for b in p["contenders"]))
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
        for backend, found in point["contenders"].items():
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
        names = [*STRATEGIES, *(f"{OWN} ({b})" for b in backends)]  # in this order, so that colours stay the same
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


# Layers of networks -------------------------------------------------------------------------------


def layers(
    page: Page, batch: int, images: Mapping[str, int], results: Mapping[str, Mapping[str, Any]], *, quick: bool,
    left_out: Sequence[str],
) -> None:  # fmt: skip
    """Time by kind of layer, forward and backward, as shares and in milliseconds."""
    page.section("What the layers of whole networks cost")
    sizes = ", ".join(f"`{name}` {side}x{side}" for name, side in images.items())
    smaller = "Quick form: smaller images than the networks' own. " if quick else ""
    page.words(
        f"{smaller}Training steps of {batch} images ({sizes}) with 1,000 classes, without dropout, plain SGD, "
        "synthetic images, float32. minicnn's backends are timed node by node, the device idle before and after each; "
        "PyTorch's modules by its profiler. Where a backend merges nodes into kernels and tells their times, a kernel "
        "counts as its largest node; where it does not tell, each node is compiled and timed by itself, and whole "
        "steps take less than the sum. An activation counts by itself, a bias with its layer. All compute the same "
        "loss from the same weights."
    )
    for result in results.values():
        page.refused(result["refused"])
    contenders = list(dict.fromkeys(c for result in results.values() for c in result["seconds"]))
    columns = [Column("network", "network"), Column("contender", "contender"), Column("phase", "phase")]
    columns += [Column("ms", "time (ms)", "{:.3g}"), *(Column(part, f"{part} (%)", "{:.1f}") for part in PARTS)]
    rows: list[dict[str, Cell]] = []
    for name, result in results.items():
        for contender, seconds in result["seconds"].items():
            for phase in PHASES:
                total, shares = _shares(seconds[phase])
                row: dict[str, Cell] = {"network": f"`{name}`", "contender": f"`{contender}`", "phase": phase}
                rows.append({**row, "ms": total, **shares})
    out = "; ".join(f"`{c}`: {why}" for c, why in results[next(iter(results))]["out"].items())
    note = "Medians over the iterations." + (f" Not timed by layers: {out}." if out else "")
    for how, text in (("merged", "Kernels of merged nodes"), ("apart", "Each node by itself")):
        timed = list(dict.fromkeys(c for result in results.values() for c in result.get(how, ())))
        note += f" {text}: {', '.join(f'`{c}`' for c in timed)}." if timed else ""
    if left_out:
        note += f" Left out in this form of the study, being slow: {', '.join(f'`{c}`' for c in left_out)}."
    page.table("layers", "Time by kind of layer", columns, rows, note)
    for contender in contenders:
        panels = [
            Panel(f"{phase}, {contender}", _stacks(results, contender, phase)) for phase in ("forward", "backward")
        ]
        name = f"layers-{contender}".replace(":", "-").replace(".", "-")
        page.figure(name, f"Where the time of a step goes on {contender}", panels, "Shares of each phase, without the "
                    "optimizer's update.")  # fmt: skip
    _share_table(page, results, contenders)


def _shares(parts: Mapping[str, Sequence[float]]) -> tuple[Spread, dict[str, float]]:
    """Milliseconds of a phase, and each part's per cent of their median."""
    totals = [sum(times) for times in zip(*parts.values(), strict=True)]
    medians = {part: Spread.of(times).median for part, times in parts.items()}
    whole = sum(medians.values()) or 1.0
    return Spread.of(totals, 1e3), {part: 100 * m / whole for part, m in medians.items()}


def _stacks(results: Mapping[str, Mapping[str, Any]], contender: str, phase: str) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        found = {name: result["seconds"].get(contender) for name, result in results.items()}
        bars = {name: _shares(seconds[phase])[1] for name, seconds in found.items() if seconds}
        figures.stacked(axes, bars, "share of the time (%)", "")

    return draw


def _share_table(page: Page, results: Mapping[str, Mapping[str, Any]], contenders: Sequence[str]) -> None:
    columns = [Column("network", "network"), *(Column(c, f"`{c}` (%)", "{:.1f}") for c in contenders)]
    columns.append(Column("published", "published: at most (%)"))
    rows: list[dict[str, Cell]] = []
    shares: list[tuple[float, str, str]] = []
    for name, result in results.items():
        row: dict[str, Cell] = {"network": f"`{name}`", "published": PUBLISHED_SHARE}
        for contender, seconds in result["seconds"].items():
            whole = {
                p: [a + b for a, b in zip(seconds["forward"][p], seconds["backward"][p], strict=True)] for p in PARTS
            }
            row[contender] = share = _shares(whole)[1]["convolution"]
            shares.append((share, name, contender))
        rows.append(row)
    note = (
        "The published figure is of the four networks at batches of GPU size, where dense layers are cheap: their "
        "weights are read once a batch. In smaller batches of smaller images they weigh more."
    )
    page.table("shares", "Share of convolution in forward and backward together", columns, rows, note)
    if shares:
        (most, network, contender), (least, other, where) = max(shares), min(shares)
        page.words(
            f"Convolution takes between {least:.0f} % (`{other}` on `{where}`) and {most:.0f} % (`{network}` on "
            f"`{contender}`) of forward and backward; published were up to {PUBLISHED_SHARE} %."
        )
