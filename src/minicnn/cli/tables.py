"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, Literal

from minicnn.machine import is_terminal

PLAIN_WIDTH = 500  # columns where the output is no terminal: no line is broken


def console() -> Any:
    """A rich console on standard output, plain and as wide as need be where that is no terminal."""
    from rich.console import Console

    terminal = is_terminal(sys.stdout)
    return Console(file=sys.stdout, width=None if terminal else PLAIN_WIDTH, highlight=False, markup=False)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False,
    texts: Collection[str] = (),
) -> Any:  # fmt: skip
    """A rich table.

    Args:
        title: Title; none if empty.
        columns: Heads of the columns.
        rows: Cells.
        numbers: Whether all columns but the first hold numbers, which are set to the right.
        texts: Heads of columns that hold text in spite of that; they take what room there is, and long words are cut.
    """
    from rich.table import Table
    from rich.text import Text

    table_ = Table(
        title=Text(title) if title else None, title_justify="left", title_style="bold", box=None, pad_edge=False,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    for i, column in enumerate(columns):
        text = column in texts
        # Wide enough for every word, so that a narrow terminal breaks heads and texts, but no number.
        words = column.split() + [word for row in rows for word in row[i].split()] * (numbers and not text)
        right: Literal["right", "left"] = "right" if numbers and i and not text else "left"
        table_.add_column(Text(column, style="bold"), justify=right, overflow="fold", min_width=max(map(len, words)))
    for row in rows:
        table_.add_row(*(Text(cell) for cell in row))
    return table_
