"""Exercise: a file with a blank, tasks worth points, and the answers, which the grader alone has."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

LIMIT_S = 120.0  # that all checks of a submission may take together, unless told otherwise
ROUNDS = 4  # calls of a task

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


class WrongError(Exception):
    """A submission does not do what it should; the message says what it does instead."""


@dataclass(frozen=True)
class Example:
    """Arguments of one call.

    Attributes:
        arguments: By position.
        options: By name.
    """

    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([*map(_short, self.arguments), *(f"{k}={_short(v)}" for k, v in self.options.items())])


def call(*arguments: Any, **options: Any) -> Example:
    """Arguments as they are written in a call."""
    return Example(arguments, options)


def _short(value: Any) -> str:
    """An argument in some words."""
    if isinstance(value, np.ndarray):
        return f"array {'x'.join(map(str, value.shape)) or 'of no axes'}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


@dataclass(frozen=True)
class Item:
    """A part of an exercise, which gets its points or none.

    Attributes:
        name: Its name in the report.
        points: What it is worth.
        function: Name of the function that is called.
        draw: Arguments of a call, drawn by a generator; a fresh one for each call.
        judge: Raises a WrongError where a result is not right. If None, the answer of the exercise is compared.
        rounds: How many calls there are.
        after: A task without whose points there are none of this one, as of a gradient without its function.
    """

    name: str
    points: int
    function: str
    draw: Callable[[Rng], Example]
    judge: Callable[[Example, Any], None] | None = None
    rounds: int = ROUNDS
    after: str = ""


@dataclass(frozen=True)
class Speed:
    """A limit of time, as a multiple of what another implementation takes in a process of the same kind.

    Attributes:
        points: What it is worth.
        function: Name of the function that is called.
        draw: Arguments of a call.
        yardstick: The other implementation, as the text of a submission.
        name: The yardstick in words.
        bar: It may take so many times as long as the yardstick.
        flops: Operations and
        bytes: bytes of a call; no machine is faster than `FLOPS` and `BANDWIDTH` in the grader.
    """

    points: int
    function: str
    draw: Callable[[Rng], Example]
    yardstick: str
    name: str
    bar: float
    flops: float = 0
    bytes: float = 0


@dataclass(frozen=True)
class Exercise:
    """A file with a blank, and what is asked of it.

    Attributes:
        title: What it asks for, in a line.
        chapter: The part of the course to which it belongs.
        tasks: What is checked, in order.
        answers: The grader's own functions, by name.
        hints: From a nudge to nearly the answer.
        mistakes: By the name of a function, wrong ones that are common, each with what is to be said of it.
        libraries: Points for the same results on the arrays of other libraries; its functions then take `xp`.
        speed: A limit of time.
        needs: Package that it cannot do without, which is also the name of its extra; "" if there is none.
        kernels: "cuda" or "cpu" if it consists of kernels, whose text is checked and run by the grader.
    """

    title: str
    chapter: str
    tasks: tuple[Item, ...]
    answers: Mapping[str, Callable[..., Any]]
    hints: tuple[str, ...] = ()
    mistakes: Mapping[str, Sequence[tuple[str, Callable[..., Any]]]] = field(default_factory=dict)
    libraries: int = 0
    speed: Speed | None = None
    needs: str = ""
    kernels: str = ""

    @property
    def points(self) -> int:
        """The most that there are."""
        return sum(points for _, points in self.checks)

    @property
    def checks(self) -> list[tuple[str, int]]:
        """Names of the checks with their points, in order."""
        checks = [(task.name, task.points) for task in self.tasks]
        checks += [("libraries", self.libraries)] if self.libraries else []
        return checks + ([("speed", self.speed.points)] if self.speed else [])

    def answer(self, function: str, case: Example) -> Any:
        """The right result of a call."""
        return self.answers[function](*case.arguments, **case.options, **self.namespace())

    def namespace(self) -> dict[str, Any]:
        """The argument `xp`, where functions take it."""
        import array_api_compat.numpy as xp

        return {"xp": xp} if self.libraries else {}


def skeleton(name: str) -> str:
    """Text of the file in which an exercise is to be solved."""
    return files("minicnn.exercises").joinpath("skeletons", f"{name}.py").read_text("utf-8")


def examples(name: str) -> list[tuple[str, str, Example]]:
    """The calls whose results the docstrings of an exercise's file show: the line, the function and the arguments."""
    calls = []
    tree = ast.parse(skeleton(name))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for example in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""):
            line = ast.parse(example.source.strip(), mode="eval").body
            if not isinstance(line, ast.Call) or not isinstance(line.func, ast.Name):
                raise ValueError(f"an example is one call. Received: {example.source}. Mend skeletons/{name}.py.")
            arguments = tuple(_evaluated(a) for a in line.args)
            options = {str(k.arg): _evaluated(k.value) for k in line.keywords if k.arg != "xp"}
            calls.append((example.source.strip(), line.func.id, Example(arguments, options)))
    return calls


def _evaluated(node: ast.expr) -> Any:
    """Value of an argument in the library's own file."""
    return eval(compile(ast.Expression(node), "<example>", "eval"), {"np": np})
