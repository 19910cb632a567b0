"""The exercises: each solution gets all points, each skeleton none, and each mistake loses those of its task."""

from __future__ import annotations

import ast
import doctest
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from exercises.mistakes import MISTAKES
from minicnn.exercises.exercise import WrongError, examples, skeleton
from minicnn.exercises.grading import Grade, judged
from minicnn.exercises.table import EXERCISES

ROOT = Path(__file__).resolve().parents[2]

Graded = Callable[..., Grade]
Solution = Callable[[str], str]

IN_PYTHON = [name for name, exercise in EXERCISES.items() if not exercise.kernels]


def needed(name: str) -> None:
    if EXERCISES[name].needs:
        pytest.importorskip(EXERCISES[name].needs)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_gets_all_points(name: str, graded: Graded, solution: Solution) -> None:
    needed(name)
    grade = graded(name, solution(name))
    assert grade.points == grade.of == 10, grade


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", EXERCISES)
def test_a_skeleton_gets_no_points(name: str, graded: Graded) -> None:
    needed(name)
    grade = graded(name, skeleton(name))
    assert grade.points == 0, grade


@pytest.mark.parametrize("name", IN_PYTHON)
def test_the_examples_of_a_skeleton_are_what_a_solution_prints(name: str, solution: Solution) -> None:
    module = ModuleType("solution")
    exec(compile(solution(name), name, "exec"), module.__dict__)
    runner, said = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), list[str]()
    for node in ast.walk(ast.parse(skeleton(name))):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        test = doctest.DocTestParser().get_doctest(text or "", {**module.__dict__, "np": np}, name, None, None)
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
    assert runner.tries == len(examples(name)) > 0


def test_an_exercise_has_all_that_is_promised() -> None:
    for name, exercise in EXERCISES.items():
        assert len(exercise.hints) == 3, name
        assert f"minicnn grade {name} FILE" in skeleton(name), name
        assert {task.function for task in exercise.tasks if task.judge is None} <= set(exercise.answers), name
        assert {task.after for task in exercise.tasks} <= {"", *(task.name for task in exercise.tasks)}, name
    assert set(MISTAKES) == set(EXERCISES), "each exercise has its typical mistakes"


def test_solutions_are_in_no_wheel() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built == {"packages": ["src/minicnn"]}
    skeletons = {path.stem: path.read_text("utf-8") for path in (ROOT / "src").rglob("skeletons/*.py")}
    assert set(skeletons) == set(EXERCISES)
    assert {name for name, text in skeletons.items() if "raise NotImplementedError" not in text} == {"find_the_bug"}


@pytest.mark.parametrize("name", ["memory_plan", "topological_order", "find_the_bug", "overfit", "gradient_check"])
@pytest.mark.parametrize("result", ["{'a': []}", "['ab', 3]", "[[3, 'a']]", "(1, 2)", "None", "{1: {2: 3}}", "'text'"])
def test_a_judge_takes_any_result(name: str, result: str) -> None:
    """What a submission returns may be anything, and the grader says so instead of failing."""
    exercise = EXERCISES[name]
    for number, task in enumerate(exercise.tasks):
        case = task.draw(np.random.default_rng(number))
        with pytest.raises(WrongError):
            judged(exercise, task.function, case, ast.literal_eval(result), task)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("name", "right", "wrong", "lost", "said"), [(name, *row) for name, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_loses_the_points_of_its_tasks(
    name: str, right: str, wrong: str, lost: str, said: str, graded: Graded, solution: Solution
) -> None:
    needed(name)
    assert right in solution(name)
    grade = graded(name, solution(name).replace(right, wrong))
    outcomes = {o.name: o for o in grade.outcomes if not o.points and not o.text.startswith("not tried")}
    assert ", ".join(outcomes) == lost, grade
    assert said in next(iter(outcomes.values())).text, grade
