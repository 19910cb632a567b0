"""A step that is traced from another function than the built-in one, and stands in for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, ops
from minicnn.distribution.passes import Shard
from minicnn.layers import Dense, Input
from minicnn.layers.trace import Trace
from minicnn.loop.step import Step, Supervised
from minicnn.loop.tracing import Feed, StepKind
from minicnn.optimizers import SGD, Optimizer
from minicnn.program import Program, gradients
from minicnn.program.passes import optimize
from support.model_cases import blobs
from support.numerics import assert_close
from support.tolerances import SUM

X, Y = blobs(16, 4, 3)
TARGET = np.eye(3, dtype="float32")[Y]


def network(backend: Any = "numpy") -> Sequential:
    model = Sequential([Input((4,)), Dense(6, "tanh"), Dense(3)], backend=backend)
    model.compile(SGD(0.1, momentum=0.9), "mse")
    return model


@dataclass
class WithMean:
    """The mean squared error, and a running mean of a weight, which is carried from step to step as well."""

    supervised: Supervised
    optimizer: Optimizer

    def trace(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> Program:
        if kind != "train":
            return self.supervised.trace(kind, feed, shard)
        program = Program(kind)
        x, y = program.input("x", feed.x[0].shape), program.input("y", feed.y[0].shape)
        index = program.input("index", (feed.batch,), "int32")
        trace = Trace(program, training=True, paths=self.supervised.paths)
        (output,) = self.supervised.wired().trace(trace, [ops.take(x, index)])
        loss = ops.mean(ops.square(output - ops.take(y, index)))
        found = gradients(program, loss, list(trace.weights.values()))
        self.optimizer.apply(program, trace.weights, found, trace.step())
        program.updates["step"] = trace.step() + 1
        mean = program.input("mean/dense/bias", (6,), kind="optimizer")
        program.updates["mean/dense/bias"] = mean * 0.9 + program.updates["dense/bias"] * 0.1
        program.outputs["loss"] = loss
        for key, value in {"total": loss, "count": program.constant(1.0, "float32")}.items():
            name = f"metric/loss/{key}"
            program.updates[name] = program.input(name, (), kind="metric") + value
        return optimize(program)

    def rates(self, taken: int, count: int) -> Mapping[str, Sequence[float]]:
        return {"learning_rate": [self.optimizer.rate(taken + k) for k in range(count)]}

    def logs(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        return self.supervised.logs(totals)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_step_of_one_s_own_trains_as_the_built_in_one(backend: str) -> None:
    pytest.importorskip(backend)
    ours, theirs = network(backend), network(backend)
    step: Step = WithMean(ours._training.step, SGD(0.1, momentum=0.9))
    ours._training.executor.step = step
    found, expected = (model.fit(X, TARGET, 8, 3, 0, validation_data=(X, TARGET)).history for model in (ours, theirs))
    for log, values in expected.items():
        np.testing.assert_allclose(found[log], values, rtol=SUM)
    for path, array in theirs.get_weights().items():
        assert_close(ours.get_weights()[path], array)
    assert "mean/dense/bias" in ours.program().updates
    assert np.any(ours.get_state()["arrays"]["mean/dense/bias"])
    ours.compile("sgd", "mse")  # which sets the built-in one
    assert "mean/dense/bias" not in ours.program().updates
