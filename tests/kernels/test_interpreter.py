"""The interpreter of kernels: numbers as on a GPU, and a stop at each fault that is planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.kernels.expressions import INDEX, PLACE, SHARED, Array, Body, Cast, Load, Name, Number, Select, chosen
from minicnn.kernels.interpreter import Interpreter, KernelError
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    If,
    Kernel,
    Let,
    Loop,
    Part,
    Shared,
    Statement,
    Store,
    Template,
    Variable,
)  # fmt: skip
from minicnn.program import Program
from support.interpreted import interpreted
from support.tolerances import ELEMENT

BLOCK, THREAD = Name("block"), Name("thread")
X, Y = Array("x", "float32", 8), Array("y", "float32", 8, written=True)
PARTS = Array("parts", "float32", 4, memory=SHARED)
I = Name("i", PLACE)  # noqa: E741 - as in the text


def run(*statements: Statement, threads: int = 4, blocks: int = 2, width: int = 1, x: Any = None) -> Any:
    """What statements of two blocks of four threads make of x = 0, 1 ... 7."""
    y = np.full(8, -1, "float32")
    x = np.arange(8, dtype="float32") if x is None else x
    kernel = Kernel("test", threads, [X, Y], [Part("test", blocks, width, statements=statements)])
    Interpreter(kernel, {"x": x, "y": y}).run()
    return y


PLACE_OF_THREAD = Let(I, BLOCK * 4 + THREAD)
COPY = Store(Y, I, Load(X, I))


def exchanged(*between: Statement) -> tuple[Statement, ...]:
    """Threads that hand their numbers to each other through shared memory."""
    other = Number(3) - THREAD
    return (
        PLACE_OF_THREAD, Shared(PARTS), Store(PARTS, THREAD, Load(X, I)), *between, Store(Y, I, Load(PARTS, other)),
    )  # fmt: skip


def test_threads_exchange_numbers_through_shared_memory() -> None:
    assert run(*exchanged(Barrier())).tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_loops_variables_and_conditions() -> None:
    total = Name("total", "float32")
    a = Name("a", INDEX)
    body = Body(
        (
            Variable(total, Number(0, "float32")),
            Loop(a, 3, (If((a % 2).equals(0), (Assign(total, total + Cast(a, "float32") * Load(X, I)),)),), start=1),
        ),
        Select(total > 5, Number(9, "float32"), total),
        "float32",
    )
    assert run(PLACE_OF_THREAD, Store(Y, I, body)).tolist() == [0, 2, 4, 9, 9, 9, 9, 9]


def test_numbers_have_their_types() -> None:
    """1 + 2^-30 is 1 in float32, and 300 is 44 as uint8."""
    tiny = Number(2.0**-30, "float32")
    small = Cast(Cast(Number(300, "int32"), "uint8"), "float32")
    results = run(
        PLACE_OF_THREAD, Store(Y, I, Select(I < 1, Number(1, "float32") + tiny - Number(1, "float32"), small))
    )
    assert results.tolist() == [0] + 7 * [44]


def test_neighbours_of_a_thread() -> None:
    larger = chosen(Load(X, I) <= Number(4, "float32"), Number(0, "float32"), Load(X, I), "float32")
    assert run(Let(I, (BLOCK * 2 + THREAD) * 2), Store(Y, I, larger), threads=2, width=2).tolist() == [
        0, 0, 0, 0, 0, 5, 6, 7,
    ]  # fmt: skip


FAULTS: dict[str, tuple[tuple[Statement, ...], dict[str, int], str]] = {
    "reads beyond": (
        (PLACE_OF_THREAD, Store(Y, I, Load(X, I + 1))),
        {},
        "keeps to its arrays. Received: thread 3 of block 1 reads element 8",
    ),
    "writes beyond": (
        (Let(I, BLOCK * 5 + THREAD), Store(Y, I, Number(1, "float32"))),
        {},
        "thread 3 of block 1 writes element 8 of y, which has 8",
    ),
    "before the array": (
        (Let(I, Cast(Cast(THREAD, INDEX) - 1, PLACE)), COPY),
        {},
        "type place is from 0 to 4294967295. Received: -1",
    ),
    "a place that wraps around": ((Let(I, THREAD - 1), COPY), {}, "Received: -1"),
    "an index too large": ((Let(Name("h", INDEX), Cast(Number(2**31), INDEX)),), {}, "from -2147483648 to 2147483647"),
    "no barrier": (exchanged(), {}, "Shared memory is written before it is read. Received: element 3 of parts"),
    "read without a barrier": (
        (*exchanged()[:3], If(THREAD > 0, (Store(Y, I, Load(PARTS, THREAD - 1)),))),
        {},
        "A barrier lies between a thread that writes and another that touches the same element. Received: thread 1 of "
        "block 0 reads element 0 of parts, which thread 0 of block 0 touched",
    ),
    "overwritten without a barrier": (
        (*exchanged(Barrier())[:4], If(THREAD < 1, (Store(Y, I, Load(PARTS, THREAD + 3)),)), *exchanged()[2:3]),
        {},
        "thread 3 of block 0 writes element 3 of parts, which thread 0 of block 0 touched",
    ),
    "two write the same": ((Store(Y, BLOCK, Load(X, BLOCK)),), {}, "thread 1 of block 0 writes element 0 of y"),
    "another block's result": (
        (PLACE_OF_THREAD, COPY, Barrier(), Store(Y, I, Load(Y, (I + 4) % 8))),
        {"blocks": 2},
        "block 1 writes element 4",
    ),
    "a barrier that some skip": (
        (PLACE_OF_THREAD, If(THREAD < 2, (Barrier(),))),
        {},
        "reach a barrier. Received: 2 of 4 threads of block 0",
    ),
    "shared memory that nothing wrote": (
        (PLACE_OF_THREAD, Shared(PARTS), Store(Y, I, Load(PARTS, THREAD))),
        {},
        "written before it is read",
    ),
    "misaligned neighbours": (
        (Let(I, THREAD * 2 + 1), If(THREAD < 1, (COPY,))),
        {"width": 2},
        "2 neighbours begin at a multiple of their number. Received: thread 0 of block 0 reads element 1 of x",
    ),
    "neighbours beyond": ((Let(I, THREAD * 2 + 8), COPY), {"width": 2}, "element 8 of x, which has 8"),
    "a condition that differs": (
        (Let(I, THREAD * 2), If(Load(X, I) > 0, (COPY,))),
        {"width": 2},
        "is the same for neighbours",
    ),
    "a place that differs": (
        (Let(I, THREAD * 2), Store(Y, I, Load(X, Cast(Load(X, I), PLACE)))),
        {"width": 2},
        "A place or an index is the same",
    ),
    "an array that is only read": (
        (PLACE_OF_THREAD, Store(X, I, Load(X, I))),
        {},
        "writes arrays that say so. Received: x",
    ),
    "a negative quotient": ((Let(Name("h", INDEX), (Cast(THREAD, INDEX) - 1) // 2),), {}, "Received: -1 // 2"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    statements, given, text = FAULTS[name]
    with pytest.raises(KernelError) as error:
        run(*statements, **given)
    assert text in str(error.value)


def test_a_template_is_not_interpreted() -> None:
    with pytest.raises(TypeError, match="Template is a template, which engines have"):
        run(Template("conv2d", "PipelinedTile", (), (), Name("sum"), ()))


def test_scalar_functions_and_random_numbers() -> None:
    """Those of the reference, from trees and from NumPy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype("float32")
    program = Program()
    value, step = program.input("x", x.shape), program.input("step", (), "int32")
    program.outputs["y"] = ops.gelu(ops.elu(value, alpha=0.5), approximate=False) + ops.sigmoid(value)
    program.outputs["u"] = ops.random_uniform(step, shape=(3, 5), seed=7 << 32 | 5, stream=3, dtype="float32")
    given = {"x": x, "step": np.asarray(2, "int32")}
    expected = get_backend("numpy").compile(program.copy())(given)
    results = interpreted(program, given, fuse=True)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=ELEMENT, atol=ELEMENT)
    np.testing.assert_array_equal(results["u"], expected["u"])
