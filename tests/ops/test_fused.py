"""The fused primitive: a body of operations as one node."""

from __future__ import annotations

import numpy as np
import pytest

from minicnn import ops
from minicnn.ops import Body, FusedOperation
from minicnn.program import Program
from support.gradcheck import run_primitive


def _body(slope: float = 0.1) -> Body:
    steps = (FusedOperation(ops.multiply, (0, 1), {}), FusedOperation(ops.leaky_relu, (2,), {"negative_slope": slope}))
    return Body("scale", 2, steps, (3,))


def test_runs_its_steps() -> None:
    x, s = np.asarray([[1.0, -2.0], [3.0, 4.0]]), np.asarray([2.0, 10.0])
    np.testing.assert_allclose(run_primitive(ops.fused, x, s, body=_body()), [[2, -2], [6, 40]])


def test_bodies_are_equal_by_their_content() -> None:
    assert _body() == _body() != _body(0.2)
    assert hash(_body()) == hash(_body())
    assert hash(_body()) != hash(_body(0.2))
    assert str(_body()) == "scale[multiply+leaky_relu]"


def test_cost_is_that_of_the_steps_but_moves_only_what_enters_and_leaves() -> None:
    program = Program()
    y = ops.fused(program.input("x", (8, 4)), program.input("s", (4,)), body=_body())
    assert y.node.cost.flops == 32 + 64
    assert y.node.cost.bytes == 4 * (32 + 4 + 32)
    assert "fused(x, s, body=scale[multiply+leaky_relu])" in str(program)


def test_takes_as_many_arrays_as_the_body() -> None:
    program = Program()
    with pytest.raises(ValueError, match=r"as many arrays as it has inputs\. Received: 1 for 2 of scale\["):
        ops.fused(program.input("x", (8, 4)), body=_body())
