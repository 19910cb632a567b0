"""What predictions make of weights once: that it follows the weights, and gives the numbers of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, ops
from minicnn.backends import backend_class
from minicnn.layers import (
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Flatten,
    Input,
    Lambda,
    MaxPooling2D,
    ReLU,
    Reshape,
)  # fmt: skip
from minicnn.losses import SparseCategoricalCrossentropy
from support.numerics import assert_close
from support.strategies import normal
from support.tolerances import STEP, TRAINING

executable = pytest.importorskip("minicnn.backends.numba.executable")
keeping = pytest.importorskip("minicnn.backends.numba.keeping")
cpus = pytest.importorskip("minicnn.backends.numba.cpus")

TERMS = 400


def network(backend: Any) -> Sequential:
    layers = [
        Input((8, 8, 3)), Conv2D(20, 3, padding="same", use_bias=False), BatchNormalization(), ReLU(),
        DepthwiseConv2D(3, use_bias=False), BatchNormalization(), Conv2D(12, 1), BatchNormalization(), ReLU(),
        MaxPooling2D(), Flatten(), Dense(9, activation="relu"), Dense(5),
    ]  # fmt: skip
    return Sequential(layers, backend=backend, seed=0)


def numba(threads: int = 2) -> Any:
    return backend_class("numba")(strict=True, threads=threads)  # type: ignore[call-arg]


def weights_of(model: Sequential, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        name: (np.abs(a) + 0.5 * random.random(a.shape)).astype("float32") * (1 if "variance" in name else 0.3)
        for name, a in model.get_weights().items()
    }


@pytest.mark.parametrize("n", [1, 3, 40])
def test_predictions_follow_the_weights(n: int) -> None:
    model, expected = network(numba()), network("numpy")
    x = normal((n, 8, 8, 3), 0).astype("float32")
    for seed in range(3):
        weights = weights_of(model, seed)
        model.set_weights(weights)
        expected.set_weights(weights)
        for _ in range(2):
            assert_close(model.predict(x, n), expected.predict(x, n), terms=TERMS)


@pytest.mark.parametrize("n", [2, 40])
def test_predictions_and_evaluations_between_training_steps(n: int) -> None:
    models = [network(numba()), network("numpy")]
    x, y = normal((n, 8, 8, 3), 0).astype("float32"), np.arange(n, dtype="int32") % 5
    for model in models:
        model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(5):  # weights go back and forth between two arrays
        predictions, losses = zip(
            *((m.predict(x, n), m.evaluate(x, y, batch_size=n, verbose=0)) for m in models), strict=True
        )
        np.testing.assert_allclose(*losses, rtol=STEP)
        np.testing.assert_allclose(*predictions, rtol=TRAINING, atol=STEP)
        for model in models:
            model.train_on_batch(x, y)


def test_what_depends_on_weights_alone_runs_once() -> None:
    model = network(numba())
    run = executable.NumbaExecutable
    predict = model.backend.compile(model.program("predict", batch_size=2))
    assert isinstance(predict, run)
    names = [task.source.name for task in predict.preparations]
    assert names.count("packed weights") == 4
    assert all("packed" not in task.source.name and "sqrt" not in task.source.name for task in predict.tasks)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    step = model.backend.compile(model.program("train", batch_size=2))
    assert isinstance(step, run)
    assert not step.preparations


def drawing(x: Any) -> Any:
    return x + 0.0 * ops.random_uniform(x.shape)


@pytest.mark.parametrize("draws", [False, True])
def test_weights_are_looked_at_when_they_have_become_others(draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, looks = executable.NumbaExecutable._prepare, []
    monkeypatch.setattr(executable.NumbaExecutable, "_prepare", lambda *args: (looks.append(1), prepare(*args)))
    model = network(numba())
    if draws:
        model.add(Lambda(drawing))
    x = normal((2, 8, 8, 3), 0).astype("float32")
    for changes in (1, 2):
        model.set_weights(weights_of(model, changes))
        for _ in range(3):
            model.predict(x)
        assert len(looks) == changes


def test_normalisations_are_folded_into_weights() -> None:
    model = network(numba())
    how = [text for _, text in model.backend.explain(model.program("predict", batch_size=2))]
    assert "kernel: conv2d of channels + bias + relu" in how
    program = model.program("predict", batch_size=2)
    keeping.fold(program)
    fixed = keeping.fixed_values(program)
    scaled = [n for n in program.nodes if n.op.name == "multiply" and not {id(v) for v in n.outputs} <= fixed]
    assert not scaled


@pytest.mark.parametrize("n", [1, 2, 5])
def test_as_many_threads_as_there_are_give_the_same_bits(n: int) -> None:
    x, results = normal((n, 8, 8, 3), 0).astype("float32"), []
    for threads in (1, 2, 3, 7, 64):
        model = network(numba(threads))
        model.set_weights(weights_of(model, 0))
        results.append(model.predict(x, n))
    assert all(np.array_equal(results[0], result) for result in results)


@pytest.mark.parametrize("n", [1, 3])
def test_winograd_with_channels_in_the_lanes(n: int) -> None:
    """Tiles partly outside, vectors of channels and filters that are not full, a shortcut, several threads' bits."""

    def residual(backend: Any) -> Model:
        inputs = Input((14, 11, 20))
        x = Conv2D(40, 3, padding="same", activation="relu")(inputs)
        x = ReLU()(Conv2D(40, 3, padding="same", use_bias=False)(x) + x)
        return Model(inputs, Conv2D(32, 3)(x), backend=backend, seed=0)

    x = normal((n, 14, 11, 20), 0).astype("float32")
    results = []
    for threads in (1, 2, 7):
        model = residual(numba(threads))
        how = [text for _, text in model.backend.explain(model.program("predict", batch_size=n)) if "conv2d" in text]
        assert all("conv2d of channels by winograd" in text for text in how)
        results.append(model.predict(x, n))
    assert_close(results[0], residual("numpy").predict(x, n), terms=9 * 40)
    assert all(np.array_equal(results[0], result) for result in results)


def test_small_outputs_of_the_same_numbers_have_shapes_of_their_own() -> None:
    x = Input((4,))
    h = Dense(6)(x)
    model = Model(x, [h, Reshape((3, 2))(h)], backend=numba(), seed=0)
    for _ in range(2):  # the second is an array like the last
        flat, matrix = model.predict(np.ones((2, 4), np.float32))
        np.testing.assert_array_equal(matrix, flat.reshape(2, 3, 2))


@pytest.mark.parametrize("side", [4, 80])
def test_arrays_like_the_last_are_read_however_they_lie(side: int) -> None:
    layers = [Input((side, side, 1)), Conv2D(2, 3), Flatten(), Dense(3)]
    model = Sequential(layers, backend=numba(), seed=0)
    images = normal((4, side, side, 1), 0).astype("float32")
    expected = [model.predict(images[i : i + 1]) for i in range(4)]
    crossed = np.ascontiguousarray(images.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    for i in range(4):
        np.testing.assert_array_equal(model.predict(crossed[i : i + 1]), expected[i])


def test_outputs_are_the_callers_own() -> None:
    model, x = network(numba()), normal((2, 8, 8, 3), 0).astype("float32")
    first = model.predict(x)
    copy = first.copy()
    model.predict(2 * x)
    np.testing.assert_array_equal(first, copy)


# The CPU's costs -----------------------------------------------------------------------------------

AVX512, AVX2, NEON = (
    ("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f,+avx2,+fma"),
    ("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma"),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"),
)


def test_costs_follow_the_registers() -> None:
    wide, half, quarter = (cpus.Target(*target).costs for target in (AVX512, AVX2, NEON))
    assert wide.packing == 2 * half.packing == 4 * quarter.packing  # the same cycles are fewer multiply-adds
    assert wide.read_often >= half.read_often >= quarter.read_often >= 1
    assert half.winograd == quarter.winograd != wide.winograd
    halved = cpus.Target(AVX512[0], "znver4", AVX512[2]).costs  # AVX-512 in units of 8 floats
    assert halved.winograd == half.winograd


@pytest.mark.parametrize(("element", "chosen"), [(0.0, True), (1e9, False)])
def test_winograd_follows_the_costs(element: float, chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    winograd = cpus.host().costs.winograd
    changed = {"element": element, "small_element": element, "gradient_element": element}
    use_costs(monkeypatch, winograd=replace(winograd, **changed))
    model = Sequential([Input((16, 16, 32)), Conv2D(32, 3), Conv2D(32, 3)], backend=numba())
    how = [text for _, text in model.backend.explain(model.program("predict", batch_size=16))]
    assert any("winograd" in text for text in how) == chosen


@pytest.mark.parametrize(("changed", "of_channels"), [({}, True), ({"channels": 100.0}, False)])
def test_the_order_of_axes_follows_the_costs(
    changed: dict[str, float], of_channels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_costs(monkeypatch, **changed)
    model = network(numba())
    how = [text for _, text in model.backend.explain(model.program("predict", batch_size=1))]
    assert any("of channels" in text for text in how) == of_channels


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize(("handoff", "threads"), [(0.0, 2), (1e9, 1)])
def test_threads_share_what_is_worth_it(n: int, handoff: float, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_costs(monkeypatch, handoff=handoff)
    model = network(numba(2))
    run = model.backend.compile(model.program("predict", batch_size=n))
    assert isinstance(run, executable.NumbaExecutable)
    assert run.threads == threads


def use_costs(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Other costs of this CPU."""
    from dataclasses import replace

    costs = replace(cpus.host().costs, **changed)
    monkeypatch.setattr(cpus.Target, "costs", property(lambda _: costs))
