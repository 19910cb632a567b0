"""Single primitives, each as a Program of one node on arrays of the backend's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import ops
from minicnn.program import Program

from .common import BACKENDS, backend_or_skip

X, W, DY = (64, 26, 26, 16), (3, 3, 16, 32), (64, 24, 24, 32)  # the second convolution of `kernels`
WIDE = (64, 14, 14, 96)
POOL: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}

# Name: primitive, shapes of its inputs (weights are parameters), attributes.
CASES: dict[str, tuple[Any, list[tuple[int, ...]], dict[str, Any]]] = {
    "conv2d": (ops.conv2d, [X, W], {}),
    "conv2d_input_gradient": (ops.conv2d_input_gradient, [DY, W], {"image": X[1:3]}),
    "conv2d_weight_gradient": (ops.conv2d_weight_gradient, [DY, X], {"kernel": (3, 3)}),
    "conv2d_1x1": (ops.conv2d, [WIDE, (1, 1, 96, 24)], {}),
    "depthwise_conv2d": (ops.depthwise_conv2d, [WIDE, (3, 3, 96, 1)], {"padding": ((1, 1), (1, 1))}),
    "max_pool2d": (ops.max_pool2d, [DY], POOL),
    "average_pool2d": (ops.average_pool2d, [DY], POOL),
    "matmul": (ops.matmul, [(512, 400), (400, 128)], {}),
    "relu": (ops.relu, [DY], {}),
    "softmax": (ops.softmax, [(512, 1000)], {"axis": -1}),
    "normalize": (ops.normalize, [WIDE, (96,), (96,)], {"axes": (0, 1, 2), "epsilon": 1e-5}),
}


class Primitives:
    """Time of one call, in float32."""

    params = (list(CASES), BACKENDS)
    param_names = ("primitive", "backend")
    timeout = 300

    def setup(self, name: str, backend: str) -> None:
        """Compile the Program and run it once."""
        self.backend = backend_or_skip(backend)
        op, shapes, attrs = CASES[name]
        program = Program(name)
        values = [
            program.input("x" if i == 0 else f"x{i}", shape, kind="input" if shape[0] in (64, 512) else "parameter")
            for i, shape in enumerate(shapes)
        ]
        made = op(*values, **attrs)
        program.outputs["y"] = made[0] if isinstance(made, tuple) else made
        self.run = self.backend.compile(program)
        generator = np.random.default_rng(0)
        self.arrays = {
            v.name: self.backend.asarray(generator.standard_normal(v.shape, np.float32)) for v in program.inputs
        }
        self.time_call()

    def time_call(self, *_: Any) -> None:
        """One call, until the device is done."""
        self.made = self.run(self.arrays)  # kept, since JAX's results can only be waited for while they are there
        self.backend.synchronize()
