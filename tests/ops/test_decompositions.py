"""What a composite primitive consists of computes what its reference computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.ops.decompositions import decompose
from minicnn.ops.fused import Body, FusedOperation
from minicnn.program import Program, Value
from support.gradcheck import run_checked
from support.tolerances import DOUBLE

LABELS = np.asarray([[0, 6, 2], [9, 3, 3]], "int32")  # 9 is no class: it counts for nothing
SUM_OF_SQUARES = Body("squares", 2, (FusedOperation(ops.square, (0,), {}), FusedOperation(ops.add, (2, 1), {})), (3, 2))

CASES: dict[str, Callable[..., Any]] = {
    "fused": lambda x, _: ops.fused(x, x * 2.0, body=SUM_OF_SQUARES),
    "mean": lambda x, _: ops.mean(x, axes=(0, 2), keepdims=True),
    "mean of nothing": lambda x, _: ops.mean(x, axes=()),
    "normalize": lambda x, s: ops.normalize(x, s, s + 1.0, axes=(0, 1), epsilon=1e-3),
    "normalize_gradient": lambda x, s: ops.normalize_gradient(
        x, x * x, s, ops.mean(x, axes=-1, keepdims=True), ops.mean(x * x, axes=-1, keepdims=True),
        axes=(2,), epsilon=0.1,
    ),
    "max_gradient": lambda x, _: ops.max_gradient(
        ops.sum(x, axes=(0, 2)), x, ops.max(x, axes=(0, 2)), axes=(0, 2), keepdims=False
    ),
    "max_gradient of equal ones": lambda x, _: ops.max_gradient(
        ops.sum(x, axes=(1, 2), keepdims=True), ops.sign(x - 1.0),
        ops.max(ops.sign(x - 1.0), axes=(1, 2), keepdims=True), axes=(1, 2), keepdims=True,
    ),
    "matmul": lambda x, _: ops.matmul(x[0], x[0], transpose_a=True),
    "matmul of both transposed": lambda x, _: ops.matmul(x[0], x[0][:, 0:3], transpose_a=True, transpose_b=True),
    "softmax": lambda x, _: ops.softmax(x * 300.0, axis=1),
    "log_softmax": lambda x, _: ops.log_softmax(x * 300.0),
    "softmax_cross_entropy": lambda x, _: ops.softmax_cross_entropy(x * 300.0, x.program.constant(LABELS)),
    "softmax_cross_entropy_gradient": lambda x, _: ops.softmax_cross_entropy_gradient(
        ops.sum(x, axes=-1), x, x.program.constant(LABELS)
    ),
}  # fmt: skip


@pytest.mark.cover
@pytest.mark.parametrize("name", CASES)
def test_a_decomposition_computes_the_same(name: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((2, 3, 7)), "s": rng.random(7)}
    found = []
    for whole in (True, False):
        program = Program()
        made = CASES[name](*(program.input(k, a.shape, "float64") for k, a in arrays.items()))
        values: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
        program.outputs = {f"y{i}": v for i, v in enumerate(values)}
        last = program.nodes[-1]
        assert last.op.name == name.split()[0]
        if not whole:
            assert program.replace(lambda node, last=last: decompose(node) if node is last else None) == 1  # type: ignore[misc]
            assert last not in program.nodes
        found.append(run_checked(program, arrays))
    for key, expected in found[0].items():
        np.testing.assert_allclose(found[1][key], expected, rtol=DOUBLE, atol=DOUBLE)
