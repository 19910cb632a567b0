"""Around the kernels on a GPU: data from the host, predictions, memory, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from support.tolerances import SUM

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

from backends.cupy.networks import NETWORKS, data  # noqa: E402
from minicnn import Sequential, layers, ops  # noqa: E402
from minicnn.backends._gpu import executable  # noqa: E402
from minicnn.backends._gpu.options import Options  # noqa: E402
from minicnn.backends.cupy.backend import CupyBackend  # noqa: E402
from minicnn.losses import SparseCategoricalCrossentropy  # noqa: E402
from minicnn.measure.operations import apart, step_inputs  # noqa: E402
from minicnn.optimizers import SGD  # noqa: E402
from minicnn.program import Program  # noqa: E402
from minicnn.zoo import get_model  # noqa: E402
from support.engine import EngineSteps, assert_same  # noqa: E402


def trained(backend: Any, network: str, *given: Any, **fit: Any) -> tuple[Any, Any, Any, Any]:
    """History, weights, predictions and evaluation."""
    model = NETWORKS[network](backend)
    x, y = data()
    history = model.fit(*(given or (x, y)), batch_size=9, epochs=3, verbose=0, **fit)
    return history.history["loss"], model.get_weights(), model.predict(x, 7), model.evaluate(x, y, 11)


class TestSteps(EngineSteps):
    """See `EngineSteps`."""

    networks = tuple(NETWORKS)

    def make(self, options: Options | None = None) -> CupyBackend:
        """See `EngineSteps.make`; without graphs steps are taken together, too."""
        backend = CupyBackend(options=options)
        backend.steps_at_once = backend.predictions_at_once = 256
        return backend


# The second stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("network", ["resnet18", "mobilenet_v2"])
def test_launches_beside_others_give_the_bits_of_the_same_ones_in_turn(
    network: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (96, 64, 64, 3)).astype("uint8"), rng.integers(0, 10, 96).astype("int32")

    def weights() -> dict[str, Any]:
        model = get_model(network, num_classes=10, input_shape=x.shape[1:], backend=CupyBackend(), input_dtype="uint8")
        model.compile(SGD(1e-3, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), precision=precision)
        model.fit(x, y, batch_size=32, epochs=12, verbose=0)
        return model.get_weights()

    beside = [weights() for _ in range(3)]
    monkeypatch.setattr(executable, "with_second_stream", lambda launches, *_: list(launches))
    in_turn = weights()
    for each in beside:
        assert {name: (w != in_turn[name]).sum() for name, w in each.items() if (w != in_turn[name]).any()} == {}


# Data from the host ---------------------------------------------------------------------------------


def test_many_slots_in_a_row_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (6000, 12, 12, 1)).astype("uint8"), rng.integers(0, 5, 6000).astype("int32")
    results = []
    for options in (Options(), Options(resident=False), Options(data_bytes=200_000)):
        model = NETWORKS["lenet"](CupyBackend(options=options))
        history = model.fit(x, y, batch_size=32, epochs=2, verbose=0)
        scores = model.evaluate(x, y, 100)
        results.append((history.history["loss"], model.get_weights(), model.predict(x, 100), scores))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_a_batch_again_and_again_gives_the_same_bits() -> None:
    x, y = data()
    one, many = NETWORKS["mlp"](CupyBackend()), NETWORKS["mlp"](CupyBackend())
    many.fit([(x, y)] * 37, epochs=1, verbose=0)
    for _ in range(37):
        one.train_on_batch(x, y)
    for key, array in one.get_weights().items():
        np.testing.assert_array_equal(many.get_weights()[key], array)


def test_a_batch_again_and_again_is_kept_once() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20_000, 12, 12, 1)).astype("uint8")
    y = rng.integers(0, 5, 20_000).astype("int32")
    pool, model = cupy.get_default_memory_pool(), NETWORKS["mlp"](CupyBackend())
    before = pool.used_bytes()
    model.fit([(x, y)] * 300, epochs=1, verbose=0)
    assert pool.used_bytes() - before < 5 * x.nbytes


# Evaluation and predictions -------------------------------------------------------------------------


def test_a_batch_is_evaluated_again_and_again() -> None:
    x, y = data()
    models = [NETWORKS["lenet"](CupyBackend(options=Options(graph=graph))) for graph in (True, False)]
    several, one_by_one = (m.evaluate([(x, y)] * 37, return_dict=True) for m in models)
    assert several == one_by_one
    once = models[0].evaluate(x, y, len(x), return_dict=True)
    assert several["accuracy"] == once["accuracy"]
    np.testing.assert_allclose(several["loss"], once["loss"], rtol=SUM)
    on_device = (cupy.asarray(x), cupy.asarray(y))
    assert models[0].evaluate([on_device] * 37, return_dict=True) == several


# Memory ---------------------------------------------------------------------------------------------


def test_memory_goes_with_the_model() -> None:
    x, y = data()
    pool = cupy.get_default_memory_pool()
    NETWORKS["lenet"](CupyBackend()).fit(x, y, epochs=1, verbose=0)  # what CuPy itself keeps
    gc.collect()
    before = pool.used_bytes()
    models = [NETWORKS[n](CupyBackend(options=o)) for n in NETWORKS for o in (Options(), Options(resident=False))]
    for model in models:
        model.fit(x, y, epochs=2, verbose=0, validation_split=0.2)
        model.predict(x, 7)
    assert pool.used_bytes() > before
    gc.disable()
    try:
        del models, model
        assert pool.used_bytes() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("network", NETWORKS)
def test_every_node_can_be_timed_apart(network: str) -> None:
    model = NETWORKS[network](CupyBackend())
    x, y = data()
    program = model.program("train", batch_size=len(x))
    given = {"x": x, "y": y, "learning_rate": np.float32(0.1)}
    found = apart(model.backend, program, step_inputs(model, program, given), repeats=2)
    assert [n.op for n in found] == [n.op.name for n in program.nodes]
    assert all(min(n.seconds) > 0 for n in found)


def test_graphs_of_many_arrays_are_bounded() -> None:
    x, y = data()
    model = NETWORKS["lenet"](CupyBackend())
    for _ in range(8):
        model.predict(cupy.asarray(x), 16)
        model.evaluate(cupy.asarray(x), y, 16)
    for step in model._training.executor._compiled.values():
        assert len(step.many.__self__._graphs) <= 4
    before = cupy.get_default_memory_pool().used_bytes()
    for _ in range(20):
        model.predict(cupy.asarray(x), 16)
    assert cupy.get_default_memory_pool().used_bytes() == before


# Errors ---------------------------------------------------------------------------------------------


def test_too_large_a_step_says_what_to_do() -> None:
    model = Sequential([layers.Input((8,)), layers.Dense(8)], backend="cupy")
    program = Program()
    a, b = program.input("a", (600_000, 1)), program.input("b", (1, 600_000))
    program.outputs["y"] = ops.matmul(a, b)
    with pytest.raises(
        MemoryError, match=r"fit in the memory of the GPU\. Received: Out of memory allocating .* batch_size"
    ):
        model.backend.compile(program)
    assert model.predict(np.ones((4, 8), "float32")).shape == (4, 8)  # the device is as it was


def test_a_kernel_that_does_not_fit_is_named() -> None:
    program = Program()
    program.outputs["y"] = program.input("x", (3,), kind="parameter") * 2.0
    made: Any = CupyBackend().compile(program)
    (kernel,) = made._kernels
    kernel.threads = 4096
    for at_once in (True, False):
        made.captures = at_once
        with pytest.raises(
            RuntimeError, match=r"fit on a multiprocessor\. Received: .*in multiply with 1 blocks of 4096"
        ):
            made({"x": cupy.zeros(3, "float32")})
    assert float(cupy.ones(3).sum()) == 3.0


LOST = """
import numpy as np
from minicnn.backends.cupy.compiler import compile_kernel
from minicnn.backends.cupy.backend import CupyBackend
from minicnn.backends.cupy.launching import Kernel
from minicnn.program import Program
program = Program()
program.outputs["y"] = program.input("x", (3,), kind="parameter") * 2.0
backend = CupyBackend()
made = backend.compile(program)
text = 'extern "C" __global__ void kernel(const float* a, float* b) { *(volatile float*)(8 + threadIdx.x) = 1.0f; }'
made._kernels = [Kernel(compile_kernel(text, backend.gpu.architecture), 32)]
try:
    print(backend.to_numpy(made({"x": backend.asarray(np.ones(3, "float32"))})["y"]))
except RuntimeError as error:
    print(error)
import os; os._exit(0)
"""


def test_a_kernel_that_fails_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=120, check=False)
    assert "Kernels run without an error. Received:" in done.stdout, done
    assert "CUDA_LAUNCH_BLOCKING=1" in done.stdout
