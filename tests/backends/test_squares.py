"""Sums of squares of numbers whose squares float32 does not hold: normalisations, clipping, constraints, directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.engines import ENGINES, Array, computed
from minicnn import Sequential, ops
from minicnn.backends import get_backend
from minicnn.constraints import MaxNorm, MinMaxNorm, UnitNorm
from minicnn.layers import BatchNormalization, Dense, GroupNormalization, Input, LayerNormalization
from minicnn.ops.normalization import directions, unit_of
from minicnn.optimizers import SGD, Muon
from minicnn.program import Program, Value, gradients
from minicnn.tolerance import tolerance
from support.tolerances import STEP, SUM

MAGNITUDES = np.asarray([1e-30, 1e-18, 1e-5, 1.0, 1e18, 1e20, 1e25, 1e30])
EPSILON = 1e-3


class Case:
    """A Program whose inputs are numbers that float32 holds, of some type."""

    def __init__(self, dtype: str) -> None:
        self.program, self.dtype = Program(), dtype
        self.given: dict[str, Array] = {}
        self.rng = np.random.default_rng(0)

    def value(self, name: str, array: Array, kind: str = "input") -> Value:
        self.given[name] = array.astype("float32").astype(self.dtype)
        return self.program.input(name, array.shape, self.dtype, kind=kind)

    def normal(self, name: str, *shape: int, size: Any = 1.0, kind: str = "input") -> Value:
        return self.value(name, np.clip(self.rng.normal(size=shape) * size, -3e38, 3e38), kind)


Build = Callable[[Case], None]


def check(build: Build, engine: Any, terms: int) -> None:
    """Compare an engine in float32 with NumPy in float64, relative to the largest element of each row."""
    made = []
    for backend, dtype in ((engine, "float32"), (get_backend("numpy"), "float64")):
        case = Case(dtype)
        build(case)
        made.append(computed(backend, case.program, case.given))
    rtol, _ = tolerance("float32", terms)
    for name, array in made[1].items():
        scale = np.abs(array).max(axis=-1, keepdims=True)
        wrong = ~(np.abs(made[0][name] - array) <= rtol * scale + 1e-37)
        assert not wrong.any(), f"{name}: {made[0][name][wrong]} for {array[wrong]} at {np.argwhere(wrong).tolist()}"


def normalizations(axis: int) -> Build:
    """Rows or columns of all magnitudes; gradients with regard to x in units of what they should be."""

    def build(case: Case) -> None:
        sizes = MAGNITUDES if axis == 0 else MAGNITUDES[:, None]
        shape = (17, len(MAGNITUDES)) if axis == 0 else (len(MAGNITUDES), 17)
        scale, offset = case.normal("scale", shape[1]), case.normal("offset", shape[1])
        x, dy = case.normal("x", *shape, size=sizes), case.normal("dy", *shape)
        unit = unit_of(EPSILON, case.dtype)
        y, _, _ = ops.normalize(x, scale, offset, axes=(axis,), epsilon=EPSILON, unit=unit)
        dx, dscale, doffset = gradients(case.program, ops.sum(y * dy), [x, scale, offset])
        large = case.value("large", np.maximum(sizes, 1))
        case.program.outputs = {"y": y, "dx": dx * large, "dscale": dscale, "doffset": doffset}

    return build


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backend", ENGINES)
def test_normalizations(backend: str, engine: Any, axis: int) -> None:
    check(normalizations(axis), engine, 17)


def lengths(case: Case) -> None:
    x = case.normal("x", len(MAGNITUDES) + 1, 17, size=np.asarray([*MAGNITUDES, 2e38])[:, None])
    for name, constraint in {"unit": UnitNorm(1), "most": MaxNorm(0.5, 1), "least": MinMaxNorm(0.5, axis=1)}.items():
        case.program.outputs[name] = constraint(x)
    unit = directions(x, 1, 1e-12)
    case.program.outputs["direction"] = unit
    case.program.outputs["dx"] = gradients(case.program, ops.sum(unit * case.normal("dy", 9, 17)), [x])[0]


@pytest.mark.parametrize("backend", ENGINES)
def test_lengths(backend: str, engine: Any) -> None:
    check(lengths, engine, 17)


def step(optimizer: Any, size: float) -> Build:
    def build(case: Case) -> None:
        old = {k: case.normal(k, 30, 7, size=0.01, kind="parameter") for k in "ab"}
        new = [case.normal(f"gradient {k}", 30, 7, size=size) for k in "ab"]
        optimizer.apply(case.program, old, new, case.program.input("step", (), "int32"))
        case.given |= {"step": np.asarray(0, "int32"), "learning_rate": np.asarray(0.5, case.dtype)}
        for value in case.program.inputs:
            case.given.setdefault(value.name, np.zeros(value.shape, case.dtype))

    return build


@pytest.mark.parametrize("size", [0.0, 1.0, 1e20, 2e38])
@pytest.mark.parametrize("backend", ENGINES)
def test_clipping(backend: str, engine: Any, size: float) -> None:
    check(step(SGD(0.5, clipnorm=0.5), size), engine, 210)
    check(step(SGD(0.5, global_clipnorm=0.5), size), engine, 420)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e20, 1e37])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_muon(backend: str, engine: Any, size: float) -> None:
    check(step(Muon(0.5, weight_decay=0), size), engine, 4200)


def test_ordinary_numbers_have_the_same_bits() -> None:
    x = np.random.default_rng(0).normal(3, 2, (64, 9)).astype("float32")
    one, xp = np.full(9, 0.7, "float32"), get_backend("numpy").xp
    attrs: dict[str, Any] = {"axes": (0,), "epsilon": EPSILON, "xp": xp}
    unit = unit_of(EPSILON, "float32")
    assert unit > 1e10
    plain, found = (ops.normalize.reference(x, one, one, unit=u, **attrs) for u in (1.0, unit))
    for a, b in zip(plain, (*found[:2], found[2] * np.float32(unit**2)), strict=True):
        np.testing.assert_array_equal(a, b)
    slopes = ops.normalize_gradient.reference(x, x, one, *plain[1:], **attrs)
    for a, b in zip(slopes, ops.normalize_gradient.reference(x, x, one, *found[1:], unit=unit, **attrs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [1e20, 1e28])
def test_layers_of_large_numbers(size: float) -> None:
    x, rng = np.float32(size), np.random.default_rng(0)
    data = x * rng.normal(size=(40, 6)).astype("float32")
    wide = data.astype("float64")
    rows = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    for layer in (LayerNormalization(), GroupNormalization(1)):
        np.testing.assert_allclose(Sequential([Input((6,)), layer]).predict(data), rows, rtol=SUM, atol=SUM)
    model = Sequential([Input((6,)), BatchNormalization(momentum=0.0), Dense(1)])
    model.compile(SGD(0.0), "mean_squared_error")
    with np.errstate(over="ignore"):  # of the moving variance
        loss = model.train_on_batch(data, np.zeros((40, 1)), return_dict=True)["loss"]
    kernel = model.get_weights()["dense/kernel"].astype("float64")
    columns = (wide - wide.mean(0)) / wide.std(0)
    assert float(loss) == pytest.approx(float(np.mean((columns @ kernel) ** 2)), rel=STEP)
    assert np.isinf(model.get_weights()["batch_normalization/moving_variance"]).all()  # its value is above float32's
