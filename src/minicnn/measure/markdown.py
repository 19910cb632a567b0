"""A page of the documentation for a study, from stored results."""

from __future__ import annotations

import re

from minicnn.measure.page import Block, Figure, Paragraph, Repeat, Section, Table
from minicnn.measure.report import Chapter, absent, commands, machine_facts, reservations
from minicnn.measure.tables import to_markdown

SHOWN, FOLDED = 18, 26  # rows up to which a table is shown, and folded; one that is longer is a file of its own


def to_page(
    chapter: Chapter, figures: str, method: str = "../method.md", tables: str = "tables", notes: str = ""
) -> str:
    """The page as Markdown.

    Args:
        chapter: The study as it was carried out.
        figures: Path from the page to the folder of the figures.
        method: Path from it to the page on how is measured.
        tables: Path from it to the folder of the tables that are files.
        notes: What else there is to say of the stored results, in Markdown.
    """
    lines = [f"# {chapter.study.title}", ""]
    for block in chapter.page.blocks:
        text = _repeat(chapter, method, notes) if isinstance(block, Repeat) else _block(block, chapter, figures, tables)
        lines += [text, ""]
    machines = []
    for run in chapter.runs:
        facts = [f"{name}: {value}" for name, value in machine_facts(run.machine).items()]
        facts += [f"GPU at the start: {clocks}" for clocks in run.setting.clocks]
        machines.append(f"- {run.gpu or run.cpu}. {'; '.join(facts)}.")
    reasons: dict[str, list[str]] = {}
    for name, why in absent(chapter.runs).items():
        reasons.setdefault(why, []).append(f"`{name}`")
    missing = [f"- {', '.join(names)}: {why}" for why, names in reasons.items()]
    machines += ["", "Not on these machines:", "", *missing] if missing else []
    lines += [_folded("Machines and versions", _escaped("\n".join(machines)))]
    return "\n".join(lines).rstrip() + "\n"


def files_of(chapter: Chapter) -> list[Table]:
    """The tables that are too long for the page."""
    return [table for table in chapter.page.tables if len(table.rows) > FOLDED]


def _repeat(chapter: Chapter, method: str, notes: str) -> str:
    lines = [f"Source: {chapter.study.source}", "", "## How to repeat it", ""]
    lines += [f"The page is generated from stored results of these commands; [method]({method}) says how we measure."]
    lines += ["", "```sh", *commands(chapter), "```"]
    lines += [f"\n{text}" for text in reservations(chapter)]
    return _escaped("\n".join(lines)) + (f"\n\n{notes.strip()}" if notes else "")


def _escaped(text: str) -> str:
    """Markdown in which no HTML begins: results may be anybody's."""
    parts = re.split(r"(`[^`\n]*`)", text)  # what is code is shown as it is
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _folded(title: str, text: str) -> str:
    return f"<details>\n<summary>{_escaped(title)}</summary>\n\n{text}\n\n</details>"


def _block(block: Block, chapter: Chapter, figures: str, tables: str) -> str:
    match block:
        case Section():
            return _escaped(f"## {block.title}")
        case Paragraph():
            return _escaped(block.text)
        case Table() if len(block.rows) > FOLDED:
            text = f"[{block.title}]({tables}/{chapter.name}-{block.name}.csv): {len(block.rows)} rows. {block.note}"
            return _escaped(text.rstrip())
        case Table():
            shown = len(block.rows) <= SHOWN
            text = _escaped(to_markdown(block, titled=shown).rstrip())
            return text if shown else _folded(block.title, text)
        case Figure():
            image = f"![{block.title}]({figures}/{chapter.name}-{block.name}.svg)"
            return _escaped(f"{image}\n\n*{block.caption}*" if block.caption else image)
        case Repeat():
            return ""
