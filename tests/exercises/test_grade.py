"""`minicnn grade`: the command and what it says. Cheats are in test_cheats, the exercises in test_course."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicnn.exercises.comparison import compare
from minicnn.exercises.exercise import Example, WrongError, call, skeleton
from minicnn.exercises.grading import Grade
from minicnn.exercises.table import EXERCISES
from minicnn.extras import install
from support.command_line import done, error_of, minicnn

Graded = Callable[..., Grade]
Solution = Callable[[str], str]


def test_from_the_skeleton_to_ten_points(solution: Solution) -> None:
    done("grade", "--start", "cross_entropy", "new/folder")
    path = Path("new/folder/cross_entropy.py")
    assert path.read_text("utf-8") == skeleton("cross_entropy")
    assert "which is there" in error_of(minicnn("grade", "--start", "cross_entropy", "new/folder"), 1)
    path.write_text(solution("cross_entropy") + "\nprint('hello')\n", "utf-8")
    result = done("grade", "cross_entropy", str(path), "--libraries", "numpy")
    assert result.stdout.splitlines()[-1].startswith("10 of 10 points; the same arguments again: --seed ")
    assert result.stderr == "hello\n"


def test_json_and_the_seed(solution: Solution) -> None:
    Path("x.py").write_text(solution("cross_entropy").replace("- xp.max(logits, axis=-1, keepdims=True)", ""), "utf-8")
    args = ("grade", "cross_entropy", "x.py", "--libraries", "numpy", "--json")
    printed = minicnn(*args, "--seed", "7")
    result = json.loads(printed.stdout)
    assert printed.exit_code == 1
    assert (result["exercise"], result["seed"], result["of"]) == ("cross_entropy", 7, 10)
    assert result["points"] == sum(check["points"] for check in result["checks"])
    assert "it holds infinities or NaN" in next(c["text"] for c in result["checks"] if c["name"] == "large logits")
    assert json.loads(minicnn(*args, "--seed", "7").stdout) == result


def test_hints_come_in_levels() -> None:
    one, two = (done("grade", "convolution", "--hint", level).stdout.splitlines() for level in ("1", "2"))
    assert one == two[:1]
    assert two[1].startswith("2 of 3: For one tap")


def test_modules_of_the_folder_in_which_it_is_graded_are_not_those_of_python(
    graded: Graded, solution: Solution
) -> None:
    Path("random.py").write_text("raise RuntimeError('mine')", "utf-8")
    assert graded("cross_entropy", "import random\n" + solution("cross_entropy")).points == 10


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_a_submission_says_how_it_is_encoded(encoding: str, solution: Solution) -> None:
    text = f"# coding: {encoding.removesuffix('-sig')}\nNAME = 'é'\nassert len(NAME) == 1\n{solution('cross_entropy')}"
    Path("x.py").write_bytes(text.encode(encoding))
    done("grade", "cross_entropy", "x.py", "--libraries", "numpy")


def test_an_error_is_told_with_its_line(graded: Graded) -> None:
    text = "def conv2d(x, w, *, strides, padding, xp):\n    raise ValueError('half \\ud800')\n"
    assert graded("convolution", text).outcomes[0].text.startswith("ValueError: half \\ud800 (line 2)")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("library", ["array_api_strict", "torch", "jax"])
def test_the_same_on_the_arrays_of_other_libraries(library: str, graded: Graded, solution: Solution) -> None:
    pytest.importorskip(library)
    assert graded("normalization", solution("normalization"), (library,)).points == 10
    text = solution("normalization").replace("xp.sqrt(variance + epsilon)", "(variance + epsilon).clip(0) ** 0.5")
    if library == "array_api_strict":
        grade = graded("normalization", text, (library,))
        assert grade.points == 8
        assert grade.outcomes[-1].text.endswith("(on arrays of array_api_strict)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "A submission is a Python file. Received: convolution.py, line 1: invalid syntax."),
        ("x = 1\0", "A submission is a Python file. Received: convolution.py"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (line 1). Mend it, or begin"),
        ("raise SystemExit", "A submission to convolution can be run. Received:"),
        ("def other(): pass", "it does not define conv2d. Mend it"),
    ],
)
def test_what_is_no_submission_is_one_line(text: str, said: str) -> None:
    Path("convolution.py").write_text(text, "utf-8")
    assert said in error_of(minicnn("grade", "convolution", "convolution.py"), 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("grade", "convolutoin", "x.py"), "Did you mean 'convolution'?"),
        (("grade", "convolution"), "Missing argument 'PATH'"),
        (("grade", "convolution", "nowhere.py"), "'nowhere.py', which is none. Make one: minicnn grade --start"),
        (("grade", "convolution", "."), "PATH is the file to be graded"),
        (("grade", "convolution", "x.py", "--limit", "0"), "'--limit'"),
        (("grade", "convolution", "--hint", "0"), "'--hint'"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], said: str) -> None:
    assert said in error_of(minicnn(*args), 2)


def test_a_library_that_is_missing_is_told() -> None:
    Path("x.py").touch()
    said = error_of(minicnn("grade", "convolution", "x.py", "--libraries", "nmpy"), 1)
    assert said.startswith("--libraries are of numpy")
    assert "Received: 'nmpy'. Choose of these." in said


def test_the_exercises_are_listed() -> None:
    result = done("grade", "--list")
    assert all(name in result.stdout for name in EXERCISES)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name, exercise in EXERCISES.items() if exercise.needs == "numba")
    Path("x.py").touch()
    monkeypatch.setattr("minicnn.exercises.grading.find_spec", lambda name: None)
    assert f"needs numba: {install('numba')}" in error_of(minicnn("grade", name, "x.py"), 1)


# What a difference says of the mistake --------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((8, 5, 6, 3))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (X * 8, "it is exactly 8 times what it should be: you did not divide by the batch (8, the first axis"),
        (X / 8, "it is exactly 1/8 of what it should be, as if divided by the batch"),
        (X / 720, "exactly 1/720 of what it should be, as if divided by 720, the size of argument 1 once too often"),
        (-X, "its sign is wrong"),
        (X * 2.5, "all elements are 2.5 times what they should be"),
        (0 * X, "it is zero"),
        (X[:, ::-1, ::-1], "it is flipped along the axes [1, 2]"),
        (X.transpose(0, 2, 1, 3), "should have the shape (8, 5, 6, 3). It has (8, 6, 5, 3): its axes are swapped"),
        (X - [1.0, 2.0, 3.0], "the same is missing from all elements of a channel, as a bias would be"),
        (X - 2, "2 is missing from each element"),
        (X * np.nan, "it holds infinities or NaN"),
        (X.astype("float32"), "should be float64. It is float32"),
        (None, "should be an array. It is NoneType"),
    ],
)
def test_a_difference_says_what_the_mistake_is(result: object, said: str) -> None:
    with pytest.raises(WrongError) as error:
        compare("f(...)", result, X, call(X))
    assert said in str(error.value)


def test_padding_is_named_where_only_edges_are_wrong() -> None:
    right = np.random.default_rng(0).standard_normal((2, 7, 7, 3))
    wrong = right.copy()
    wrong[:, 0] = 0
    with pytest.raises(WrongError, match="wrong at the edges of the image only: look at the padding"):
        compare("f(...)", wrong, right, call(right))


@pytest.mark.parametrize(
    ("result", "right", "said"),
    [
        ((1.0,), (1.0, 2.0), "should be a tuple of 2. It is a tuple of 1"),
        ({"a": 1}, {"b": 1}, "should have the keys ['b']"),
        (["a", "c"], ["a", "b"], r"f(...)[1] is 'c' and should be 'b'"),
        (True, 1.0, "should be a number. It is bool"),
        (1, 2, "f(...) is 1 and should be 2"),
        (1.0000001, 1.0, "f(...) is 1 and should be 1"),
        (np.array([1, 2]), np.array([1, 3]), "f(...)[1] is 2 and should be 3"),
    ],
)
def test_plain_results_are_compared_part_by_part(result: object, right: object, said: str) -> None:
    with pytest.raises(WrongError) as error:
        compare("f(...)", result, right, Example(()))
    assert said in str(error.value)


def test_rounding_is_no_mistake() -> None:
    compare("f(...)", X + 1e-14, X, call(X))
    compare("f(...)", [np.float64(2), {"a": 3}], [2.0, {"a": 3}], call(X))
