"""Grading: a submission runs in a process of its own, within a time limit, and is given points for each check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from minicnn.bench.worker import ended
from minicnn.exercises.exercise import LIMIT_S
from minicnn.exercises.table import EXERCISES
from minicnn.extras import install

PRINTED = 8  # pieces of so many characters are kept of what a submission prints
PIECE = 1000


@dataclass(frozen=True)
class Outcome:
    """What has become of one check.

    Attributes:
        name: The check.
        points: Points that are given.
        of: Points that there are.
        text: What was found, in words.
    """

    name: str
    points: int
    of: int
    text: str


@dataclass(frozen=True)
class Grade:
    """What has become of a submission.

    Attributes:
        exercise: Name of the exercise.
        outcomes: Those of its checks, in order.
        printed: The end of what the submission printed.
    """

    exercise: str
    outcomes: tuple[Outcome, ...]
    printed: str

    @property
    def points(self) -> int:
        """Points that are given."""
        return sum(outcome.points for outcome in self.outcomes)

    @property
    def of(self) -> int:
        """Points that there are."""
        return sum(outcome.of for outcome in self.outcomes)

    def facts(self) -> dict[str, Any]:
        """All that as plain data."""
        checks = [asdict(outcome) for outcome in self.outcomes]
        return {"exercise": self.exercise, "points": self.points, "of": self.of, "checks": checks}


def grade(name: str, path: Path, *, backends: Sequence[str] | None = None, limit_s: float = LIMIT_S) -> Grade:
    """Judge a submission.

    Args:
        name: A name in `EXERCISES`.
        path: The file.
        backends: Backends on whose arrays it is tried, all that are found if None.
        limit_s: Seconds that it may take in all.

    Raises:
        ValueError: If the file is no submission: it cannot be read, imported, or does not define what is asked for.
        ImportError: If the exercise needs a package that is missing; says what to install.
    """
    exercise = EXERCISES[name]
    if exercise.needs and find_spec(exercise.needs) is None:
        raise ImportError(f"The exercise {name} needs {exercise.needs}: {install(exercise.needs)}.")
    _check_syntax(path)
    with tempfile.TemporaryDirectory(prefix="minicnn-") as folder:
        results = Path(folder) / "results"
        results.touch()
        order = {
            "exercise": name, "path": str(path.resolve()), "results": str(results),
            "backends": None if backends is None else list(backends),
        }  # fmt: skip
        how, printed = _run(json.dumps(order), {**os.environ, **exercise.environment}, limit_s)
        told = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    if told and "refused" in told[0]:
        raise ValueError(f"A submission to {name} {told[0]['refused']}")
    judged = {facts["name"]: Outcome(**facts) for facts in told}  # a submission that forks is judged more than once
    outcomes = []
    for check in exercise.checks:
        outcome = judged.get(check.name)
        if outcome is None:
            outcome = Outcome(check.name, 0, check.points, how)
            how = "not judged, as the process had ended"
        outcomes.append(outcome)
    return Grade(name, tuple(outcomes), printed)


def _check_syntax(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec")  # bytes, which say themselves how they are encoded
    except (SyntaxError, ValueError) as error:  # a ValueError where it has null bytes
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        where = f"{line}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise ValueError(
            f"A submission is a Python file. Received: {path}{where}. Mend it, or begin anew with --start."
        ) from error


def _run(order: str, environment: dict[str, str], limit_s: float) -> tuple[str, str]:
    """Run the judge in a process of its own; how it ended, in words, and the end of what it printed."""
    printed: deque[str] = deque(maxlen=PRINTED)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "minicnn.exercises", order], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    reader = threading.Thread(target=_keep, args=(process.stdout, printed), daemon=True)
    reader.start()
    try:
        process.wait(limit_s)
        how = f"{ended(process.returncode)} here"
    except subprocess.TimeoutExpired:
        how = f"stopped here after {limit_s:g} s, the limit of all checks together (--limit)"
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                _kill(process)
            process.wait()
    reader.join(1)  # what it has started may live on and hold the pipe
    return how, "".join(printed)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and what it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _keep(pipe: IO[str], printed: deque[str]) -> None:
    """Read a pipe to its end, and keep the last pieces."""
    with pipe:
        printed.extend(iter(lambda: pipe.read(PIECE), ""))
