"""Grading: a submission computes in a process of its own, and the grader draws the arguments and knows the answers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.exercises import language
from minicnn.exercises.comparison import compare, explained
from minicnn.exercises.exercise import LIMIT_S, Example, Exercise, Item, Speed, WrongError, examples
from minicnn.exercises.process import PACKAGES, EndedError, Process
from minicnn.exercises.table import EXERCISES
from minicnn.exercises.worker import BLANK
from minicnn.extras import install

LIBRARIES = tuple(PACKAGES)
BOUTS, TIMES = 3, 5  # of the measurement of speed: calls of a bout
FLOPS, BANDWIDTH = 1e14, 1e13  # per second: no CPU is faster, so a shorter time is not that of the work


@dataclass(frozen=True)
class Outcome:
    """Outcome of one check.

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
    """Grade of a submission.

    Attributes:
        exercise: Name of the exercise.
        outcomes: Those of its checks, in order.
        seed: Seed from which the arguments were drawn.
        printed: The end of what the submission printed.
    """

    exercise: str
    outcomes: tuple[Outcome, ...]
    seed: int
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
        return {"exercise": self.exercise, "points": self.points, "of": self.of, "seed": self.seed, "checks": checks}


def grade(
    name: str, path: Path, *, libraries: Sequence[str] | None = None, limit_s: float = LIMIT_S, seed: int | None = None
) -> Grade:
    """Judge a submission.

    Args:
        name: A name in `EXERCISES`.
        path: The file.
        libraries: Array libraries on which it is tried, all of `LIBRARIES` that are installed if None.
        limit_s: Seconds that it may take in all.
        seed: Seed of the arguments, to repeat what was seen; drawn by the system if None.

    Raises:
        ValueError: If the file is no submission: it cannot be read, imported, or does not define what is asked for.
        ImportError: If the exercise or a library needs a package that is missing; says what to install.
    """
    exercise = EXERCISES[name]
    if exercise.needs and find_spec(exercise.needs) is None:
        raise ImportError(f"The exercise {name} needs {exercise.needs}: {install(exercise.needs)}.")
    text = _source(path)
    seed = int.from_bytes(os.urandom(6), "little") if seed is None else seed
    deadline, chosen = time.monotonic() + limit_s, _installed(libraries)
    try:
        with closing(_Grader(name, exercise, text, seed, deadline, chosen)) as grader:
            return grader.grade()
    except WrongError as error:
        raise ValueError(
            f"A submission to {name} can be run. Received: {path}: {error}. Mend it, or begin with the skeleton: "
            f"minicnn grade --start {name} FOLDER."
        ) from error


def refused(name: str, why: object) -> Grade:
    """Grade without points of what is no submission."""
    first, *others = EXERCISES[name].checks
    outcomes = [Outcome(first[0], 0, first[1], str(why)), *(Outcome(n, 0, points, "not run") for n, points in others)]
    return Grade(name, tuple(outcomes), 0, "")


def _source(path: Path) -> bytes:
    text = path.read_bytes()  # which says itself how it is encoded
    try:
        compile(text, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # a ValueError where it has null bytes
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        where = f"{line}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise ValueError(
            f"A submission is a Python file. Received: {path}{where}. Mend it, or begin anew with --start."
        ) from error
    return text


def _installed(libraries: Sequence[str] | None) -> list[str]:
    if libraries is None:
        return [name for name in LIBRARIES if find_spec(name) is not None]
    for name in libraries:
        if name not in LIBRARIES or find_spec(name) is None:
            there = ", ".join(n for n in LIBRARIES if find_spec(n) is not None)
            raise ValueError(f"--libraries are of {there}, which are installed. Received: {name!r}. Choose of these.")
    return list(libraries)


class _Grader:
    def __init__(
        self, name: str, exercise: Exercise, text: bytes, seed: int, deadline: float, libraries: Sequence[str]
    ) -> None:
        self._name, self._exercise, self._seed, self._deadline = name, exercise, seed, deadline
        self._functions = sorted({task.function for task in exercise.tasks})
        self._text, self._libraries, self._printed = text, libraries, ""
        if exercise.kernels:
            self._text = language.translated(text, exercise.kernels).encode()
            self._functions = [language.RUN]
        self._examples = {task.name: self._shown(task) for task in exercise.tasks}
        self._process: Process | None = None

    def close(self) -> None:
        """End the process, and keep what it has printed."""
        if self._process is not None:
            self._process.close()
            self._printed = self._process.printed
            self._process = None

    def grade(self) -> Grade:
        """All checks in order. What is wrong is neither tried on other libraries nor timed."""
        outcomes: list[Outcome] = []
        try:
            self._process = self._started()  # whose errors say that it is no submission
        except EndedError as error:
            outcomes = [Outcome(name, 0, points, str(error)) for name, points in self._exercise.checks]
            return Grade(self._name, tuple(outcomes), self._seed, self._printed)
        for number, task in enumerate(self._exercise.tasks):
            if any(o.name == task.after and not o.points for o in outcomes):
                outcomes.append(Outcome(task.name, 0, task.points, f"not tried, as {task.after!r} is wrong"))
                continue
            outcomes.append(self._outcome(task.name, task.points, lambda n=number, t=task: self._values(n, t)))
        last: list[tuple[str, int, Any]] = []
        if self._exercise.libraries:
            last.append(("libraries", self._exercise.libraries, self._parity))
        if self._exercise.speed is not None:
            last.append(("speed", self._exercise.speed.points, self._timed))
        for name, points, judge in last:
            if any(o.points < o.of for o in outcomes):
                outcomes.append(Outcome(name, 0, points, "not tried, as the results are wrong"))
            else:
                outcomes.append(self._outcome(name, points, judge))
        self.close()
        return Grade(self._name, tuple(outcomes), self._seed, self._printed)

    def _outcome(self, name: str, points: int, judge: Any) -> Outcome:
        try:
            if time.monotonic() >= self._deadline:
                return Outcome(name, 0, points, "not judged, as the time was over")
            if self._process is None:
                self._process = self._started()
            return Outcome(name, points, points, judge())
        except WrongError as error:
            notes = " ".join([str(error), *getattr(error, "__notes__", [])])
            return Outcome(name, 0, points, notes)
        except EndedError as error:
            self.close()
            return Outcome(name, 0, points, str(error))

    def _started(self, library: str = "numpy", text: bytes | None = None) -> Process:
        needs = {"numba": ["numba", "llvmlite"]}.get(self._exercise.needs, [])
        return Process(
            self._text if text is None else text, self._functions, library=library, needs=needs,
            kernels=self._exercise.kernels, deadline=self._deadline,
        )  # fmt: skip

    def _shown(self, task: Item) -> list[tuple[str, Example]]:
        """The examples of the docstrings that belong to a task: to the first one of their function."""
        first = next(t for t in self._exercise.tasks if t.function == task.function)
        return [(line, case) for line, name, case in examples(self._name) if name == task.function and task is first]

    def _call(self, process: Process, function: str, case: Example) -> Any:
        names = {"xp": None} if self._exercise.libraries else {}
        answer = process.call(function, case.arguments, {**case.options, **names}, not self._exercise.kernels)
        if answer.changed:
            raise WrongError(f"{function} changes an argument ({case}): make a new one")
        if answer.views:
            raise WrongError(f"a result of {function} is a view of an argument ({case}): copy it")
        return answer.result

    def _values(self, number: int, task: Item) -> str:
        assert self._process is not None  # noqa: S101 - for the checker of types
        for line, case in self._examples[task.name]:
            try:
                judged(self._exercise, task.function, case, self._call(self._process, task.function, case), None)
            except WrongError as error:
                if str(error) != BLANK:
                    error.add_note(f"(the example of its docstring: {line})")
                raise
        for turn in range(task.rounds):
            case = task.draw(np.random.default_rng([self._seed, number, turn]))
            judged(self._exercise, task.function, case, self._call(self._process, task.function, case), task)
        return f"{task.rounds + len(self._examples[task.name])} calls are right"

    def _parity(self) -> str:
        """In float32 on the arrays of every library the results are the answers in float64, but for rounding."""
        for library in self._libraries:
            assert self._process is not None  # noqa: S101 - for the checker of types
            try:
                with nullcontext(self._process) if library == "numpy" else self._started(library) as process:
                    for number, task in enumerate(self._exercise.tasks):
                        case = _single(task.draw(np.random.default_rng([self._seed, number, 99])))
                        result = self._call(process, task.function, case)
                        judged(self._exercise, task.function, case, result, None, "float32")
            except (WrongError, EndedError) as error:
                error.add_note(f"(on arrays of {library})")
                raise
        return f"the same in float32 on arrays of {', '.join(self._libraries)}"

    def _timed(self) -> str:
        """The least time of fresh calls, each of whose results is checked, beside that of the yardstick."""
        speed = self._exercise.speed
        assert speed is not None  # noqa: S101 - for the checker of types
        assert self._process is not None  # noqa: S101
        least = max(speed.flops / FLOPS, speed.bytes / BANDWIDTH)
        ours, theirs = list[float](), list[float]()
        with self._started(text=self._yardstick(speed)) as yardstick:
            for bout in range(BOUTS):
                for turn in range(TIMES):
                    case = _single(speed.draw(np.random.default_rng([self._seed, 1000 + bout, turn])))
                    for process, times in ((self._process, ours), (yardstick, theirs)):
                        names = {"xp": None} if self._exercise.libraries else {}
                        answer = process.call(speed.function, case.arguments, {**case.options, **names}, False)
                        judged(self._exercise, speed.function, case, answer.result, None, "float32")
                        times.append(answer.seconds)
                ratio, name = min(ours) / min(theirs), _function(speed, case)
                said = f"{name} takes {ratio:.2g} times as long as {speed.name}, of at most {speed.bar:g}"
                if min(ours) < least:
                    raise WrongError(f"{name} took {min(ours):.2g} s, less than any machine takes ({least:.2g} s)")
                if ratio <= speed.bar:
                    return said
        raise WrongError(said)

    def _yardstick(self, speed: Speed) -> bytes:
        if self._exercise.kernels:
            return language.translated(speed.yardstick.encode(), self._exercise.kernels).encode()
        return speed.yardstick.encode()


def judged(
    exercise: Exercise, function: str, case: Example, result: Any, task: Item | None, dtype: str = "float64"
) -> None:
    """Judge a result, which may be anything.

    Args:
        exercise: The exercise,
        function: the function of it,
        case: its arguments
        result: and its result.
        task: Judges it, if it has a judge of its own; else, or if None, the answer does.
        dtype: Floating-point type of the arrays.

    Raises:
        WrongError: If it is not right.
    """
    if task is not None and task.judge is not None:
        try:
            task.judge(case, result)
        except Exception as error:
            if isinstance(error, WrongError):
                raise
            raise WrongError(f"{function}(...) is no such result: {type(error).__name__}") from error
        return
    right = exercise.answer(function, case)
    try:
        compare(f"{function}(...)", result, right, case, dtype)
    except WrongError as error:
        said = explained(result, right, case, exercise.mistakes.get(function, ()), exercise.namespace())
        if said:
            raise WrongError(f"{str(error).partition(':')[0]}: {said}") from error
        raise


def _function(speed: Speed, case: Example) -> str:
    return str(case.arguments[0]) if speed.function == language.RUN else speed.function


def _single(case: Example) -> Example:
    """Arguments with floating-point arrays in float32."""

    def single(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(single(v) for v in value)
        return value.astype("float32") if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value

    return Example(tuple(single(a) for a in case.arguments), case.options)
