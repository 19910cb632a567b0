"""Plans for GPUs that need not be there."""

from __future__ import annotations

import pytest

from minicnn import ops, plans
from minicnn.program import Program


def example() -> Program:
    program = Program("bias and relu")
    x, bias = program.input("x", (4, 5, 5, 8)), program.input("bias", (8,), kind="parameter")
    program.outputs["y"] = ops.relu(x + bias)
    return program


def test_a_plan_has_launches_with_kernels_and_roofs_and_leaves_the_program() -> None:
    program = example()
    before = str(program)
    (launch,) = plans.plan(program, "h200").launches
    assert str(program) == before
    assert launch.source is not None
    assert "relu<float>" in launch.source.text
    assert "v1 = relu(x0(i))" in plans.in_words(launch)
    assert 0 < launch.roof <= launch.seconds


def test_a_gpu_may_be_a_description_and_one_with_less_bandwidth_takes_longer() -> None:
    roofs = {name: plans.plan(example(), gpu).launches[0].roof for name, gpu in plans.GPUS.items()}
    assert roofs["rtx4060"] > roofs["h100"] > roofs["h200"]


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"known by name: .*h200.* Received: 'gtx9000'\. Choose one\."):
        plans.plan(example(), "gtx9000")
