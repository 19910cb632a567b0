"""Row-wise regions in the interpreter: levels, sums over rows, and threads that join what they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from backends.cupy.dense import dense_network, step
from minicnn import get_backend
from minicnn.backends._gpu import row_regions
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.region_layout import Layout
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.cupy.cpp import Cpp
from minicnn.kernels import words
from minicnn.kernels.expressions import PLACE, Array, Expr, Name, Number, Select
from minicnn.kernels.interpreter import Interpreter, KernelError
from minicnn.kernels.lanes import exchanged
from minicnn.kernels.statements import If, Join, Kernel, Loop, Part, Shared, Statement, Store, Variable, when
from support.interpreted import interpreted
from support.numerics import assert_close
from support.plans import plan_of

TILES = Tiles(replace(H200, name="small", multiprocessors=2), byte_products=False)
THREAD, X = Name("thread"), Name("x", "float32")


class Exchanging(Layout):
    """A layout for devices whose threads hand on no registers, and whose arrays have memory of their own."""

    shuffles = False
    overlaid = False


@pytest.mark.parametrize("layout", [Layout, Exchanging])
@pytest.mark.parametrize(("width", "hidden", "batch"), [(16, [4], 12), (9, [6, 5], 7)])
def test_a_training_step_is_that_of_numpy(
    width: int, hidden: list[int], batch: int, layout: type[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last tile has fewer rows than others."""
    monkeypatch.setattr(row_regions, "THREADS", 64)
    monkeypatch.setattr(Tiles, "layout", layout)
    program, arrays = step(dense_network(width, hidden, 3, dtype="float32"), batch, width, 3)
    expected = get_backend("numpy").compile(program())(arrays)
    results = interpreted(program(), arrays, fuse=True, tiles=TILES)
    for name, array in expected.items():
        assert_close(results[name], array, batch * width, dtype="float32")


def test_a_region_reads_as_a_student_would_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_regions, "THREADS", 64)
    plan = plan_of(step(dense_network(16, [4], 3, dtype="float32"), 12, 16, 3)[0](), TILES)
    text = words.text(lowered(plan, plan.launches[0], set())[0])
    for line in ("row0 = tile * 6", "wait for all threads of the block", "of top over", "totals0[q] = total"):
        assert line in text, text


def kernel(*statements: Statement) -> tuple[Kernel, dict[str, np.ndarray]]:
    """A kernel of eight threads whose x is their number at first, and stored at last; its array."""
    y = Array("y", "float32", 8, written=True)
    begin = Variable(X, THREAD + Number(0, "float32"))
    body = (begin, *statements, Store(y, THREAD, X))
    return Kernel("joined", 8, [y], [Part("joined", 1, statements=body)]), {"y": np.zeros(8, "float32")}


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize(
    ("join", "near", "far", "expected"),
    [
        ("sum", 1, 4, [6, 6, 6, 6, 22, 22, 22, 22]), ("max", 1, 2, [1, 1, 3, 3, 5, 5, 7, 7]),
        ("sum", 2, 8, [12, 16, 12, 16, 12, 16, 12, 16]),
    ],
)  # fmt: skip
def test_threads_join_what_they_have(join: str, near: int, far: int, expected: list[int], shuffled: bool) -> None:
    """In registers, and through shared memory."""
    memory = Array("exchange", "float32", 8, memory="shared")
    one: tuple[Statement, ...] = (Join(X, join, far, near),)
    one = one if shuffled else (Shared(memory), *exchanged(one, lambda dtype: memory))
    whole, arrays = kernel(*one)
    Interpreter(whole, arrays).run()
    assert arrays["y"].tolist() == expected


def test_all_threads_join() -> None:
    few: Expr = Number(4, PLACE) > THREAD
    whole, arrays = kernel(If(few, (Join(X, "sum", 4),)))
    with pytest.raises(KernelError, match="All threads of a block"):
        Interpreter(whole, arrays).run()


def test_the_end_of_a_loop_may_be_one_of_two_in_cpp() -> None:
    end = Select(Number(4, PLACE) > THREAD, Number(2, PLACE), Number(1, PLACE))
    text = Cpp().lines([Loop(Name("u", PLACE), end, ())], 0)
    assert "u < (4u > threadIdx.x ? 2u : 1u); u++" in text


def test_no_condition_is_asked_where_there_is_nothing_to_do() -> None:
    """Python has no block without statements."""
    assert when([X < 1], []) == ()
    assert when([], [If(X < 1, ())]) == (If(X < 1, ()),)
