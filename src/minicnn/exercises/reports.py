"""Grades of a class, and in the formats of other tools: nbgrader's table of grades, and Gradescope's results.

nbgrader: https://nbgrader.readthedocs.io/en/stable/user_guide/faq.html, the columns of `nbgrader export`. Gradescope:
https://gradescope-autograders.readthedocs.io/en/latest/specs/, the output format.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from minicnn.exercises.exercise import LIMIT_S
from minicnn.exercises.grading import Grade, grade, refused
from minicnn.exercises.table import EXERCISES

NBGRADER = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
    "late_submission_penalty", "score", "max_score",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A grade of a class.

    Attributes:
        student: Name of the folder in which the submission lies.
        path: The submission.
        grade: Its grade.
    """

    student: str
    path: Path
    grade: Grade

    @property
    def feedback(self) -> str:
        """The checks that lost points, in one line."""
        return "; ".join(f"{o.name}: {o.text}" for o in self.grade.outcomes if o.points < o.of)


def submissions(folder: Path, exercise: str | None = None) -> list[tuple[str, str, Path]]:
    """Submissions of a class: student, exercise and file.

    Args:
        folder: Holds a folder for each student, in which files have the names of exercises, at any depth.
        exercise: The only exercise that counts, or None.

    Raises:
        ValueError: If there are none.
    """
    files = [
        (student.name, path.stem, path)
        for student in sorted(p for p in folder.glob("*") if p.is_dir())
        for path in sorted(student.rglob("*.py"))
        if (path.stem in EXERCISES if exercise is None else path.stem == exercise)
    ]
    if not files:
        raise ValueError(
            f"A class is a folder with a folder for each student, which holds EXERCISE.py. Received: {folder}, without "
            f"{'an exercise' if exercise is None else f'{exercise}.py'}. Lay files out as STUDENT/convolution.py."
        )
    return files


def class_grades(
    folder: Path, exercise: str | None = None, *, libraries: Sequence[str] | None = None, limit_s: float = LIMIT_S,
    seed: int | None = None,
) -> Iterator[Entry]:  # fmt: skip
    """Grade a class, one submission after the other; what cannot be run gets no points.

    Args:
        folder: As for `submissions`.
        exercise: As for `submissions`.
        libraries: As for `grade`.
        limit_s: Seconds of each submission.
        seed: As for `grade`.
    """
    for student, name, path in submissions(folder, exercise):
        try:
            result = grade(name, path, libraries=libraries, limit_s=limit_s, seed=seed)
        except ValueError as error:
            result = refused(name, error)
        yield Entry(student, path, result)


def as_csv(entries: Sequence[Entry]) -> str:
    """A table with a row for each submission."""
    rows = [[e.student, e.grade.exercise, e.grade.points, e.grade.of, e.grade.seed, e.feedback] for e in entries]
    return _table(("student", "exercise", "points", "of", "seed", "feedback"), rows)


def as_nbgrader(entries: Sequence[Entry]) -> str:
    """The table that `nbgrader export` writes; names, mail and the date that is due stay empty."""
    rows = []
    for entry in entries:
        time = datetime.fromtimestamp(entry.path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S")
        points, most = float(entry.grade.points), float(entry.grade.of)
        rows.append([entry.grade.exercise, "", time, entry.student, "", "", "", points, 0.0, points, most])
    return _table(NBGRADER, rows)


def as_gradescope(result: Grade) -> str:
    """The file results.json of one submission."""
    tests = [
        {
            "name": outcome.name, "number": str(number), "score": outcome.points, "max_score": outcome.of,
            "status": "passed" if outcome.points == outcome.of else "failed", "output": outcome.text,
            "output_format": "text", "visibility": "visible",
        }
        for number, outcome in enumerate(result.outcomes, 1)
    ]  # fmt: skip
    facts = {
        "score": result.points, "output": f"{result.exercise}: {result.points} of {result.of} points",
        "output_format": "text", "visibility": "visible", "stdout_visibility": "hidden",
        "extra_data": {"seed": result.seed}, "tests": tests,
    }  # fmt: skip
    return json.dumps(facts, indent=2)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    return text.getvalue()
