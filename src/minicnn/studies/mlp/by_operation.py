"""Time of an iteration of the study `mlp` by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicnn.bench import Column, Page, Run, Spread
from minicnn.bench.candidates import on_gpu
from minicnn.bench.page import Cell

# What was published for NumPy and for CuPy.
OPERATIONS_MS = {
    "matrix products": (42.3, 6.7), "ReLU": (3.1, 1.8), "softmax and loss": (5.6, 2.9), "other gradients": (33.6, 18.8),
}  # fmt: skip
ITERATION_MS = (84.6, 30.2)
WITHOUT = ("input", "running loss and accuracy")  # operations that the study's iteration does not have

Found = Sequence[tuple[Run, Mapping[str, Any]]]


def operation(node: Mapping[str, Any]) -> str:
    """Which of the study's operations a node belongs to."""
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
    return {name: Spread.of(found) for name, found in samples.items()}


def present(page: Page, data: str, found: Found) -> None:
    """The study's operations in ms, and how many times as fast as NumPy each is."""
    page.section("By operation")
    columns = [Column("operation", "operation (ms)"), Column("published_cpu", "published: CPU", "{:.1f}"),
               Column("published_gpu", "published: GPU", "{:.1f}")]  # fmt: skip
    cells: dict[str, dict[str, Cell]] = {}
    for run, result in found:
        for name, kept in result["nodes"].items():
            if kept:
                head = f"{run.label(name)}{', apart' if kept['apart'] else ''}"
                columns.append(Column(head, head, "{:.3g}"))
                own = operations(kept["nodes"])
                cells[head] = {kind: s.scaled(1e3) for kind, s in own.items()}
                cells[head]["sum"] = 1e3 * sum(s.median for s in own.values())
                rounds = [row["time_s"] / row["steps"] for row in result["rounds"][name]]
                cells[head]["iteration"] = Spread.after_first(rounds, 1e3)
    kinds = dict.fromkeys([*OPERATIONS_MS, *(kind for own in cells.values() for kind in own)])
    order = [k for k in kinds if k not in ("sum", "iteration")]
    names = {"sum": "sum of the operations", "iteration": "an iteration, as trained"}
    rows: list[dict[str, Cell]] = []
    for kind in (*order, *names):
        published = OPERATIONS_MS.get(kind, ITERATION_MS if kind in names else (None, None))
        row: dict[str, Cell] = {"operation": names.get(kind, kind), "published_cpu": published[0],
                                "published_gpu": published[1]}  # fmt: skip
        rows.append(row | {head: own.get(kind) for head, own in cells.items()})
    note = (
        "Each node of the training step is timed by itself while the backend runs the step. Apart: the backend merges "
        "nodes into kernels, compiles the step as a whole or computes on a GPU, so each operation is compiled by "
        "itself for this table, on a GPU launched many times in a row. What the sum takes longer than an iteration is, "
        "on a GPU, what merging saves; `numba` also rearranges the operands of each operation by itself, which a step "
        "does once. Matrix products are those of both passes; other gradients are all else of the backward "
        "pass. PyTorch's and JAX's own modules are no Programs, so they have no nodes."
    )
    page.table(f"operations-{data}", f"Time by operation on {data}", columns, rows, note)
    _speedups(page, data, found)


def _speedups(page: Page, data: str, found: Found) -> None:
    """How many times as fast as NumPy each operation is, beside the published."""
    columns = [Column("operation", "operation (times NumPy's rate)"), Column("published", "published: CuPy", "{:.1f}")]
    rows: dict[str, dict[str, Cell]] = {
        kind: {"operation": kind, "published": cpu / gpu} for kind, (cpu, gpu) in OPERATIONS_MS.items()
    }
    for run, result in found:
        if not result["nodes"].get("numpy"):
            continue
        base = operations(result["nodes"]["numpy"]["nodes"])
        for name, kept in result["nodes"].items():
            timed = kept and name != "numpy" and ("work" in result or not on_gpu(name))  # else launching and waiting
            for kind, spread in operations(kept["nodes"]).items() if timed else ():
                head = run.label(name)
                columns += [Column(head, head, "{:,.1f}")] if head not in [c.key for c in columns] else []
                if kind in base and spread.median:
                    row = rows.setdefault(kind, {"operation": kind})
                    row[head] = base[kind].median / spread.median
    page.table(
        f"speedups-{data}", f"Speed-up by operation on {data}", columns, list(rows.values()),
        "NumPy on the same machine is 1. Operations apart from each other: what merging saves is not in it.",
    )  # fmt: skip
