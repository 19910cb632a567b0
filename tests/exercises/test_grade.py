"""`minicnn grade`: right solutions get all points, wrong ones lose those of what is wrong, and nothing hangs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from minicnn.exercises.__main__ import judged, load
from minicnn.exercises.exercise import skeleton
from minicnn.exercises.table import EXERCISES
from minicnn.extras import install
from support.command_line import done, error_of, minicnn

SOLUTIONS = Path(__file__).parent / "solutions"
ON_ARRAYS = [name for name, exercise in EXERCISES.items() if not exercise.needs]


def text_of(name: str) -> str:
    return (SOLUTIONS / f"{name}.py").read_text("utf-8")


def points_lost(name: str, text: str, folder: Path, backends: list[str] | None = None) -> dict[str, str]:
    """What each check that is not passed says, of a solution judged in this process; speed is looked at elsewhere."""
    path = folder / "submission.py"
    path.write_text(text, "utf-8")
    given = load(path)
    results = {c.name: judged(c, given, backends, path) for c in EXERCISES[name].checks if c.name != "speed"}
    return {check: said for check, (points, said) in results.items() if not points}


def test_every_exercise_has_a_solution_and_ten_points() -> None:
    assert sorted(path.stem for path in SOLUTIONS.glob("*.py")) == sorted(EXERCISES)
    assert {exercise.points for exercise in EXERCISES.values()} == {10}


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_a_solution_is_right_on_every_backend(name: str, tmp_path: Path) -> None:
    assert points_lost(name, text_of(name), tmp_path) == {}


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_a_skeleton_gets_no_points(name: str, tmp_path: Path) -> None:
    lost = points_lost(name, skeleton(name), tmp_path, ["numpy"])
    assert set(lost) == {c.name for c in EXERCISES[name].checks} - {"speed"}
    assert all(said.startswith("the blank is not filled in yet") for said in lost.values())


WRONG = [
    ("convolution", "(n * oh * ow, kh * kw * c)", "(n * oh * ow, kh * kw * c)) * (1 + 1e-9", "values"),
    ("convolution", "before, after\n", "after, before\n", "values"),
    ("convolution", "dtype=x.dtype", 'dtype=xp.float64', "parity"),
    ("convolution", "xp.matmul(columns", "xp.einsum('ij,jk->ik', columns", "parity"),
    ("convolution_gradient", "i : i + ", "0 : 0 + ", "gradient"),
    ("convolution_gradient", "xp.matmul(tap, positions)", "xp.matmul(tap, positions) / n", "gradient"),
    ("pooling", "free = xp.logical_and(free, xp.logical_not(hit))", "pass", "values"),
    ("pooling", "dx = dx + spread", "dx = dx * 0 + spread", "gradient"),
    ("cross_entropy", "shifted = logits - xp.max(logits, axis=-1, keepdims=True)", "shifted = logits", "values"),
    ("cross_entropy", "(p - xp.astype", "(p + xp.astype", "gradient"),
    ("normalization", "- u * xp.mean(g * u, axis=axes, keepdims=True)", "", "gradient"),
    ("normalization", "xp.sum(dy, axis=axes)", "xp.mean(dy, axis=axes)", "gradient"),
    ("normalization", "return dx, xp.sum(dy * u, axis=axes), ", "return dx, ", "gradient"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong", "check"), WRONG)
def test_what_is_wrong_loses_the_points_of_its_check(
    name: str, right: str, wrong: str, check: str, tmp_path: Path
) -> None:
    assert text_of(name).count(right) >= 1
    backends = ["numpy", "array_api_strict"] if check == "parity" else ["numpy"]
    lost = points_lost(name, text_of(name).replace(right, wrong), tmp_path, backends)
    assert check in lost
    if check == "parity":
        assert set(lost) == {check}, "and no others"


def test_a_changed_input_is_seen(tmp_path: Path) -> None:
    text = text_of("convolution").replace("def conv2d(", "def right(")
    text += "\n\ndef conv2d(x, w, **attrs):\n    y = right(x, w, **attrs)\n    w[0, 0, 0, 0] = 7\n    return y\n"
    lost = points_lost("convolution", text, tmp_path, ["numpy"])
    assert set(lost) == {"inputs"}
    assert lost["inputs"].startswith("conv2d has changed an input")


def test_a_view_of_an_input_is_seen(tmp_path: Path) -> None:
    text = text_of("pooling") + "\n\ndef max_pool2d(x, *, kernel, strides, xp):\n    return x[:, ::2, ::2, :]\n"
    assert "a result of max_pool2d is a view of an input" in points_lost("pooling", text, tmp_path, ["numpy"])["inputs"]


@pytest.mark.parametrize("made", ["None", "'abc'", "()", "[None]"])
def test_what_returns_no_array_gets_no_points(made: str, tmp_path: Path) -> None:
    lost = points_lost("convolution", f"def conv2d(x, w, **attrs):\n    return {made}\n", tmp_path, ["numpy"])
    assert set(lost) == {"values", "inputs", "parity"}
    assert "conv2d, result 0: an array is asked for. It is" in lost["inputs"]


def test_an_error_is_told_with_its_line_and_backend(tmp_path: Path) -> None:
    text = "def conv2d(x, w, *, strides, padding, xp):\n    return x.no_such_thing\n"
    lost = points_lost("convolution", text, tmp_path, ["numpy"])
    assert "AttributeError" in lost["values"]
    assert lost["values"].endswith("(line 2)")
    assert lost["parity"].endswith("(line 2) (on numpy's arrays)")


def test_a_backend_that_is_named_and_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    monkeypatch.delitem(sys.modules, "minicnn.backends.array_api_strict", raising=False)
    lost = points_lost("convolution", text_of("convolution"), tmp_path, ["array_api_strict"])
    assert lost["parity"].startswith("array_api_strict cannot be used: Backend 'array_api_strict' needs")


# The command, each time with a process of its own -------------------------------------------------------


def graded(name: str, text: str, *options: str) -> tuple[int, dict[str, tuple[int, str]], str]:
    """Exit code, points and findings by check, and what the submission printed."""
    Path(f"{name}.py").write_text(text, "utf-8")
    result = minicnn("grade", name, f"{name}.py", "--backends", "numpy", "--json", *options)
    found = json.loads(result.stdout)
    checks = {c["name"]: (c["points"], c["text"]) for c in found["checks"]}
    assert found["points"] == sum(points for points, _ in checks.values())
    return result.exit_code, checks, result.stderr


def test_from_the_skeleton_to_ten_points() -> None:
    result = done("grade", "--start", "cross_entropy", "new/folder")
    path = Path("new/folder/cross_entropy.py")
    assert path.read_text("utf-8") == skeleton("cross_entropy")
    assert "which is there" in error_of(minicnn("grade", "--start", "cross_entropy", "new/folder"), 1)
    path.write_text(text_of("cross_entropy") + "\nprint('hello')\n", "utf-8")
    result = done("grade", "cross_entropy", str(path), "--backends", "numpy")
    assert result.stdout.splitlines()[-1] == "10 of 10 points"
    assert result.stderr == "hello\n"


def test_slow_code_loses_the_points_of_speed_and_one_that_hangs_is_stopped() -> None:
    slow = text_of("normalization").replace(
        "    inverse =", "    for _ in range(60):\n        xp.exp(x)\n    inverse ="
    )
    code, checks, _ = graded("normalization", slow)
    assert code == 1
    assert {name for name, (points, _) in checks.items() if not points} == {"speed"}
    assert "times as long as the library, of at most 3" in checks["speed"][1]
    start = time.monotonic()
    waits = "x.size < 1000 or __import__('time').sleep(0.1)"  # on the large arrays only
    hangs = slow.replace("range(60)", f"iter(lambda: {waits}, True)")
    code, checks, _ = graded("normalization", hangs, "--limit", "5")
    assert time.monotonic() - start < 30
    assert code == 1
    assert checks["gradient"][0] == 5
    assert checks["speed"] == (0, "stopped here after 5 s, the limit of all checks together (--limit)")


def test_modules_of_the_folder_in_which_it_is_graded_are_not_those_of_python() -> None:
    Path("random.py").write_text("raise RuntimeError('mine')", "utf-8")
    code, checks, said = graded("cross_entropy", text_of("cross_entropy"))
    assert (code, said) == (0, ""), checks


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_a_submission_says_how_it_is_encoded(encoding: str) -> None:
    text = f"# coding: {encoding.removesuffix('-sig')}\nNAME = 'é'\nassert len(NAME) == 1\n{text_of('cross_entropy')}"
    Path("x.py").write_bytes(text.encode(encoding))
    result = minicnn("grade", "cross_entropy", "x.py", "--backends", "numpy")
    assert result.stdout.splitlines()[-1] == "10 of 10 points", result.output


def test_half_a_character_in_an_error_is_told() -> None:
    code, checks, _ = graded("convolution", "def conv2d(x, w, **attrs):\n    raise ValueError('half \\ud800')\n")
    assert code == 1
    assert checks["values"] == (0, "ValueError: half \\ud800 (line 2)")


def test_a_submission_that_forks_gets_the_points_of_one() -> None:
    code, checks, _ = graded("cross_entropy", f"import os\nos.fork()\n{text_of('cross_entropy')}")
    assert (code, list(checks)) == (0, [check.name for check in EXERCISES["cross_entropy"].checks])
    result = minicnn("grade", "cross_entropy", "cross_entropy.py", "--backends", "numpy")
    assert result.stdout.splitlines()[-1] == "10 of 10 points"


def test_a_process_that_dies_is_told() -> None:
    dies = text_of("convolution").replace("    n, _,", "    import os\n    os._exit(7)\n    n, _,")
    code, checks, _ = graded("convolution", dies)
    assert code == 1
    assert checks["values"] == (0, "its process ended with code 7 here")
    assert checks["speed"] == (0, "not judged, as the process had ended")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "A submission is a Python file. Received: convolution.py, line 1: invalid syntax."),
        ("x = 1\0", "A submission is a Python file. Received: convolution.py"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (line 1). Mend it."),
        ("raise SystemExit", "can be imported. Received:"),
        ("def other(): pass", "defines conv2d. Received:"),
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
    ],
)
def test_wrong_usage(args: tuple[str, ...], said: str) -> None:
    assert said in error_of(minicnn(*args), 2)


def test_the_exercises_are_listed() -> None:
    result = done("grade", "--list")
    assert all(name in result.stdout for name in EXERCISES)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bias_relu.py").touch()
    monkeypatch.setattr("minicnn.exercises.grading.find_spec", lambda name: None)
    assert f"needs numba: {install('numba')}" in error_of(minicnn("grade", "bias_relu", "bias_relu.py"), 1)


# Kernels ------------------------------------------------------------------------------------------------


def test_a_kernel_for_the_cpu() -> None:
    pytest.importorskip("numba")
    code, checks, _ = graded("bias_relu", text_of("bias_relu"))
    assert (code, [points for points, _ in checks.values()]) == (0, [1, 3, 3, 3]), checks
    path = Path("wrong.py")
    path.write_text(text_of("bias_relu").replace("@njit\n", "").replace("(x.shape[1])", "(1, x.shape[1])"), "utf-8")
    compiled, values = (judged(check, load(path), None, path) for check in EXERCISES["bias_relu"].checks[:2])
    assert compiled == (0, "bias_relu is a plain Python function: keep the decorator @njit")
    assert values[0] == 0
    assert values[1].startswith("out[0, 0] is nan and should be")


NAIVE = """
from numba import cuda

SIDE = 4


@cuda.jit
def matmul(a, b, c):
    column, row = cuda.grid(2)
    total = 0.0
    for k in range(a.shape[1]):
        total += a[row, k] * b[k, column]
    c[row, column] = total
"""


def test_a_kernel_for_the_gpu_in_the_simulator() -> None:
    pytest.importorskip("numba")
    code, checks, _ = graded("matmul_kernel", text_of("matmul_kernel"))
    assert (code, [points for points, _ in checks.values()]) == (0, [3, 3, 4]), checks
    code, checks, _ = graded("matmul_kernel", NAIVE)
    assert [points for points, _ in checks.values()] == [3, 0, 0]
    assert "is outside an axis of" in checks["edges"][1]
    assert "1 times fewer than by the naive kernel; with tiles" in checks["reads"][1]
