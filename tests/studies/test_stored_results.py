"""Stored results that somebody has changed: nothing is written elsewhere, nothing becomes HTML, errors are ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minicnn.measure import Page, Table
from support.command_line import error_of, minicnn

STORED = Path(__file__).parents[2] / "docs" / "studies" / "results"
EVIL = "a/../../../evil/planted"
SCRIPT = "<script>alert(1)</script>"
PRESENT = ("study", "platforms", "--stored", "--out", "out/inner")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stored results of the study `platforms`, which is the folder to work in as well."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "out/inner/results/platforms"
    shutil.copytree(STORED / "platforms", folder)
    return folder


def change(path: Path, how: Callable[[Any], Any]) -> None:
    record = json.loads(path.read_text("utf-8"))
    how(record)
    path.write_text(json.dumps(record), "utf-8")


def nothing_but_the_results(results: Path) -> None:
    """No file was written but what was there."""
    assert {p for p in results.parents[3].rglob("*") if p.is_file()} == set(results.iterdir())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", [EVIL]),
        ("data", "mnist"),
        ("data", [["mnist"]]),
        ("candidates", [EVIL]),
        ("candidates", ["numpy:../x"]),
        ("absent", {EVIL: "gone"}),
        ("absent", {SCRIPT: "gone"}),
        ("absent", {"numpy": 3}),
        ("absent", ["numpy"]),
        ("sizes", {"epochs": "many", "samples": 3}),
        ("sizes", {"epochs": 1}),
        ("sizes", None),
        ("quick", 1),
        ("clocks", [1]),
        ("only", [SCRIPT]),
        ("data_dir", 3),
    ],
)
def test_names_of_a_setting_are_known_ones(key: str, value: Any, results: Path) -> None:
    change(results / "setting.json", lambda record: record["result"].update({key: value}))
    line = error_of(minicnn(*PRESENT), 1)
    assert f"sizes that the study knows. Received: {key} = " in line
    assert "Measure platforms with --again" in line
    nothing_but_the_results(results)


def damages() -> dict[str, Callable[[Path], Any]]:
    def training(how: Callable[[Any], Any]) -> Callable[[Path], Any]:
        return lambda folder: change(folder / "training-mnist.json", lambda record: how(record["result"]))

    def rows(how: Callable[[Any], Any]) -> Callable[[Path], Any]:
        return training(lambda result: how(result["history"]["numpy"]))

    return {
        "no result": lambda folder: [part.unlink() for part in folder.glob("*-mnist.json")],
        "a setting 990 deep": lambda folder: (folder / "setting.json").write_text("[" * 990 + "]" * 990),
        "a setting 1e6 deep": lambda folder: (folder / "setting.json").write_text('{"a":' * 10**6),
        "a result 1e6 deep": lambda folder: (folder / "training-mnist.json").write_text("[" * 10**6),
        "a setting with less": lambda folder: change(folder / "setting.json", lambda r: r["result"].pop("data")),
        "no setting": lambda folder: change(folder / "setting.json", lambda r: r.update(result=3)),
        "half a character": lambda folder: change(folder / "setting.json", lambda r: r["stamp"].update(cpu="\ud800")),
        "a stamp that is a list": lambda folder: change(folder / "setting.json", lambda r: r.update(stamp=[])),
        "a machine without a CPU": lambda folder: change(folder / "setting.json", lambda r: r["stamp"].pop("cpu")),
        "a result that is a list": lambda folder: change(folder / "training-mnist.json", lambda r: r.update(result=[])),
        "no history": training(lambda result: result.pop("history")),
        "rows without times": rows(lambda found: found[0].pop("time_s")),
        "a time in words": rows(lambda found: found[1].update(time_s="long")),
        "no rows": rows(lambda found: found.clear()),
        "times of zero": rows(lambda found: [row.update(time_s=0) for row in found]),
    }


@pytest.mark.parametrize("damage", damages().values(), ids=damages())
def test_damaged_results_are_one_line(damage: Callable[[Path], Any], results: Path) -> None:
    damage(results)
    line = error_of(minicnn(*PRESENT), 1)
    assert "Stored results are" in line
    assert "Received for platforms: " in line
    assert not (results.parents[3] / "evil").exists()
    assert {p.name for p in results.parents[2].iterdir()} == {"inner"}


def test_a_candidate_that_leads_elsewhere_leads_nowhere(results: Path) -> None:
    def plant(record: Any) -> None:
        record["result"]["history"][EVIL] = record["result"]["history"]["numpy"]

    change(results / "training-mnist.json", plant)
    assert minicnn(*PRESENT).exit_code == 0
    assert not (results.parents[3] / "evil").exists()
    assert {p.name for p in results.parents[2].iterdir()} == {"inner"}


def test_names_of_tables_cannot_lead_elsewhere() -> None:
    for name in (EVIL, "/etc/x", "..", "", "a\\b", "a\0"):
        with pytest.raises(ValueError, match="names that files can have"):
            Page().extend([Table(name, "", [], [])])


def test_all_that_is_stored_is_escaped(results: Path) -> None:
    def plant(record: Any) -> None:
        record["result"]["absent"] = {"cupy": SCRIPT}
        record["result"]["clocks"] = [SCRIPT]
        record["stamp"] |= {"environment": {SCRIPT: SCRIPT}, "versions": {SCRIPT: SCRIPT}}

    change(results / "setting.json", plant)
    for path in results.iterdir():
        change(path, lambda record: record["stamp"].update(cpu=SCRIPT))
    change(results / "training-mnist.json", lambda record: record["result"]["out"].update(numba=SCRIPT))
    assert minicnn(*PRESENT).exit_code == 0
    report = Path("out/inner/report.html").read_text("utf-8")
    assert "&lt;script&gt;" in report
    assert "<script" not in report
    assert minicnn(*PRESENT, "--docs", "pages").exit_code == 0
    assert "<script" not in Path("pages/platforms.md").read_text("utf-8")


def test_the_report_keeps_the_studies_that_were_carried_out_before(results: Path) -> None:
    shutil.copytree(STORED / "mlp", results.parent / "mlp")
    assert minicnn(*PRESENT).exit_code == 0
    assert not Path("out/inner/mlp").exists(), "only what was asked for is written anew"
    report = Path("out/inner/report.html").read_text("utf-8")
    assert "<section id='mlp'>" in report
    assert "<section id='platforms'>" in report
    assert "minicnn study mlp" in report
    (results.parent / "mlp/setting.json").write_text("{")
    result = minicnn(*PRESENT)
    assert result.exit_code == 0
    assert "note: the report is without mlp: Stored results are" in result.output
    assert "<section id='mlp'>" not in Path("out/inner/report.html").read_text("utf-8")
