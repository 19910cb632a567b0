"""Progress of a study: lines, and on a terminal a bar of the measurements with the time that they have taken."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from minicnn.machine import is_terminal

PLACE = re.compile(r"(\d+)/(\d+) (\S+?):? ")  # of a measurement, as `minicnn.measure.study.measure` says it


class StudyProgress:
    """Context manager: shows what `measure` says.

    Args:
        name: Name of the study.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: AbstractContextManager[Any] = nullcontext()
        self._task: Any = None
        if is_terminal(sys.stdout):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            console = Console(file=sys.stdout, highlight=False, markup=False)
            columns = (BarColumn(20), TextColumn("{task.completed}/{task.total} {task.description}"))
            self._bar = progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._task = progress.add_task("", total=None)

    def __enter__(self) -> StudyProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def say(self, line: str) -> None:
        """Show a line; one that says which measurement is under way moves the bar."""
        place, bar = PLACE.match(line), self._bar
        if isinstance(bar, nullcontext):
            click.echo(f"  {line}")
            return
        shown: Any = bar
        begins = " ... (" in line
        if not begins:
            shown.console.print(f"  {line}")
        if place:
            number, total, name = int(place[1]), int(place[2]), place[3]
            shown.update(self._task, completed=number - begins, total=total, description=f"{self._name}: {name}")
            shown.refresh()
