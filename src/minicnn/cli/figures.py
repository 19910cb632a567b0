"""Figures: how one training went, and how backends compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

# Colours that people with any colour vision can tell apart (M. Okabe, K. Ito, Color Universal Design, 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FEW = 25  # epochs up to which each is marked by a dot


def curves(path: Path, rows: Sequence[Row], title: str, *, validation: str) -> None:
    """Draw loss and accuracy of each epoch, in training and validation, as PNG.

    Args:
        path: File to write.
        rows: A row an epoch, with "epoch", "loss", "accuracy", "val_loss" and "val_accuracy".
        title: Title.
        validation: What the validation samples are called.
    """
    figure = _figure(9, 3.8)
    figure.suptitle(title, fontsize=11)
    epochs = [r["epoch"] for r in rows]
    panels = (("loss", "cross-entropy (nats)", 1), ("accuracy", "accuracy (%)", 100))
    for place, (name, label, factor) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, 2, place)
        for prefix, text, color in (("", "training", COLORS[0]), ("val_", validation, COLORS[1])):
            values = [r[prefix + name] * factor for r in rows]
            named = f"{text}: {values[-1]:.4g}"
            axes.plot(epochs, values, color=color, marker=_marker(rows), markersize=4, label=named)
        _style(axes, "epoch", label)
        axes.legend(title="after the last epoch", title_fontsize=8)
        _whole_numbers(axes)
    figure.savefig(path, format="png")


def comparison(path: Path, results: Sequence[Row], title: str, reference: str) -> None:
    """Draw time per epoch, accuracy against time, difference of the losses, and memory, as PNG.

    Args:
        path: File to write.
        results: One entry a candidate: "name", "history", "time_s", "first_time_s", "memory_mb".
        title: Title.
        reference: Name of the candidate that the others are compared with.
    """
    figure = _figure(10, 7)
    figure.suptitle(title, fontsize=11)
    colors = {r["name"]: COLORS[i % len(COLORS)] for i, r in enumerate(results)}
    _time(figure.add_subplot(2, 2, 1), results, colors)
    _accuracy(figure.add_subplot(2, 2, 2), results, colors)
    _difference(figure.add_subplot(2, 2, 3), results, colors, reference)
    memory = [(r["name"], r["memory_mb"]) for r in results]
    _bars(figure.add_subplot(2, 2, 4), memory, colors, "memory for training (MB)", "{:.0f}")
    figure.savefig(path, format="png")


def _time(axes: Any, results: Sequence[Row], colors: Mapping[str, str]) -> None:
    several = any(len(r["history"]) > 1 for r in results)
    first = [r["first_time_s"] for r in results]
    if several:
        axes.barh(
            [r["name"] for r in results], first, color=[colors[r["name"]] for r in results], height=0.6, alpha=0.25
        )
    values = [(r["name"], r["time_s"]) for r in results]
    label = "time per epoch (s): median after the first, pale the first" if several else "time of the epoch (s)"
    _bars(axes, values, colors, label, "{:.3g}", beyond=first)


def _accuracy(axes: Any, results: Sequence[Row], colors: Mapping[str, str]) -> None:
    for r in results:
        times, total = [], 0.0
        for row in r["history"]:
            total += row["time_s"]
            times.append(total)
        accuracy = [100 * row["val_accuracy"] for row in r["history"]]
        marker = _marker(r["history"])
        axes.plot(times, accuracy, color=colors[r["name"]], marker=marker, markersize=4, label=r["name"])
    _style(axes, "training time (s)", "validation accuracy (%)")
    axes.set_xlim(left=0)
    axes.legend()


def _difference(axes: Any, results: Sequence[Row], colors: Mapping[str, str], reference: str) -> None:
    by_name = {r["name"]: r for r in results}
    base = [row["loss"] for row in by_name[reference]["history"]] if reference in by_name else []
    least = 1e-3
    for r in results:
        if r["name"] != reference and base:
            losses = [row["loss"] for row in r["history"]]
            parts = [abs(a / b - 1) for a, b in zip(losses, base, strict=False)]
            marker = _marker(r["history"])
            axes.plot(range(1, len(parts) + 1), parts, color=colors[r["name"]], marker=marker, markersize=4)
            least = min([least, *(part for part in parts if part > 0)])
    # Powers of ten, and below the least of them 0, which losses that are equal lie on.
    axes.set_yscale("symlog", linthresh=10.0 ** math.floor(math.log10(least)))
    axes.set_ylim(bottom=0)
    _style(axes, "epoch", f"loss, relative difference from {reference}")
    _whole_numbers(axes)


def _bars(
    axes: Any,
    values: Sequence[tuple[str, float]],
    colors: Mapping[str, str],
    label: str,
    template: str,
    beyond: Sequence[float] | None = None,
) -> None:
    """Horizontal bars, each with its number to the right of it, and of the number in `beyond`."""
    axes.barh([n for n, _ in values], [v for _, v in values], color=[colors[n] for n, _ in values], height=0.6)
    for i, (_, value) in enumerate(values):
        end = max(value, beyond[i] if beyond else 0.0)
        axes.annotate(template.format(value), (end, i), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    _style(axes, label, "")
    axes.grid(axis="y", visible=False)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # no window system, no global state
    return figure


def _style(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _whole_numbers(axes: Any) -> None:
    """Have the axis to the right show whole numbers alone, also where it has a single one."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim(low - 0.5, high + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _marker(rows: Sequence[Any]) -> str:
    return "o" if len(rows) <= FEW else ""
