"""`minicnn study`: carry out a study on this machine, or all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from minicnn import backends as known_backends
from minicnn import data, machine, studies
from minicnn.cli.errors import describe
from minicnn.cli.options import NameType
from minicnn.cli.runs import require
from minicnn.cli.study_progress import study_progress
from minicnn.data.places import PLACES
from minicnn.files import write_file
from minicnn.measure import drawing, markdown, report, tables
from minicnn.measure.candidates import HYBRID, PEERS, Field, find
from minicnn.measure.page import Page, Paragraph
from minicnn.measure.report import Chapter
from minicnn.measure.store import ResultStore
from minicnn.measure.study import SETTING, Setting, Study, changed, measure, recall_all

ALL = "all"
CANDIDATE = NameType("A candidate", lambda: [*known_backends.names(), *PEERS], part=":")
DRAWN = "synthetic_digits"
RESULTS = "results"  # folder of the stored results, in the folder of all that is written


@click.command()
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, type=NameType("A study", lambda: [*studies.names(), ALL])
)
@click.option("--quick", is_flag=True, help="Smaller sizes: minutes on two cores.")
@click.option(
    "--backends", metavar="A,B,..",
    help='Backends, each with its peers, or peers, such as "numpy,torch.nn:cuda"; for the study platforms also '
    'hybrids, whose first backend computes the forward pass, such as "cupy+numba". Default: all found.',
)  # fmt: skip
@click.option(
    "--data", "datasets", multiple=True, type=NameType("A data set", data.names), metavar="NAME",
    help="Data set instead of the study's own; may be given several times.",
)  # fmt: skip
@click.option("--data-dir", type=click.Path(exists=True), metavar="DIR", help="Folder of the data set.")
@click.option(
    "--set", "sizes", multiple=True, metavar="[NAME.]SIZE=VALUE",
    help='Change a size of the studies that have it, or of one of them, such as "epochs=3" or "kernels.epochs=3".',
)  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/studies"), show_default=True,
    metavar="DIR", help="Folder of results, tables, figures and the report.",
)  # fmt: skip
@click.option("--again", "remeasure", is_flag=True, help="Measure again what was measured already.")
@click.option(
    "--part", "parts", multiple=True, metavar="PART",
    help='Measure this part of one study only, such as "lanes" or "sweep-*"; may be given several times.',
)  # fmt: skip
@click.option("--measure-only", is_flag=True, help="Present nothing: --stored does so later, on any machine.")
@click.option("--stored", is_flag=True, help="Measure nothing: present what the folder holds, wherever it is from.")
@click.option(
    "--docs", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Write a Markdown page for each study into this folder, instead of files and report.",
)  # fmt: skip
@click.option(
    "--beside", multiple=True, type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIR",
    help="With --stored: folder of another machine's results, for the same page; may be given several times.",
)  # fmt: skip
@click.pass_context
def study(
    ctx: click.Context, /, names: Sequence[str], out: Path, remeasure: bool, parts: Sequence[str],
    measure_only: bool, stored: bool, docs: Path | None, beside: Sequence[Path], **options: Any,
) -> None:  # fmt: skip
    """Carry out studies by NAME, or "all" of them: measure, fill their tables, draw their figures.

    Finished measurements are kept in the folder of the results, and an interrupted study goes on,
    as long as machine, versions and sizes stay what they are. Writes tables (CSV, JSON), figures
    (PNG, SVG) and one report, report.html. Candidates that do not compute what the first one does
    are refused, not timed; if one is refused or fails, the exit code is 1.
    """
    if measure_only and (stored or docs is not None):
        message = "--measure-only presents nothing. Received: --stored or --docs with it. Give one of them."
        raise click.UsageError(message, ctx)
    if parts and (stored or len(names) > 1 or ALL in names):
        message = "--part is for measuring one study. Received: --stored or several studies with it. Name one study."
        raise click.UsageError(message, ctx)
    if beside and not stored:
        message = "--beside is for results that are stored. Received: --beside without --stored. Give both, or neither."
        raise click.UsageError(message, ctx)
    require(*(() if measure_only else ("matplotlib",)), "psutil")
    everything = ALL in names
    chosen = studies.names() if everything else list(dict.fromkeys(names))
    opened = {study_name: studies.get_study(study_name) for study_name in chosen}
    known = {n: ResultStore(out / RESULTS / n, {}) for n in studies.names()}
    there = [n for n in known if known[n].path(SETTING).exists()]
    if not stored:
        settings = _settings(ctx, opened, **options)
        for n in chosen:
            _carried_out(n, opened[n], *settings[n], out, remeasure=remeasure, parts=parts)
        if measure_only:
            click.echo(f"{out / RESULTS}: {', '.join(chosen)}")
            return
    chapters = [
        _recalled(n, known[n], *(ResultStore(folder / RESULTS / n, {}) for folder in beside))
        for n in chosen
        if not (stored and everything) or n in there
    ]
    if not chapters:
        raise click.ClickException(
            f"The folder holds results of a study. Received: {out} without. Run one without --stored first."
        )
    for chapter in chapters:
        with _as_written(chapter.name):
            if docs is None:
                _write_files(chapter, out / chapter.name)
            else:
                _write_docs(chapter, docs)
    if docs is None:
        others = [n for n in there if n not in chosen]
        _write_report(out / "report.html", chapters, [(n, known[n]) for n in others])
    for chapter in chapters if docs is None else ():
        click.echo(f"\n{chapter.study.question}\n{_answer(chapter)}\n")
    click.echo(f"{docs or out / 'report.html'}: {', '.join(c.name for c in chapters)}")
    refused = [f"{c.name}: {n} {why}" for c in chapters for n, why in c.page.refusals.items()]
    if refused:
        message = f"Every candidate that is here computes the same. Received: {'; '.join(refused)}"
        if not stored:
            raise click.ClickException(message)
        click.echo(f"note: {message}", err=True)


def _settings(
    ctx: click.Context,
    opened: dict[str, Study],
    *,
    quick: bool,
    backends: str | None,
    datasets: Sequence[str],
    data_dir: str | None,
    sizes: Sequence[str],
) -> dict[str, tuple[Setting, Field]]:
    """Settings of each study, and the machine, from the user's options."""
    only = None
    if backends is not None:
        parameter = next(p for p in ctx.command.params if p.name == "backends")
        only = [_candidate(part.strip(), parameter, ctx) for part in backends.split(",")]
    changes = _changes(ctx, opened, sizes)
    chosen = {n: _data(ctx, n, s, datasets, alone=len(opened) == 1) for n, s in opened.items()}
    if quick and not datasets and data_dir is None:
        chosen = {n: _there(n, opened[n], names) for n, names in chosen.items()}
    for note in machine.warnings():
        click.echo(f"note: {note}", err=True)
    field = find()
    settings = {}
    for name, opened_study in opened.items():
        here = field.of(only, opened_study.peers, hybrids=opened_study.hybrids)
        base = opened_study.quick if quick else opened_study.full
        try:
            chosen_sizes = changed(base, changes[name])
            opened_study.check(chosen_sizes)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error
        arguments = (
            chosen_sizes, here.present, here.absent, chosen[name], data_dir, quick, here.clocks, tuple(only or ())
        )  # fmt: skip
        settings[name] = (Setting(*arguments), here)
        if not here.present:
            raise click.ClickException(
                f"A study needs a backend that can run. Received: {'; '.join(here.absent.values())}"
            )
    return settings


def _candidate(text: str, parameter: click.Parameter, ctx: click.Context) -> str:
    """The name of a candidate, or of a hybrid of two backends."""
    parts = [CANDIDATE.convert(part, parameter, ctx) for part in text.split(HYBRID)]
    if len(parts) > 2 or (len(parts) == 2 and any(part.partition(":")[0] in PEERS for part in parts)):
        message = (
            "A hybrid is two backends, of which the first computes the forward pass, such as cupy+numba. "
            f"Received: {text!r}."
        )
        raise click.BadParameter(message, ctx, parameter)
    return text


def _changes(ctx: click.Context, opened: dict[str, Study], texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Sizes of each study that options change, as text; the last one counts, and those of other studies do not."""
    changes: dict[str, dict[str, str]] = {name: {} for name in opened}
    for text in texts:
        name, sign, value = text.partition("=")
        study_name, dot, size = name.rpartition(".")
        meant = opened
        if dot:
            meant = {n: studies.get_study(n) for n in studies.names() if n == study_name}
        having = [n for n, s in meant.items() if size in {f.name for f in fields(s.full)}]
        if not sign or not having:
            known = sorted({f.name for s in (meant or opened).values() for f in fields(s.full)})
            message = (
                f"--set takes SIZE=VALUE with a size among {', '.join(known)}, or NAME.SIZE=VALUE with the name of a "
                f"study. Received: {text!r}."
            )
            raise click.UsageError(message, ctx)
        for n in having:
            changes.setdefault(n, {})[size] = value
    return changes


def _data(ctx: click.Context, name: str, opened: Study, folders: Sequence[str], *, alone: bool) -> tuple[str, ...]:
    """The data sets of a study: those given that it can work with, else its own."""
    known = (*opened.data, *opened.others)
    wrong = [d for d in folders if d not in known]
    if alone and wrong:
        message = f"The study {name} works with {', '.join(known)}. Received: --data {wrong[0]}."
        raise click.UsageError(message, ctx)
    return tuple(d for d in folders if d in known) or opened.data


def _there(name: str, opened: Study, names: tuple[str, ...]) -> tuple[str, ...]:
    """The data sets of a quick study: those that are on this machine, else drawn digits, which need no network."""
    here = tuple(d for d in names if d not in PLACES or data.locate(d) is not None)
    if here or DRAWN not in opened.others:
        return here or names
    click.echo(
        f"note: {name} is measured on {DRAWN}, which is drawn: {', '.join(names)} is not on this machine. "
        f"--data {names[0]} downloads it.",
        err=True,
    )
    return (DRAWN,)


def _carried_out(
    name: str, opened: Study, setting: Setting, field: Field, out: Path, *, remeasure: bool, parts: Sequence[str]
) -> None:
    click.echo(f"{name}: {', '.join(setting.candidates)}")
    for absent, why in setting.absent.items():
        click.echo(f"  without {absent}: {why}")
    store = ResultStore(out / RESULTS / name, field.machine)
    with study_progress(name) as say:
        measure(opened, setting, store, say, remeasure=remeasure, parts=parts)


def _answer(chapter: Chapter) -> str:
    """Beginning of a page, before its first table or figure."""
    answer = takewhile(lambda block: isinstance(block, Paragraph), chapter.page.blocks)
    return " ".join(block.text for block in answer if isinstance(block, Paragraph))


@contextmanager
def _as_written(name: str) -> Iterator[None]:
    """Context manager: whatever fails because stored results were changed becomes an error that says so."""
    try:
        yield
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"Stored results are those of the study, complete and unchanged. Received for {name}: {describe(error)} "
            f"Measure {name} with --again, or remove its results."
        ) from error


def _recalled(name: str, *stores: ResultStore) -> Chapter:
    opened, page = studies.get_study(name), Page()
    with _as_written(name):
        runs = recall_all(opened, stores)
        for run in runs:
            report.machine_facts(run.machine)
        opened.present(page, runs)
    return Chapter(name, opened, runs, page)


def _write_report(path: Path, chapters: list[Chapter], others: Sequence[tuple[str, ResultStore]]) -> None:
    """One page with all studies of the folder, those too that were carried out before."""
    for name, store in others:
        try:
            chapter = _recalled(name, store)
            with _as_written(name):
                report.to_html_page([chapter])
            chapters = [*chapters, chapter]
        except ValueError as error:
            click.echo(f"note: the report is without {name}: {error}", err=True)
    order = studies.names()
    chapters = sorted(chapters, key=lambda c: order.index(c.name))
    write_file(path, report.to_html_page(chapters).encode(), folders=True)


def _write_files(chapter: Chapter, folder: Path) -> None:
    """Tables and figures as files."""
    for table in chapter.page.tables:
        write_file(folder / f"{table.name}.csv", tables.to_csv(table).encode(), folders=True)
        write_file(folder / f"{table.name}.json", tables.to_json(table).encode(), folders=True)
    for figure in chapter.page.figures:
        write_file(folder / f"{figure.name}.svg", drawing.to_svg(figure).encode(), folders=True)
        write_file(folder / f"{figure.name}.png", drawing.to_png(figure), folders=True)


def _write_docs(chapter: Chapter, folder: Path) -> None:
    """A page for the documentation, with its figures, its longest tables as files, and the notes that lie there."""
    notes = folder / "notes" / f"{chapter.name}.md"
    text = markdown.to_page(chapter, "figures", notes=notes.read_text("utf-8") if notes.exists() else "")
    write_file(folder / f"{chapter.name}.md", text.encode(), folders=True)
    for table in markdown.files_of(chapter):
        path = folder / "tables" / f"{chapter.name}-{table.name}.csv"
        write_file(path, tables.to_csv(table).encode(), folders=True)
    for figure in chapter.page.figures:
        write_file(
            folder / "figures" / f"{chapter.name}-{figure.name}.svg", drawing.to_svg(figure).encode(), folders=True
        )
