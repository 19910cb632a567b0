"""Tables, figures and the report, also in a browser where there is one."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minicnn.measure import Column, Missing, Page, Panel, Setting, Spread, StudyRun, Table, figures
from minicnn.measure.drawing import drawing_of, to_png, to_svg
from minicnn.measure.figures import Mark
from minicnn.measure.markdown import files_of, to_page
from minicnn.measure.page import Claim, Figure, Paragraph, Section, claimed, span
from minicnn.measure.report import Chapter, to_html_page
from minicnn.measure.tables import to_csv, to_html, to_json, to_markdown
from support.tolerances import ELEMENT

WHY = "not on this machine: no GPU | <none>"
TABLE = Table(
    "times",
    "Times & spaces",
    [Column("name", "candidate"), Column("ms", "time (ms)", "{:.1f}"), Column("count", "runs", "{:,d}")],
    [
        {"name": "numpy", "ms": Spread(1.25, 1.0, 1.5, 5), "count": 1234},
        {"name": "cupy", "ms": Missing(WHY), "count": Missing(WHY)},
        {"name": "`jax:cpu`", "ms": 2.0},
    ],
    "Lower is better.",
)


def test_csv_has_plain_numbers() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        ["name", "ms", "ms_low", "ms_high", "count"],
        ["numpy", "1.25", "1.0", "1.5", "1234"],
        ["cupy", "", "", "", ""],
        ["`jax:cpu`", "2.0", "", "", ""],
    ]


def test_json_says_why_a_cell_is_missing() -> None:
    found = json.loads(to_json(TABLE))
    assert found["columns"] == {"name": "candidate", "ms": "time (ms)", "count": "runs"}
    assert found["rows"][0] == {
        "name": "numpy",
        "ms": {"median": 1.25, "low": 1.0, "high": 1.5, "count": 5, "outliers": 0},
        "count": 1234,
    }
    assert found["rows"][1]["ms"] == {"missing": WHY}
    assert found["rows"][2]["count"] is None


def test_markdown_and_html_show_spread_and_reasons_once() -> None:
    text = to_markdown(TABLE)
    assert "| numpy | 1.2 (1.0 to 1.5) | 1,234 |" in text
    assert "| cupy | – [1] | – [1] |" in text
    assert "| `jax:cpu` | 2.0 | – |" in text
    assert text.count("no GPU") == 1
    html = to_html(TABLE)
    assert '<td>cupy</td><td class="n">– <sup>[1]</sup></td>' in html
    assert "<code>jax:cpu</code>" in html
    assert html.count("no GPU | &lt;none&gt;") == 1
    assert "Times &amp; spaces" in html


def chapter() -> Chapter:
    page = Page()
    page.extend([Section("Speed"), Paragraph("`numpy` takes 2 < 3 ms."), TABLE])
    series = {"numpy": ([1, 2, 3], [1.0, 2.0, 4.0], "#0072B2"), "torch": ([1, 2, 3], [1.0, 1.5, 4.0], "#D55E00")}
    marks = [Mark("a", Spread(2, 1, 3, 9), figures.TORCH), Mark("b", 1.0, figures.PUBLISHED)]
    panels = [
        Panel("Lines", lambda axes: figures.paths(axes, series, "epoch", "time (s)")),
        Panel("Dots", lambda axes: figures.dots(axes, marks)),
        Panel("Stacked", lambda axes: figures.stacked(axes, {"a": {"x": 1, "y": 2}, "b": {"y": 1}}, "time (s)")),
    ]
    page.extend([Figure("all", "Everything", panels, "A caption.")])
    machine = {
        "cpu": "Some CPU", "cores": 2, "memory_mb": 2048, "system": "Linux", "blas": "openblas", "threads": {"gomp": 2},
        "environment": {}, "versions": {"python": "3.11", "numpy": "2.4"}, "devices": {"cupy cuda:0": "H200"},
    }  # fmt: skip
    from minicnn.studies import get_study

    study = get_study("platforms")
    setting = Setting(study.quick, ("numpy",), {"cupy": "no <GPU>"}, ("fashion_mnist",), quick=True)
    claims = [
        Claim("it is fast", "table 1", "2 s", "1 s", True, "a better machine"),
        Claim("it is small", "table 2", "2 MB", None, None, "not looked at"),
    ]
    page.extend(claimed(claims))
    rows = [{"name": str(i), "ms": float(i)} for i in range(30)]
    few, many = (
        Table("few", "Some rows", TABLE.columns, rows[:20]),
        Table("many", "Many <rows>", TABLE.columns, rows, "Long."),
    )
    page.extend([few, many])
    return Chapter("platforms", study, [StudyRun(setting, {}, machine)], page)


def test_svg_follows_light_and_dark_and_png_is_one() -> None:
    figure = chapter().page.figures[0]
    svg = to_svg(figure)
    ElementTree.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg
    assert "var(--ink, #1c1d21)" in svg
    bare = re.sub(r"var\([^)]*\)|<style>.*?</style>", "", svg)
    assert figures.INK not in bare
    assert figures.PAPER not in bare
    assert "#000000" not in bare
    assert svg == to_svg(figure), "the same figure is the same file"
    assert to_png(figure).startswith(b"\x89PNG")


def test_names_of_tables_and_figures_are_their_own() -> None:
    page = chapter().page
    with pytest.raises(ValueError, match="Received: 'times' twice"):
        page.extend([Table("times", "", [], [])])
    with pytest.raises(ValueError, match="Received: 'all' twice"):
        page.extend([Figure("all", "", [])])


def test_every_candidate_is_of_a_family() -> None:
    assert figures.family("cupy / naive") == figures.family("numba") == figures.KERNELS
    assert figures.family("numpy") == figures.family("torch:cuda") == figures.ARRAYS
    assert figures.family("torch.nn-loader:cpu / 2 workers") == figures.TORCH
    assert figures.family("jax.lax:gpu") == figures.JAX
    assert len(set(figures.FAMILIES.values())) == len(figures.FAMILIES)


@pytest.mark.parametrize(
    ("seconds", "said"), [(1.04e-4, "104 us"), (0.0089, "8.9 ms"), (0.9996, "1 s"), (2.5, "2.5 s"), (4870.0, "4,870 s")]
)
def test_durations_are_in_the_unit_in_which_one_says_them(seconds: float, said: str) -> None:
    assert figures.duration(seconds) == said


def drawn(draw: Any) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 * figures.WIDTH, figures.HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    figure.canvas.draw()
    return axes


def test_marks_answer_with_value_spread_and_ratio_to_the_best() -> None:
    (panel_of_lines, dots, stacked), figure = chapter().page.figures[0].panels, chapter().page.figures[0]
    svg, spots = drawing_of(figure, [dots])
    assert [spot.text for spot in spots] == ["b: 1 s", "a: 2 s, quartiles 1 s and 3 s of 9; 2 times the best"]
    assert all((spot.left, spot.width) == (0, 1) for spot in spots), "a row answers over all its width"
    first, second = spots
    assert first.top + first.height == pytest.approx(second.top, abs=ELEMENT), "rows meet, and are as high as drawn"
    assert 0 < first.top < second.top + second.height < 1
    assert svg.startswith("<svg")
    texts = {spot.text: spot for spot in drawing_of(figure, [panel_of_lines])[1]}
    assert "numpy at 2: 2; 1.33 times the best" in texts
    assert texts["numpy at 1: 1"].left < texts["numpy at 3: 4"].left
    assert all(spot.left >= 0 and spot.left + spot.width <= 1 and spot.top >= 0 for spot in texts.values())
    assert [spot.text for spot in drawing_of(figure, [stacked])[1]] == [
        "a, x: 1 of 3, time (s)", "a, y: 2 of 3, time (s)", "b, y: 1 of 1, time (s)"
    ]  # fmt: skip


def test_dots_are_sorted_on_a_logarithmic_axis_where_they_span_decades() -> None:
    marks = [Mark("slow", 2.0, figures.TORCH), Mark("fast", Spread(0.002, 0.001, 0.003, 5), figures.KERNELS)]
    axes = drawn(lambda axes: figures.dots(axes, marks))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "slow"]
    assert axes.get_xscale() == "log"
    assert {text.get_text() for text in axes.texts} == {"2 ms", "2 s"}
    near = drawn(lambda axes: figures.dots(axes, [marks[0], Mark("near", 1.0, figures.PUBLISHED)], more_is_better=True))
    assert near.get_xscale() == "linear"
    assert [label.get_text() for label in near.get_yticklabels()] == ["slow", "near"]


def test_numbers_of_a_table_have_no_exponent_where_they_are_large() -> None:
    column = Column("ms", "time (ms)", "{:.3g}")
    assert [column.text(value) for value in (0.0123456, 3.14159, 999.4, 1484.2, 64721.0)] == [
        "0.0123", "3.14", "999", "1,484", "64,721"
    ]  # fmt: skip
    assert column.text(Spread(1484.2, 1480.0, 1488.0, 10)) == "1,484 (1,480 to 1,488)"


def test_numbers_below_an_axis_do_not_lie_on_each_other() -> None:
    line: figures.Series = {"a": ([1, 32, 64, 128, 256, 512], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "#0072B2")}
    axes = drawn(lambda axes: figures.paths(axes, line, "batch", "", log="x"))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "32", "", "128", "", "512"]
    assert len(axes.get_xticks()) == 6, "each place has its tick"
    even: figures.Series = {"a": ([8, 32, 128, 512], [1.0, 2.0, 3.0, 4.0], "#0072B2")}
    axes = drawn(lambda axes: figures.paths(axes, even, "batch", "", log="x"))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "32", "128", "512"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.002, 100.0, [0.01, 0.1, 1.0, 10.0, 100.0]),
        (0.9, 60.0, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),  # two powers of ten
        (68.0, 118.0, [70.0, 80.0, 90.0, 100.0, 110.0]),  # one of them, and no more by twos and fives
    ],
)
def test_a_logarithmic_axis_has_three_ticks_at_least(low: float, high: float, ticks: list[float]) -> None:
    line: figures.Series = {"a": ([1, 2], [low, high], "#0072B2")}
    axes = drawn(lambda axes: figures.paths(axes, line, "", "", log="y", upward=(low, high)))
    assert list(axes.get_yticks()) == pytest.approx(ticks)


def test_lines_of_several_panels_have_one_upward_axis() -> None:
    lines: dict[str, figures.Series] = {
        "few": {"a": ([1, 2], [1.0, 4.0], "#0072B2")}, "many": {"a": ([1, 2], [20.0, 100.0], "#0072B2")}
    }  # fmt: skip
    upward = figures.ends(lines.values())
    limits = [
        drawn(lambda axes, one=one: figures.paths(axes, one, "", "", log="y", upward=upward)).get_ylim()
        for one in lines.values()
    ]
    assert limits[0] == limits[1] == pytest.approx(upward)
    assert upward[0] < 1.0 < 100.0 < upward[1]


def test_names_at_the_ends_of_lines_do_not_lie_on_each_other() -> None:
    from matplotlib.text import Text

    series = {f"line {i}": ([1, 2], [1.0, 10.0 + 0.001 * i], "#0072B2") for i in range(6)} | {
        "low": ([1, 2], [1, 1], "#D55E00")
    }
    axes = drawn(lambda axes: figures.paths(axes, series, "x", "y"))
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)  # without its line
    assert len(boxes) == 7
    assert all(below.y1 <= above.y0 + 2 for below, above in pairwise(boxes))
    short: dict[str, Any] = {f"point {i}": ([1], [2.0 + 0.001 * i], "#0072B2") for i in range(3)}
    axes = drawn(lambda axes: figures.paths(axes, series | short, "x", "y"))
    boxes = sorted((Text.get_window_extent(t) for t in axes.texts if "point" in t.get_text()), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(below.y1 <= above.y0 + 2 for below, above in pairwise(boxes)), "of lines that end early, too"
    right = axes.get_window_extent().x1
    assert all(Text.get_window_extent(text).x0 > right for text in axes.texts), "no name lies on a line"
    lines = [(text.arrow_patch.get_window_extent().x1, Text.get_window_extent(text).x0) for text in axes.texts]
    assert all(end < start + 1 for end, start in lines), "no line to a name lies on another"
    tones = [line.get_color() for line in axes.lines]
    assert len(set(tones)) == min(len(tones), len(figures.PALETTE)), "lines can be told apart"


def test_dots_of_a_group_are_a_panel_of_few_rows_with_the_axis_of_all() -> None:
    fast = [Mark(f"fast {i}", 0.001 * (i + 1), figures.KERNELS, "GPU") for i in range(12)]
    panels = figures.grouped([Mark("slow", 9.0, figures.TORCH, "CPU"), *fast], "time of a step")
    assert [(panel.title, panel.bars) for panel in panels] == [("GPU, the first 8 of 12", 8), ("CPU", 1)]
    first, second = (drawn(panel.draw) for panel in panels)
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlabel() == "time of a step"
    assert [label.get_text() for label in second.get_yticklabels()] == ["slow"]


def test_the_leader_is_the_best_at_the_most_points() -> None:
    lines: dict[str, figures.Series] = {
        "a": {"one": ([1, 2], [1.0, 4.0], "#0072B2"), "two": ([1, 2, 3], [2.0, 3.0, 3.0], "#D55E00")}
    }
    assert figures.leader(lines.values()) == "two is the fastest at 2 of 3 points"
    assert figures.leader(lines.values(), more_is_better=True) == "two is the fastest at 2 of 3 points"


def test_an_axis_of_less_than_a_decade_has_numbers() -> None:
    lines = {"line": ([1, 2], [1500.0, 3000.0], "#0072B2")}
    axes = drawn(lambda axes: figures.paths(axes, lines, "x", "y", log="y", say=figures.quantity("/s")))
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_values_that_read_the_same_are_said_once() -> None:
    assert span([86.201, 86.199]) == "86.20"
    assert span([1, 20], "{:d}") == "1 to 20"


class Structure(HTMLParser):
    """Tags of a page that are open, and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.images: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [i for i in (given.get("id"),) if i]
        self.targets += [t for t in (given.get("href"), given.get("src")) if t]
        if tag == "img":
            self.images.append(given)
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_needs_nothing_but_itself() -> None:
    text = to_html_page([chapter()])
    page = Structure()
    page.feed(text)
    assert page.open == []
    assert len(page.images) == 3
    assert text.count(">Everything<") == 1, "the headline above its panels"
    assert all(image["alt"] for image in page.images)
    assert all(t.startswith("data:image/svg+xml;base64,") or t.removeprefix("#") in page.ids for t in page.targets)
    assert "minicnn study platforms --quick --data fashion_mnist" in text
    assert "Some CPU" in text
    assert "H200" in text
    assert text.index("Some CPU") < text.index("Platforms:") < text.index("How to repeat it</h3>")
    assert "<td>confirmed</td>" in text
    assert "<td>not measured</td>" in text
    assert "<details><summary>Some rows</summary>" in text
    assert "Not measured yet on the machine with H200: <code>training-fashion_mnist</code>" in text
    assert "no &lt;GPU&gt;" in text
    assert "<code>numpy</code> takes 2 &lt; 3 ms." in text


def test_results_that_were_measured_beside_other_programs_say_so() -> None:
    whole = chapter()
    others = {"busy": 0.42, "quiet": 0.02, "gone": 0.9}
    run = replace(whole.runs[0], results={"busy": {}, "quiet": {}}, others=others)
    whole = replace(whole, runs=[run])
    text = (
        "On the machine with H200, while {} was measured, other programs kept the cores busy for 42% of their time: "
        "times may be too long."
    )
    assert text.format("<code>busy</code>") in to_html_page([whole])
    assert text.format("`busy`") in to_page(whole, "figures")
    assert to_page(whole, "figures").count("other programs") == 1


def test_names_stand_on_one_line_and_claims_do_not() -> None:
    page = Page()
    for name, text in (("long", "the kernels are faster than those of " + "others, " * 8), ("short", "it is fast")):
        page.extend([Table(name, name, [Column("claim", "claim"), Column("n", "n")], [{"claim": text, "n": 1}])])
    long, short = map(to_html, page.tables)
    assert '<td class="s">the kernels' in long
    assert "<td>it is fast</td>" in short
    assert "td:first-child{white-space:nowrap}td.s{white-space:normal}" in to_html_page([chapter()])


def test_a_page_of_the_documentation() -> None:
    text = to_page(chapter(), "figures")
    assert text.startswith("# Platforms")
    assert "![Everything](figures/platforms-all.svg)" in text
    assert "| numpy | 1.2 (1.0 to 1.5) | 1,234 |" in text
    assert "- `cupy`: no &lt;GPU>" in text, "no HTML begins in a page"
    assert text.index("| it is fast (table 1) | 2 s | 1 s | confirmed |") < text.index("## How to repeat it")
    assert "<summary>Some rows</summary>" in text
    assert "[Many &lt;rows>](tables/platforms-many.csv): 30 rows. Long." in text
    assert [table.name for table in files_of(chapter())] == ["many"]
    assert "`minicnn study platforms --quick --data fashion_mnist` takes what is missing." in text
    assert "### Corrections" in to_page(chapter(), "figures", notes="### Corrections")


# In a browser -------------------------------------------------------------------------------------

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

# The report in frames as wide as screens; what a reader would see of each is written down when all have loaded. Spots
# get the focus, for which the same rules of style hold as for a pointer that is on what lies on top there.
FRAME = """<!doctype html><body><script>
addEventListener('load', async () => { const frames = [...document.querySelectorAll('iframe')], all = [];
for (const f of frames) { const d = f.contentDocument, w = f.contentWindow, tips = [...d.querySelectorAll('.tip')];
  const shown = () => tips.filter(t => w.getComputedStyle(t).opacity === '1'), before = shown().length;
  const spots = [...d.querySelectorAll('.spot')], wrong = [], said = [];
  for (const s of spots) {
    s.scrollIntoView({block: 'center'}); s.focus();
    const box = s.getBoundingClientRect();
    const hit = d.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const now = shown(), tip = now[0] && now[0].getBoundingClientRect();
    if (!hit || !hit.matches('.spot') || now.length !== 1 || tip.left < 0 || tip.right > d.documentElement.clientWidth)
      wrong.push(s.nextSibling.textContent);
    else said.push(now[0].textContent) }
  const images = [...d.images];
  all.push({
  width: d.documentElement.scrollWidth, before, wrong, said,
  broken: images.filter(i => !i.complete || !i.naturalWidth).length, images: images.length,
  columns: new Set(images.map(i => i.getBoundingClientRect().left)).size,
  tip: w.getComputedStyle(tips[0]).backgroundColor,
  paper: w.getComputedStyle(d.body).backgroundColor,
  letters: parseFloat(w.getComputedStyle(d.body).fontSize)}) }
document.body.dataset.seen = JSON.stringify(all)})</script>%s"""
WIDTHS = {360: 1, 1200: 2}  # of screens in pixels, with the panels that stand side by side


def seen(tmp_path: Path, *, dark: bool) -> list[dict[str, Any]]:
    """What a browser makes of the report on screens of these widths."""
    text = to_html_page([chapter()]).replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(f'<iframe width={width} height=900 srcdoc="{text}"></iframe>' for width in WIDTHS)
    (tmp_path / "frame.html").write_text(FRAME % frames, "utf-8")
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000", "--dump-dom",
        f"file://{tmp_path / 'frame.html'}",
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'data-seen="(.*?)"', dom)
    assert found, dom[-2000:]
    result: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return result


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_in_a_browser(tmp_path: Path, dark: bool) -> None:
    for (width, columns), found in zip(WIDTHS.items(), seen(tmp_path, dark=dark), strict=True):
        assert found["broken"] == 0
        assert found["images"] == 3
        assert found["width"] <= width, "nothing sticks out to the right"
        assert found["columns"] == columns, "panels stand side by side, on a phone one below the other"
        assert found["paper"] == ("rgb(21, 23, 27)" if dark else "rgb(253, 253, 254)")
        assert found["tip"] == ("rgb(31, 34, 40)" if dark else "rgb(241, 242, 245)")
        assert found["letters"] >= 16
        assert found["before"] == 0, "no answer before one asks"
        assert found["wrong"] == [], "each mark can be pointed at, and shows its answer alone and within the screen"
        assert "a: 2 s, quartiles 1 s and 3 s of 9; 2 times the best" in found["said"]
        assert len(found["said"]) == 6 + 2 + 3
