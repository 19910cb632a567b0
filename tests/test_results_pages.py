"""The README's table is that of the stored results."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minicnn.measure import Page, markdown
from minicnn.measure.drawing import to_svg
from minicnn.measure.page import Figure
from minicnn.measure.report import Chapter
from minicnn.measure.store import ResultStore
from minicnn.measure.study import recall_all
from minicnn.measure.tables import to_csv
from minicnn.studies import get_study, names
from support.scripts import ROOT, script


@pytest.fixture
def results() -> ModuleType:
    return script("docs/results.py")


def test_the_readme_shows_what_is_stored(results: ModuleType) -> None:
    shown = results.between("comparison").findall((ROOT / "README.md").read_text("utf-8"))
    assert shown == [results.summary() + "\n"], "write it anew: python docs/results.py"
    assert sum(line.startswith("|") for line in shown[0].splitlines()) - 2 <= 8


def test_every_figure_and_table_is_shown_on_a_page_and_none_is_missing(results: ModuleType) -> None:
    for kind in ("figures", "tables"):
        shown = {
            name
            for page in results.STUDIES.glob("*.md")
            for name in re.findall(rf"\]\({kind}/([\w.-]+)", page.read_text("utf-8"))
        }
        assert shown == {file.name for file in (results.STUDIES / kind).iterdir()}


@pytest.mark.parametrize("name", ["mlp", "platforms", "convolution", "kernels", "roofline"])
def test_a_page_begins_with_its_answer_and_ends_its_text_with_the_claims(results: ModuleType, name: str) -> None:
    text = (results.STUDIES / f"{name}.md").read_text("utf-8")
    lines = text.splitlines()
    assert len(lines) <= 250
    assert lines[0].startswith("# ")
    assert lines[4].startswith("!["), "an answer, and one figure"
    assert text.index("| claim (where) | published | ours | verdict | why |") < text.index("## How to repeat it")
    assert "### What these figures were" in text
    assert "turn" not in {word.strip(".,:;()") for word in text.split()}
    assert "within 0.000" not in text
    assert not re.search(r"between (\S+) and \1|\b(\d[\d.]*) to \2 %", text), "a span of one value"


@pytest.mark.parametrize("name", names())
def test_a_page_and_its_tables_are_those_of_the_stored_results(results: ModuleType, name: str) -> None:
    stores = [ResultStore(f / "results" / name, {}) for f in results.FOLDERS if results.holds(f, name)]
    study, page = get_study(name), Page()
    runs = recall_all(study, stores)
    study.present(page, runs)
    chapter = Chapter(name, study, runs, page)
    notes = (results.STUDIES / "notes" / f"{name}.md").read_text("utf-8")
    again = "write it anew: python docs/results.py"
    shown = (results.STUDIES / f"{name}.md").read_text("utf-8")
    assert shown == markdown.to_page(chapter, "figures", notes=notes), again
    for table in markdown.files_of(chapter):
        file = results.STUDIES / "tables" / f"{name}-{table.name}.csv"
        assert file.read_bytes() == to_csv(table).encode(), again
    for figure in (block for block in page.blocks if isinstance(block, Figure)):
        stored = (results.STUDIES / "figures" / f"{name}-{figure.name}.svg").read_text("utf-8")
        assert letters(stored) == letters(to_svg(figure)), again


def letters(svg: str) -> list[str]:
    """What a figure says, wherever another version of matplotlib would put it."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


LINE = re.compile(r'<path d="(M [^"]+)" clip-path[^>]* style="fill: none; stroke: ([^;]+); stroke-width: 1.5')


def test_lines_of_a_figure_have_colours_that_differ(results: ModuleType) -> None:
    for file in (results.STUDIES / "figures").glob("*.svg"):
        tones = {tone for points, tone in LINE.findall(file.read_text("utf-8")) if points.count("\n")}
        for one, other in combinations(map(lab, tones), 2):
            assert math.dist(one, other) > 20, (file.name, tones)  # 2.3 can just be told apart, side by side


def lab(tone: str) -> tuple[float, ...]:
    """Lightness, red to green and yellow to blue of a colour: CIELAB of 1976, with the white of D65."""
    digits = tone[-7:].strip(")")
    parts = [int(digits[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    shares = [sum(a * b for a, b in zip(row, linear, strict=True)) / sum(row) for row in rows]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in shares)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def store(folder: Path, study: str, name: str, result: dict[str, Any]) -> None:
    ResultStore(folder / study, {}).keep(name, {}, result)


def test_two_runs_are_compared_by_the_ratios_of_candidates(
    results: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, factor, drift in (("first", 1.0, 1.0), ("second", 1.3, 1.04), ("third", 1.0, 1.1)):
        rows = {"slow": 2.0 * factor, "fast": 1.0 * factor * drift}
        history = {name: [{"time_s": 9.0}, {"time_s": s}] for name, s in rows.items()}
        store(tmp_path / run, "platforms", "training-mnist", {"history": history, "out": {}})
        steps = {"32": {"a": [1.0, 1.0], "b": [drift, drift]}, "64": {"a": [1.0]}}
        store(tmp_path / run, "roofline", "training-resnet18", {"steps": steps})
        times = {"direct": {"forward": [1.0]}, "fft": {"forward": [2.0 * factor]}}
        store(tmp_path / run, "convolution", "strategies-base", {"points": [{"candidates": {"a": {"times": times}}}]})
        store(tmp_path / run, "convolution", "layers-vgg16", {"steps": {"a": [factor], "b": [1.0]}})  # not interleaved
        store(tmp_path / run, "roofline", "diverging", {"steps": 100})  # nothing timed
        rounds = {n: [{"time_s": s * factor, "steps": 10}] for n, s in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
        store(tmp_path / run, "mlp", "training-mnist", {"rounds": rounds, "nodes": {}})
    assert results.compare(tmp_path / "first", tmp_path / "first") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("6 of 6 ratios are within 5 %")
    assert results.compare(tmp_path / "first", tmp_path / "second") == 1  # the two strategies: 30 %
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  30.0 %  convolution, strategies-base, point 1, forward: fft on a to direct on a"
    assert "100.0 %  of 2 with c" in " ".join(lines)
    assert " 75.0 %  of 4 with a" in " ".join(lines), "the strategies on it, and other candidates"
    assert lines[-1] == (
        "5 of 6 ratios are within 5 % of each other; of the others 0 are within the quartiles of both runs"
    )
    assert results.compare(tmp_path / "first", tmp_path / "third") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "  10.0 %  roofline, training-resnet18, batch of 32: b to a",
        "  10.0 %  platforms, training-mnist, epoch: fast to slow",
    ]
    assert results.compare(tmp_path / "first", tmp_path / "nothing") == 1, "nothing compared proves nothing"


def test_ratios_that_differ_may_be_within_the_quartiles(
    results: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, wide in (("first", [1.0, 1.1, 1.4]), ("second", [1.0, 1.3, 1.4])):
        store(tmp_path / run, "roofline", "training-resnet18", {"steps": {"32": {"a": [1.0], "b": wide, "c": [2.0]}}})
    assert results.compare(tmp_path / "first", tmp_path / "second") == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "1 of 1 ratios of times whose quartiles are within 2 % in both runs are within 5 %",  # of c to a
        "1 of 3 ratios are within 5 % of each other; of the others 2 are within the quartiles of both runs",
    ]


def test_only_what_lies_between_the_marks_is_replaced(results: ModuleType, tmp_path: Path) -> None:
    text = "before\n<!-- one:begin -->\n{}\n<!-- one:end -->\n<!-- two:begin -->\nold\n<!-- two:end -->\n"
    page = tmp_path / "page.md"
    page.write_text(text.format("old\nold"))
    results.write(page, "one", "new \\1")
    assert page.read_text() == text.format("new \\1")
