"""Pages of studies as Markdown with placeholders: what is said stands in a file, what was measured is filled in.

A file has paragraphs with empty lines between them, which may go on over several lines:

- `## A title` begins a section; one that nothing follows is left out.
- `![headline](name)` is a figure, followed by its caption.
- `[title](name)` is a table, followed by a line of heads, a line of cells such as `| {candidate} | {seconds:.3g} |`,
  which name the key and the format of each column, and by its note.
  A figure without panels and a table without rows are left out.
- Another table holds the claims of the source: key, claim, place, published, ours, why.
- `{{name}}` stands for blocks that are made elsewhere.
- `<!-- name -->` begins a part that is rendered by itself, such as once for each machine.
- All else are words.

Columns whose keys have a `*`, such as `{*_seconds}`, are there once for each group of the table, such as each data set.

`{name}` and `{name:format}` stand for values. `duration` is a format of seconds; numbers in a list are written as a
span, the least and the largest, texts one after the other. A paragraph, or a part of it in [[double brackets]], is left
out where one of its values is None or an empty list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import Any

from minicnn.measure.figures import duration
from minicnn.measure.page import Block, Cell, Claim, Column, Figure, Panel, Paragraph, Section, Table, claimed, span

Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Content:
    """Results, for the placeholders of a template.

    Attributes:
        values: Values by name.
        rows: Rows of tables by name.
        groups: What the `*` of columns stands for, by name of the table.
        panels: Panels of figures by name.
        blocks: Blocks by name.
        holds: Whether our figures confirm a claim, by key; None, or no entry, where they cannot be compared.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    panels: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    blocks: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    holds: Mapping[str, bool | None] = field(default_factory=dict)


class PageTemplate:
    """The page of a study.

    Args:
        path: Its file.
    """

    def __init__(self, path: Path) -> None:
        self._parts: dict[str, list[str]] = {"": []}
        part = ""
        for paragraph in re.split(r"\n\s*\n", path.read_text("utf-8").strip()):
            if begins := re.fullmatch(r"<!-- (\w+) -->", paragraph.strip()):
                part = begins[1]
                self._parts[part] = []
            else:
                self._parts[part].append(paragraph.strip())

    def render(self, content: Content, part: str = "") -> list[Block]:
        """The blocks of a part, the first one if none is named.

        Raises:
            KeyError: If the content lacks a value that the template names.
        """
        blocks: list[Block] = []
        section: str | None = None
        for paragraph in self._parts[part]:
            if paragraph.startswith("## "):
                section = fill(paragraph[3:], content.values)
                continue
            for block in _blocks(paragraph, content):
                if section is not None:
                    blocks.append(Section(section))
                    section = None
                blocks.append(block)
        return blocks

    def words(self, part: str, values: Mapping[str, Any]) -> str:
        """The first paragraph of a part whose values are there, such as the title of a panel; empty without any.

        Args:
            part: Name of the part.
            values: Values by name; what is not among them is None.
        """
        known = defaultdict(lambda: None, values)
        return next(filter(None, (fill(" ".join(p.split()), known) for p in self._parts[part])), "")


def fill(text: str, values: Mapping[str, Any]) -> str | None:
    """Text with its values; None where one is None or empty outside of [[double brackets]].

    Example:
        >>> fill("An epoch takes {epoch:duration}[[, on a GPU {gpu:duration}]].", {"epoch": 0.25, "gpu": None})
        'An epoch takes 250 ms.'
    """
    return _filled(iter(re.split(r"(\[\[|\]\])", text)), values)


def _filled(pieces: Iterator[str], values: Mapping[str, Any]) -> str | None:
    """Text up to the bracket that closes it, all of which is read in any case."""
    texts: list[str | None] = []
    for piece in pieces:
        if piece == "]]":
            break
        texts.append((_filled(pieces, values) or "") if piece == "[[" else _formatted(piece, values))
    return None if None in texts else "".join(filter(None, texts))


def _formatted(text: str, values: Mapping[str, Any]) -> str | None:
    written = []
    for literal, name, spec, _ in Formatter().parse(text):
        written.append(literal)
        if name is not None:
            value = values[name]
            if value is None or (isinstance(value, list | tuple) and not value):
                return None
            written.append(_written(value, spec or ""))
    return "".join(written)


def _written(value: Any, spec: str) -> str:
    if spec == "duration":
        return ", ".join(map(duration, value)) if isinstance(value, list | tuple) else duration(value)
    if isinstance(value, list | tuple):
        return ", ".join(value) if isinstance(value[0], str) else span(value, f"{{:{spec}}}")
    return format(value, spec)


def _blocks(paragraph: str, content: Content) -> Iterator[Block]:
    """The block of a paragraph; none if it is left out."""
    if inserted := re.fullmatch(r"\{\{(\w+)\}\}", paragraph):
        yield from content.blocks[inserted[1]]
        return
    if paragraph.startswith("|"):
        yield from claimed([_claim(line, content) for line in paragraph.splitlines()[2:]])
        return
    shown = re.match(r"(!?)\[(?!\[)([^\]]*)\]\((\S+)\)\s*", paragraph)
    if shown is None:
        words = fill(" ".join(paragraph.split()), content.values)
        if words is not None:
            yield Paragraph(words)
        return
    title, name = (fill(text, content.values) or "" for text in shown.groups()[1:])
    rest = paragraph[shown.end() :].splitlines()
    text = fill(" ".join(" ".join(line for line in rest if not line.startswith("|")).split()), content.values) or ""
    if shown[1]:
        if panels := content.panels.get(name):
            yield Figure(name, title, panels, text)
    elif rows := content.rows.get(name):
        lines = [line for line in rest if line.startswith("|")]
        yield Table(name, title, _columns(lines, content.values, content.groups.get(name, ())), rows, text)


def _columns(lines: Sequence[str], values: Mapping[str, Any], groups: Sequence[str]) -> list[Column]:
    """The columns that a line of heads and a line of cells describe."""
    single: list[Column] = []
    grouped: list[Column] = []
    for head, cell in zip(*map(_cells, lines), strict=True):
        ((_, key, spec, _),) = Formatter().parse(cell)
        column = Column(key or "", fill(head, values) or "", f"{{:{spec}}}" if spec else "{}")
        (grouped if "*" in column.key else single).append(column)
    return single + [
        replace(column, key=column.key.replace("*", group), head=column.head.replace("*", group))
        for group in groups
        for column in grouped
    ]


def _claim(line: str, content: Content) -> Claim:
    key, *texts = _cells(line)
    claim, place, published, ours, why = (fill(text, content.values) for text in texts)
    return Claim(claim or "", place or "", published or "", ours, content.holds.get(key), why or "")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
