"""The page of the performance history: what counts as a jump, where lines end, and what is stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minicnn.measure import Spread
from minicnn.measure.drawing import to_svg
from support.scripts import ROOT, script

SMALL = "training.SmallNetworks.time_training"
TITLE = "numba, a step of small networks"


@pytest.fixture(scope="module")
def history() -> ModuleType:
    return script("docs/history.py")


def written(folder: Path, number: int, cpu: str = "A, AVX2", **times: Any) -> None:
    """A commit's file as asv writes it: times of numba on networks, and of an import."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text("{}")
    benchmarks = {SMALL: {"version": "1"}, "starting.Import.timeraw_numpy": {"version": "1"}, "version": 2}
    (folder.parent / "benchmarks.json").write_text(json.dumps(benchmarks))
    networks, backends = ["'mlp'", "'single'"], ["'numba'", "'cupy'"]
    row = [times.get(n.strip("'")) if b == "'numba'" else float("nan") for n in networks for b in backends]
    results = {
        SMALL: [row, [networks, backends], times.get("version", "1"), row, row],
        "starting.Import.timeraw_numpy": [[times.get("numpy", 0.1)], [], "1", [0.1], [0.1]],
    }
    value = {
        "commit_hash": f"{number:07d}" + 33 * "0", "date": 1000 * number, "params": {"cpu": cpu},
        "result_columns": ["result", "params", "version", "stats_q_25", "stats_q_75"], "results": results,
    }  # fmt: skip
    (folder / f"{number:08d}-existing.json").write_text(json.dumps(value))


def jumps(history: ModuleType, folder: Path) -> list[tuple[int, str, float]]:
    commits = history.stored(folder)["one"]
    return [(int(commits[j.place].name), j.key[1], round(j.ratio, 2)) for j in history.jumps(commits)]


def test_times_are_those_of_a_step_and_what_failed_or_is_of_another_version_is_left_out(
    history: ModuleType, tmp_path: Path
) -> None:
    for number in range(5):
        written(tmp_path / "one", number, mlp=5.0, single=None)
    written(tmp_path / "one", 5, mlp=1.0, version="0")
    commits = history.stored(tmp_path)["one"]
    assert commits[0].values == {
        (TITLE, "mlp"): Spread(1.0, 1.0, 1.0, 1), ("import, in a new interpreter", "numpy"): Spread(0.1, 0.1, 0.1, 1)
    }  # fmt: skip
    assert (TITLE, "mlp") not in commits[5].values


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([1.0, 1.09, 1.0, 1.05, 1.1], []),
        ([1.0, 1.0, 1.2, 1.2, 1.2], [(2, "mlp", 1.2)]),
        ([1.0, 1.0, 0.5, 0.5, 0.5], [(2, "mlp", 0.5)]),
        ([1.0, 1.0, 3.0, 1.05, 1.0], []),  # taken back at once
        ([1.0, 1.0, 3.0, 3.1, 1.0], []),  # or soon
        ([1.0, 1.0, 3.0, 3.1, 2.9, 1.0], [(2, "mlp", 2.9), (5, "mlp", 0.34)]),
        ([1.0, 1.0, 1.0, 1.0, 1.5], [(4, "mlp", 1.5)]),  # the newest: nobody knows yet
        ([1.0, 1.0, 3.0, 1.5, 1.5], [(2, "mlp", 1.5)]),
        ([1.0, 0.8, 0.8, 0.8, 0.4, 0.4], [(1, "mlp", 0.8), (4, "mlp", 0.5)]),
        ([3.0, 1.0, 1.0, 3.0, 1.0, 1.0], [(1, "mlp", 0.33)]),
        ([1.0, None, 1.3, 1.3, 1.3, 1.3], [(2, "mlp", 1.3)]),
    ],
)
def test_a_jump_is_a_change_that_lasts(
    times: list[float | None], found: list[tuple[int, str, float]], history: ModuleType, tmp_path: Path
) -> None:
    for number, time in enumerate(times):
        written(tmp_path / "one", number, mlp=time)
    assert jumps(history, tmp_path) == found


def test_what_is_within_the_quartiles_is_no_jump(history: ModuleType, tmp_path: Path) -> None:
    for number in range(5):
        written(tmp_path / "one", number, mlp=1.0 if number < 3 else 1.3)
    path = tmp_path / "one" / "00000003-existing.json"
    value = json.loads(path.read_text())
    value["results"][SMALL][3] = [0.9, None, None, None]
    path.write_text(json.dumps(value))
    assert jumps(history, tmp_path) == []


def test_results_of_two_cpus_are_never_joined(history: ModuleType, tmp_path: Path) -> None:
    for number in range(6):  # the older machine measured a newer commit last
        written(
            tmp_path / "one", number, "A, AVX-512" if number in (0, 1, 5) else "A, AVX2", mlp=1.0 + 9 * (number > 1)
        )
    commits = history.stored(tmp_path)["one"]
    assert [int(commit.name) for commit in commits] == [0, 1, 5, 2, 3, 4]
    assert jumps(history, tmp_path) == [(5, "mlp", 10.0)]
    figure = history.figure("one", commits)
    assert [panel.title for panel in figure.panels] == [
        f"{TITLE}: as long as at first (AVX2)", "import, in a new interpreter: as long as at first (AVX2)",
    ]  # fmt: skip
    svg = to_svg(figure)
    assert (svg.count("AVX-512"), svg.count(">AVX2<")) == (2, 0), "the newest is in the headline"
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    figure.panels[0].draw(axes)
    (line,) = (line for line in axes.lines if len(line.get_xdata()) > 2)
    assert sum(y != y for y in line.get_ydata()) == 1, "the line has a gap"
    assert axes.get_xlabel() == "commit, the oldest first"
    assert axes.get_ylabel() == "time (logarithmic)"
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{i:07d}" for i in (0, 1, 5, 2, 3, 4)]


def test_jumps_have_their_reasons(history: ModuleType, tmp_path: Path) -> None:
    for number in range(6):
        written(tmp_path / "one", number, mlp=1.0 + (number > 1), single=1.0 + (number > 2), numpy=1.0)
    known = [
        {"machine": "two", "commit": "0000002", "lines": "", "reason": "of another machine"},
        {"machine": "one", "commit": "0000002", "lines": "numba mlp", "reason": "a reason"},
    ]
    rows = history.table(history.stored(tmp_path), known).splitlines()[2:]
    assert rows == [
        "| one | `0000002` | numba mlp 2.00 | a reason |",
        "| one | `0000003` | numba single 2.00 | not explained yet |",
    ]
    written(tmp_path / "one", 6, mlp=1.05, single=2.0)
    rows = history.table(history.stored(tmp_path), []).splitlines()[2:]
    assert [row.split(" | ")[1:] for row in rows] == [
        ["`0000002`", "numba mlp 2.00", "not explained; as before at `0000006` |"],
        ["`0000003`", "numba single 2.00", "not explained yet |"],
        ["`0000006`", "numba mlp 0.53", "not explained yet |"],
    ]
    (tmp_path / "one" / "00000006-existing.json").unlink()
    for number in range(6):
        written(tmp_path / "one", number, mlp=1.0 + (number > 1), single=2.0 - (number > 1), numpy=0.1 + (number > 1))
    path = tmp_path / "one" / "00000002-existing.json"
    path.write_text(path.read_text().replace("[0.1], [0.1]", "[1.1], [1.1]"))
    rows = history.table(history.stored(tmp_path), []).splitlines()[2:]
    assert [row.split(" | ")[2] for row in rows] == ["numba mlp 2.00, import numpy 11.00", "numba single 0.50"]
    assert "the machine: NumPy alone did likewise" in rows[0]
    assert "not explained yet" in rows[1]


def test_a_panel_has_eight_lines_at_most(history: ModuleType) -> None:
    names = [str(i) for i in range(12)]
    every = [history.Commit(f"{i}", "A", {(TITLE, n): Spread(1, 1, 1, 1) for n in names[i:]}) for i in range(6)]
    assert history.panels(every) == {TITLE: [*names[5:], "4"]}


def words(svg: str) -> list[str]:
    """All that is written in a drawing: headlines, commits, names of lines, numbers."""
    return sorted(re.findall(r">([^<>]+)</text>", svg))


def test_the_stored_page_and_figures_are_those_of_the_stored_results(history: ModuleType) -> None:
    again = "write it anew: python docs/history.py"
    text = (ROOT / "docs" / "history.md").read_text("utf-8")
    assert history.page(text) == text, again
    for machine, commits in history.stored().items():
        svg = (ROOT / "docs" / "figures" / f"history-{machine}.svg").read_text("utf-8")
        assert words(svg) == words(to_svg(history.figure(machine, commits))), again  # 3 s: each line is drawn
        assert f"figures/history-{machine}.svg" in text
