"""Grades of a class, for tables, nbgrader and Gradescope."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minicnn.exercises.exercise import skeleton
from support.command_line import done, error_of, minicnn


@pytest.fixture
def folder(solution: Callable[[str], str]) -> Path:
    files = {
        "ada/schedule.py": solution("schedule"), "ada/week1/momentum.py": solution("momentum"), "bob/notes.py": "",
        "bob/schedule.py": solution("schedule").replace("step // every", "step / every"), "ann/readme.txt": "",
        "eve/schedule.py": "from minicnn import ops", "eve/momentum.py": "def (",
    }  # fmt: skip
    for name, text in files.items():
        path = Path("class") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Path("class")


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_class_is_graded_into_tables(folder: Path) -> None:
    result = done("grade", "--class", "class", "--csv", "out/grades.csv", "--nbgrader", "nb.csv")
    assert result.stdout.splitlines() == [
        "ada  schedule  10 of 10", "ada  momentum  10 of 10", "bob  schedule  7 of 10", "eve  momentum  0 of 10",
        "eve  schedule  0 of 10",
    ]  # fmt: skip
    grades = rows("out/grades.csv")
    assert list(grades[0]) == ["student", "exercise", "points", "of", "seed", "feedback"]
    assert [row["points"] for row in grades] == ["10", "10", "7", "0", "0"]
    assert grades[0]["feedback"] == ""
    assert grades[2]["feedback"].startswith("staircase: staircase(...) is ")
    assert "A submission is a Python file. Received: class/eve/momentum.py, line 1" in grades[3]["feedback"]
    assert "without minicnn" in grades[4]["feedback"]
    exported = rows("nb.csv")
    assert ",".join(exported[0]) == (
        "assignment,duedate,timestamp,student_id,last_name,first_name,email,"
        "raw_score,late_submission_penalty,score,max_score"
    )
    assert [(r["assignment"], r["student_id"], r["score"], r["max_score"]) for r in exported[2:3]] == [
        ("schedule", "bob", "7.0", "10.0")
    ]
    assert len(exported[0]["timestamp"]) == len("2026-01-31 12:00:00")


def test_one_exercise_of_a_class(folder: Path) -> None:
    assert done("grade", "momentum", "--class", "class").stdout.splitlines() == [
        "ada  momentum  10 of 10", "eve  momentum  0 of 10",
    ]  # fmt: skip
    assert "Received: nowhere, without an exercise." in error_of(minicnn("grade", "--class", "nowhere"), 1)
    said = error_of(minicnn("grade", "adam", "--class", "class"), 1)
    assert said == (
        "A class is a folder with a folder for each student, which holds EXERCISE.py. Received: class, without "
        "adam.py. Lay files out as STUDENT/convolution.py."
    )


def test_results_for_gradescope() -> None:
    Path("schedule.py").write_text(skeleton("schedule"), "utf-8")
    assert minicnn("grade", "schedule", "schedule.py", "--gradescope", "results/results.json").exit_code == 1
    result = json.loads(Path("results/results.json").read_text("utf-8"))
    assert result["score"] == 0
    assert result["extra_data"]["seed"] > 0
    test = result["tests"][1]
    assert (test["name"], test["number"], test["score"], test["max_score"]) == ("cosine", "2", 0, 3)
    assert test["status"] == "failed"
    assert result["tests"][1]["output"].startswith("the blank is not filled in yet")
    assert sum(test["max_score"] for test in result["tests"]) == 10
    assert {test["visibility"] for test in result["tests"]} == {"visible"}


def test_what_cannot_be_run_has_results_for_gradescope_too() -> None:
    Path("adam.py").write_text("import nothing_of_that_name", "utf-8")
    error_of(minicnn("grade", "adam", "adam.py", "--gradescope", "results.json"), 1)
    result = json.loads(Path("results.json").read_text("utf-8"))
    assert result["score"] == 0
    assert "No module named 'nothing_of_that_name'" in result["tests"][0]["output"]
    assert result["tests"][1]["output"] == "not run"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("grade",), "Missing argument 'EXERCISE'"),
        (("grade", "adam", "x.py", "--csv", "a.csv"), "--csv and --nbgrader hold the grades of a class"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], said: str) -> None:
    assert said in error_of(minicnn(*args), 2)
