"""Progress of a study: lines, and on a terminal a bar of the measurements with the time that they have taken."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from minicnn.machine import is_terminal

PLACE = re.compile(r"(\d+)/(\d+) (\S+?):? ")  # of a measurement, as `minicnn.measure.study.measure` says it


@contextmanager
def study_progress(name: str) -> Iterator[Callable[[str], None]]:
    """Context manager: a function that shows a line; one that says which measurement is under way moves the bar.

    Args:
        name: Name of the study.
    """
    if not is_terminal(sys.stdout):
        yield lambda line: click.echo(f"  {line}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stdout, highlight=False, markup=False)
    columns = (BarColumn(20), TextColumn("{task.completed}/{task.total} {task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(line: str) -> None:
            begins = " ... (" in line
            if not begins:
                bar.console.print(f"  {line}")
            if place := PLACE.match(line):
                number, total, measurement = int(place[1]), int(place[2]), place[3]
                bar.update(task, completed=number - begins, total=total, description=f"{name}: {measurement}")
                bar.refresh()

        yield say
