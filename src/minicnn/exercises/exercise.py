"""What an exercise is: a skeleton with a blank, and checks worth points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from types import ModuleType

LIMIT_S = 120.0  # that all checks of a submission may take together, unless told otherwise

Judge = Callable[[ModuleType, Sequence[str] | None], str]


class WrongError(Exception):
    """What is handed in does not do what it should; the message says what it does instead."""


@dataclass(frozen=True)
class Check:
    """One thing that is asked of a submission.

    Attributes:
        name: Its name in the report.
        points: What it is worth.
        judge: Called with the submission as a module and the names of backends, None for all that are found. Returns in
            words what it has found, or raises a WrongError.
    """

    name: str
    points: int
    judge: Judge


@dataclass(frozen=True)
class Exercise:
    """A blank to be filled in.

    Attributes:
        title: What it asks for, in a line.
        functions: Names that a submission defines.
        checks: What is checked, in order.
        needs: Package that it cannot do without, which is also the name of its extra; "" if there is none.
        environment: Variables of the process in which a submission runs.
    """

    title: str
    functions: tuple[str, ...]
    checks: tuple[Check, ...]
    needs: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """The most that there are."""
        return sum(check.points for check in self.checks)


def skeleton(name: str) -> str:
    """Text of the file in which an exercise is to be solved."""
    return files("minicnn.exercises").joinpath("skeletons", f"{name}.py").read_text("utf-8")
