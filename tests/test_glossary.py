"""The glossary: each word has one entry, and the code uses it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("\n\n", 2)[2].strip().splitlines()
ENTRIES = [re.fullmatch(r"- \*\*(.+?)\*\*: ([A-Z0-9].+\.)", line) for line in LINES]
TERMS = [entry[1] for entry in ENTRIES if entry]


@cache
def code() -> str:
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")).lower()


def test_every_line_is_an_entry() -> None:
    assert [line for line, entry in zip(LINES, ENTRIES, strict=True) if entry is None] == []


def test_a_word_has_one_entry_in_alphabetical_order() -> None:
    words = [term.lower().replace("-", " ") for term in TERMS]
    assert words == sorted(set(words))


def test_words_in_italics_have_an_entry() -> None:
    known = {term.lower() for term in TERMS} | {"filter", "input gradient"}  # which are explained where they stand
    known |= {f"{word}{end}" for word in known for end in ("s", "es")}
    marked = {word.lower() for line in LINES for word in re.findall(r"(?<!\*)\*([\w -]+)\*(?!\*)", line)}
    assert {word for word in marked if word not in known} == set()


@pytest.mark.parametrize("term", TERMS)
def test_the_code_uses_the_word(term: str) -> None:
    pattern = re.escape(term.lower()).replace(r"\ ", "[ _]").replace(r"\-", "[ _-]?")
    assert re.search(rf"(?<![a-z]){pattern}(e?s)?(?![a-z])", code())
