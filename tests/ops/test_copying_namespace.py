"""References, strategies and a training where an index is a copy and arrays are read-only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import get_backend
from minicnn.conformance import cases as op_cases
from minicnn.layers import AveragePooling2D, BatchNormalization, Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.ops.strategies import PRIMITIVES, STRATEGIES
from minicnn.program import Program
from support.copying import CopyingBackend
from support.numerics import assert_close
from support.tolerances import DOUBLE


@pytest.mark.parametrize("name", sorted({c.op.name for c in op_cases.CASES}))
def test_every_reference(name: str) -> None:
    copying, plain = CopyingBackend(), get_backend("numpy")
    for case in (c for c in op_cases.CASES if c.op.name == name):
        made = case.op.reference(*map(copying.asarray, case.arrays), xp=copying.xp, **case.attrs)
        expected = case.op.reference(*case.arrays, xp=plain.xp, **case.attrs)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (made, expected)), strict=True):
            assert copying.owns(a)
            assert_close(copying.to_numpy(a), b, case.terms)


def test_every_strategy_of_convolution() -> None:
    copying, plain = CopyingBackend(), get_backend("numpy")
    compared = 0
    for case in (c for c in op_cases.CASES if c.op.name in PRIMITIVES):
        program = Program()
        made = case.op(*(program.input(f"x{i}", a.shape, "float64") for i, a in enumerate(case.arrays)), **case.attrs)
        expected = case.op.reference(*case.arrays, xp=plain.xp, **case.attrs)
        for strategy in STRATEGIES.values():
            kernel = strategy.kernel(made.node, copying.xp)
            if not isinstance(kernel, str):
                found = copying.to_numpy(kernel(*map(copying.asarray, case.arrays)))
                np.testing.assert_allclose(found, expected, rtol=DOUBLE, atol=DOUBLE)
                compared += 1
    assert compared > 60


def test_training() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 9, 9, 2)).astype("float32"), rng.integers(0, 3, 20)

    def train(backend: Any) -> tuple[Any, dict[str, Any]]:
        layers = [
            Input((9, 9, 2)), Conv2D(4, 3, strides=2, padding="same"), BatchNormalization(),
            MaxPooling2D(3, 2, "same"), Conv2D(3, 2), AveragePooling2D(2, 1), Dropout(0.2), Flatten(), Dense(3),
        ]  # fmt: skip
        model = Sequential(layers, backend=backend)
        model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], precision="float64")
        history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0).history
        return history | {"prediction": model.predict(x)}, model.get_weights()

    found, expected = train(CopyingBackend()), train("numpy")
    for mine, plain in zip(found, expected, strict=True):
        assert mine.keys() == plain.keys()
        for key in plain:
            np.testing.assert_allclose(mine[key], plain[key], rtol=DOUBLE, atol=DOUBLE)
