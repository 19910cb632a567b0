"""The cupy backend on a GPU: every kernel against its reference, whole trainings against NumPy, graphs, determinism."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import op_cases
from minicnn import ops
from minicnn.backends import get_backend
from minicnn.ops.convolution import NO_PADDING
from minicnn.program import Program
from numerics import assert_close
from op_cases import Case
from strategies import normal, seeds

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

from backends.cupy.networks import NETWORKS, data  # noqa: E402
from minicnn.backends.cupy import NAIVE, CupyBackend, Options  # noqa: E402

LEVELS = {
    "naive": NAIVE,
    "tiled": Options(fused=False, graph=False),
    "fused": Options(tiled=False),
    "all": Options(),
}  # fmt: skip
CASES = [c for c in op_cases.CASES if c.op.name != "fused"]


def _program(case: Case, dtype: str) -> tuple[Program, dict[str, Any]]:
    program, arrays, values = Program(case.op.name), {}, []
    for k, array in enumerate(case.arrays):
        array = np.array(array, dtype if array.dtype.kind == "f" else None, order="C")
        arrays[f"a{k}"] = array
        values.append(program.input(f"a{k}", array.shape, array.dtype.name))
    made = case.op(*values, **case.attrs)
    for k, value in enumerate(made if isinstance(made, tuple) else (made,)):
        program.outputs[f"y{k}"] = value
    return program, arrays


def check(case: Case, options: Options, dtype: str = "float32") -> None:
    """Compare a primitive's kernels with its reference in float64."""
    backend = CupyBackend(options=options)
    program, arrays = _program(case, dtype)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays.values()]
    expected = case.op.reference(*wide, xp=xp, **case.attrs)
    made = backend.compile(program)({k: backend.asarray(a) for k, a in arrays.items()})
    for k, array in enumerate(expected if isinstance(expected, tuple) else (expected,)):
        found = backend.to_numpy(made[f"y{k}"])
        if found.dtype.kind == "f":
            assert_close(found, array.astype("float64"), case.terms, dtype=dtype)
        else:
            np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_primitive(case: Case, level: str) -> None:
    check(case, LEVELS[level])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_primitive_in_float64(case: Case) -> None:
    if case.attrs.get("dtype") not in ("float32", None):
        pytest.skip("has a dtype of its own")
    check(case, Options(), "float64" if case.op.name not in ("random_uniform", "one_hot", "cast") else "float32")


gpu_settings = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Convolutions and their gradients of sizes that tiles do not divide."""
    groups = draw(st.sampled_from([1, 1, 2]))
    c, f = draw(st.integers(1, 9)) * groups, draw(st.integers(1, 17)) * groups
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.sampled_from([NO_PADDING, ((1, 1), (1, 1)), ((2, 0), (1, 3))]))
    image = tuple(d * (k - 1) + 1 + draw(st.integers(0, 30)) for k, d in zip(kernel, dilation, strict=True))
    n, seed = draw(st.integers(1, 9)), draw(seeds)
    data_format = draw(st.sampled_from(["NHWC", "NHWC", "NCHW", "HWCN"]))

    def shape(h: int, w: int, channels: int) -> tuple[int, ...]:
        return tuple({"N": n, "H": h, "W": w, "C": channels}[a] for a in data_format)

    attrs: dict[str, Any] = {
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "data_format": data_format,
    }
    x, w = normal(shape(*image, c), seed), normal((*kernel, c // groups, f), seed, 1)
    oh, ow = (
        (m + sum(p) - d * (k - 1) - 1) // s + 1
        for m, p, d, k, s in zip(image, padding, dilation, kernel, strides, strict=True)
    )
    dy = normal(shape(oh, ow, f), seed, 2)
    which = draw(st.sampled_from(["forward", "input", "weight"]))
    if which == "forward":
        return Case(ops.conv2d, (x, w), attrs, terms=kernel[0] * kernel[1] * c)
    if which == "input":
        return Case(ops.conv2d_input_gradient, (dy, w), attrs | {"image": image}, terms=kernel[0] * kernel[1] * f)
    return Case(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": kernel}, terms=n * oh * ow)


@gpu_settings
@given(convolutions())
def test_convolutions(case: Case) -> None:
    check(case, Options())


@gpu_settings
@given(
    m=st.integers(1, 200), n=st.integers(1, 150), k=st.integers(1, 3000), ta=st.booleans(), tb=st.booleans(), seed=seeds
)
def test_products(m: int, n: int, k: int, ta: bool, tb: bool, seed: int) -> None:
    a, b = normal((k, m) if ta else (m, k), seed), normal((n, k) if tb else (k, n), seed, 1)
    check(Case(ops.matmul, (a, b), {"transpose_a": ta, "transpose_b": tb}, terms=k), Options())


@gpu_settings
@given(
    shape=st.lists(st.integers(1, 60), min_size=1, max_size=4).filter(lambda s: np.prod(s) < 2e6), seed=seeds,
    op=st.sampled_from([ops.sum, ops.mean, ops.max]), keepdims=st.booleans(), pick=st.integers(0, 15),
)  # fmt: skip
def test_reductions(shape: list[int], seed: int, op: Any, keepdims: bool, pick: int) -> None:
    axes = tuple(a for a in range(len(shape)) if pick >> a & 1)
    check(
        Case(op, (normal(tuple(shape), seed),), {"axes": axes, "keepdims": keepdims}, terms=int(np.prod(shape))),
        Options(),
    )


# Whole trainings ----------------------------------------------------------------------------------------


def _train(backend: Any, network: str, epochs: int = 4, **fit: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    model = NETWORKS[network](backend)
    x, y = data()
    history = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, validation_split=0.2, **fit)
    return history.history, model.get_weights()


@pytest.mark.parametrize("network", NETWORKS)
def test_training_follows_numpy(network: str) -> None:
    losses, weights = _train("cupy", network)
    expected_losses, expected = _train("numpy", network)
    np.testing.assert_allclose(losses["loss"], expected_losses["loss"], rtol=1e-4)
    np.testing.assert_allclose(losses["val_loss"], expected_losses["val_loss"], rtol=1e-3)
    for key, array in expected.items():
        np.testing.assert_allclose(weights[key], array, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_captured_step_is_an_uncaptured_one_bit_for_bit(network: str) -> None:
    captured = _train(CupyBackend(), network)
    again = _train(CupyBackend(), network)
    uncaptured = _train(CupyBackend(options=Options(graph=False)), network)
    for other in (again, uncaptured):
        assert captured[0] == other[0]
        for key, array in captured[1].items():
            np.testing.assert_array_equal(array, other[1][key])


@pytest.mark.parametrize("network", NETWORKS)
def test_many_steps_at_once_are_the_same_steps(network: str) -> None:
    weights = []
    for at_once in (True, False):
        model = NETWORKS[network](CupyBackend())
        x, y = data()
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        backend = model.backend
        source = model._source(x, y, None, 8, "keep")
        feed, arrays = next(iter(source.epoch(shuffle=False, seed=0, epoch=0)))
        index = np.random.default_rng(0).integers(0, len(x), (37, 8)).astype("int32")
        rates = [0.01 * 0.9**k for k in range(37)]
        engine, totals = model._engine, {}
        if at_once:
            totals = engine.train_many(feed, arrays, totals, index, rates)
        else:
            for row, rate in zip(index, rates, strict=True):
                totals = engine.train(feed, {**arrays, "index": backend.asarray(row)}, totals, rate)
        weights.append((model.get_weights(), {k: backend.to_numpy(v).copy() for k, v in totals.items()}))
    for a, b in zip(weights[0], weights[1], strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


def test_two_models_side_by_side_and_predictions() -> None:
    x, y = data()
    models = [NETWORKS["lenet"]("cupy") for _ in range(2)]
    for _ in range(2):
        for model in models:
            model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    a, b = (m.predict(x, batch_size=16) for m in models)
    np.testing.assert_array_equal(a, b)
    on_device = models[0].predict(cupy.asarray(x), batch_size=16)
    assert isinstance(on_device, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(on_device), a)


def test_the_default_runs_no_reference() -> None:
    for network in NETWORKS.values():
        model = network(CupyBackend(strict=True))
        rows = model.backend.explain(model.program("train", batch_size=8))
        assert not [text for _, text in rows if text.startswith("reference")]


def test_reference_only_trains_alike() -> None:
    losses, _ = _train(CupyBackend(reference_only=True), "lenet", epochs=1)
    expected, _ = _train("numpy", "lenet", epochs=1)
    np.testing.assert_allclose(losses["loss"], expected["loss"], rtol=1e-4)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"one of the \d+ that CUDA sees"):
        get_backend("cupy:cuda:99")
    backend = CupyBackend()
    program = Program()
    program.outputs["y"] = program.input("x", (3,), kind="parameter") * 2.0
    with pytest.raises(ValueError, match="x is a contiguous CuPy array"):
        backend.compile(program)({"x": np.zeros(3, "float32")})
    with pytest.raises(ValueError, match="block is a power of two"):
        Options(block=100)
