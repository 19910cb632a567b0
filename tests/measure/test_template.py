"""Pages as Markdown with placeholders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minicnn.measure import Page, Panel
from minicnn.measure.page import Figure, Paragraph, Repeat, Section, Table
from minicnn.measure.template import Content, PageTemplate, fill
from minicnn.studies import names

PAGE = """
{best} is the fastest[[, by {times:.1f} times]],
as a page says.

| key | claim | place | published | ours | why |
| --- | --- | --- | --- | --- | --- |
| fast | It is fast | table 1 | 2 s | {seconds:duration} | it is[[, with {times:.0f} cores]] |
| small | It is small | table 2 | 2 MB | {mb:.0f} MB | nobody looked |

## Of {data}

[Times of {data}](times)
| candidate | epochs | seconds: * |
| {name} | {epochs:,d} | {*_s:.2f} |
Medians
of some.

![Dots](dots)
Of {data}.

## Of nothing

[No rows](none)
| candidate |
| {name} |

{{others}}

<!-- title -->

{times:.1f} times as fast

Some times
"""
CONTENT = Content(
    {"best": "numba", "times": None, "seconds": 0.25, "mb": None, "data": "mnist"},
    {"times": [{"name": "numpy", "epochs": 1000, "a_s": 1.0, "b_s": 2.0}], "none": []},
    {"times": ["a", "b"]},
    {"dots": [Panel("Dots", lambda axes: None)]},
    {"others": []},
    {"fast": True},
)


@pytest.fixture
def template(tmp_path: Path) -> PageTemplate:
    (tmp_path / "page.md").write_text(PAGE, "utf-8")
    return PageTemplate(tmp_path / "page.md")


def test_a_page_has_what_was_measured_in_the_order_of_the_template(template: PageTemplate) -> None:
    words, section, claims, repeat, title, times, dots = template.render(CONTENT)
    assert words == Paragraph("numba is the fastest, as a page says.")
    assert (section, title) == (Section("The claims, and our findings"), Section("Of mnist"))
    assert isinstance(claims, Table)
    assert [(row["ours"], row["verdict"], row["why"]) for row in claims.rows] == [
        ("250 ms", "confirmed", "it is"), (None, "not measured", "nobody looked")
    ]  # fmt: skip
    assert isinstance(repeat, Repeat)
    assert isinstance(times, Table)
    assert (times.title, times.note) == ("Times of mnist", "Medians of some.")
    assert [(c.key, c.head, c.template) for c in times.columns] == [
        ("name", "candidate", "{}"), ("epochs", "epochs", "{:,d}"),
        ("a_s", "seconds: a", "{:.2f}"), ("b_s", "seconds: b", "{:.2f}"),
    ]  # fmt: skip
    assert isinstance(dots, Figure)
    assert dots.caption == "Of mnist."


def test_a_title_is_the_first_whose_values_are_there(template: PageTemplate) -> None:
    assert template.words("title", {"times": 2.0}) == "2.0 times as fast"
    assert template.words("title", {}) == "Some times"


@pytest.mark.parametrize(
    ("text", "values", "filled"),
    [
        ("{a:.1f} s", {"a": 2.0}, "2.0 s"),
        ("{a:.1f} to{b}", {"a": [3.0, 1.0, 2.0], "b": ""}, "1.0 to 3.0 to"),
        ("{a:.0f} %", {"a": (1.1, 1.2)}, "1 %"),
        ("{a}", {"a": ["x", "y"]}, "x, y"),
        ("{a:duration}", {"a": [1e-3, 2.0]}, "1 ms, 2 s"),
        ("{a}", {"a": []}, None),
        ("one[[ {a}[[ and {b}]]]] end", {"a": 1, "b": None}, "one 1 end"),
        ("one[[ {a}[[ and {b}]]]] end", {"a": None, "b": 2}, "one end"),
        ("one[[ {a}]][[ {b}]]", {"a": None, "b": "{c}"}, "one {c}"),
        ("one {a}[[ {b}]]", {"a": None, "b": 2}, None),
    ],
)
def test_what_is_not_there_is_left_out(text: str, values: dict[str, Any], filled: str | None) -> None:
    assert fill(text, values) == filled


def test_a_value_that_nobody_gives_is_an_error(template: PageTemplate) -> None:
    with pytest.raises(KeyError, match="best"):
        template.render(Content({}))


def test_the_claims_on_a_second_data_set_have_a_table_of_their_own(template: PageTemplate) -> None:
    page, claims = Page(), template.render(CONTENT)[1:4]
    page.extend(claims)
    page.extend(claims)
    assert [table.name for table in page.tables] == ["claims", "claims-2"]
    assert sum(isinstance(block, Repeat) for block in page.blocks) == 1


@pytest.mark.parametrize("name", names())
def test_each_study_has_a_template(name: str) -> None:
    import minicnn.studies

    text = (Path(minicnn.studies.__file__).parent / name / "page.md").read_text("utf-8")
    assert "| key | claim | place | published | ours | why |" in text
    assert text.count("[[") == text.count("]]")
