"""Products by the library: which, on what grounds, and how they are called; needs no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.cupy.networks import NETWORKS
from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends._gpu.options import Options
from minicnn.backends.cupy.choosing import fastest, measured
from minicnn.backends.cupy.library import LIBRARY, described, may_be, operations, piece, use_library
from minicnn.program import Program
from support.kernel_check import step_of
from support.plans import plan_of


def test_times_are_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    calls: list[str] = []

    def candidate(name: str, us: float) -> float:
        calls.append(name)
        return us

    ways = {"own": lambda: candidate("own", 10.0), "library": lambda: candidate("library", 5.0)}
    assert measured(("work", "device"), ways) == {"own": 10.0, "library": 5.0}
    assert measured(("work", "device"), ways) == {"own": 10.0, "library": 5.0}
    assert calls == ["own", "library"]
    measured(("other work", "device"), ways)
    assert len(calls) == 4
    next(tmp_path.rglob("*.json")).write_text("not JSON")
    measured(("work", "device"), ways)
    measured(("other work", "device"), ways)
    assert len(calls) == 6


def test_the_first_candidate_stays_unless_another_is_clearly_faster() -> None:
    assert fastest({"own": 10.0, "library": 9.9}) == "own"
    assert fastest({"own": 10.0, "library": 9.0}) == "library"
    assert fastest({"own": 10.0, "library": 20.0}) == "own"


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_with_library_products_is_the_same_step(network: str) -> None:
    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    changed = use_library(program(), lambda node: "asked for")
    handed = [n for n in changed.nodes if n.op is LIBRARY]
    assert len(handed) >= 2
    assert not any(n.op.name == "matmul" and may_be(n) for n in changed.nodes)
    found = get_backend("numpy").compile(changed)(given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    groups = {u.anchor.op.name: u for u in plan_of(changed).groups}
    assert [n.op.name for n in groups["library_matmul"].every] == ["library_matmul"]  # nothing is fused to it


def test_a_product_of_what_comes_step_by_step_is_not_handed_over() -> None:
    program = Program()
    x, w = program.input("x", (4, 3)), program.input("w", (3, 2), kind="parameter")
    program.outputs["y"] = ops.matmul(ops.reshape(x, shape=(4, 3)), w)
    assert not any(map(may_be, program.nodes))
    program.outputs["z"] = ops.matmul(ops.relu(x), w)
    assert may_be(program.nodes[-1])


def test_the_piece_that_is_timed_has_what_is_fused_to_the_product() -> None:
    program = NETWORKS["mlp"]("numpy").program("train", batch_size=16)
    first = next(n for n in program.nodes if n.op.name == "matmul")
    part = piece(program, first)
    names = [n.op.name for n in part.nodes]
    assert names.index("matmul") > 0
    assert {"add", "relu"} <= set(names[names.index("matmul") :])
    assert operations(first) == 2 * 16 * 144 * 7
    for batch in (16, 17):
        other = NETWORKS["mlp"]("numpy").program("train", batch_size=batch)
        again = piece(other, next(n for n in other.nodes if n.op.name == "matmul"))
        assert (described(again) == described(part)) == (batch == 16)
    arrays = {v.name: np.full(v.shape, 0.5, v.dtype) for v in part.inputs}
    assert get_backend("numpy").compile(part)(arrays)["y"].shape == (16, 7)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_the_library_s_arguments(ta: bool, tb: bool) -> None:
    pytest.importorskip("cupy")
    from minicnn.backends.cupy.cublas import layout

    rng = np.random.default_rng(0)
    a, b = rng.random((5, 3) if ta else (3, 5)), rng.random((4, 5) if tb else (5, 4))
    program = Program()
    x, y = program.input("x", a.shape, "float64"), program.input("y", b.shape, "float64")
    program.outputs["z"] = ops.matmul(x, y, transpose_a=ta, transpose_b=tb)
    first, second, rows, columns, terms, ldb, lda, ldc = layout(program.nodes[-1])

    def column_major(array: np.ndarray, leading: int, flip: int) -> np.ndarray:
        matrix = array.ravel().reshape(-1, leading).T
        return matrix.T if flip else matrix

    made = column_major(b, ldb, first) @ column_major(a, lda, second)
    assert made.shape == (rows, columns)
    assert (terms, ldc) == (5, rows)
    expected = (a.T if ta else a) @ (b.T if tb else b)
    np.testing.assert_allclose(made.T, expected)


def test_modes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"products is one of float32, bfloat16, float16. Received: 'float64'"):
        Options(products="float64")
    with pytest.raises(ValueError, match=r"library is one of never, always, measured. Received: 'sometimes'"):
        Options(library="sometimes")
