"""Scaling of each parallelism: predictions of the model of times for GPUs, beside published and measured points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minicnn.backends._gpu.device import KNOWN
from minicnn.distribution import prediction
from minicnn.distribution.prediction.evidence import PUBLISHED as SPEEDUPS
from minicnn.measure import Panel, StudyRun, figures, local_ranks
from minicnn.measure.figures import FAMILIES, PALETTE, PUBLISHED
from minicnn.measure.page import Cell

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


def inputs() -> dict[str, Any]:
    """All that the predictions depend on."""
    return {"candidates": (), "networks": NETWORKS, "gpu": GPU, "hosts": HOSTS, "ranks": RANKS, "strong": STRONG,
            "weak": WEAK, "variation": VARIATION}  # fmt: skip


def predict() -> dict[str, Any]:
    """Predictions by network, as plain data."""
    conditions = prediction.Conditions(
        prediction.interconnect(HOSTS), prediction.normal(VARIATION), memory=float(KNOWN[GPU].memory)
    )
    ring = prediction.Conditions(**{**vars(conditions), "algorithm": "ring"})
    predictions = {}
    for name in NETWORKS:
        work = prediction.counted(
            partial(local_ranks.trace, {"network": name}), prediction.PlannedGpu(KNOWN[GPU]), STRONG
        )
        dense = [layer for layer in work.layers if layer.dense]
        predictions[name] = {
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
    return predictions


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


def values(runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Values that the words and the claim on hybrid parallelism name; None where nothing was predicted."""
    predictions = _predicted(runs)
    alexnet = predictions.get("alexnet")
    way = alexnet and _way(alexnet, "strong", 4, "hybrid")
    return {
        "hybrid": way["speedup"] if way else None, "gpu": KNOWN[GPU].name, "strong": STRONG if predictions else None,
        "gains": [gain for _, gain, _ in filter(None, map(_best, predictions.values()))],
        "weak": WEAK, "variation": 100 * VARIATION, "most": _most(predictions) if predictions else None,
    }  # fmt: skip


def panels(runs: Sequence[StudyRun]) -> list[Panel]:
    """Speed-up by strategy, a panel for each network."""
    predictions = _predicted(runs)
    lines = {name: _lines(one["rows"]) for name, one in predictions.items()}
    upward = figures.ends(lines.values()) if lines else (1.0, 1.0)
    return [
        Panel(_title(name, one), partial(_draw, name=name, series=lines[name], upward=upward))
        for name, one in predictions.items()
    ]


def rows(runs: Sequence[StudyRun]) -> dict[str, list[dict[str, Cell]]]:
    """The rows of the tables by name; none if nothing was predicted."""
    predictions = _predicted(runs)
    if not predictions:
        return {}
    every: list[dict[str, Cell]] = [
        {"network": name, **_cells(row, way)}
        for name, one in predictions.items() for row in one["rows"] for way in row["ways"] if row["ways"][way]
    ]  # fmt: skip
    choices: list[dict[str, Cell]] = [
        {"network": name, **_cells(row, row["chosen"])}
        for name, one in predictions.items() for row in one["rows"]
        if row["ranks"] == _most(predictions) and row["chosen"]
    ]  # fmt: skip
    until: list[dict[str, Cell]] = [
        {"network": name, "weights": one["weights"] / 1e6, "dense": one["dense"] / 1e6,
         "until": math.floor(one["until"])}
        for name, one in predictions.items() if one["until"] is not None
    ]  # fmt: skip
    return {"model-errors": _errors(runs), "choices": choices, "hybrid": until, "scaling": every}


def _most(prediction: Mapping[str, Any]) -> int:
    """The largest number of ranks."""
    return int(max(row["ranks"] for one in prediction.values() for row in one["rows"]))


def _predicted(runs: Sequence[StudyRun]) -> Mapping[str, Any]:
    return next((run.results[PREDICTED] for run in runs if PREDICTED in run.results), {})


def _errors(runs: Sequence[StudyRun]) -> list[dict[str, Cell]]:
    """The model's errors: it is judged before it is believed."""
    points = []
    for run in runs:
        if RANKED in run.results:
            points += list(prediction.calibrate(run.results[RANKED], local_ranks.trace).points)
    points += prediction.published(prediction.workload(partial(local_ranks.trace, {"network": "alexnet"}), [1]))
    return [
        {"what": p.what, "measured": _said(p.measured, p.unit), "model": _said(p.predicted, p.unit),
         "error": f"{100 * p.error:+.0f} %" + (" (fitted)" if p.fitted else ""), "source": p.source}
        for p in points
    ]  # fmt: skip


def _said(value: float, unit: str) -> str:
    return figures.duration(value) if unit == "s" else f"{value:.2f} times"


def _cells(row: Mapping[str, Any], name: str) -> dict[str, Cell]:
    way = row["ways"][name]
    part = {key: 100 * way[key] / way["seconds"] for key in ("exposed", "hidden", "idle")}
    return {
        "kind": row["kind"], "ranks": row["ranks"], "way": name, "how": way["how"], "step_ms": 1e3 * way["seconds"],
        "speedup": way["speedup"], "waits": part["exposed"], "hidden": part["hidden"], "idle": part["idle"],
        "sent_mb": way["sent"] / 1e6, "memory_gb": way["memory"] / 1e9,
    }  # fmt: skip


def _way(prediction: Mapping[str, Any], kind: str, ranks: int, name: str) -> Any:
    return next((r["ways"][name] for r in prediction["rows"] if (r["kind"], r["ranks"]) == (kind, ranks)), None)


def _title(name: str, prediction: Mapping[str, Any]) -> str:
    """The finding: the largest speed-up, and on how few GPUs."""
    best = _best(prediction)
    return f"{name}: {best[1]:.2g} times on {best[0]}, by {best[2]}" if best else f"{name}: nothing fits"


def _best(prediction: Mapping[str, Any]) -> tuple[int, float, str] | None:
    """Ranks, speed-up and strategy of the largest speed-up in strong scaling, on as few ranks as have it."""
    strong = [r for r in prediction["rows"] if r["kind"] == "strong" and r["chosen"]]
    best = max(strong, key=lambda r: (r["ways"][r["chosen"]]["speedup"], -r["ranks"]), default=None)
    return best and (best["ranks"], best["ways"][best["chosen"]]["speedup"], best["chosen"])


def _lines(rows: Sequence[Mapping[str, Any]]) -> figures.Series:
    """Speed-up against the number of GPUs by each strategy, in strong scaling."""
    lines: dict[str, tuple[list[int], list[float], str]] = {}
    for row in (row for row in rows if row["kind"] == "strong"):
        for way, tone in TONES.items():
            if row["ways"][way]:
                xs, ys, _ = lines.setdefault(way, ([], [], tone))
                xs.append(row["ranks"])
                ys.append(row["ways"][way]["speedup"])
    return lines


def _draw(axes: Any, name: str, series: figures.Series, upward: tuple[float, float]) -> None:
    figures.paths(axes, series, "GPUs", "speed-up (predicted)", log="xy", say=lambda value: f"{value:g}", upward=upward)
    if name == "alexnet":
        for gpus, _, speedup, _ in SPEEDUPS:
            axes.plot(gpus, speedup, "o", markersize=7, color=FAMILIES[PUBLISHED], markerfacecolor="none", zorder=5)
