"""Tables of the study `roofline`: ceilings of the machines, what the networks compute and move, and their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from minicnn.bench import Column, Missing, Page, Run, Spread
from minicnn.bench.candidates import on_gpu
from minicnn.bench.page import Cell
from minicnn.studies.roofline.ceilings import call_s, launch_s, level_of, peaks
from minicnn.studies.roofline.counting import NETWORKS, at_batch

Found = Mapping[str, Any]


def ceilings(page: Page, runs: Sequence[Run]) -> None:
    """Products by way of computing, launches, and copies by working set, of all machines."""
    page.section("The machines' ceilings")
    page.words(
        "Measured, not looked up: products of two square matrices, an operation on next to nothing, one of many in a "
        "step, and copies between two arrays (bytes read and written). The roofline takes the best of all libraries."
    )
    rows: list[dict[str, Cell]] = []
    runs = [run for run in runs if "ceilings" in run.results]
    for run in runs:
        for gpu, where in ((False, run.cpu), (True, run.gpu or "")):
            for way, rate in peaks(run.results["ceilings"], gpu).items():
                rows.append({"machine": where, "way": way, "rate": rate / 1e9})
    columns = [Column("machine", "machine"), Column("way", "way of computing"), Column("rate", "GFLOP/s", "{:,.0f}")]
    page.table("ways", "Matrix products by way of computing", columns, rows,
               "The best of all libraries. Three float16 products, of operands in two parts each, have float32's "
               "accuracy: the rate is a third of float16's.")  # fmt: skip
    columns = [Column("candidate", "candidate"), Column("us", "an operation (us)", "{:.3g}")]
    rows = []
    for run in runs:
        for name in run.results["ceilings"]["launches"]:
            spread = launch_s(run.results["ceilings"], name)
            rows.append({"candidate": run.label(name), "us": spread.scaled(1e6) if spread else None})
    page.table("launches", "The cost of an operation on next to nothing", columns, rows,
               "Medians without the samples in which a library was still starting.")  # fmt: skip
    _copies(page, runs)


def _copies(page: Page, runs: Sequence[Run]) -> None:
    columns = [Column("library", "library"), Column("working_set", "working set (KB)", "{:,.0f}")]
    columns += [Column("level", "fits into"), Column("us", "a copy (us)", "{:.3g}"), Column("rate", "GB/s", "{:,.3g}")]
    rows: list[dict[str, Cell]] = []
    notes = []
    for run in runs:
        found = run.results["ceilings"]
        caches = {name: int(size) for name, size in found["caches"].items()}
        for name, copies in found["copies"].items():
            call = call_s(copies)
            for nbytes, rates in copies.items():
                seconds = [2 * int(nbytes) / rate for rate in rates]
                own = {"L2": found["l2"][name]} if found["l2"].get(name) else {}
                level = level_of(2 * int(nbytes), own if on_gpu(name) else caches) if own or not on_gpu(name) else ""
                if call > median(seconds) / 2:
                    level = f"{level or 'device'}, mostly the call"
                rows.append({
                    "library": run.label(name), "working_set": 2 * int(nbytes) / 1e3, "level": level,
                    "us": Spread.of(seconds, 1e6), "rate": Spread.of(rates, 1e-9),
                })  # fmt: skip
        notes += [f"Caches of a core of the machine with {run.cpu}: "
                  + (", ".join(f"{n} {s // 1024:,} KiB" for n, s in caches.items()) or "not known")]  # fmt: skip
        notes += [f"L2 of the {run.gpu}: {s // 2**20:,} MiB" for s in {s for s in found["l2"].values() if s}]
    note = "Two arrays are the working set. Mostly the call: by the line through the two smallest, more than half of "
    note += "the time does not depend on the bytes, so the rate is not that of the level. "
    page.table("copies", "Copies by working set", columns, rows, note + "; ".join(notes) + ".")


def counts(page: Page, found: Mapping[str, Found]) -> None:
    """Parameters, FLOPs and bytes, whole and by layer, against PyTorch's counter."""
    if not found:
        return
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
    columns = [Column("layer", "layer"), Column("kind", "kind"), Column("parameters", "parameters", "{:,d}")]
    columns += [Column(f"{p}_{k}", f"{p} ({u})", "{:,.1f}") for p in ("forward", "backward")
                for k, u in (("flops", "MFLOP"), ("bytes", "MB"))]  # fmt: skip
    columns.append(Column("intensity", "FLOP per byte", "{:.2f}"))
    layers: list[dict[str, Cell]] = []
    for name, counted in found.items():
        rows = []
        for layer, of in counted["layers"].items():
            sums = [sum(of.get(f"{p}_{k}", 0) for p in ("forward", "backward")) for k in ("flops", "bytes")]
            row = {"layer": layer, "kind": of["kind"], "parameters": of.get("parameters", 0)}
            row |= {c.key: of.get(c.key, 0) / 1e6 for c in columns[3:-1]}
            rows.append({**row, "intensity": sums[0] / sums[1] if sums[1] else None})
        layers += [{"network": name, **row} for row in rows]
    batch = next(iter(found.values()))["batches"][1]
    page.table(
        "layers", f"Layers of the networks in a batch of {batch}", [Column("network", "network"), *columns], layers
    )


def whole(counted: Found, batch: int) -> tuple[float, float]:
    """FLOPs and bytes of a step."""
    nodes = at_batch(counted, batch)
    return sum(f for f, _ in nodes), sum(b for _, b in nodes)


def differs(counted: Found) -> float:
    """Largest relative difference of our counts of products from PyTorch's, its groups mended."""
    ours, theirs = counted["products"], counted["torch"]
    right = {"forward": theirs["forward"], "backward": theirs["backward_grouped"]}
    return max(abs(ours[phase] - right[phase]) / right[phase] for phase in right)


def memory(page: Page, runs: Sequence[Run]) -> None:
    """Planned memory beside measured."""
    columns = [Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch")]
    columns += [Column("plan", "planned (MB)", "{:,.1f}"), Column("measured", "measured (MB)", "{:,.1f}")]
    columns.append(Column("off", "difference (%)", "{:+.1f}"))
    rows: list[dict[str, Cell]] = []
    worst = 0.0
    for run in runs:
        for name in NETWORKS:
            own = run.results.get(f"training-{name}", {}).get("accounts", {})
            first = {"numpy": run.results["accounts"][name]} if "accounts" in run.results else {}
            for candidate, account in {**first, **own}.items():
                plan, measured = account["plan_mb"], account["measured_mb"]
                off = 100 * (plan - measured) / measured
                worst = max(worst, abs(off))
                rows.append({"network": f"`{name}`", "candidate": run.label(candidate), "batch": account["batch"],
                             "plan": plan, "measured": measured, "off": off})  # fmt: skip
    page.table(
        "accounts", "Memory that a training step takes beside weights and input", columns, rows,
        "Planned: from the Program, by lifetimes; on `cupy` and `numba_cuda` after merging. Measured: what NumPy, and "
        "PyTorch on a GPU, have allocated at most in a step, Numba's arena, and by how much what CuPy or Numba hold on "
        f"the device grows with the step. The plan is within {worst:.1f} % of what was measured.",
    )  # fmt: skip
