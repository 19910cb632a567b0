"""A page of the documentation for a study, from stored results."""

from __future__ import annotations

import re

from minicnn.bench.page import Block, Figure, Section, Table, Words
from minicnn.bench.report import Chapter, command, machine_facts
from minicnn.bench.tables import to_markdown


def to_page(chapter: Chapter, figures: str, method: str = "../method.md") -> str:
    """The page as Markdown.

    Args:
        chapter: The study as it was carried out.
        figures: Path from the page to the folder of the figures.
        method: Path from it to the page on how is measured.
    """
    study, setting = chapter.study, chapter.setting
    facts = machine_facts(chapter.machine)
    where = f" ({facts['GPU']})" if facts["GPU"] != "none" else ""
    lines = [f"# {study.title}{where}", "", f"**{study.question}** Published: {study.source}", ""]
    lines += [
        f"This page is generated from stored results of `{command(chapter)}`; [method]({method}) says how.",
        "",
    ]
    lines += [part for block in chapter.page.blocks for part in (_block(block, chapter.name, figures), "")]
    lines += ["## Machine", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += [f"- GPU at the start: {clocks}" for clocks in setting.clocks]
    if setting.absent:
        lines += ["", "Not on this machine:", ""]
        lines += [f"- `{name}`: {why}" for name, why in setting.absent.items()]
    return _escaped("\n".join(lines).rstrip() + "\n")


def _escaped(text: str) -> str:
    """Markdown in which no HTML begins: results may be anybody's."""
    parts = re.split(r"(`[^`\n]*`)", text)  # what is code is shown as it is
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _block(block: Block, study: str, figures: str) -> str:
    match block:
        case Section():
            return f"## {block.title}"
        case Words():
            return block.text
        case Table():
            return to_markdown(block).rstrip()
        case Figure():
            return f"![{block.title}]({figures}/{study}-{block.name}.svg)\n\n*{block.title}. {block.caption}*"
