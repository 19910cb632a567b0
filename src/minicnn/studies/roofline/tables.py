"""Tables of the study `roofline`: ceilings of the machines, what the networks compute and move, and their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from minicnn.measure import Missing, Spread, StudyRun
from minicnn.measure.candidates import on_gpu
from minicnn.measure.page import Cell
from minicnn.studies.roofline.ceilings import call_s, launch_s, level_of, peaks
from minicnn.studies.roofline.counting import NETWORKS, at_batch

Found = Mapping[str, Any]
Rows = list[dict[str, Cell]]


def _measured(runs: Sequence[StudyRun]) -> list[tuple[StudyRun, Found]]:
    return [(run, run.results["ceilings"]) for run in runs if "ceilings" in run.results]


def ways(runs: Sequence[StudyRun]) -> Rows:
    """Products by way of computing."""
    return [
        {"machine": where, "way": way, "rate": rate / 1e9}
        for run, ceilings in _measured(runs)
        for gpu, where in ((False, run.cpu), (True, run.gpu or ""))
        for way, rate in peaks(ceilings, gpu).items()
    ]


def launches(runs: Sequence[StudyRun]) -> Rows:
    """The cost of an operation on next to nothing."""
    return [
        {"candidate": run.label(name), "us": spread.scaled(1e6) if (spread := launch_s(ceilings, name)) else None}
        for run, ceilings in _measured(runs)
        for name in ceilings["launches"]
    ]


def copies(runs: Sequence[StudyRun]) -> tuple[Rows, str]:
    """Copies by working set, and the sizes of the caches in words."""
    rows: Rows = []
    notes = []
    for run, ceilings in _measured(runs):
        caches = {name: int(size) for name, size in ceilings["caches"].items()}
        for name, own_copies in ceilings["copies"].items():
            call = call_s(own_copies)
            for nbytes, rates in own_copies.items():
                seconds = [2 * int(nbytes) / rate for rate in rates]
                cached = {"L2": ceilings["l2"][name]} if ceilings["l2"].get(name) else {}
                level = (
                    level_of(2 * int(nbytes), cached if on_gpu(name) else caches) if cached or not on_gpu(name) else ""
                )
                if call > median(seconds) / 2:
                    level = f"{level or 'device'}, mostly the call"
                rows.append({
                    "library": run.label(name), "working_set": 2 * int(nbytes) / 1e3, "level": level,
                    "us": Spread.of(seconds, 1e6), "rate": Spread.of(rates, 1e-9),
                })  # fmt: skip
        notes += [f"Caches of a core of the machine with {run.cpu}: "
                  + (", ".join(f"{n} {s // 1024:,} KiB" for n, s in caches.items()) or "not known")]  # fmt: skip
        notes += [f"L2 of the {run.gpu}: {s // 2**20:,} MiB" for s in {s for s in ceilings["l2"].values() if s}]
    return rows, "; ".join(notes)


def counts(networks: Mapping[str, Found]) -> Rows:
    """Parameters, FLOPs and bytes of a step by image, against PyTorch's counter."""
    rows: Rows = []
    for name, counted in networks.items():
        batch, theirs = counted["batches"][1], counted["torch"]
        flops, moved = whole(counted, batch)
        row: dict[str, Cell] = {
            "network": f"`{name}`", "parameters": counted["parameters"], "nodes": len(counted["nodes"]),
            "flops": flops / batch / 1e6, "bytes": moved / batch / 1e6, "intensity": flops / moved,
            **{phase: counted["products"][phase] / 1e6 for phase in ("forward", "backward")},
        }  # fmt: skip
        if theirs is None:
            row |= dict.fromkeys(("forward_torch", "backward_torch", "grouped", "off"), Missing("PyTorch is not there"))
        else:
            row |= {
                "forward_torch": theirs["forward"] / 1e6, "backward_torch": theirs["backward"] / 1e6,
                "grouped": theirs["backward_grouped"] / 1e6, "off": 100 * differs(counted),
            }  # fmt: skip
        rows.append(row)
    return rows


def layers(networks: Mapping[str, Found]) -> Rows:
    """FLOPs and bytes by layer."""
    rows: Rows = []
    for name, counted in networks.items():
        for layer, of in counted["layers"].items():
            sums = [sum(of.get(f"{p}_{k}", 0) for p in ("forward", "backward")) for k in ("flops", "bytes")]
            keys = [f"{p}_{k}" for p in ("forward", "backward") for k in ("flops", "bytes")]
            rows.append({
                "network": name, "layer": layer, "kind": of["kind"], "parameters": of.get("parameters", 0),
                **{key: of.get(key, 0) / 1e6 for key in keys}, "intensity": sums[0] / sums[1] if sums[1] else None,
            })  # fmt: skip
    return rows


def whole(counted: Found, batch: int) -> tuple[float, float]:
    """FLOPs and bytes of a step."""
    nodes = at_batch(counted, batch)
    return sum(f for f, _ in nodes), sum(b for _, b in nodes)


def differs(counted: Found) -> float:
    """Largest relative difference of our counts of products from PyTorch's, its groups mended."""
    ours, theirs = counted["products"], counted["torch"]
    right = {"forward": theirs["forward"], "backward": theirs["backward_grouped"]}
    return max(abs(ours[phase] - right[phase]) / right[phase] for phase in right)


def memory(runs: Sequence[StudyRun]) -> tuple[Rows, float]:
    """Planned memory beside measured, and the largest difference (%)."""
    rows: Rows = []
    worst = 0.0
    for run in runs:
        for name in NETWORKS:
            accounts = run.results.get(f"training-{name}", {}).get("accounts", {})
            first = {"numpy": run.results["accounts"][name]} if "accounts" in run.results else {}
            for candidate, account in {**first, **accounts}.items():
                plan, measured = account["plan_mb"], account["measured_mb"]
                off = 100 * (plan - measured) / measured
                worst = max(worst, abs(off))
                rows.append({"network": f"`{name}`", "candidate": run.label(candidate), "batch": account["batch"],
                             "plan": plan, "measured": measured, "off": off})  # fmt: skip
    return rows, worst
