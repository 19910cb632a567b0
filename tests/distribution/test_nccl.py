"""Ranks with a GPU each: sums as Programs on NumPy; steps with a made-up NCCL in the simulator, and with NCCL."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cupy.emulated import EmulatedBackend, EmulatedRuntime
from backends.cupy.emulator import needs_gxx
from minicnn import Sequential
from minicnn import layers as nn
from minicnn.backends import get_backend
from minicnn.backends._gpu import ranks
from minicnn.backends._gpu.rank_sums import summed
from minicnn.backends._gpu.ranks import fits
from minicnn.backends.base import Backend
from minicnn.callbacks import LambdaCallback
from minicnn.distribution import DataParallel, NcclCommunicator, OneProcess, Pipeline, passes
from minicnn.losses import CategoricalCrossentropy, SparseCategoricalCrossentropy
from minicnn.ops.collectives import all_reduce
from minicnn.ops.groups import Group
from minicnn.optimizers import SGD, Adam
from minicnn.program.graph import Program
from support.campaign import NIGHT
from support.distributed import CLASSES, chain, data, dense, digest, normalized, plain
from support.launchers import MPIEXEC, PATIENT, gpus, mpiexec, results, torchrun
from support.made_up_nccl import Late, MadeUp
from support.ranks import ThreadRanks
from support.tolerances import TRAINING


@pytest.mark.parametrize(("shards", "ranks"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 4), (12, 3)])
def test_sums_by_moves_and_additions_have_the_bits_of_the_tree(shards: int, ranks: int) -> None:
    rng = np.random.default_rng(shards)
    given = [[(rng.standard_normal(s) * 10.0 ** rng.integers(-3, 4)).astype("float32") for s in ((3, 5), (), (7,))]
             for _ in range(ranks)]  # fmt: skip

    def work(communicator: Any) -> tuple[list[Any], list[Any]]:
        group = Group(shards, communicator.rank, ranks, communicator)
        program = Program("sums")
        values = [program.input(f"x{i}", a.shape, "float32") for i, a in enumerate(given[0])]
        program.outputs = {f"y{i}": v for i, v in enumerate(summed(values, group))}
        own = given[communicator.rank]
        made = get_backend("numpy").compile(program)({f"x{i}": a for i, a in enumerate(own)})
        return list(made.values()), list(all_reduce.reference(*own, group=group, xp=np))

    for made, expected in ThreadRanks(ranks).run(work):
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_ranks_with_several_sums_take_them_on_the_host() -> None:
    assert not fits(Group(8, 0, 3))
    assert fits(Group(8, 0, 2))


def test_the_made_up_library_has_the_arguments_of_the_real_one() -> None:
    core = pytest.importorskip("nccl.core", reason="nccl4py is not installed: the extra nccl")
    from nccl.bindings import nccl as bindings

    ours = [p.name for p in inspect.signature(MadeUp().Communicator.init).parameters.values()]
    assert ours == list(inspect.signature(core.Communicator.init).parameters)
    for name in ("all_reduce", "all_gather", "allto_all"):
        ours = list(inspect.signature(getattr(MadeUp(), name)).parameters)
        assert ours == list(inspect.signature(getattr(bindings, name)).parameters)
    assert (core.SUM, core.NcclDataType.from_numpy_dtype(np.dtype("float32"))) == (MadeUp.SUM, MadeUp.FLOAT32)
    assert bindings.Comm().handle == core.Communicator().ptr == 0
    assert bytes(core.UniqueId.from_bytes(bytes(range(128)))) == bytes(range(128))


def test_a_missing_library_is_named() -> None:
    with pytest.raises(ImportError, match=r"nccl4py and NCCL: pip install .*Received: there is no libnccl"):
        NcclCommunicator(OneProcess(), MadeUp(libnccl=None))


def same(backend: Any, nccl: Any, make: Callable[..., Any], shards: int, steps: int) -> None:
    """Check that steps with NCCL between one rank and itself leave the weights of those without, in both modes.

    With one shard steps without NCCL are those of no distribution, and in the fast mode they are one Program: these
    have other kernels, and are the same but for rounding.
    """
    x, y = data()

    def weights(**about: Any) -> dict[str, Any]:
        model = make(backend, DataParallel(shards, **about))
        model.fit(x[: 12 * steps], y[: 12 * steps], 12, verbose=0)
        return model.get_weights()

    alone = weights()
    for deterministic in (True, False):
        made = weights(communicator=NcclCommunicator(OneProcess(), nccl), deterministic=deterministic)
        for path, array in made.items():
            if shards > 1:
                np.testing.assert_array_equal(array, alone[path], err_msg=path)
            else:
                np.testing.assert_allclose(array, alone[path], rtol=5e-3, atol=TRAINING, err_msg=path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [2, 1])
def test_steps_in_the_simulator(shards: int) -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from minicnn.backends.numba_cuda.shim import SIMULATED

    if not SIMULATED:
        pytest.skip("for the simulator: NUMBA_ENABLE_CUDASIM=1")
    made_up, steps = MadeUp(), 2 if NIGHT else 1
    same("numba_cuda", made_up, dense, shards, steps)
    # One of each connects, and a step has one sum, of which a rank alone needs no tree.
    assert made_up.calls.count("all_reduce") == 2 + 2 * steps


@needs_gxx
def test_steps_as_graphs_on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and collectives are one graph, for the last batch another, and each step has new rows and new dropouts.

    Four steps are one graph, too, without copies: each reads its rows where they are.
    """
    captured, capture = [], EmulatedRuntime.capture

    def capturing(runtime: EmulatedRuntime, launches: list[Any]) -> Any:
        captured.append(sum(isinstance(one, partial) and one.func == runtime.copy for one in launches))
        return capture(runtime, launches)

    monkeypatch.setattr(EmulatedRuntime, "capture", capturing)
    begun, beside = [], EmulatedRuntime.beside
    monkeypatch.setattr(EmulatedRuntime, "beside", lambda *given, **about: begun.append(1) or beside(*given, **about))
    monkeypatch.setattr(passes, "BUCKET", 100)  # bytes: several sums, all but the last beside the backward pass
    backend, (x, y) = EmulatedBackend(), data()

    def trained(**about: Any) -> tuple[list[float], dict[str, Any]]:
        # Few kernels, which g++ compiles: a layer with masks of its own.
        layers = [nn.Flatten(), nn.Dense(6, use_bias=False), nn.Dropout(0.3), nn.Dense(CLASSES, activation="softmax")]
        optimizer = Adam(0.01, global_clipnorm=0.5)
        model = chain(layers, optimizer, backend, DataParallel(3, **about), precision="mixed_bfloat16")
        captured.clear()
        losses = model.fit(x, y, 12, epochs=2, verbose=0).history["loss"]
        return losses, model.get_weights()

    with monkeypatch.context() as patch:
        patch.setattr(EmulatedBackend, "rank_step", Backend.rank_step)
        alone = trained()
    here = trained()
    assert (captured[0], len(captured), len(begun)) == (0, 2, 0)
    made = trained(communicator=NcclCommunicator(OneProcess(), Late(backend.runtime)))
    assert (captured[0], len(captured)) == (0, 2)
    assert len(begun) >= 2
    for losses, weights in (here, made):
        assert losses == alone[0]
        for path, array in weights.items():
            np.testing.assert_array_equal(array, alone[1][path], err_msg=path)


@needs_gxx
@pytest.mark.sampled(1)
@pytest.mark.parametrize("synchronized", [True, False])
def test_parts_hand_on_where_maxima_are(monkeypatch: pytest.MonkeyPatch, synchronized: bool) -> None:
    """Not the image before a pooling, whose windows overlap here, and not what is stored in 16 bits as float32."""
    monkeypatch.setattr(passes, "BUCKET", 100)
    backend, (x, y) = EmulatedBackend(), data()
    images = np.tile(x.reshape(len(x), -1)[:, :36].reshape(-1, 6, 6, 1), (1, 1, 1, 8))

    def trained() -> tuple[set[tuple[int, str]], dict[str, Any]]:
        norm = nn.BatchNormalization(synchronized=synchronized)
        layers = [nn.Conv2D(8, 3, use_bias=False), norm, nn.MaxPooling2D(3, strides=1), nn.ReLU()]
        layers += [nn.Conv2D(8, 2), nn.BatchNormalization(), nn.Flatten(), nn.Dense(CLASSES)]
        optimizer, loss = SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True)
        model = Sequential([nn.Input(images.shape[1:]), *layers], seed=1, backend=backend)
        model.compile(optimizer, loss, distribution=DataParallel(2), precision="mixed_bfloat16")
        model.fit(images[:12], y[:12], 12, verbose=0)
        (step,) = model._training.executor._compiled.values()
        runs = step.run._compiled.values()
        return {(len(s.shape), s.dtype) for run in runs for s in run.outputs.values()}, model.get_weights()

    handed_on, weights = trained()
    assert (4, "uint8") in handed_on
    monkeypatch.setattr(ranks, "remember_maxima", lambda schedule: None)
    without, expected = trained()
    assert (4, "uint8") not in without
    for path, array in weights.items():
        np.testing.assert_allclose(array, expected[path], rtol=5e-3, atol=TRAINING, err_msg=path)


@needs_gxx
def test_all_stages_on_one_rank_of_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter of steps is no array that one piece alone reads and overwrites."""
    backend, (x, y) = EmulatedBackend(), data()

    def trained() -> tuple[Any, ...]:
        layers = [nn.Flatten(), nn.Dense(6), nn.Dense(CLASSES, activation="softmax")]
        model = chain(layers, Adam(0.01), backend, Pipeline(["dense_1"], shards=3))
        losses = model.fit(x[:24], y[:24], 12, epochs=2, verbose=0).history["loss"]
        return losses, model.evaluate(x[:12], y[:12], 12), digest(model)

    made = trained()
    monkeypatch.setattr(EmulatedBackend, "rank_step", Backend.rank_step)
    assert made == trained()


@needs_gxx
def test_the_step_of_a_rank_with_one_shard_on_the_emulator() -> None:
    """In the tree parts and sums are one graph; in the fast mode the step is one Program with its sum inside."""
    backend, steps = EmulatedBackend(), 2
    library = Late(backend.runtime)
    same(backend, library, dense, 1, steps)
    assert library.calls.count("all_reduce") == 2 + 2 * steps  # one of each connects


def connected(*devices: tuple[str, str]) -> list[str]:
    """What ranks on GPUs of these kinds and places are told."""

    def work(host: Any) -> str:
        kind, bus = devices[host.rank]
        runtime: Any = SimpleNamespace(gpu=SimpleNamespace(name=kind), bus=bus, active=nullcontext)
        try:
            NcclCommunicator(host, MadeUp(), peers=False)._connection(runtime)
        except (ValueError, RuntimeError) as error:
            return str(error)
        return ""

    return ThreadRanks(len(devices)).run(work)


def test_ranks_have_a_gpu_each_of_one_kind() -> None:
    assert connected(("H100", "07"), ("H100", "0a")) == [""] * 2
    for told in connected(("H100", "07"), ("H100", "0a"), ("H100", "07")):
        assert told.startswith("Each rank has a GPU of its own. Received: ranks 0, 2 on one. Start as many")
    for told in connected(("H100", "07"), ("A100", "0a")):
        assert told.startswith(
            "All ranks have GPUs of one kind, since bits differ between kinds. Received: H100, A100."
        )


def test_what_nccl_says_comes_with_a_remedy() -> None:
    library = MadeUp()
    library.failure = OSError("unhandled cuda error\n(out of memory)")
    runtime: Any = SimpleNamespace(gpu=None, bus="", active=nullcontext)
    with pytest.raises(
        RuntimeError, match=r"some memory left.*by rank 0: unhandled cuda error \(out of memory\)\. Look"
    ):
        NcclCommunicator(OneProcess(), library)._connection(runtime)


# Two emulated GPUs --------------------------------------------------------------------------------

EMULATED = {"SHARDS": "4", "BUCKET": "200", "TIMEOUT": "120"}


def emulated(ranks: int, *names: str) -> Any:
    return results(mpiexec(ranks, "train", "emulated", "1", *names, **EMULATED), ranks)


@needs_gxx
@pytest.mark.skipif(not (MPIEXEC and importlib.util.find_spec("mpi4py")), reason="needs mpi4py and mpiexec")
def test_two_emulated_gpus_compute_what_one_does() -> None:
    """Bit for bit in the tree; in the fast mode, which NCCL sums, but for rounding."""
    one, two = (emulated(ranks, "dense", *["fast"] * NIGHT) for ranks in (1, 2))
    if NIGHT:  # g++ compiles as long for it again, and the ranks that are threads have it by day
        assert two.pop("fast")[1] == pytest.approx(one.pop("fast")[1], rel=TRAINING)
    assert two == one


@needs_gxx
@pytest.mark.night("tests/distribution/test_nccl.py::test_two_emulated_gpus_compute_what_one_does")
@pytest.mark.skipif(not (MPIEXEC and importlib.util.find_spec("mpi4py")), reason="needs mpi4py and mpiexec")
def test_two_emulated_gpus_normalize_as_one_does() -> None:
    assert emulated(2, "normalized", "by_shard") == emulated(1, "normalized", "by_shard")


@needs_gxx
def test_what_is_closed_lets_graphs_go_and_is_connected_again_when_it_is_needed() -> None:
    backend, (x, y) = EmulatedBackend(), data()
    library = Late(backend.runtime)
    communicator = NcclCommunicator(OneProcess(), library)
    model = dense(backend, DataParallel(1, communicator=communicator))
    model.fit(x[:12], y[:12], 12, verbose=0)
    steps = list(communicator._graphs)
    assert [len(step._graphs) for step in steps] == [1]
    communicator.close(backend.runtime)
    assert library.destroyed == 1
    assert [len(step._graphs) for step in steps] == [0]
    communicator.close(backend.runtime)
    assert library.destroyed == 1
    model.fit(x[:12], y[:12], 12, verbose=0)
    assert model.steps_taken == 2
    communicator.close(backend.runtime)
    assert library.destroyed == 2


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_steps_with_nccl_on_one_gpu(name: str, shards: int, graph: bool) -> None:
    """One rank: captured in CUDA graphs and not."""
    pytest.importorskip("nccl.core", reason="nccl4py is not installed: the extra nccl")
    from minicnn.backends._gpu.options import Options

    backend = type(get_backend(name))(options=Options(graph=graph))
    for make in (plain, normalized):
        same(backend, None, make, shards, 4)


# Two GPUs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_gpus() -> None:
    found = gpus()
    if found < 2:
        pytest.skip(f"needs two GPUs, found {found}")


# Convolutions, batch normalisation and dropout; numba_cuda compiles one small layer, since its compiler takes seconds.
SEVERAL = ["plain", "normalized", "by_shard", "loaded"]
ON_TWO = [
    ("torch:cuda", SEVERAL), ("cupy", [*SEVERAL, "mixed"]), ("cupy-eager", ["normalized"]),
    ("cupy-messages", ["normalized"]), ("numba_cuda-messages", ["dense"]),
    ("cupy-shares", ["normalized"]), ("numba_cuda-shares", ["dense"]),
    ("cupy-numbered", ["plain"]), ("numba_cuda", ["dense"]), ("numba_cuda-eager", ["dense"]),
    ("numba_cuda-numbered", ["dense"]),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "names"), ON_TWO, ids=[backend for backend, _ in ON_TWO])
def test_two_gpus_compute_what_one_does(backend: str, names: list[str], two_gpus: None) -> None:
    """Bit for bit in the tree, with and without CUDA graphs; in the fast mode, which is one graph, but for rounding."""
    library = backend.partition("-")[0].partition(":")[0]
    pytest.importorskip(library, reason=f"the library of {library} is not installed")
    if library != "torch":
        pytest.importorskip("nccl.core", reason="nccl4py is not installed: the extra nccl")
    start = mpiexec if MPIEXEC and importlib.util.find_spec("mpi4py") and library != "torch" else torchrun
    wait = {"TIMEOUT": PATIENT}
    one, two = (results(start(ranks, "train", backend, "2", *names, "fast", **wait), ranks) for ranks in (1, 2))
    fast = one.pop("fast")[1], two.pop("fast")[1]
    assert fast[1] == pytest.approx(fast[0], rel=TRAINING)
    assert two == one


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["torch", "cupy", "numba_cuda"])
def test_models_on_two_gpus_in_one_process(name: str, two_gpus: None) -> None:
    """The same bits, by turns; each model's arrays are where it is."""
    pytest.importorskip(name)
    models = [dense(f"{name}:cuda:{number}", None) for number in (0, 1)]
    x, y = data()
    for start in (0, 12, 24):
        for model in models:
            model.train_on_batch(x[start : start + 12], y[start : start + 12])
    assert digest(models[0]) == digest(models[1])
    np.testing.assert_array_equal(*(model.predict(x) for model in models))


def checked_all_over(first: str, second: str) -> list[Any]:
    """What two models leave that are trained and asked for all that looks at arrays outside of a step.

    The one trains in a callback of the other.
    """
    x, labels = data()
    y = np.eye(CLASSES, dtype="float32")[labels]
    weight = np.linspace(0.5, 1.5, len(x)).astype("float32")
    other, model = (dense(name, None) for name in (first, second))
    for each in (other, model):
        each.compile("adam", CategoricalCrossentropy(), ["accuracy", "auc"])
    beside = LambdaCallback(on_train_batch_end=lambda batch, logs: other.train_on_batch(x[:12], y[:12], weight[:12]))
    own = [model.backend.asarray(a) for a in (x, y, weight)]
    logs = model.fit(*own[:2], 12, verbose=0, sample_weight=own[2], validation_split=0.2, callbacks=beside).history
    model.fit(x, y, 12, verbose=0, sample_weight=weight, class_weight={0: 2.0})
    found = model.evaluate(*own[:2], 12, sample_weight=own[2])
    predicted = model.backend.to_numpy(model.predict(own[0], 12))
    np.testing.assert_array_equal(predicted, model.predict(x, 12))
    last = model.trace(x[:12], y[:12], weight[:12])["dense/softmax"].array.tolist()
    return [digest(other), digest(model), logs, found, predicted.tolist(), last]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "numba_cuda", "torch"])
def test_the_second_gpu_while_the_first_is_current(name: str, two_gpus: None) -> None:
    library = pytest.importorskip(name)
    made = checked_all_over(f"{name}:cuda:0", f"{name}:cuda:1")
    if name == "cupy":
        assert library.cuda.runtime.getDevice() == 0
    assert made == checked_all_over(f"{name}:cuda:0", f"{name}:cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_an_exported_array_of_the_second_gpu_says_so(name: str, two_gpus: None) -> None:
    """What the driver has answered for `__cuda_array_interface__` was the first one."""
    pytest.importorskip(name)
    torch = pytest.importorskip("torch")
    taken = torch.from_dlpack(get_backend(f"{name}:cuda:1").asarray(np.arange(5, dtype="float32")))
    assert (taken.device.index, taken.tolist()) == (1, [0, 1, 2, 3, 4])
