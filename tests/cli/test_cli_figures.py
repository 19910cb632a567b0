"""The figures of `minicnn train` and `minicnn compare`: axes on which everything can be read off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from minicnn.cli import figures


def entry(name: str, losses: list[float]) -> dict[str, Any]:
    rows = [
        {"epoch": i, "loss": loss, "accuracy": 0.5, "val_loss": loss, "val_accuracy": 0.5, "time_s": 1.0}
        for i, loss in enumerate(losses, start=1)
    ]
    return {"name": name, "history": rows, "time_s": 1.0, "first_time_s": 2.0, "memory_mb": 3.0}


def ticks(axes: Any) -> list[float]:
    """The ticks of the axis to the right that are seen."""
    low, high = axes.get_xlim()
    return [tick for tick in axes.get_xticks() if low <= tick <= high]


def differences(*losses: list[float]) -> Any:
    """The axes of the differences from the first of some candidates."""
    results = [entry(str(i), each) for i, each in enumerate(losses)]
    axes = figures._figure(5, 4).add_subplot()
    figures._difference(axes, results, dict.fromkeys("01234", "#000000"), "0")
    axes.figure.canvas.draw()
    return axes


def test_losses_that_are_equal_lie_on_zero_below_the_least_that_differ() -> None:
    axes = differences([1.0, 1.0, 1.0], [1.0, 1.0 + 3e-8, 1.0], [1.0, 1.0, 1.0])
    some, none = (line.get_ydata() for line in axes.lines)
    assert list(some) == pytest.approx([0, 3e-8, 0])
    assert list(none) == [0, 0, 0]
    assert axes.get_ylim()[0] == 0
    assert 0 in axes.get_yticks()
    assert any(abs(tick - 1e-8) < 1e-12 for tick in axes.get_yticks())
    heights = axes.transData.transform([(1, 0), (1, 1e-8), (1, 3e-8)])[:, 1]
    assert heights[0] + 20 < heights[1] < heights[2], "0 is told from the least by eye"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("epochs", [1, 2, 3, 7, 40])
def test_epochs_are_whole_numbers(epochs: int, tmp_path: Path) -> None:
    losses = [1 / (i + 1) for i in range(epochs)]
    axes = differences(losses, losses, [1.1 * loss for loss in losses])
    seen = ticks(axes)
    assert seen
    assert all(tick == int(tick) and 0 <= tick <= epochs + 1 for tick in seen)
    assert axes.get_xlim()[1] - axes.get_xlim()[0] >= 1
    figures.curves(tmp_path / "curves.png", entry("a", losses)["history"], "t", validation="test")
    figures.comparison(tmp_path / "compare.png", [entry("a", losses), entry("b", losses)], "t", "a")
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_only_the_second_epoch_differs() -> None:
    assert {1.0, 2.0} <= set(ticks(differences([1.0, 1.0], [1.0, 2.0])))


def test_losses_that_are_no_numbers_have_no_place() -> None:
    axes = differences([1.0, float("nan")], [1.0, 2.0], [float("inf"), 1.0])
    assert axes.get_ylim()[0] == 0
