from __future__ import annotations

from pathlib import Path

import pytest

from minicnn import machine
from minicnn.bench.candidates import Field, find
from minicnn.cli import study


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
