"""Tables as CSV and JSON for machines, as Markdown and HTML for people."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import asdict
from typing import Any

from minicnn.measure.page import Cell, Column, Missing, Table
from minicnn.measure.timing import Spread

NAME = 60  # letters of a name in the first column at most: names stand on one line, sentences on several


def to_csv(table: Table) -> str:
    """CSV with one line of heads; a Spread takes three columns, a missing cell is empty."""
    spread = {c.key for c in table.columns if any(isinstance(row.get(c.key), Spread) for row in table.rows)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [[c.key, f"{c.key}_low", f"{c.key}_high"] if c.key in spread else [c.key] for c in table.columns]
    writer.writerow([name for names in heads for name in names])
    for row in table.rows:
        cells = [_numbers(row.get(c.key), 3 if c.key in spread else 1) for c in table.columns]
        writer.writerow([value for values in cells for value in values])
    return text.getvalue()


def _numbers(cell: Cell, places: int) -> list[Any]:
    if isinstance(cell, Spread):
        return [cell.median, cell.low, cell.high]
    value = "" if cell is None or isinstance(cell, Missing) else cell
    return [value] + [""] * (places - 1)


def to_json(table: Table) -> str:
    """JSON: title, note, heads of the columns by key, and the rows with a reason where a cell is missing."""
    rows = [{c.key: _plain(row.get(c.key)) for c in table.columns} for row in table.rows]
    heads = {c.key: c.head for c in table.columns}
    return json.dumps({"title": table.title, "columns": heads, "rows": rows, "note": table.note}, indent=1) + "\n"


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Missing):
        return {"missing": cell.why}
    return asdict(cell) if isinstance(cell, Spread) else cell


def to_markdown(table: Table, *, titled: bool = True) -> str:
    """A Markdown table, with its title above unless it is not wanted, and its notes below."""
    right = [_is_numeric(table, c) for c in table.columns]
    lines = [*([f"**{table.title}**", ""] if titled else []), _line([c.head for c in table.columns])]
    lines.append(_line(["---:" if r else "---" for r in right]))
    lines += [_line([_marked(table, c, row.get(c.key), "{}") for c in table.columns]) for row in table.rows]
    lines += ["", *([table.note, ""] if table.note else [])]
    lines += [f"[{i}] {why}" + "  " for i, why in enumerate(table.reasons, start=1)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def to_html(table: Table) -> str:
    """An HTML table in a box that scrolls sideways by itself."""
    kind = [' class="n"' if _is_numeric(table, c) else "" for c in table.columns]
    first = table.columns[0]
    if any(len(first.text(row.get(first.key))) > NAME for row in table.rows):
        kind[0] = ' class="s"'
    heads = "".join(f"<th{k} scope=col>{words(c.head)}</th>" for k, c in zip(kind, table.columns, strict=True))
    body = ""
    for row in table.rows:
        cells = [words(_marked(table, c, row.get(c.key), "\0{}\0")) for c in table.columns]
        cells = [re.sub("\0(.*?)\0", r"<sup>\1</sup>", cell) for cell in cells]
        body += "<tr>" + "".join(f"<td{k}>{cell}</td>" for k, cell in zip(kind, cells, strict=True)) + "</tr>\n"
    notes = [words(table.note)] if table.note else []
    notes += [f"[{i}] {words(why)}" for i, why in enumerate(table.reasons, start=1)]
    below = f"<p class=note>{'<br>'.join(notes)}</p>" if notes else ""
    return (
        f"<div class=scroll><table><caption>{words(table.title)}</caption><thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>{below}\n"
    )


def words(text: str) -> str:
    """Text as HTML; `code` in backticks becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))


def _marked(table: Table, column: Column, cell: Cell, mark: str) -> str:
    text = column.text(cell)
    return f"{text} {mark.format(f'[{table.reasons.index(cell.why) + 1}]')}" if isinstance(cell, Missing) else text


def _is_numeric(table: Table, column: Column) -> bool:
    cells = [row.get(column.key) for row in table.rows]
    return any(not isinstance(c, str | Missing) and c is not None for c in cells)
