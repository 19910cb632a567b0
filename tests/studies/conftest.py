from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from minicnn import machine
from minicnn.cli import study
from minicnn.measure import Figure, Panel, drawing, timing
from minicnn.measure.candidates import Field, find
from minicnn.studies.convolution import sweeps
from minicnn.studies.roofline import ceilings
from support import in_process


@pytest.fixture(scope="session")
def field() -> Field:
    """The candidates of this machine; looked at once."""
    return find()


@pytest.fixture(autouse=True)
def same_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: Field) -> None:
    """An empty folder to work in, on a machine that is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "find", lambda: field)
    monkeypatch.setattr(machine, "warnings", list)


@pytest.fixture(autouse=True)
def figures_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole as SVG: `tests/measure/test_report.py` draws single panels and PNG, and each drawing takes a second."""
    render, drawn = drawing._render, dict[str, tuple[bytes, list[drawing.Spot]]]()

    def once(figure: Figure, _: Sequence[Panel], form: str) -> tuple[bytes, list[drawing.Spot]]:
        if figure.name not in drawn:
            drawn[figure.name] = render(figure, figure.panels, "svg")
        return drawn[figure.name] if form == "svg" else (b"\x89PNG", [])

    monkeypatch.setattr(drawing, "_render", once)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates without processes of their own, timed for a tenth of the usual time: nobody reads the times."""
    in_process.in_this_process(monkeypatch)
    for module, name in ((sweeps, "LEAST_S"), (ceilings, "LEAST_S"), (timing, "CPU_AWAKE_S")):
        monkeypatch.setattr(module, name, getattr(module, name) / 10)
