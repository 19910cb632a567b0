"""The tables of claims of the report, as a reader sees them on a screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicnn.measure import Page, ResultStore
from minicnn.measure.page import CLAIMS
from minicnn.measure.report import Chapter, to_html_page
from minicnn.measure.study import recall
from minicnn.studies import get_study, names
from support.browser import browser, needs_browser

# Of each table of claims: pixels by which it is wider than what it lies in, the width of its first column, the height
# of its tallest row, and words that are broken between two lines.
SEEN = """[...document.querySelectorAll('table')].filter(t => /^claim/.test(t.querySelector('th')?.textContent ?? ''))
.map(table => { const box = table.parentElement, broken = [], range = document.createRange();
for (const cell of table.querySelectorAll('td')) {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\d]+(?:[.,]\\d+)*/gu)) {
    range.setStart(texts.currentNode, word.index); range.setEnd(texts.currentNode, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(b => Math.round(b.top))).size > 1) broken.push(word[0]) } }
const rows = [...table.rows].map(row => row.getBoundingClientRect().height);
return {wider: Math.max(table.getBoundingClientRect().right, box.scrollWidth + box.getBoundingClientRect().left)
          - box.getBoundingClientRect().right,
        first: table.querySelector('td').getBoundingClientRect().width, tallest: Math.max(...rows), broken} })"""


@needs_browser
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", names())
def test_claims_lie_within_a_screen_of_1280_pixels(name: str, tmp_path: Path) -> None:
    study, page = get_study(name), Page()
    stored = sorted((Path(__file__).parents[2] / "docs" / "studies").glob(f"**/results/{name}"))
    runs = [recall(study, ResultStore(place, {})) for place in stored]
    study.present(page, runs)
    page.blocks[:] = [table for table in page.tables if table.name == CLAIMS]
    (report := tmp_path / "report.html").write_text(to_html_page([Chapter(name, study, runs, page)]), "utf-8")
    with browser() as chromium:
        chromium.open(report, width=1280)
        (found,) = chromium.run(SEEN)
        assert found["wider"] <= 1, "no table has to be pushed aside"
        assert found["broken"] == []
        assert found["first"] >= 150, "a claim has a column in which it can be read"
        assert found["tallest"] <= 260, "a row is not a page"
        chromium.show(width=320)
        (narrow,) = chromium.run(SEEN)
        assert narrow["wider"] > 1 or narrow["tallest"] > found["tallest"], "what is looked at depends on the screen"
