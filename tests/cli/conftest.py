from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder to work in, and no variables that decide for the tests."""
    for name in ("MINICNN_DATA", "MINICNN_BACKEND", "MINICNN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
