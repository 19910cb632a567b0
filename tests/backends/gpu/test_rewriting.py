"""What the CUDA engines put in the place of an operation computes the same; on NumPy, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends._gpu.rewriting import decompose, replace
from minicnn.program import Program
from minicnn.program.passes import remove_dead_nodes
from support.gradcheck import run_checked


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [1, -1, (1, 2), (0, 3), (3, 1), None, ()])
def test_the_gradient_of_a_maximum(axes: Any, keepdims: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (2, 3, 4, 5)).astype("float32")  # many equal maxima
    arrays = {"x": x, "y": x.max(axis=axes, keepdims=keepdims)}
    arrays["dy"] = rng.standard_normal(arrays["y"].shape).astype("float32")
    program = Program()
    dy, x, y = (program.input(name, arrays[name].shape, "float32") for name in ("dy", "x", "y"))
    program.outputs["dx"] = ops.max_gradient(dy, x, y, axes=axes, keepdims=keepdims)
    expected = run_checked(program, arrays)["dx"]
    replace(program, decompose)
    remove_dead_nodes(program)
    assert "max_gradient" not in {node.op.name for node in program.nodes}
    np.testing.assert_array_equal(run_checked(program, arrays)["dx"], expected)
