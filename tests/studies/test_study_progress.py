"""What a study says while it measures and when it has: a bar or lines, its answer, and data that need no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minicnn.cli import study
from minicnn.cli.study_progress import study_progress
from minicnn.measure.page import Page, Paragraph, Section
from minicnn.measure.report import Chapter
from minicnn.studies import get_study
from support.command_line import done
from support.terminal import pseudo_terminal, screen

SAID = ("1/2 training: kept", "2/2 sweep ... (not measured yet)", "2/2 sweep: 4 s")


def test_elsewhere_each_line_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with study_progress("mlp") as say:
        for line in SAID:
            say(line)
    assert capsys.readouterr().out.splitlines() == [f"  {line}" for line in SAID]


def test_a_terminal_has_a_bar_and_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with pseudo_terminal(monkeypatch, "stdout") as written, study_progress("mlp") as say:
        for line in SAID:
            say(line)
    assert "1/2 mlp: sweep" in written[0], "the bar names what is under way"
    assert [line.strip() for line in screen(written[0]) if line.strip()] == [SAID[0], SAID[2]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The data sets of the studies that a test carries out, of which nothing is measured."""
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(study, "measure", lambda opened, setting, *_, **__: seen.append(setting.data))
    monkeypatch.setattr(study, "PLACES", {"mnist": None})
    monkeypatch.setattr(study.data, "locate", lambda name: None)
    return seen


def test_a_quick_study_takes_drawn_digits_where_its_data_are_not_there(
    measured: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("study", "mlp", "--backends", "numpy", "--measure-only", "--out", "out")
    said = done(*args, "--quick").stderr
    assert "mlp is measured on synthetic_digits, which is drawn: mnist is not on this machine." in said
    done(*args, "--quick", "--data", "mnist")
    done(*args)
    monkeypatch.setattr(study.data, "locate", lambda name: Path(name))
    assert "drawn" not in done(*args, "--quick").stderr
    assert measured == [("synthetic_digits",), ("mnist",), ("mnist",), ("mnist",)]


def test_the_answer_is_what_a_page_begins_with() -> None:
    page = Page(
        [Paragraph("A takes half of the time."), Paragraph("B takes the rest."), Section("How"), Paragraph("Details.")]
    )
    chapter = Chapter("mlp", get_study("mlp"), [], page)
    assert study._answer(chapter) == "A takes half of the time. B takes the rest."


def test_a_study_ends_with_its_answer(monkeypatch: pytest.MonkeyPatch, measured: list[Any]) -> None:
    page = Page([Paragraph("A takes half of the time.")])
    monkeypatch.setattr(study, "_recalled", lambda name, *_: Chapter(name, get_study(name), [], page))
    for name in ("_write_files", "_write_report"):
        monkeypatch.setattr(study, name, lambda *_: None)
    lines = done("study", "mlp", "--backends", "numpy", "--quick").stdout.splitlines()
    assert lines[-4:-2] == [get_study("mlp").question, "A takes half of the time."]
