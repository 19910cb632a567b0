"""Variants of the training of the study `platforms`: what the published programs do otherwise, one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.bench import Column, Page, Run
from minicnn.bench.page import Cell


@dataclass(frozen=True)
class Variant:
    """A training that differs in one thing.

    Attributes:
        title: What it is called.
        network: Further arguments of `minicnn.jobs.job.make_model`.
    """

    title: str
    network: Mapping[str, Any]


VARIANTS = {
    "normalised": Variant("pixels normalised by mean and deviation", {"normalised": True}),
    "frozen": Variant("convolutions frozen", {"frozen": "conv"}),
}


def seen(rows: Sequence[Mapping[str, Any]]) -> int:
    """Samples of an epoch."""
    return round(rows[-1]["samples_per_s"] * rows[-1]["time_s"])


def last(run: Run, name: str, data: str) -> float | None:
    """Test accuracy in % after the last epoch of a variant; None if it was not measured."""
    histories = run.results.get(f"{name}-{data}", {"history": {}})["history"].values()
    return next((100 * rows[-1]["test_accuracy"] for rows in histories), None)


def present(page: Page, data: str, runs: Sequence[Run]) -> None:
    """The variants beside the training as it is, by the candidate that stands for all."""
    columns = [
        Column("variant", "training"), Column("candidate", "candidate"), Column("epochs", "epochs"),
        Column("seen", "samples", "{:,d}"), Column("loss", "training loss (nats)", "{:.4f}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"), Column("best", "highest (%)", "{:.2f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for run in runs:
        found = {v.title: run.results.get(f"{n}-{data}", {"history": {}})["history"] for n, v in VARIANTS.items()}
        names = {name for history in found.values() for name in history}
        usual = run.results.get(f"training-{data}", {"history": {}})["history"]
        for title, history in ({"as it is": {n: usual[n] for n in names if n in usual}} | found).items():
            for name, epochs in history.items():
                rows.append({
                    "variant": title, "candidate": run.label(name), "epochs": len(epochs),
                    "seen": seen(epochs), "loss": epochs[-1]["loss"],
                    "accuracy": 100 * epochs[-1]["test_accuracy"],
                    "best": 100 * max(e["test_accuracy"] for e in epochs),
                })  # fmt: skip
    if rows:
        page.section("What the published programs do otherwise")
        page.table(
            f"variants-{data}", f"One thing changed at a time, on {data}", columns, rows,
            "The published PyTorch version normalises pixels, the published Numba versions never update their "
            "convolutions. One candidate stands for all, as all compute the same; its gradients were compared with "
            "NumPy's in each variant.",
        )  # fmt: skip
