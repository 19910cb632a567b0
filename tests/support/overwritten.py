"""Programs that hand out what a step overwrites, for every engine that overwrites arrays where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from minicnn import Sequential, ops
from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.layers import Dense, Input
from minicnn.optimizers import Optimizer
from minicnn.program import Program
from minicnn.program.graph import Value

Results = tuple[dict[str, Value], dict[str, Value]]  # outputs and updates

# What each makes of the inputs x, w and b, of which w and b are carried from step to step.
CASES: Mapping[str, Callable[[Value, Value, Value], Results]] = {
    "an output": lambda x, w, b: ({"o": w}, {"w": w - x}),
    "an output of another shape": lambda x, w, b: ({"o": ops.reshape(w, shape=(6,))}, {"w": w - x}),
    "part of it": lambda x, w, b: ({"o": w[0:1]}, {"w": w - x}),
    "a new value of another": lambda x, w, b: ({}, {"b": w, "w": w - x}),
    "one value of two": lambda x, w, b: ({}, dict.fromkeys("wb", w - x)),
    "a swap": lambda x, w, b: ({}, {"w": b, "b": w}),
    "a swap that computes": lambda x, w, b: ({}, {"w": b * 2.0, "b": w * 3.0}),
    "both at once": lambda x, w, b: ({"o": b}, {"b": w + b, "w": w - x}),
}


def check_program(case: str, backend: Backend) -> None:
    """Outputs and updates are those of NumPy, twice."""
    program = Program("step")
    x, w, b = (program.input(name, (2, 3), kind="input" if name == "x" else "parameter") for name in "xwb")
    program.outputs, program.updates = CASES[case](x, w, b)
    run = backend.compile(program)
    before = dict(zip("xwb", np.arange(18.0, dtype="float32").reshape(3, 2, 3), strict=True))
    for _ in range(2):
        expected = get_backend("numpy").compile(program)(before)
        made = run({name: backend.asarray(array.copy()) for name, array in before.items()})
        for name, array in expected.items():
            np.testing.assert_array_equal(backend.to_numpy(made[name]), array, err_msg=name)
        before |= {name: np.array(expected[name]) for name in program.updates}


class HeavyBall(Optimizer):
    """p - rate g + 0.9 (p - previous), with the weights of the step before as its state."""

    slots = ("previous",)

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> list[Value]:
        return [p - g * rate + (p - state[0]) * 0.9, p]


def losses_with_heavy_ball(backend: Backend | str) -> list[float]:
    """Losses of a training whose optimizer remembers the weights."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    model = Sequential([Input((3,)), Dense(2)], backend=backend, seed=0)
    model.compile(HeavyBall(0.1), "mse")
    losses: list[float] = model.fit(x, y, 4, 4, 0).history["loss"]
    return losses
