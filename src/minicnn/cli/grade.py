"""`minicnn grade`: exercises, and points for what is filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minicnn.cli.options import NameType, NumberType
from minicnn.cli.tables import console, table
from minicnn.exercises.exercise import LIMIT_S, skeleton
from minicnn.files import write_file

FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def names() -> Sequence[str]:
    """The exercises. What they are made of is loaded only here, since every command loads this module."""
    from minicnn.exercises.table import EXERCISES

    return list(EXERCISES)


def _list(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from minicnn.exercises.table import EXERCISES

        for chapter in dict.fromkeys(e.chapter for e in EXERCISES.values()):
            rows = [[name, e.title] for name, e in EXERCISES.items() if e.chapter == chapter]
            console().print(table(chapter, ["exercise", "what is to be written"], rows))
        ctx.exit()


@click.command()
@click.argument("exercise", type=NameType("An exercise", names), required=False)
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--start", is_flag=True, help="Write the file to be filled in into the folder PATH, and grade nothing.")
@click.option("--hint", type=click.IntRange(min=1), metavar="N", help="Print the hints up to the N-th; grade nothing.")
@click.option(
    "--list", "-l", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the exercises."
)
@click.option("--libraries", metavar="A,B,..", help="Array libraries on which it is tried. Default: all installed.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Draw the arguments that a result was seen with.")
@click.option(
    "--limit", "limit_s", type=NumberType(min=1), default=LIMIT_S, show_default=True, metavar="S",
    help="Seconds that all checks may take together.",
)  # fmt: skip
@click.option("--class", "folder", type=FOLDER, metavar="FOLDER", help="Grade FOLDER/STUDENT/.../EXERCISE.py.")
@click.option("--csv", "csv_path", type=FILE, metavar="FILE", help="Write the grades of a class as a table.")
@click.option("--nbgrader", "nbgrader_path", type=FILE, metavar="FILE", help="Write them as nbgrader exports grades.")
@click.option("--gradescope", "gradescope_path", type=FILE, metavar="FILE", help="Write Gradescope's results.json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def grade(
    ctx: click.Context, /, exercise: str | None, path: Path | None, start: bool, hint: int | None,
    libraries: str | None, seed: int | None, limit_s: float, folder: Path | None, csv_path: Path | None,
    nbgrader_path: Path | None, gradescope_path: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Grade the file PATH, a solution of EXERCISE, or a whole class.

    The file runs in a process of its own, without files and network, which gets arguments drawn anew for each call and
    has no answers. Results are compared here, also on the arrays of other libraries, and the clock is here. The exit
    code is 1 unless all points are reached; for a class it is 0.
    """
    chosen = None if libraries is None else libraries.split(",")
    if folder is not None:
        _class(folder, exercise, {"libraries": chosen, "limit_s": limit_s, "seed": seed}, csv_path, nbgrader_path)
        return 0
    if csv_path or nbgrader_path:
        raise click.UsageError("--csv and --nbgrader hold the grades of a class. Received: no --class. Name it.", ctx)
    if exercise is None:
        raise click.UsageError("Missing argument 'EXERCISE'.", ctx)
    if hint is not None:
        _hint(exercise, hint)
        return 0
    if path is None:
        raise click.UsageError("Missing argument 'PATH'.", ctx)
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

    try:
        result = grading.grade(exercise, path, libraries=chosen, limit_s=limit_s, seed=seed)
    except ValueError as error:
        _for_gradescope(gradescope_path, grading.refused(exercise, error))
        raise
    _for_gradescope(gradescope_path, result)
    if result.printed:
        click.echo(result.printed.rstrip("\n"), err=True)
    if as_json:
        click.echo(json.dumps(result.facts(), indent=2))
    else:
        _show(result)
    return int(result.points < result.of)


def _class(
    folder: Path, exercise: str | None, options: dict[str, Any], csv_path: Path | None, nbgrader_path: Path | None
) -> None:
    """Grade a class, with a line for each submission as soon as it is graded."""
    from minicnn.exercises.reports import Entry, as_csv, as_nbgrader, class_grades

    entries: list[Entry] = []
    for entry in class_grades(folder, exercise, **options):
        entries.append(entry)
        result = entry.grade
        click.echo(f"{entry.student}  {result.exercise}  {result.points} of {result.of}")
    for path, written in ((csv_path, as_csv), (nbgrader_path, as_nbgrader)):
        if path is not None:
            write_file(path, written(entries).encode(), folders=True)


def _for_gradescope(path: Path | None, result: Any) -> None:
    if path is not None:
        from minicnn.exercises.reports import as_gradescope

        write_file(path, as_gradescope(result).encode(), folders=True)


def _hint(exercise: str, level: int) -> None:
    from minicnn.exercises.table import EXERCISES

    hints = EXERCISES[exercise].hints
    for number, text in enumerate(hints[:level], 1):
        click.echo(f"{number} of {len(hints)}: {text}")


def _start(exercise: str, folder: Path) -> None:
    path = folder / f"{exercise}.py"
    if path.exists():
        raise click.ClickException(
            f"--start replaces no file. Received: {path}, which is there. Name another folder, or remove it."
        )
    write_file(path, skeleton(exercise).encode(), folders=True)
    click.echo(f"{path}: fill in the blank, then minicnn grade {exercise} {path}; --hint 1 prints a hint")


def _show(result: Any) -> None:
    rows = [[o.name, f"{o.points} of {o.of}", o.text] for o in result.outcomes]
    out = console()
    out.print(table(result.exercise, ["check", "points", "what was found"], rows))
    out.print()
    out.print(f"{result.points} of {result.of} points; the same arguments again: --seed {result.seed}")
