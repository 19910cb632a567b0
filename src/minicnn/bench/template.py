"""Pages of studies as Markdown with placeholders: what is said stands in a file, what was measured is filled in.

A file has paragraphs with empty lines between them, which may go on over several lines:

- `## A title` begins a section; one that nothing follows is left out.
- `![title](name)` is a figure, followed by its caption, `[title](name)` a table, followed by a line of heads, a line of
  cells such as `| {candidate} | {seconds:.3g} |`, which name the key and the format of each column, and by its note.
  A figure without panels and a table without rows are left out.
- Another table holds the claims of the source: key, claim, place, published, ours, why.
- `{{name}}` stands for blocks that are made elsewhere.
- `<!-- name -->` begins a part that is rendered by itself, such as once for each machine.
- All else are words.

`{name}` and `{name:format}` stand for values. `duration` is a format of seconds; numbers in a list are written as a span, the
least and the largest, texts one after the other. A paragraph, or a part of it in [[double brackets]], is left out
where one of its values is None or an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from minicnn.bench.figures import duration
from minicnn.bench.page import Block, Cell, Claim, Column, Figure, Page, Panel, Section, Table, Words, span

Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Content:
    """What was measured, for the placeholders of a template.

    Attributes:
        values: Values by name.
        rows: Rows of tables by name.
        columns: Further columns of tables, after those of the template, by name.
        panels: Panels of figures by name; how many lie beside each other is `beside`.
        blocks: Blocks by name.
        holds: Whether our figures confirm a claim, by key; None, or no entry, where they cannot be compared.
        beside: Panels beside each other, by figure; two where nothing is said.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    panels: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    blocks: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    holds: Mapping[str, bool | None] = field(default_factory=dict)
    beside: Mapping[str, int] = field(default_factory=dict)


class Template:
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
        page = Page()
        section: str | None = None
        for paragraph in self._parts[part]:
            if paragraph.startswith("## "):
                section = fill(paragraph[3:], content.values)
                continue
            blocks = list(_blocks(paragraph, content))
            if blocks and section is not None:
                page.section(section)
                section = None
            page.blocks += blocks
        return page.blocks

    def words(self, content: Mapping[str, Any], part: str) -> str:
        """The text of a part that is words alone, such as the title of a panel; empty if all of it is left out."""
        texts = (fill(" ".join(paragraph.split()), content) for paragraph in self._parts[part])
        return " ".join(filter(None, texts))


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
        page = Page()
        page.claims([_claim(line, content) for line in paragraph.splitlines()[2:]])
        yield from page.blocks
        return
    shown = re.match(r"(!?)\[(?!\[)([^\]]*)\]\((\S+)\)\s*", paragraph)
    if shown is None:
        words = fill(" ".join(paragraph.split()), content.values)
        if words is not None:
            yield Words(words)
        return
    title, name = (fill(text, content.values) or "" for text in shown.groups()[1:])
    rest = paragraph[shown.end() :].splitlines()
    text = fill(" ".join(" ".join(line for line in rest if not line.startswith("|")).split()), content.values) or ""
    if shown[1]:
        if panels := content.panels.get(name):
            yield Figure(name, title, panels, text, content.beside.get(name, 2))
    elif rows := content.rows.get(name):
        columns = [*_columns([line for line in rest if line.startswith("|")], content.values)]
        yield Table(name, title, [*columns, *content.columns.get(name, ())], rows, text)


def _columns(lines: Sequence[str], values: Mapping[str, Any]) -> Iterable[Column]:
    """The columns that a line of heads and a line of cells describe."""
    for head, cell in zip(*map(_cells, lines), strict=True):
        ((_, key, spec, _),) = Formatter().parse(cell)
        yield Column(key or "", fill(head, values) or "", f"{{:{spec}}}" if spec else "{}")


def _claim(line: str, content: Content) -> Claim:
    key, *texts = _cells(line)
    claim, place, published, ours, why = (fill(text, content.values) for text in texts)
    return Claim(claim or "", place or "", published or "", ours, content.holds.get(key), why or "")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
