"""The parts of the grader's processes, in this process: draws and answers, the simulator, conversion of arrays."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import minicnn
from minicnn.exercises import language, simulator
from minicnn.exercises.confinement import _visible
from minicnn.exercises.exercise import Example, call
from minicnn.exercises.grading import judged
from minicnn.exercises.simulator import SimulatorError
from minicnn.exercises.table import EXERCISES
from minicnn.exercises.worker import BLANK, Library, Packages, why

Solution = Callable[[str], str]

SOLUTIONS = Path(__file__).parent / "solutions"
FEW = {"overfit", "blocked_matmul"}  # of which one draw takes long


@pytest.mark.parametrize("name", EXERCISES)
def test_answers_and_solution_agree_on_many_draws(name: str, solution: Solution) -> None:
    exercise = EXERCISES[name]
    if exercise.kernels:
        module = simulator.load(language.translated(solution(name).encode(), exercise.kernels), exercise.kernels)
    else:
        module = ModuleType("submission")
        exec(compile(solution(name), name, "exec"), module.__dict__)
    for seed in range(1 if name in FEW else 8):
        for number, task in enumerate(exercise.tasks):
            case = task.draw(np.random.default_rng([seed, number]))
            arguments = copy.deepcopy(case.arguments)
            result = getattr(module, task.function)(*arguments, **case.options, **exercise.namespace())
            judged(exercise, task.function, case, result, task)


def test_draws_differ_from_each_other() -> None:
    for name, exercise in EXERCISES.items():
        for task in exercise.tasks:
            drawn = [repr(task.draw(np.random.default_rng(seed))) for seed in range(6)]
            assert len(set(drawn)) > 1, f"{name}, {task.name}"


# The simulator -------------------------------------------------------------------------------------------

HEAD = "@cuda.jit\ndef kernel(x):\n    s = cuda.shared.array(4, float32)\n    t = cuda.threadIdx.x\n"


def launched(body: str, size: int = 4) -> dict[str, Any]:
    text = HEAD + "".join(f"    {line}\n" for line in body.split("\n"))
    module = simulator.load(language.translated(text.encode(), "cuda"), "cuda")
    result: dict[str, Any] = module.run("kernel", (1, 1), (4, 1), [np.arange(size, dtype="float32")])
    return result


def test_threads_hand_on_what_they_have_through_shared_memory() -> None:
    result = launched("s[t] = x[t]\ncuda.syncthreads()\nx[t] = s[3 - t] + cuda.gridDim.x + cuda.gridsize(1)")
    assert result["arrays"][0].tolist() == [8, 7, 6, 5]
    assert (result["reads"], result["writes"], result["barriers"], result["shared"]) == (4, 4, 1, 8)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("s[t] = x[t]\nx[t] = s[3 - t]", "a race: one thread"),
        ("s[0] = t", "a race: one thread writes element 0 of shared array 1 and another writes it"),
        (
            "y = s[0]\nif t == 1:\n        s[0] = y",
            "a race: one thread writes element 0 of shared array 1 and another reads",
        ),
        ("x[t + 1] = 0", "index 4 is outside axis 0 of argument 1, of 4: a machine would read or write anything"),
        ("x[t - 1] = 0", "index -1 is outside axis 0"),
        ("if t < 2:\n        cuda.syncthreads()", "2 of 4 threads of a block come to a barrier, others do not"),
        ("x[t, 0] = 0", "an index of argument 1 is 1 integers. It is (0, 0)"),
        ("x[0.0] = 0", "an index of argument 1 is 1 integers. It is 0.0"),
    ],
)
def test_what_a_gpu_would_not_forgive_is_told(body: str, said: str) -> None:
    with pytest.raises(SimulatorError) as error:
        launched(body)
    assert said in str(error.value)


def test_a_cache_forgets_the_line_that_was_not_used_for_longest() -> None:
    cache = simulator._Cache()
    for line in [*range(simulator.LINES), 0, "new", 0, 1]:
        cache.touch(line)
    assert cache.misses == simulator.LINES + 2, "0 was used again and stays; 1 went, and is brought once more"


# The worker ----------------------------------------------------------------------------------------------


def called(
    function: Callable[..., Any], case: Example, library: str = "numpy", looked_at: bool = True
) -> dict[str, Any]:
    module = ModuleType("submission")
    module.f = function  # type: ignore[attr-defined]
    return Library(library).call(module, "f", case.arguments, dict(case.options), looked_at, "submission.py")  # type: ignore[no-any-return]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch", "jax"])
def test_arrays_go_to_a_library_and_back(library: str) -> None:
    pytest.importorskip(library)
    case = call([np.ones((2, 3), "float32")], {"a": (np.arange(3, dtype="int32"), 7)}, xp=None)
    seen = []

    def function(arrays: Any, named: Any, *, xp: Any) -> Any:
        seen.append(type(arrays[0]).__module__.partition(".")[0])
        return {"sum": xp.sum(arrays[0]), "both": (arrays[0] + 1, named["a"][0]), "plain": [named["a"][1], "x"]}

    reply = called(function, case, library)
    result = reply["result"]
    assert seen == [{"jax": "jaxlib"}.get(library, library)]
    assert float(result["sum"]) == 6
    assert np.array_equal(result["both"][0], np.full((2, 3), 2))
    assert result["plain"] == [7, "x"]
    assert reply["changed"] is False


def test_changed_arguments_and_views_are_seen_wherever_they_are() -> None:
    case = call([np.zeros(3)], {"a": (np.zeros(2),)})
    assert called(lambda x, y: x[0][:1], case)["views"] is True
    assert called(lambda x, y: {"v": [y["a"][0]]}, case)["views"] is True
    assert called(lambda x, y: x[0] + 1, case)["views"] is False
    assert called(lambda x, y: y["a"][0].fill(1), case)["changed"] is True
    assert called(lambda x, y: x.append(1), case)["changed"] is True
    assert called(lambda x, y: y.pop("a"), case)["changed"] is True
    assert "changed" not in called(lambda x, y: x[0] + 1, case, looked_at=False)
    assert case.arguments[1]["a"][0].tolist() == [0, 0], "a submission gets copies"


def test_errors_are_one_line() -> None:
    assert why(NotImplementedError(), "x") == {"error": BLANK}
    assert why(ValueError("a\n  b"), "x") == {"error": "ValueError: a b"}
    assert len(why(ValueError("a" * 10_000), "x")["error"]) == 400


def test_packages_that_are_not_named_are_not_found() -> None:
    finder = Packages({"numpy": [np.__path__[0].rpartition("numpy")[0]]})
    assert finder.find_spec("numpy") is not None
    assert finder.find_spec("array_api_compat") is None
    assert finder.find_spec("numpy.linalg", np.__path__) is None, "Python's own finder has it"
    with pytest.raises(ModuleNotFoundError, match="graded without minicnn, which holds the answers"):
        finder.find_spec("minicnn")


# Numba's own simulator -------------------------------------------------------------------------------------

LAUNCHES = """
import sys
from pathlib import Path
import numpy as np
from minicnn.exercises.table import EXERCISES

for name, exercise in EXERCISES.items():
    if exercise.kernels == "cuda":
        names = {}
        exec(compile((Path(sys.argv[1]) / f"{name}.py").read_text("utf-8"), name, "exec"), names)
        for task in exercise.tasks:
            given = task.draw(np.random.default_rng(1))
            kernel, grid, block, arrays = given.arguments
            names[kernel][grid, block](*arrays)
            task.judge(given, {"arrays": arrays, "reads": 0, "barriers": 0, "shared": 0})
        print(name)
"""


def test_kernels_of_solutions_are_those_of_numba() -> None:
    """What the grader runs means the same to Numba, which compiles it for a GPU."""
    pytest.importorskip("numba")
    variables = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(Path(minicnn.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES, str(SOLUTIONS)], env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name for name, exercise in EXERCISES.items() if exercise.kernels == "cuda"]


def test_what_is_hidden_is_left_out_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("site/numpy/core", "site/minicnn/ops", "lib/python/site-packages/minicnn", "lib/python/json"):
        (tmp_path / name).mkdir(parents=True)
    site, lib = tmp_path / "site", tmp_path / "lib"
    hidden = [str(site / "minicnn"), str(lib / "python" / "site-packages")]
    assert list(_visible(str(site), hidden)) == [str(site / "numpy")]
    assert list(_visible(str(lib), hidden)) == [str(lib / "python" / "json")]
    assert list(_visible(str(site / "minicnn"), hidden)) == list(_visible(str(tmp_path / "nowhere"), hidden)) == []
