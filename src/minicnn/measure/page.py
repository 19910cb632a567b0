"""Page of a study: sections, words, tables and figures, in order; how they are written is decided elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minicnn.measure.timing import Spread


@dataclass(frozen=True)
class Missing:
    """A cell that cannot be filled, and why."""

    why: str


Cell = float | int | str | Spread | Missing | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name in rows, CSV and JSON.
        head: What stands above it, with the unit.
        template: How its numbers are written.
    """

    key: str
    head: str
    template: str = "{}"

    def text(self, cell: Cell) -> str:
        """A cell in words; a dash where there is nothing."""
        if cell is None or isinstance(cell, Missing):
            return "–"
        if isinstance(cell, Spread):
            median, low, high = map(self._number, (cell.median, cell.low, cell.high))
            outliers = f"; {cell.outliers} disturbed" if cell.outliers else ""
            return f"{median} ({low} to {high}{outliers})" if cell.count > 1 or outliers else median
        return cell if isinstance(cell, str) else self._number(cell)

    def _number(self, value: float) -> str:
        """A number; more digits than the template's without an exponent: 1,480, not 1.48e+03."""
        text = self.template.format(value)
        return f"{value:,.0f}" if self.template.endswith("g}") and "e+" in text else text


@dataclass(frozen=True)
class Section:
    """A heading."""

    title: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `code` in backticks is the only markup."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table: rows of cells by the keys of the columns.

    Attributes:
        name: Name of its files, unique among its kind on the page.
        title: Title.
        columns: The columns.
        rows: The rows; a key that is not there is an empty cell.
        note: What a reader must know to judge it.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    note: str = ""

    @property
    def reasons(self) -> list[str]:
        """Why cells are missing, each reason once."""
        cells = [row.get(c.key) for row in self.rows for c in self.columns]
        return list(dict.fromkeys(cell.why for cell in cells if isinstance(cell, Missing)))


@dataclass(frozen=True)
class Claim:
    """Claim of a source, and what became of it.

    Attributes:
        text: The claim.
        place: Where it stands in the source.
        published: The published figure.
        ours: Our figure; None where it was not measured.
        holds: Whether ours confirm it; None if they cannot be compared.
        why: Why that is so.
    """

    text: str
    place: str
    published: str
    ours: str | None
    holds: bool | None
    why: str

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or not comparable, in words."""
        if self.ours is None:
            return "not measured"
        return "not comparable" if self.holds is None else "confirmed" if self.holds else "refuted"


@dataclass(frozen=True)
class Repeat:
    """The place on a page where it says how to carry the study out."""


@dataclass(frozen=True)
class Panel:
    """A part of a figure.

    Attributes:
        title: Title, beside which others of the figure have theirs.
        draw: Draws into the matplotlib axes that it is given.
        bars: How many rows lie on each other in it; it is high enough for them.
    """

    title: str
    draw: Callable[[Any], None]
    bars: int = 0


@dataclass(frozen=True)
class Figure:
    """A figure of one or more panels.

    Attributes:
        name: Name of its files, unique among its kind on the page.
        title: Its headline: what is to be seen.
        panels: Its panels, one below the other.
        caption: What a reader must know to judge it.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    caption: str = ""


CLAIMS = "claims"  # name of their table
Block = Section | Paragraph | Table | Figure | Repeat


@dataclass
class Page:
    """The results of a study, as its `present` puts them down.

    Attributes:
        blocks: What there is, in order.
        refusals: Candidates that computed something else than the reference, or failed, and why.
    """

    blocks: list[Block] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)

    def refused(self, *reasons: Mapping[str, str], where: str = "here") -> list[Paragraph]:
        """Note which candidates have no figures though they are here: refused, or failed; see `Comparison.out`.

        Args:
            reasons: Why, by candidate.
            where: Where they have none, if not in the whole study.

        Returns:
            A sentence about each, for the page.
        """
        said = []
        for some in reasons:
            self.refusals |= some
            said += [Paragraph(f"`{name}` has no figures {where}: {why}") for name, why in some.items()]
        return said

    def extend(self, blocks: Sequence[Block]) -> None:
        """Add blocks; of several tables of claims the later ones are numbered, and the way to repeat is said once."""
        for block in blocks:
            if isinstance(block, Repeat) and any(isinstance(b, Repeat) for b in self.blocks):
                continue
            if isinstance(block, Table) and block.name == CLAIMS:
                count = sum(table.name.startswith(CLAIMS) for table in self.tables)
                block = replace(block, name=f"{CLAIMS}-{count + 1}") if count else block
            if isinstance(block, Table | Figure):
                _unique(block.name, self.tables if isinstance(block, Table) else self.figures)
            self.blocks.append(block)

    @property
    def tables(self) -> list[Table]:
        """The tables."""
        return [b for b in self.blocks if isinstance(b, Table)]

    @property
    def figures(self) -> list[Figure]:
        """The figures."""
        return [b for b in self.blocks if isinstance(b, Figure)]


def claimed(claims: Sequence[Claim]) -> list[Block]:
    """The claims of the source with our verdicts, and after them how to repeat the study."""
    columns = [Column("claim", "claim (where)"), Column("published", "published"), Column("ours", "ours"),
               Column("verdict", "verdict"), Column("why", "why")]  # fmt: skip
    rows = [
        {"claim": f"{c.text} ({c.place})", "published": c.published, "ours": c.ours, "verdict": c.verdict, "why": c.why}
        for c in claims
    ]
    section = Section("The claims, and our findings")
    return [section, Table(CLAIMS, "The claims of the source", columns, rows), Repeat()]


def file_name(text: str) -> str:
    """A text as a part of the name of a file: "H200 (quick form)" as "h200-quick-form"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def span(values: Sequence[float], template: str = "{:.2f}") -> str:
    """The least and the largest of some values in words; one of them where they read the same."""
    low, high = template.format(min(values)), template.format(max(values))
    return low if low == high else f"{low} to {high}"


def _unique(name: str, there: Sequence[Table | Figure]) -> None:
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None:
        raise ValueError(
            "Tables and figures have names that files can have: letters, digits, '_', '-' and '.'. "
            f"Received: {name!r:.80}. Rename it."
        )
    if name in [block.name for block in there]:
        raise ValueError(
            f"Tables of a page have different names, and so have figures. Received: {name!r} twice. Rename one."
        )
