"""The cupy backend on a GPU: every kernel against its reference, whole trainings against NumPy, graphs, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from minicnn.backends import backend_class, get_backend
from minicnn.conformance.cases import Case
from minicnn.program import Program
from support.kernel_check import CASES, check_kernels, convolutions, products, reductions, train_by_steps, train_network
from support.tolerances import LONG_SUM, STEP, TRAINING

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

from backends.cupy.dense import dense_network, step  # noqa: E402
from backends.cupy.networks import NETWORKS, data  # noqa: E402
from minicnn.backends._gpu.options import NAIVE, Options  # noqa: E402
from minicnn.backends.cupy.backend import CupyBackend  # noqa: E402

LEVELS = {
    "naive": NAIVE,
    "tiled": Options(fused=False, graph=False),
    "fused": Options(tiled=False),
    "all": Options(),
}  # fmt: skip


def check(case: Case, options: Options, dtype: str = "float32") -> None:
    check_kernels(CupyBackend(options=options), case, dtype)


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


@gpu_settings
@given(convolutions())
def test_convolutions(case: Case) -> None:
    check(case, Options())


@gpu_settings
@given(convolutions(depthwise=True))
def test_depthwise_convolutions(case: Case) -> None:
    check(case, Options())


@gpu_settings
@given(products(200, 150, 3000))
def test_products(case: Case) -> None:
    check(case, Options())


@gpu_settings
@given(reductions(60, 2_000_000))
def test_reductions(case: Case) -> None:
    check(case, Options())


@pytest.mark.parametrize("batch", [1, 37, 1000, 20_000])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("width", "hidden"), [(784, [10]), (100, [33, 7]), (33, [64]), (42, [12]), (300, [16])])
def test_row_regions_of_rows(width: int, hidden: list[int], dtype: str, batch: int) -> None:
    model = dense_network(width, hidden, 10, dtype=dtype)
    program, given = step(model, batch, width, 10)
    expected = get_backend("numpy").compile(program())(given)
    backend = CupyBackend(strict=True)
    made = backend.compile(program())({k: backend.asarray(v) for k, v in given.items()})
    for name, array in expected.items():
        largest = max(1e-3, float(np.abs(array).max()))
        np.testing.assert_allclose(
            backend.to_numpy(made[name]), array, rtol=STEP, atol=LONG_SUM * largest, err_msg=name
        )


# Whole trainings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_training_follows_numpy(network: str) -> None:
    losses, weights = train_network("cupy", network)
    expected_losses, expected = train_network("numpy", network)
    np.testing.assert_allclose(losses["loss"], expected_losses["loss"], rtol=STEP)
    np.testing.assert_allclose(losses["val_loss"], expected_losses["val_loss"], rtol=TRAINING)
    for key, array in expected.items():
        np.testing.assert_allclose(weights[key], array, rtol=1e-2, atol=STEP)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_captured_step_is_an_uncaptured_one_bit_for_bit(network: str) -> None:
    captured = train_network(CupyBackend(), network)
    again = train_network(CupyBackend(), network)
    uncaptured = train_network(CupyBackend(options=Options(graph=False)), network)
    for other in (again, uncaptured):
        assert captured[0] == other[0]
        for key, array in captured[1].items():
            np.testing.assert_array_equal(array, other[1][key])


@pytest.mark.parametrize("network", NETWORKS)
def test_many_steps_at_once_are_the_same_steps(network: str) -> None:
    together, one_by_one = (train_by_steps(CupyBackend(), network, 37, at_once=flag) for flag in (True, False))
    for a, b in zip(together, one_by_one, strict=True):
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


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_models_on_two_gpus_side_by_side(name: str) -> None:
    pytest.importorskip(name)
    try:
        backends = [get_backend(f"{name}:cuda:{number}") for number in range(2)]
    except ValueError as missing:
        pytest.skip(str(missing))
    x, y = data()
    models = [NETWORKS["lenet"](backend) for backend in backends]
    for _ in range(2):
        for model in models:
            model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    a, b = (m.predict(x, batch_size=16) for m in models)
    np.testing.assert_array_equal(a, b)
    rows = [backend.asarray(x) for backend in backends]
    for model, own, other in zip(models, rows, rows[::-1], strict=True):
        np.testing.assert_array_equal(model.backend.to_numpy(model.predict(own, batch_size=16)), a)
        with pytest.raises(ValueError, match="Arrays are on the model's device"):
            model.backend.asarray(other)


@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_data_that_arrive_while_steps_run_give_the_same_bits(name: str) -> None:
    pytest.importorskip(name)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (6000, 12, 12, 1)).astype("uint8"), rng.integers(0, 5, 6000).astype("int32")
    results = []
    for stage_bytes in (0, 50_000):
        backend = backend_class(name)()
        backend.stage_bytes = stage_bytes
        model = NETWORKS["mlp"](backend)
        for images in (x, 255 - x):
            model.fit(images, y, batch_size=32, epochs=2, verbose=0)
        results.append(model.get_weights())
    for path, weight in results[0].items():
        np.testing.assert_array_equal(results[1][path], weight)


def test_the_default_runs_no_reference() -> None:
    for network in NETWORKS.values():
        model = network(CupyBackend(strict=True))
        rows = model.backend.explain(model.program("train", batch_size=8))
        assert not [text for _, text in rows if text.startswith("reference")]


def test_reference_only_trains_alike() -> None:
    losses, _ = train_network(CupyBackend(reference_only=True), "lenet", epochs=1)
    expected, _ = train_network("numpy", "lenet", epochs=1)
    np.testing.assert_allclose(losses["loss"], expected["loss"], rtol=STEP)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"one of the \d+ that CUDA sees"):
        get_backend("cupy:cuda:99")
    backend = CupyBackend()
    program = Program()
    program.outputs["y"] = program.input("x", (3,), kind="parameter") * 2.0
    with pytest.raises(ValueError, match="x is a contiguous array of cupy, "):
        backend.compile(program)({"x": np.zeros(3, "float32")})
    with pytest.raises(ValueError, match="block is a power of two"):
        Options(block=100)
