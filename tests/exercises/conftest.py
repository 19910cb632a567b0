from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minicnn.exercises import grading
from minicnn.exercises.grading import Grade

SOLUTIONS = Path(__file__).parent / "solutions"


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MINICNN_BACKEND", "MINICNN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def solution() -> Callable[[str], str]:
    """Text of the solution of an exercise."""
    return lambda name: (SOLUTIONS / f"{name}.py").read_text("utf-8")


@pytest.fixture
def graded(tmp_path: Path) -> Callable[..., Grade]:
    """Grade a text, on NumPy's arrays unless libraries are named, and always with the same arguments."""

    def grade(name: str, text: str, libraries: tuple[str, ...] = ("numpy",), limit_s: float = 60.0) -> Grade:
        path = tmp_path / "submission.py"
        path.write_text(text, "utf-8")
        return grading.grade(name, path, libraries=libraries, limit_s=limit_s, seed=1)

    return grade
