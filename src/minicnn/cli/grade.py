"""`minicnn grade`: exercises, and points for what is filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minicnn.cli.options import Name, Number, named_backends
from minicnn.cli.tables import console, table
from minicnn.exercises.exercise import LIMIT_S, skeleton
from minicnn.files import write_file


def names() -> Sequence[str]:
    """The exercises. What they are made of is loaded only here, since every command loads this module."""
    from minicnn.exercises.table import EXERCISES

    return list(EXERCISES)


def _list(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from minicnn.exercises.table import EXERCISES

        rows = [[name, str(e.points), e.title] for name, e in EXERCISES.items()]
        console().print(table("Exercises", ["exercise", "points", "what is to be written"], rows))
        ctx.exit()


@click.command()
@click.argument("exercise", type=Name("An exercise", names))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--start", is_flag=True, help="Write the file to be filled in into the folder PATH, and grade nothing.")
@click.option(
    "--list", "-l", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the exercises."
)
@click.option("--backends", metavar="A,B,..", help="Backends on whose arrays it is tried. Default: all that are found.")
@click.option(
    "--limit", "limit_s", type=Number(min=1), default=LIMIT_S, show_default=True, metavar="S",
    help="Seconds that all checks may take together.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def grade(
    ctx: click.Context, /, exercise: str, path: Path, start: bool, backends: str | None, limit_s: float, as_json: bool
) -> int:
    """Grade the file PATH, a solution of EXERCISE.

    Gradients are compared with finite differences in float64, results with the library's own on the arrays of every
    backend, and times with those of the library or of a naive implementation, as ratios. The file runs in a process of
    its own. The exit code is 1 unless all points are reached.
    """
    if start:
        _start(exercise, path)
        return 0
    if not path.is_file():
        message = (
            f"PATH is the file to be graded. Received: {str(path)!r}, which is none. Make one: minicnn grade --start "
            f"{exercise} FOLDER."
        )
        raise click.UsageError(message, ctx)
    from minicnn.exercises import grading

    chosen = None if backends is None else named_backends(ctx, backends)
    found = grading.grade(exercise, path, backends=chosen, limit_s=limit_s)
    if found.printed:
        click.echo(found.printed.rstrip("\n"), err=True)
    if as_json:
        click.echo(json.dumps(found.facts(), indent=2))
    else:
        _show(found)
    return int(found.points < found.of)


def _start(exercise: str, folder: Path) -> None:
    path = folder / f"{exercise}.py"
    if path.exists():
        raise click.ClickException(
            f"--start replaces no file. Received: {path}, which is there. Name another folder, or remove it."
        )
    write_file(path, skeleton(exercise).encode(), folders=True)
    click.echo(f"{path}: fill in the blank, then minicnn grade {exercise} {path}")


def _show(found: Any) -> None:
    rows = [[o.name, f"{o.points} of {o.of}", o.text] for o in found.outcomes]
    out = console()
    out.print(table(found.exercise, ["check", "points", "what was found"], rows))
    out.print()
    out.print(f"{found.points} of {found.of} points")
