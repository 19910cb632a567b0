"""Which parallelism scales: what the model of times predicts for GPUs, beside published and measured points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minicnn.backends._gpu.device import KNOWN
from minicnn.bench import Column, Page, Panel, Run, figures, local_ranks
from minicnn.bench.figures import FAMILIES, PALETTE, PUBLISHED
from minicnn.bench.page import Cell, Claim
from minicnn.distribution import prediction
from minicnn.distribution.prediction.evidence import PUBLISHED as SPEEDUPS

NETWORKS = ("alexnet", "vgg16", "resnet50", "platforms")
GPU, HOSTS = "h200", "infiniband,ranks_per_host=8,links_per_host=8,within=nvlink"
RANKS = (1, 2, 4, 8, 16, 32, 64)
STRONG, WEAK = 1024, 128  # samples of all ranks together, and of each
VARIATION = 0.03  # of step times, relative to their mean: assumed
RING = "data, ring"  # data parallelism without the fixed tree
# What is trained on the ranks of one machine, and measured.
MEASURED = (
    {"network": "alexnet", "image": (64, 64, 3), "classes": 10, "batch": 64},
    {"network": "platforms", "image": (28, 28, 1), "classes": 10, "batch": 512},
)
BUDGET_S = 30.0
PREDICTED, RANKED = "parallelism", "ranks"  # names of measurements
KEPT = ("seconds", "exposed", "hidden", "idle", "sent", "memory")
TONES = dict(zip((*prediction.STRATEGIES, RING), PALETTE, strict=False))


def given() -> dict[str, Any]:
    """All that the predictions depend on."""
    return {"candidates": (), "networks": NETWORKS, "gpu": GPU, "hosts": HOSTS, "ranks": RANKS, "strong": STRONG,
            "weak": WEAK, "variation": VARIATION}  # fmt: skip


def predict() -> dict[str, Any]:
    """Predictions by network, as plain data."""
    conditions = prediction.Conditions(
        prediction.interconnect(HOSTS), prediction.normal(VARIATION), memory=float(KNOWN[GPU].memory)
    )
    ring = prediction.Conditions(**{**vars(conditions), "algorithm": "ring"})
    found = {}
    for name in NETWORKS:
        work = prediction.counted(
            partial(local_ranks.trace, {"network": name}), prediction.PlannedGpu(KNOWN[GPU]), STRONG
        )
        dense = [layer for layer in work.layers if layer.dense]
        found[name] = {
            "until": work.hybrid_until, "weights": work.weights, "dense": sum(layer.weights for layer in dense),
            "rows": [
                _row(kind, row, beside)
                for kind, batch in (("strong", STRONG), ("weak", WEAK))
                for row, beside in zip(
                    prediction.scaling(work, RANKS, batch, conditions, kind),  # type: ignore[arg-type]
                    prediction.scaling(work, RANKS, batch, ring, kind),  # type: ignore[arg-type]
                    strict=True,
                )
            ],
        }  # fmt: skip
    return found


def _row(kind: str, row: prediction.Row, ring: prediction.Row) -> dict[str, Any]:
    every = {p.strategy: (p, s) for p, s in zip(row.predictions, row.speedups, strict=True)}
    every[RING] = ring.predictions[0], ring.speedups[0]
    ways = {
        name: None if p.impossible else {"how": p.how, "speedup": _short(s), **{k: _short(getattr(p, k)) for k in KEPT}}
        for name, (p, s) in every.items()
    }
    return {"kind": kind, "ranks": row.ranks, "chosen": row.chosen, "why": row.why, "ways": ways}


def _short(value: float) -> float:
    """Five digits of a number."""
    return float(f"{value:.5g}")


def measure() -> dict[str, Any]:
    """Steps and all-reduces of local ranks."""
    return local_ranks.measure(MEASURED, budget_s=BUDGET_S)


# Pages --------------------------------------------------------------------------------------------


def claim(runs: Sequence[Run]) -> Claim:
    """The survey's claim on hybrid parallelism."""
    alexnet = _predicted(runs).get("alexnet")
    way = alexnet and _way(alexnet, "strong", 4, "hybrid")
    ours = f"{way['speedup']:.1f} times, predicted for {KNOWN[GPU].name}" if way else None
    return Claim(
        "Hybrid parallelism on 4 GPUs halves the training time", "after Yadan et al. 2013, arXiv:1312.5853", "2 times",
        ours, None, "predicted, not measured; links between GPUs of today are much faster in proportion",
    )  # fmt: skip


def present(page: Page, runs: Sequence[Run]) -> None:
    """The part of the page on parallelism; nothing if nothing was predicted."""
    found = _predicted(runs)
    if not found:
        return
    page.section("Which parallelism scales (predicted)")
    _errors(page, runs)
    rows = [
        {"network": name, **_cells(row, way)}
        for name, one in found.items() for row in one["rows"] for way in row["ways"] if row["ways"][way]
    ]  # fmt: skip
    page.words(
        f"No figure of this section was measured, but those that are said to be. Predicted for {KNOWN[GPU].name}s by "
        f"the plan of each step in float32, in hosts of 8 with NVLink and 8 InfiniBand ports of 100 Gbit/s; strong "
        f"scaling of a batch of {STRONG:,}, weak scaling with {WEAK} samples a rank; step times vary by "
        f"{100 * VARIATION:.0f} % (assumed). Gradients are summed in the fixed tree of shards, or in a ring as "
        "libraries do it; `minicnn predict-scaling` does likewise for other devices and networks."
    )
    lines = {name: _lines(one["rows"]) for name, one in found.items()}
    last = max(row["ranks"] for one in found.values() for row in one["rows"])
    page.figure(
        "parallelism", "Speed-up by strategy, predicted",
        [
            Panel(_title(name, one), partial(_draw, name=name, series=lines[name], upward=figures.ends(lines.values())))
            for name, one in found.items()
        ],
        f"Predicted speed-up over one GPU, strong scaling of a batch of {STRONG:,}; hollow: published for AlexNet on "
        "other GPUs by hybrid parallelism (Krizhevsky 2014 on 4 and 8, 128 samples a GPU; Yadan et al. 2013 on 4).",
    )  # fmt: skip
    choices = [
        {"network": name, **_cells(row, row["chosen"])}
        for name, one in found.items() for row in one["rows"] if row["ranks"] == last and row["chosen"]
    ]  # fmt: skip
    columns = _columns()
    page.table("choices", f"What the model would choose on {last} GPUs (predicted)", columns, choices)
    until: list[dict[str, Cell]] = [
        {"network": name, "weights": one["weights"] / 1e6, "dense": one["dense"] / 1e6,
         "until": math.floor(one["until"])}
        for name, one in found.items() if one["until"] is not None
    ]  # fmt: skip
    page.table(
        "hybrid", "Up to which batch hybrid parallelism sends fewer bytes than data parallelism",
        [Column("network", "network"), Column("weights", "gradients (MB)", "{:.1f}"),
         Column("dense", "of dense layers (MB)", "{:.1f}"), Column("until", "batch of a group", "{:,}")],
        until, "Counted, not measured: bytes of the dense layers' weights by bytes a sample of their inputs.",
    )  # fmt: skip
    page.table("scaling", "All predictions by network, strategy and number of GPUs", columns, rows)


def _predicted(runs: Sequence[Run]) -> Mapping[str, Any]:
    return next((run.results[PREDICTED] for run in runs if PREDICTED in run.results), {})


def _errors(page: Page, runs: Sequence[Run]) -> None:
    """The model's errors: it is judged before it is believed."""
    points = []
    for run in runs:
        if RANKED in run.results:
            points += list(prediction.calibrate(run.results[RANKED], local_ranks.trace).points)
    points += prediction.published(prediction.workload(partial(local_ranks.trace, {"network": "alexnet"}), [1]))
    rows: list[dict[str, Cell]] = [
        {"what": p.what, "measured": _said(p.measured, p.unit), "model": _said(p.predicted, p.unit),
         "error": f"{100 * p.error:+.0f} %" + (" (fitted)" if p.fitted else ""), "source": p.source}
        for p in points
    ]  # fmt: skip
    columns = [Column("what", "what"), Column("measured", "measured"), Column("model", "model"),
               Column("error", "error of the model"), Column("source", "measured by")]  # fmt: skip
    page.table(
        "model-errors", "The model of times against what was measured", columns, rows,
        "Times are lower quartiles, since what else runs on a machine only adds to them. Fitted: the model's constants "
        "come from these points. Of the published ones the first gives the ratio of computing to links; Yadan et al. "
        "had other ones, which are not known.",
    )  # fmt: skip


def _said(value: float, unit: str) -> str:
    return figures.duration(value) if unit == "s" else f"{value:.2f} times"


def _columns() -> list[Column]:
    return [
        Column("network", "network"), Column("kind", "scaling"), Column("ranks", "GPUs"), Column("way", "strategy"),
        Column("how", "how"), Column("step_ms", "step (ms)", "{:.3g}"), Column("speedup", "speed-up", "{:.3g}"),
        Column("waits", "waits for links (%)", "{:.0f}"), Column("hidden", "hidden (%)", "{:.0f}"),
        Column("idle", "pipeline idle (%)", "{:.0f}"), Column("sent_mb", "sent a rank (MB)", "{:,.0f}"),
        Column("memory_gb", "memory a rank (GB)", "{:.2f}"),
    ]  # fmt: skip


def _cells(row: Mapping[str, Any], name: str) -> dict[str, Cell]:
    way = row["ways"][name]
    part = {key: 100 * way[key] / way["seconds"] for key in ("exposed", "hidden", "idle")}
    return {
        "kind": row["kind"], "ranks": row["ranks"], "way": name, "how": way["how"], "step_ms": 1e3 * way["seconds"],
        "speedup": way["speedup"], "waits": part["exposed"], "hidden": part["hidden"], "idle": part["idle"],
        "sent_mb": way["sent"] / 1e6, "memory_gb": way["memory"] / 1e9,
    }  # fmt: skip


def _way(found: Mapping[str, Any], kind: str, ranks: int, name: str) -> Any:
    return next((r["ways"][name] for r in found["rows"] if (r["kind"], r["ranks"]) == (kind, ranks)), None)


def _title(name: str, found: Mapping[str, Any]) -> str:
    """The finding: the largest speed-up, and on how few GPUs."""
    strong = [r for r in found["rows"] if r["kind"] == "strong" and r["chosen"]]
    best = max(strong, key=lambda r: (r["ways"][r["chosen"]]["speedup"], -r["ranks"]), default=None)
    if best is None:
        return f"{name}: nothing fits"
    way = best["ways"][best["chosen"]]
    return f"{name}: {way['speedup']:.2g} times on {best['ranks']}, by {best['chosen']}"


def _lines(rows: Sequence[Mapping[str, Any]]) -> figures.Series:
    """Speed-up against the number of GPUs by each strategy, in strong scaling."""
    found: dict[str, tuple[list[int], list[float], str]] = {}
    for row in (row for row in rows if row["kind"] == "strong"):
        for way, tone in TONES.items():
            if row["ways"][way]:
                xs, ys, _ = found.setdefault(way, ([], [], tone))
                xs.append(row["ranks"])
                ys.append(row["ways"][way]["speedup"])
    return found


def _draw(axes: Any, name: str, series: figures.Series, upward: tuple[float, float]) -> None:
    figures.paths(axes, series, "GPUs", "speed-up (predicted)", log="xy", say=lambda value: f"{value:g}", upward=upward)
    if name == "alexnet":
        for gpus, _, speedup, _ in SPEEDUPS:
            axes.plot(gpus, speedup, "o", markersize=7, color=FAMILIES[PUBLISHED], markerfacecolor="none", zorder=5)
