"""Training on numba_cuda: steps against NumPy, many at once, graphs, determinism, memory, errors."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from backends.cupy.networks import NETWORKS, data
from backends.numba_cuda.running import EITHER, GPU_ONLY, SIMULATED
from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends._gpu.options import NAIVE, Options
from minicnn.backends.numba_cuda.arrays import Array
from minicnn.backends.numba_cuda.backend import NumbaCudaBackend
from minicnn.backends.numba_cuda.device import get_device
from minicnn.measure.operations import apart, step_inputs
from minicnn.program import Program
from support.kernel_check import step_of, train_network
from support.tolerances import LONG_TRAINING, SHORT_SUM, STEP, SUM, TRAINING

pytestmark = EITHER
LEVELS = {"naive": NAIVE, "all": Options()}


# Looking at each line makes naive kernels, which other tests run too, four times slower, as the simulator is with them.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("network", "level"),
    [
        *(pytest.param(n, "all", marks=pytest.mark.no_cover) if n == "normalized" else (n, "all") for n in NETWORKS),
        *(pytest.param(n, "naive", marks=pytest.mark.no_cover) for n in (["mlp"] if SIMULATED else NETWORKS)),
    ],
)
def test_a_step_is_that_of_numpy(network: str, level: str) -> None:
    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    backend = NumbaCudaBackend(options=LEVELS[level], strict=True)
    found = backend.compile(program())({k: backend.asarray(a) for k, a in given.items()})
    for name, array in expected.items():
        np.testing.assert_allclose(backend.to_numpy(found[name]), array, rtol=STEP, atol=SHORT_SUM, err_msg=name)


def test_every_node_can_be_timed_apart() -> None:
    model = NETWORKS["mlp"]("numba_cuda")
    x, y = (a[:4] for a in data())
    program = model.program("train", batch_size=4)
    given = {"x": x, "y": y, "learning_rate": np.float32(0.1)}
    found = apart(model.backend, program, step_inputs(model, program, given), repeats=1)
    assert [n.op for n in found] == [n.op.name for n in program.nodes]
    assert all(min(n.seconds) > 0 for n in found)


@pytest.mark.no_cover
def test_training_with_references_alone_follows_numpy() -> None:
    x, y = (a[:2] for a in data())
    models = [NETWORKS["mlp"](backend) for backend in (NumbaCudaBackend(reference_only=True), "numpy")]
    losses = [[m.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(2)] for m in models]
    np.testing.assert_allclose(*losses, rtol=STEP)


def test_fit_and_predict_follow_numpy() -> None:
    models = [NETWORKS["mlp"](backend) for backend in ("numba_cuda", "numpy")]
    x, y = data()
    losses = [m.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"] for m in models]
    np.testing.assert_allclose(*losses, rtol=STEP)
    found, expected = (m.predict(x[:5], batch_size=4) for m in models)
    np.testing.assert_allclose(found, expected, rtol=STEP, atol=SUM)
    on_device = models[0].predict(models[0].backend.asarray(x[:5]), batch_size=4)
    assert isinstance(on_device, Array)
    np.testing.assert_array_equal(on_device.numpy(), found)


def test_a_batch_is_evaluated_again_and_again() -> None:
    x, y = data()
    times = 3 if SIMULATED else 37
    model = NETWORKS["mlp"]("numba_cuda")
    several, once = model.evaluate([(x, y)] * times, return_dict=True), model.evaluate(x, y, len(x), return_dict=True)
    assert several["accuracy"] == once["accuracy"]
    np.testing.assert_allclose(several["loss"], once["loss"], rtol=SUM)
    on_device = (model.backend.asarray(x), model.backend.asarray(y))
    assert model.evaluate([on_device] * times, return_dict=True) == several


def test_the_default_runs_no_reference() -> None:
    for network in NETWORKS.values():
        model = network(NumbaCudaBackend(strict=True))
        rows = model.backend.explain(model.program("train", batch_size=8))
        assert not [text for _, text in rows if text.startswith("reference")]
        assert any("the simulator has no graphs" in text for _, text in rows) == SIMULATED


def test_a_node_without_a_kernel_runs_its_reference_among_kernels() -> None:
    program = Program()
    x, w = program.input("x", (2, 3)), program.input("w", (2, 3), kind="parameter")
    y = x * 2.0
    none = ops.slice_(y, bounds=((0, 0), (0, 3)))
    program.outputs = {"y": ops.concat(none, y, axis=0) + 1.0, "x": x}
    program.updates = {"w": ops.concat(none, w, axis=0)}
    backend = get_backend("numba_cuda")
    texts = [text for _, text in backend.explain(program)]
    assert any(text == "reference: kernels take no empty arrays" for text in texts)
    given = np.arange(6, dtype="float32").reshape(2, 3)
    made = backend.compile(program)({"x": backend.asarray(given), "w": backend.asarray(-given)})
    np.testing.assert_array_equal(backend.to_numpy(made["y"]), given * 2 + 1)
    np.testing.assert_array_equal(backend.to_numpy(made["w"]), -given)
    with pytest.raises(RuntimeError, match=r"every node needs a kernel of the numba_cuda backend\. Received 3"):
        get_backend("numba_cuda", strict=True).compile(program)


@pytest.mark.parametrize(("rows", "columns"), [(40, 8), (7, 12)] if SIMULATED else [(20_000, 784), (600, 52), (7, 12)])
@pytest.mark.parametrize("gathered", [True, False])
def test_products_of_bytes_are_those_of_numbers(rows: int, columns: int, gathered: bool) -> None:
    rng = np.random.default_rng(0)
    data, order = rng.integers(0, 256, (rows, columns)).astype("uint8"), rng.permutation(rows).astype("int32")
    w, d = rng.normal(size=(columns, 10)).astype("float32"), rng.normal(size=(rows, 10)).astype("float32")
    program = Program()
    whole = program.input("data", data.shape, dtype="uint8")
    x = ops.take(whole, program.input("order", order.shape, dtype="int32")) if gathered else whole
    x = ops.cast(x, dtype="float32") * (1 / 255) - 0.25
    program.outputs["y"] = ops.matmul(x, program.input("w", w.shape))
    program.outputs["g"] = ops.matmul(x, program.input("d", d.shape), transpose_a=True)
    backend = NumbaCudaBackend()
    given = {"data": data, "order": order, "w": w, "d": d}
    given = {k: v for k, v in given.items() if gathered or k != "order"}
    made = backend.compile(program)({k: backend.asarray(v) for k, v in given.items()})
    exact = (data[order] if gathered else data) / 255.0 - 0.25
    for name, expected in (("y", exact @ w), ("g", exact.T @ d)):
        np.testing.assert_allclose(backend.to_numpy(made[name]), expected, rtol=STEP, atol=LONG_TRAINING * rows**0.5)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"one of the \d+ that CUDA sees"):
        get_backend("numba_cuda:cuda:99")
    backend = get_backend("numba_cuda")
    program = Program()
    program.outputs["y"] = program.input("x", (3,), kind="parameter") * 2.0
    run = backend.compile(program)
    for wrong in (np.zeros(3, "float32"), backend.asarray(np.zeros(4, "float32")), backend.asarray(np.zeros(3))):
        with pytest.raises(ValueError, match=r"x is a contiguous array of numba_cuda, float32\[3\], on cuda, "):
            run({"x": wrong})
    apart = backend.asarray(np.arange(4, dtype="float32"))[1:]
    with pytest.raises(ValueError, match="which begins in between"):
        run({"x": apart})
    np.testing.assert_array_equal(backend.to_numpy(run({"x": backend.asarray(apart)})["y"]), [2.0, 4.0, 6.0])
    program = Program()
    program.outputs["y"] = program.input("x", (3,)) * 2.0
    with pytest.raises(ValueError, match=r"x has shape \(3,\), and of .* one row for each step. Received: \(2,\)"):
        backend.compile(program)({"x": np.zeros(2, "float32")})
    if SIMULATED:
        with pytest.raises(RuntimeError, match="Graphs need a GPU"):
            get_device(0).capture([])


def test_a_backend_describes_itself() -> None:
    backend = get_backend("numba_cuda")
    backend.synchronize()
    facts = backend.describe()
    assert "numba-cuda" in facts
    assert repr(backend) == "<backend numba_cuda:cuda>"
    assert (facts.get("cuda") == "simulator") == SIMULATED


def test_a_step_gives_its_memory_back() -> None:
    device = get_device(0)
    gc.collect()
    before = device.used
    program, given = step_of("mlp")
    backend: Any = NumbaCudaBackend()
    run = backend.compile(program())
    made = run({k: backend.asarray(a) for k, a in given.items()})
    assert device.used > before
    del made, run
    gc.collect()
    assert device.used == before


# On a GPU -------------------------------------------------------------------------------------------------------

on_gpu = [pytest.mark.parametrize("network", NETWORKS), *GPU_ONLY]


def _marked(function: Any) -> Any:
    for mark in on_gpu:
        function = mark(function)
    return function


@_marked
def test_training_follows_numpy(network: str) -> None:
    losses, weights = train_network("numba_cuda", network, epochs=50)
    expected_losses, expected = train_network("numpy", network, epochs=50)
    np.testing.assert_allclose(losses["loss"][:5], expected_losses["loss"][:5], rtol=STEP)
    np.testing.assert_allclose(losses["loss"], expected_losses["loss"], rtol=5e-2, atol=TRAINING)  # 100 steps
    assert set(weights) == set(expected)


@_marked
def test_a_captured_step_is_an_uncaptured_one_bit_for_bit(network: str) -> None:
    captured = train_network(NumbaCudaBackend(), network)
    again = train_network(NumbaCudaBackend(), network)
    uncaptured = train_network(NumbaCudaBackend(options=Options(graph=False)), network)
    for other in (again, uncaptured):
        assert captured[0] == other[0]
        for key, array in captured[1].items():
            np.testing.assert_array_equal(array, other[1][key])


@_marked
def test_two_models_side_by_side(network: str) -> None:
    x, y = data()
    models = [NETWORKS[network]("numba_cuda") for _ in range(2)]
    for _ in range(2):
        for model in models:
            model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    a, b = (m.predict(x, batch_size=16) for m in models)
    np.testing.assert_array_equal(a, b)
