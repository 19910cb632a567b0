"""Tables, figures and words of the study `roofline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from minicnn.bench import Column, Missing, Page, Panel, Results, Setting, Spread, figures
from minicnn.bench.candidates import backend_of, on_gpu
from minicnn.bench.page import Cell
from minicnn.studies.roofline.ceilings import call_s, highest, level_of
from minicnn.studies.roofline.counting import NETWORKS, at_batch
from minicnn.studies.roofline.verdict import Verdict, floor, judge

Found = Mapping[str, Any]


def machine(page: Page, found: Found) -> None:
    """The ceilings: copies by size and level, products by precision, launches."""
    page.section("The machine's ceilings")
    page.words(
        "Measured, not looked up: copies between two arrays (bytes read and written), products of two square matrices, "
        "and an operation on next to nothing, one of many in a step. The roofline takes the best of all libraries."
    )
    caches = {name: int(size) for name, size in found["caches"].items()}
    columns = [Column("library", "library"), Column("working_set", "working set (KB)", "{:,.0f}")]
    columns += [Column("level", "fits into"), Column("us", "a copy (us)", "{:.3g}"), Column("rate", "GB/s", "{:.3g}")]
    rows: list[dict[str, Cell]] = []
    for name, copies in found["copies"].items():
        call = call_s(copies)
        for nbytes, rates in copies.items():
            seconds = [2 * int(nbytes) / rate for rate in rates]
            own = {"L2": found["l2"][name]} if found["l2"].get(name) else {}
            level = level_of(2 * int(nbytes), own if on_gpu(name) else caches) if own or not on_gpu(name) else ""
            if call > median(seconds) / 2:
                level = f"{level or 'device'}, mostly the call"
            rows.append({
                "library": f"`{name}`", "working_set": 2 * int(nbytes) / 1e3, "level": level,
                "us": Spread.of(seconds, 1e6), "rate": Spread.of(rates, 1e-9),
            })  # fmt: skip
    note = "Two arrays are the working set. Mostly the call: by the line through the two smallest, more than half of "
    note += "the time does not depend on the bytes, so the rate is not that of the level. Caches of a core: "
    note += ", ".join(f"{n} {s // 1024:,} KiB" for n, s in caches.items()) or "not known"
    note += "".join(f"; L2 of the GPU: {s // 2**20:,} MiB" for s in {s for s in found["l2"].values() if s})
    page.table("copies", "Copies by working set", columns, rows, f"{note}.")
    columns = [Column("library", "library"), Column("precision", "precision"), Column("rate", "GFLOP/s", "{:,.0f}")]
    rows = [
        {"library": f"`{name}`", "precision": p, "rate": Spread.of(rates, 1e-9)}
        for name, products in found["products"].items()
        for p, rates in products.items()
    ]
    page.table("products", "Matrix products by precision", columns, rows)
    columns = [Column("candidate", "candidate"), Column("us", "an operation (us)", "{:.3g}")]
    rows = [{"candidate": f"`{n}`", "us": Spread.of(s, 1e6)} for n, s in found["launches"].items()]
    page.table("launches", "The cost of an operation on next to nothing", columns, rows)

    def draw(axes: Any) -> None:
        series = {}
        for name, copies in found["copies"].items():
            xs = sorted(map(int, copies))
            series[name] = ([2 * n / 1e6 for n in xs], [Spread.of(copies[str(n)], 1e-9).median for n in xs])
        figures.lines(axes, series, "working set (MB)", "copied, read and written (GB/s)")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name, size in caches.items():
            axes.axvline(size / 1e6, color=figures.GRID, linewidth=1)
            axes.annotate(name, (size / 1e6, 1), xycoords=("data", "axes fraction"), fontsize=7, va="top")

    def bars(axes: Any) -> None:
        values = {
            f"{name} {p}": Spread.of(rates, 1e-9)
            for name, products in found["products"].items()
            for p, rates in products.items()
        }
        figures.bars(axes, values, "GFLOP/s", "{:,.0f}")

    count = sum(map(len, found["products"].values()))
    page.figure("ceilings", "The machine's ceilings", [Panel("Copies", draw), Panel("Matrix products", bars, count)],
                "Vertical lines: sizes of a core's caches. Whiskers are quartiles.")  # fmt: skip


def counts(page: Page, found: Mapping[str, Found]) -> None:
    """Parameters, FLOPs and bytes, whole and by layer, against PyTorch's counter."""
    page.section("What the networks compute and move")
    columns = [
        Column("network", "network"), Column("parameters", "parameters", "{:,d}"), Column("nodes", "operations"),
        Column("flops", "FLOPs an image (M)", "{:,.1f}"), Column("bytes", "bytes an image (MB)", "{:,.1f}"),
        Column("intensity", "FLOP per byte", "{:.2f}"),
    ]  # fmt: skip
    for phase in ("forward", "backward"):
        columns += [
            Column(f"{phase}", f"products, {phase} (M)", "{:,.2f}"),
            Column(f"{phase}_torch", f"PyTorch's counter, {phase} (M)", "{:,.2f}"),
        ]
    columns += [
        Column("grouped", "the same with groups (M)", "{:,.2f}"),
        Column("off", "largest difference (%)", "{:.3f}"),
    ]
    rows: list[dict[str, Cell]] = []
    worst = 0.0
    for name, counted in found.items():
        batch = counted["batches"][1]
        flops, moved = whole(counted, batch)
        row: dict[str, Cell] = {
            "network": f"`{name}`", "parameters": counted["parameters"], "nodes": len(counted["nodes"]),
            "flops": flops / batch / 1e6, "bytes": moved / batch / 1e6, "intensity": flops / moved,
        }  # fmt: skip
        row |= {phase: counted["products"][phase] / 1e6 for phase in ("forward", "backward")}
        theirs = counted["torch"]
        if theirs is None:
            row |= dict.fromkeys(("forward_torch", "backward_torch", "grouped", "off"), Missing("PyTorch is not there"))
        else:
            off = 100 * differs(counted)
            worst = max(worst, off)
            row |= {
                "forward_torch": theirs["forward"] / 1e6, "backward_torch": theirs["backward"] / 1e6,
                "grouped": theirs["backward_grouped"] / 1e6, "off": off,
            }  # fmt: skip
        rows.append(row)
    page.table(
        "counts", f"A training step, by image (in a batch of {next(iter(found.values()))['batches'][1]})", columns,
        rows,
        "Counted from the Program: each operation's arithmetic, and its inputs and outputs once. PyTorch's counter "
        "counts convolutions and matrix products only, and ignores groups in their backward pass; with them it agrees.",
    )  # fmt: skip
    if any(c["torch"] for c in found.values()):
        page.words(
            f"Convolutions and matrix products are counted as PyTorch's counter counts them, within {worst:.3f} %, "
            "once it heeds the groups of the depthwise convolutions of `mobilenet_v2`."
        )
    columns = [Column("layer", "layer"), Column("kind", "kind"), Column("parameters", "parameters", "{:,d}")]
    columns += [Column(f"{p}_{k}", f"{p} ({u})", "{:,.1f}") for p in ("forward", "backward")
                for k, u in (("flops", "MFLOP"), ("bytes", "MB"))]  # fmt: skip
    columns.append(Column("intensity", "FLOP per byte", "{:.2f}"))
    for name, counted in found.items():
        rows = []
        for layer, of in counted["layers"].items():
            sums = [sum(of.get(f"{p}_{k}", 0) for p in ("forward", "backward")) for k in ("flops", "bytes")]
            row = {"layer": f"`{layer}`", "kind": of["kind"], "parameters": of.get("parameters", 0)}
            row |= {c.key: of.get(c.key, 0) / 1e6 for c in columns[3:-1]}
            rows.append({**row, "intensity": sums[0] / sums[1] if sums[1] else None})
        page.table(f"layers-{name}", f"Layers of `{name}` in a batch of {counted['batches'][1]}", columns, rows)


def whole(counted: Found, batch: int) -> tuple[float, float]:
    """FLOPs and bytes of a step."""
    nodes = at_batch(counted, batch)
    return sum(f for f, _ in nodes), sum(b for _, b in nodes)


def differs(counted: Found) -> float:
    """Largest relative difference of our counts of products from PyTorch's, its groups mended."""
    ours, theirs = counted["products"], counted["torch"]
    right = {"forward": theirs["forward"], "backward": theirs["backward_grouped"]}
    return max(abs(ours[phase] - right[phase]) / right[phase] for phase in right)


def memory(page: Page, found: Mapping[str, Found], training: Mapping[str, Found]) -> None:
    """Planned memory beside measured."""
    columns = [Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch")]
    columns += [Column("plan", "planned (MB)", "{:,.1f}"), Column("measured", "measured (MB)", "{:,.1f}")]
    columns.append(Column("off", "difference (%)", "{:+.1f}"))
    rows: list[dict[str, Cell]] = []
    worst = 0.0
    for name, first in found.items():
        for candidate, account in {"numpy": first, **training[name].get("accounts", {})}.items():
            plan, measured = account["plan_mb"], account["measured_mb"]
            off = 100 * (plan - measured) / measured
            worst = max(worst, abs(off))
            row: dict[str, Cell] = {"network": f"`{name}`", "candidate": f"`{candidate}`", "batch": account["batch"]}
            rows.append({**row, "plan": plan, "measured": measured, "off": off})
    page.table(
        "accounts", "Memory that a training step takes beside weights and input", columns, rows,
        "Planned: from the Program, by lifetimes; on `cupy` and `numba_cuda` after merging. Measured: what NumPy, and "
        "PyTorch on a GPU, have allocated at most in a step, Numba's arena, and by how much what CuPy or Numba hold on "
        "the device grows with the step.",
    )  # fmt: skip
    page.words(f"The plan is within {worst:.1f} % of what was measured.")


def runs(results: Mapping[str, Found]) -> Iterator[tuple[str, str, int, Spread, float]]:
    """Network, candidate, batch size, seconds of a step, and seconds of making its input."""
    for name, result in results.items():
        for batch, steps in result["steps"].items():
            for candidate, samples in steps.items():
                yield (
                    name,
                    candidate,
                    int(batch),
                    Spread.of(samples),
                    Spread.of(result["inputs"][batch][candidate]).median,
                )


def trained(page: Page, setting: Setting, results: Mapping[str, Found]) -> None:
    """Images per second, time of a batch and an epoch, memory, accuracy."""
    page.section("Training")
    sizes = setting.sizes
    data = next(iter(results.values()))["data"]
    quick = (
        "Quick form: a part of an epoch, so the accuracy says only that all learn the same. " if setting.quick else ""
    )
    page.words(
        f"{quick}Data: {data}. SGD with learning rate 0.01 and momentum 0.9, float32, no dropout, 200 classes. All "
        "candidates start from the same weights, and the losses before and after their first step were compared before "
        f"anything was timed. An epoch is {sizes.samples:,} images in batches of {sizes.epoch_batch}, input included."
    )
    for name, result in results.items():
        page.refused({f"{c} ({name})": why for c, why in result["refused"].items()})
    left = [c for c in setting.candidates if not any(c in s for r in results.values() for s in r["steps"].values())]
    if left:
        page.words(f"Not trained in this form of the study, being slow or out: {', '.join(f'`{c}`' for c in left)}.")
    columns = [
        Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch", "{:d}"),
        Column("ms", "time of a batch (ms)", "{:,.1f}"), Column("rate", "images per s", "{:,.0f}"),
        Column("input_ms", "input of a batch (ms)", "{:.2f}"), Column("epoch_s", "100,000 images (s)", "{:,.0f}"),
        Column("peak_mb", "process memory (MB)", "{:,.0f}"), Column("device_mb", "device memory (MB)", "{:,.0f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for name, candidate, batch, spread, given in runs(results):
        found = results[name]["memory"][str(batch)].get(candidate, {})
        s = spread
        rows.append({
            "network": f"`{name}`", "candidate": f"`{candidate}`", "batch": batch,
            "ms": Spread(1e3 * s.median, 1e3 * s.low, 1e3 * s.high, s.count),
            "rate": batch / spread.median, "input_ms": 1e3 * given, "epoch_s": 1e5 / batch * (spread.median + given),
            "peak_mb": found.get("peak_mb"), "device_mb": found.get("device_mb"),
        })  # fmt: skip
    page.table(
        "steps", "Training steps", columns, rows, "The batch is on the device already; its input is timed apart."
    )
    columns = [Column("network", "network"), Column("candidate", "candidate"), Column("seconds", "time (s)", "{:.3g}")]
    columns += [Column("rate", "images per s", "{:,.0f}"), Column("loss", "last loss (nats)", "{:.3f}")]
    columns.append(Column("top1", "top-1 (%)", "{:.2f}"))
    rows = [
        {"network": f"`{n}`", "candidate": f"`{c}`", "seconds": e["seconds"], "rate": e["images_per_s"],
         "loss": e["loss"], "top1": 100 * e["top1"]}
        for n, result in results.items() for c, e in result["epochs"].items()
    ]  # fmt: skip
    page.table("epochs", f"An epoch of {sizes.samples:,} images", columns, rows, f"{quick}Chance is 0.5 %.")
    candidates = list(dict.fromkeys(c for _, c, *_ in runs(results)))

    def lines(name: str) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            series: dict[str, tuple[list[float], ...]] = {c: ([], [], [], []) for c in candidates}
            for _, c, batch, s, _ in (r for r in runs(results) if r[0] == name):
                for values, value in zip(
                    series[c], (batch, batch / s.median, batch / s.high, batch / s.low), strict=True
                ):
                    values.append(value)
            figures.lines(axes, {c: v for c, v in series.items() if v[0]}, "images in a batch", "images per s")
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(sizes.batches), [str(b) for b in sizes.batches])
            axes.set_ylim(bottom=0)

        return draw

    swept = [n for n, result in results.items() if len(result["steps"]) > 1] or list(results)
    page.figure("rates", "Images per second by batch size", [Panel(n, lines(n)) for n in swept], "Bands are quartiles.")


def roofline(page: Page, setting: Setting, results: Results) -> None:
    """Paths of the batch sweep under the roofline, and what limits each network."""
    page.section("Under the roofline")
    training = {name: results[f"training-{name}"] for name in NETWORKS}
    counted = {name: results[f"counts-{name}"] for name in NETWORKS}
    ceilings = results["ceilings"]
    candidates = list(dict.fromkeys(c for _, c, *_ in runs(training)))
    tops = {c: highest(ceilings, on_gpu(c)) for c in candidates}
    candidates = [c for c in candidates if all(tops[c])]
    if not candidates:
        page.words("No candidate that trained has ceilings: NumPy, PyTorch, JAX or CuPy measure them on its device.")
        return
    for gpu in sorted({on_gpu(c) for c in candidates}):
        peak, bandwidth = highest(ceilings, gpu)
        page.words(
            f"{'GPU' if gpu else 'CPU'}: {peak / 1e9:,.0f} GFLOP/s in float32 and {bandwidth / 1e9:,.0f} GB/s from "
            f"memory; an operation with less than {peak / bandwidth:.1f} FLOP per byte is bound by memory."
        )
    verdicts = {}
    for name, candidate, batch, spread, given in runs(training):
        if candidate in candidates:
            launched = training[name]["accounts"].get(candidate, {}).get("launches")
            launched = training[name].get("launched", {}).get(candidate, launched)
            key = (name, candidate, batch)
            verdicts[key] = verdict_of(counted[name], ceilings, candidate, batch, spread.median, given, launched)
    page.figure(
        "roofline", "Under the roofline", [Panel(c, _roof(training, counted, c, *tops[c])) for c in candidates],
        "Each path is a network from the smallest batch (small mark) to the largest. FLOPs and bytes are the "
        "Program's, each operation by itself, so a candidate that fuses operations can lie above the slope.",
    )  # fmt: skip
    columns = [
        Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch", "{:d}"),
        Column("gflops", "GFLOP/s", "{:,.1f}"), Column("intensity", "FLOP per byte", "{:.2f}"),
        Column("peak", "of the peak (%)", "{:.1f}"), Column("roof", "of the roof (%)", "{:.1f}"),
        Column("bottleneck", "bound by"), Column("share", "its share of the time (%)", "{:.0f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for name, candidate, batch, spread, _ in runs(training):
        if candidate not in candidates:
            continue
        flops, moved = whole(counted[name], batch)
        peak, bandwidth = tops[candidate]
        rate, verdict = flops / spread.median, verdicts[name, candidate, batch]
        rows.append({
            "network": f"`{name}`", "candidate": f"`{candidate}`", "batch": batch, "gflops": rate / 1e9,
            "intensity": flops / moved, "peak": 100 * rate / peak,
            "roof": 100 * rate / min(peak, bandwidth * flops / moved),
            "bottleneck": verdict.bottleneck, "share": 100 * verdict.share,
        })  # fmt: skip
    page.table("utilisation", "What the networks reach", columns, rows, "The roof is the lower of peak and bandwidth "
               "times intensity. More than 100 %: fused operations move less than counted, and Winograd's kernels "
               "multiply less than the definition says.")  # fmt: skip
    page.section("What holds each network back")
    profiled = any(of.get("launched") for of in training.values())
    page.words(
        "For each step the time is taken that its operations would need at the ceilings: those above the ridge at the "
        "peak, those below it at the bandwidth, launches (a kernel each where a backend merges operations, "
        f"{'what its profiler counts for PyTorch, ' * profiled}else an operation each) at the cost of one on next to "
        "nothing, and the input as measured. The largest names the bottleneck."
    )
    largest = {key[:2]: key[2] for key in sorted(verdicts)}
    for (name, candidate, batch), verdict in verdicts.items():
        if batch == largest[name, candidate]:
            page.words(f"`{name}` on `{candidate}`, {batch} images: {verdict.text}")
    page.words(_moves(verdicts))


def verdict_of(
    counted: Found, ceilings: Found, candidate: str, batch: int, step_s: float, input_s: float,
    launched: int | None = None,
) -> Verdict:  # fmt: skip
    """The verdict on one step; `launched` is how many kernels it is, where they are not its operations."""
    peak, bandwidth = highest(ceilings, on_gpu(candidate))
    launches = ceilings["launches"].get(candidate) or ceilings["launches"].get(backend_of(candidate), [0.0])
    nodes = at_batch(counted, batch)
    count = len(nodes) if launched is None else launched
    return judge(step_s + input_s, floor(nodes, peak, bandwidth, count * Spread.of(launches).median, input_s))


def _moves(verdicts: Mapping[tuple[str, str, int], Verdict]) -> str:
    """Whether the bottleneck changes with the batch."""
    texts = []
    for name, candidate in dict.fromkeys((n, c) for n, c, _ in verdicts):
        found = {b: v.bottleneck for (n, c, b), v in verdicts.items() if (n, c) == (name, candidate)}
        if len(set(found.values())) > 1:
            texts.append(f"`{name}` on `{candidate}`: " + ", ".join(f"{v} at {b}" for b, v in found.items()))
    if not texts:
        return "No bottleneck changes over the batch sizes."
    return "The bottleneck changes with the batch size for " + "; ".join(texts) + "."


def _roof(
    training: Mapping[str, Found], counted: Mapping[str, Found], candidate: str, peak: float, bandwidth: float
) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        points: dict[str, list[tuple[float, float]]] = {}
        for name, c, batch, spread, _ in runs(training):
            if c == candidate:
                flops, moved = whole(counted[name], batch)
                points.setdefault(name, []).append((flops / moved, flops / spread.median / 1e9))
        every = [x for path in points.values() for x, _ in path]
        xs = [min(every) / 4, peak / bandwidth, max([peak / bandwidth, *every]) * 4]
        axes.plot(xs, [min(peak, bandwidth * x) / 1e9 for x in xs], color=figures.INK, linewidth=1.4)
        small = {"textcoords": "offset points", "size": 7}
        axes.annotate(f"{peak / 1e9:,.0f} GFLOP/s", (xs[2], peak / 1e9), (-2, 3), ha="right", **small)
        axes.annotate(f"{bandwidth / 1e9:,.0f} GB/s", (xs[0], bandwidth * xs[0] / 1e9), (8, -4), **small)
        for name, path in points.items():
            tone = figures.color(name, points)
            axes.plot(*zip(*path, strict=True), color=tone, linewidth=1.2, label=name)
            axes.scatter(*zip(*path, strict=True), s=[8 + 8 * i for i in range(len(path))], color=tone)
        axes.set_xscale("log")
        axes.set_yscale("log")
        figures.style(axes, "arithmetic intensity (FLOP per byte)", "GFLOP/s")
        axes.legend(fontsize=7, loc="lower right")

    return draw
