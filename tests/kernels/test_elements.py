"""The kernel of each primitive, one element a thread, in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends._gpu.device import KNOWN
from minicnn.backends._gpu.planning import planned
from minicnn.backends.cupy.generation import generate
from minicnn.conformance.cases import Case
from minicnn.kernels.elements import ELEMENTS
from minicnn.kernels.expressions import Binary, parts_of
from minicnn.kernels.scalars import FUNCTIONS
from minicnn.program import Program
from support.interpreted import interpreted
from support.kernel_check import CASES, case_program, check_results
from support.plans import plan_of
from support.tolerances import SUM


def has_kernels(case: Case) -> bool:
    """Whether all of a call has kernels: empty arrays and some gradients have none."""
    return all(group.reference is None for group in plan_of(case_program(case, "float32")[0], tiled=False).groups)


# Windows have tests of their own.
SOME = [case for case in CASES if "2d" not in case.op.name and has_kernels(case)]


def test_all_primitives_with_kernels_are_there() -> None:
    elsewhere = {name for name in ELEMENTS if "2d" in name} | {"reshape"}
    assert {case.op.name for case in SOME} >= set(ELEMENTS) - elsewhere


@pytest.mark.parametrize("case", SOME, ids=str)
def test_kernel(case: Case) -> None:
    program, arrays = case_program(case, "float32")
    results = interpreted(program, arrays)
    check_results(case, arrays.values(), lambda k: results[f"y{k}"])


@pytest.mark.parametrize("count", [2, 5, 600])
def test_as_many_arrays_are_joined_as_there_are(count: int) -> None:
    """As in the step of a rank, which tells of each of its sums whether it is finite."""
    program = Program()
    arrays = {f"x{k}": np.full((1, 1 + k % 3), k, "float32") for k in range(3, 3 + count)}
    values = [program.input(name, array.shape) for name, array in arrays.items()]
    program.outputs["y"] = ops.concat(*values, axis=1)
    text = planned(program.copy(), KNOWN["h200"], generate).launches[0].source.text
    assert max(line.count("?") for line in text.splitlines()) == count - 1
    np.testing.assert_array_equal(interpreted(program, arrays)["y"], np.concatenate([*arrays.values()], axis=1))


@pytest.mark.parametrize(
    "row", [[1, 3, 3, 2], [1, np.nan, 5, np.nan], [np.nan, 7, 1, 1], [4, 1, 1, np.nan], [0, 0, 0, 0]]
)
def test_the_place_of_a_maximum_is_the_first_and_of_nan_if_there_is_one(row: list[float]) -> None:
    program = Program()
    x = np.asarray([row], "float32")
    program.outputs["y"] = ops.argmax(program.input("x", x.shape), axis=1)
    assert interpreted(program, {"x": x})["y"].tolist() == [int(np.argmax(x))]


@pytest.mark.parametrize("label", [-1, 0, 2, 3])
def test_a_label_that_is_no_class_adds_nothing(label: int) -> None:
    program = Program()
    x, y = program.input("x", (1, 3)), program.input("y", (1,), "int32")
    program.outputs["loss"] = ops.softmax_cross_entropy(x, y)
    program.outputs["dx"] = ops.softmax_cross_entropy_gradient(program.input("dy", (1,)), x, y)
    given = {"x": np.asarray([[1, 2, 4]], "float32"), "y": np.asarray([label], "int32"), "dy": np.ones(1, "float32")}
    results = interpreted(program, given)
    share = np.exp([1, 2, 4]) / np.exp([1, 2, 4]).sum()
    real = 0 <= label < 3
    np.testing.assert_allclose(results["loss"], [-np.log(share[label]) if real else 0], rtol=SUM)
    np.testing.assert_allclose(results["dx"], [share - (np.arange(3) == label) if real else 0 * share], rtol=SUM)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_two_products_that_are_added_one_is_rounded_before(name: str) -> None:
    """A compiler would choose, by what else a kernel has: steps of one GPU and of several had other last bits."""
    results = (FUNCTIONS[name].result, *FUNCTIONS[name].first.values())
    for one in (one for result in results for one in parts_of(result, Binary) if one.symbol in "+-"):
        assert [isinstance(x, Binary) and x.symbol == "*" for x in (one.left, one.right)] != [True, True]
