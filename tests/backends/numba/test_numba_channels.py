"""Channels in the lanes: convolutions, products and poolings of few samples, and updates with their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicnn import Sequential, ops
from minicnn.backends import backend_class
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.ops.primitive import Primitive
from minicnn.optimizers import SGD, Adam, Optimizer, RMSprop
from minicnn.program import Program
from support.numba_check import Array, both, check
from support.strategies import Padding, Pair, WindowCase, conv_cases, normal, pool_cases, seeds
from support.tolerances import STEP, SUM, TRAINING

pytest.importorskip("numba")

INTERPRETED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def array(*shape: int, seed: int = 0) -> Array:
    return normal(shape, seed).astype("float32")


def compare(op: Primitive, arrays: tuple[Array, ...], attrs: dict[str, Any], terms: int, threads: int = 2) -> None:
    check(*both(op, arrays, attrs, threads=threads, convolution_kernel="channels"), terms)


def check_convolution(case: WindowCase, threads: int = 2) -> None:
    x, dy = array(case.n, *case.image, case.channels), array(case.n, *case.output, case.filters, seed=1)
    w = array(*case.kernel, case.channels // case.groups, case.filters, seed=2)
    attrs = replace(case, data_format="NHWC").convolution
    compare(ops.conv2d, (x, w), attrs, case.terms, threads)
    compare(ops.conv2d_input_gradient, (dy, w), attrs | {"image": case.image}, case.terms, threads)
    compare(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": case.kernel}, case.terms, threads)


@pytest.mark.usefixtures("interpreted")
@INTERPRETED
@given(conv_cases(), st.integers(1, 3))
def test_convolutions_and_their_gradients(case: WindowCase, threads: int) -> None:
    check_convolution(case, threads)


def case_of(
    n: int, image: Pair, channels: int, filters: int, kernel: Pair, strides: Pair = (1, 1),
    padding: Padding = ((0, 0), (0, 0)), dilation: Pair = (1, 1), groups: int = 1,
) -> WindowCase:  # fmt: skip
    return WindowCase(n, image, channels, kernel, strides, padding, dilation, groups, filters, "NHWC", 0)


SAME = ((1, 1), (1, 1))
WIDE = [
    case_of(1, (2, 2), 64, 96, (3, 3), padding=SAME),  # sums along the filters for the input gradient
    case_of(3, (7, 6), 5, 40, (3, 3), (2, 2), SAME),  # vectors that are not full
    case_of(2, (6, 9), 32, 32, (3, 2), dilation=(2, 1), groups=2),
    case_of(5, (4, 4), 20, 70, (1, 1)),  # all positions are one loop
    case_of(1, (14, 14), 3, 16, (7, 7), (2, 2), ((3, 2), (3, 3))),
    case_of(1, (2, 1), 70, 250, (3, 3), padding=SAME),  # weights are read in the order of their rows
    case_of(3, (1, 1), 60, 1300, (1, 1)),
]


@pytest.mark.no_cover
@pytest.mark.parametrize("case", WIDE)
def test_compiled_convolutions(case: WindowCase) -> None:
    check_convolution(case)


@pytest.mark.usefixtures("interpreted")
@INTERPRETED
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_matrix_products(n: int, k: int, units: int) -> None:
    x, w, dy = array(n, k), array(k, units, seed=1), array(n, units, seed=2)
    compare(ops.matmul, (x, w), {}, k)
    compare(ops.matmul, (dy, w), {"transpose_b": True}, units)
    compare(ops.matmul, (x, dy), {"transpose_a": True}, n)


@pytest.mark.usefixtures("interpreted")
@INTERPRETED
@given(pool_cases(), st.sampled_from([3, 16, 20]), seeds)
def test_poolings(case: WindowCase, channels: int, seed: int) -> None:
    x, attrs = array(case.n, *case.image, channels, seed=seed), replace(case, data_format="NHWC").pooling
    dy = array(case.n, *case.output, channels, seed=seed + 1)
    compare(ops.max_pool2d, (x,), attrs, 1)
    compare(ops.average_pool2d, (x,), attrs, 9)
    y = both(ops.max_pool2d, (x,), attrs)[1][0]
    compare(ops.max_pool2d_gradient, (dy, x, y), attrs, 9)
    compare(ops.average_pool2d_gradient, (dy,), attrs | {"image": case.image}, 9)


# Updates -----------------------------------------------------------------------------------------


def network(backend: Any) -> Sequential:
    layers = [Input((8, 8, 3)), Conv2D(12, 3, activation="relu"), Conv2D(20, 3, use_bias=False), BatchNormalization(),
              MaxPooling2D(), Flatten(), Dense(9, activation="relu"), Dense(5)]  # fmt: skip
    return Sequential(layers, backend=backend, seed=0)


def trained(backend: Any, optimizer: Optimizer) -> tuple[list[float], dict[str, Array]]:
    model = network(backend)
    model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True))
    x, y = array(6, 8, 8, 3), np.arange(6) % 5
    losses = model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


@pytest.mark.parametrize("optimizer", [SGD(0.01), SGD(0.01, momentum=0.9), Adam(), RMSprop()])
def test_training_steps(optimizer: Optimizer) -> None:
    losses, weights = trained(backend_class("numba")(strict=True, threads=2), optimizer)  # type: ignore[call-arg]
    expected_losses, expected = trained(backend_class("numpy")(), optimizer)
    np.testing.assert_allclose(losses, expected_losses, rtol=SUM)
    for name in expected:
        np.testing.assert_allclose(weights[name], expected[name], rtol=TRAINING, atol=STEP, err_msg=name)


def step_of(n: int) -> Program:
    """An update of a dense layer's weights."""
    program = Program()
    x, dy = program.input("x", (n, 6)), program.input("dy", (n, 20))
    w, rate = program.input("w", (6, 20), kind="parameter"), program.input("rate", ())
    program.updates["w"] = ops.sgd_update(w, ops.matmul(x, dy, transpose_a=True), rate)
    return program


@pytest.mark.parametrize("n", [2, 40])
def test_donated_weights_make_room_for_later_ones(n: int) -> None:
    run = backend_class("numba")(strict=True).compile(step_of(n))
    given = {"x": array(n, 6), "dy": array(n, 20), "rate": np.asarray(0.5, "float32")}
    weights = [array(6, 20)]
    step = np.float32(0.5) * (given["x"].T @ given["dy"])
    before = weights[0].copy()
    for k in range(1, 4):
        weights.append(run({**given, "w": weights[-1]})["w"])
        check([weights[-1]], [before - k * step], n)
    assert weights[2] is weights[0]
    assert weights[3] is weights[1]


def test_weights_that_are_outputs_too_stay() -> None:
    program = step_of(2)
    program.outputs["shown"] = program.updates["w"]
    run = backend_class("numba")(strict=True).compile(program)
    given = {"x": array(2, 6), "dy": array(2, 20), "rate": np.asarray(0.5, "float32")}
    weights, shown = array(6, 20), []
    for _ in range(4):
        results = run({**given, "w": weights})
        weights = results["w"]
        shown.append((results["shown"], results["shown"].copy()))
    for kept, copy in shown:
        np.testing.assert_array_equal(kept, copy)


def test_weights_that_cannot_be_written_or_are_given_again_stay() -> None:
    run = backend_class("numba")(strict=True).compile(step_of(2))
    given = {"x": array(2, 6), "dy": array(2, 20), "rate": np.asarray(0.5, "float32"), "w": array(6, 20)}
    before = given["w"].copy()
    for writeable in (True, True, False, False):
        given["w"].flags.writeable = writeable
        results = run(given)["w"]
        np.testing.assert_array_equal(given["w"], before)
        assert results is not given["w"]


# The choice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "kernel", "of_channels"), [(1, None, True), (64, None, False), (1, "direct", False),
                                                          (64, "channels", True)])  # fmt: skip
def test_few_samples_have_channels_in_the_lanes(n: int, kernel: str | None, of_channels: bool) -> None:
    backend = backend_class("numba")(strict=True, threads=2, convolution_kernel=kernel)  # type: ignore[call-arg]
    model = network(backend)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    how = [text for node, text in backend.explain(model.program("train", batch_size=n)) if "conv2d" in text]
    assert how
    assert all(("of channels" in text) == of_channels for text in how)
    gradients = [text for text in how if "weight_gradient" in text]
    assert all(("sgd_update" in text) == of_channels for text in gradients)
