from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minicnn.exercises import grading, simulator, wire
from minicnn.exercises.exercise import WrongError
from minicnn.exercises.grading import Grade
from minicnn.exercises.process import Answer
from minicnn.exercises.worker import Library

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


class Here:
    """A submission in this process, with all of the other one but its confinement."""

    printed = ""

    def __init__(
        self, text: bytes, functions: Sequence[str], *, library: str = "numpy", kernels: str = "", **_: object
    ) -> None:
        self._library = Library(library)
        self._module: Any = ModuleType("submission")
        if kernels:
            self._module = simulator.load(text.decode(), kernels)
        else:
            exec(compile(text, "submission.py", "exec"), self._module.__dict__)

    def call(self, function: str, arguments: Any, options: Any, looked_at: bool = True) -> Answer:
        arguments, options = wire.read(io.BytesIO(wire.packed([list(arguments), dict(options)])))
        with warnings.catch_warnings(action="ignore"):
            reply = self._library.call(self._module, function, arguments, options, looked_at, "submission.py")
        if "error" in reply:
            raise WrongError(reply["error"])
        result = wire.read(io.BytesIO(wire.packed(reply["result"])))
        return Answer(result, bool(reply.get("changed")), bool(reply.get("views")), 1.0)

    def close(self) -> None:
        pass


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submissions run in this process, which starts none and so is quick."""
    monkeypatch.setattr(grading, "Process", Here)


@pytest.fixture
def graded(tmp_path: Path) -> Callable[..., Grade]:
    """Grade a text, on NumPy's arrays unless libraries are named, and always with the same arguments."""

    def grade(name: str, text: str, libraries: tuple[str, ...] = ("numpy",), limit_s: float = 60.0) -> Grade:
        path = tmp_path / "submission.py"
        path.write_text(text, "utf-8")
        return grading.grade(name, path, libraries=libraries, limit_s=limit_s, seed=1)

    return grade
