"""Time of an iteration of the study `mlp` by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicnn.measure import Spread, StudyRun
from minicnn.measure.candidates import on_gpu
from minicnn.measure.page import Cell

# What was published for NumPy and for CuPy.
OPERATIONS_MS = {
    "matrix products": (42.3, 6.7), "ReLU": (3.1, 1.8), "softmax and loss": (5.6, 2.9), "other gradients": (33.6, 18.8),
}  # fmt: skip
ITERATION_MS = (84.6, 30.2)
WITHOUT = ("input", "running loss and accuracy")  # operations that the study's iteration does not have

Found = Sequence[tuple[StudyRun, Mapping[str, Any]]]
Row = dict[str, Cell]


def operation(node: Mapping[str, Any]) -> str:
    """The study's operation that a node belongs to."""
    if node["scope"].startswith("metrics"):
        return "running loss and accuracy"
    if node["phase"] == "update":
        return "update"
    if node["op"] == "matmul":
        return "matrix products"
    if node["phase"] == "backward":
        return "other gradients"
    if node["op"] == "relu":
        return "ReLU"
    if node["scope"].startswith("loss"):
        return "softmax and loss"
    return "biases" if node["op"] == "add" else "input"


def operations(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Seconds of each of the study's operations: sums over the nodes, of each run."""
    samples: dict[str, list[float]] = {}
    for node in nodes:
        sums = samples.setdefault(operation(node), [0.0] * len(node["seconds"]))
        samples[operation(node)] = [a + b for a, b in zip(sums, node["seconds"], strict=True)]
    return {name: Spread.of(times) for name, times in samples.items()}


def rows(results: Found) -> tuple[list[Row], list[str]]:
    """The study's operations in ms, their sum and an iteration, and the heads of the candidates' columns."""
    cells: dict[str, Row] = {}
    for run, result in results:
        for name, kept in result["nodes"].items():
            if kept:
                head = f"{run.label(name)}{', apart' if kept['apart'] else ''}"
                spreads = operations(kept["nodes"])
                rounds = [row["time_s"] / row["steps"] for row in result["rounds"][name]]
                cells[head] = {kind: s.scaled(1e3) for kind, s in spreads.items()}
                cells[head] |= {"sum": 1e3 * sum(s.median for s in spreads.values()),
                                "iteration": Spread.after_first(rounds, 1e3)}  # fmt: skip
    names = {"sum": "sum of the operations", "iteration": "an iteration, as trained"}
    kinds = dict.fromkeys([*OPERATIONS_MS, *(kind for spreads in cells.values() for kind in spreads)])
    table: list[Row] = []
    for kind in (*(k for k in kinds if k not in names), *names):
        published = OPERATIONS_MS.get(kind, ITERATION_MS if kind in names else (None, None))
        table.append({"operation": names.get(kind, kind), "published_cpu": published[0], "published_gpu": published[1],
                      **{head: spreads.get(kind) for head, spreads in cells.items()}})  # fmt: skip
    return table, list(cells)


def speedups(results: Found) -> tuple[list[Row], list[str]]:
    """Speed-up of each operation over NumPy, beside the published, and the heads of the columns."""
    table: dict[str, Row] = {k: {"operation": k, "published": cpu / gpu} for k, (cpu, gpu) in OPERATIONS_MS.items()}
    heads: list[str] = []
    for run, result in results:
        if not result["nodes"].get("numpy"):
            continue
        base = operations(result["nodes"]["numpy"]["nodes"])
        for name, kept in result["nodes"].items():
            if not kept or name == "numpy" or ("work" not in result and on_gpu(name)):  # else launching and waiting
                continue
            heads.append(run.label(name))
            for kind, spread in operations(kept["nodes"]).items():
                if kind in base and spread.median:
                    row = table.setdefault(kind, {"operation": kind})
                    row[heads[-1]] = base[kind].median / spread.median
    return list(table.values()), heads
