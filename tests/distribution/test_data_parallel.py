"""Data parallel training: the same bits on any number of ranks, which are threads here; and what it refuses."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import get_backend
from minicnn.callbacks import BackupAndRestore, CSVLogger, LambdaCallback, ModelCheckpoint
from minicnn.distribution import DataParallel, ModelParallel, OneProcess, Planned, passes
from minicnn.distribution.data_parallel import find
from minicnn.distribution.launchers import launched
from minicnn.layers import BatchNormalization, Dense, Dropout, Flatten, Input, Layer
from minicnn.ops.groups import Group
from support.distributed import (
    CLASSES,
    MODELS,
    SHAPE,
    SHARDS,
    data,
    digest,
    normalized,
    on_ranks,
    plain,
    targets,
    trained,
)
from support.launchers import gpus
from support.ranks import ThreadRanks
from support.tolerances import ELEMENT, LONG_SUM, LONG_TRAINING, STEP, SUM


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_ranks_computes_the_same_bits(name: str) -> None:
    alone = trained(name, "numpy", DataParallel(SHARDS))
    for count in (2, 3, 8):
        assert all(made == alone for made in on_ranks(count, lambda d: trained(name, "numpy", d)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("backend", "counts"), [("torch", (2, 3)), ("numba", (3, 8)), ("array_api_strict", (2,)), ("jax", (2, 3))]
)
def test_other_backends_on_ranks(backend: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_THREADS", "1")
    x, y = data()

    def work(distribution: DataParallel) -> str:
        layers = [Flatten(), BatchNormalization(), Dropout(0.3), Dense(CLASSES, activation="softmax")]
        model = Sequential([Input(SHAPE), *layers], backend=backend)  # convolutions are tried under MPI
        model.compile("adam", distribution=distribution)
        for start in (0, 12):
            model.train_on_batch(x[start : start + 12], y[start : start + 12])
        return digest(model)

    alone = work(DataParallel(SHARDS))
    for count in counts:
        assert set(on_ranks(count, work)) == {alone}


WHOLE = [(name, "numpy") for name in MODELS if name != "by_shard"]


@pytest.mark.parametrize(("name", "backend"), [*WHOLE, ("plain", "torch")])
def test_shards_compute_what_the_whole_batch_does(name: str, backend: str) -> None:
    """But for rounding: dropout, batch normalisation, clipping and metrics do not see the cut."""
    x, y = data()
    whole, cut = MODELS[name](backend, None), MODELS[name](backend, None, accumulate=5)
    for model in (whole, cut):
        for start in (0, 12):
            model.train_on_batch(x[start : start + 12], [t[start : start + 12] for t in targets(name, y)]
                                 if name == "branched" else y[start : start + 12])  # fmt: skip
    first = whole.get_weights()
    for path, array in cut.get_weights().items():
        np.testing.assert_allclose(array, first[path], rtol=LONG_TRAINING, atol=LONG_SUM, err_msg=path)


def test_shards_may_have_statistics_of_their_own() -> None:
    """A step of SGD on two halves is then the mean of two steps on one half each; moving statistics likewise."""
    x, y = data()

    def made(synchronized: bool, accumulate: int, rows: slice) -> dict[str, Any]:
        layers = [Flatten(), BatchNormalization(synchronized=synchronized), Dense(CLASSES, activation="softmax")]
        model = Sequential([Input(SHAPE), *layers])
        model = Sequential.from_config(model.get_config())
        model.compile("sgd", accumulate=accumulate)
        model.train_on_batch(x[rows], y[rows])
        return model.get_weights()

    halves = [made(synchronized, 1, rows) for synchronized, rows in ((True, slice(0, 8)), (False, slice(8, 16)))]
    alone, as_one = (made(synchronized, 2, slice(0, 16)) for synchronized in (False, True))
    for path, array in alone.items():
        np.testing.assert_allclose(array, (halves[0][path] + halves[1][path]) / 2, rtol=SUM, atol=ELEMENT, err_msg=path)
    assert not np.allclose(alone["batch_normalization/moving_variance"], as_one["batch_normalization/moving_variance"])


def test_jax_takes_shards_one_after_the_other() -> None:
    pytest.importorskip("jax")
    x, y = data()
    made = []
    for accumulate in (1, 4):
        model = Sequential([Input(SHAPE), Flatten(), Dense(CLASSES, activation="softmax")], backend="jax")
        model.compile("sgd", accumulate=accumulate)
        model.train_on_batch(x[:8], y[:8])
        made.append(model.get_weights()["dense/kernel"])
    np.testing.assert_allclose(*made, rtol=STEP, atol=ELEMENT)


def test_sums_over_shards_are_not_rounded_in_mixed_precision() -> None:
    pytest.importorskip("torch")
    whole, cut = (trained("plain", "torch", None, precision="mixed_bfloat16", **k) for k in ({}, {"accumulate": 4}))
    assert cut[1]["loss"] == pytest.approx(whole[1]["loss"], rel=0.02)
    program = plain("torch", None, accumulate=4, precision="mixed_bfloat16").program("train")
    assert "bfloat16" in str(program)
    summed = [v for node in program.nodes if node.op.name == "all_reduce" for v in node.inputs]
    assert {v.dtype for v in summed} == {"float32"}


NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason="needs an NVIDIA GPU")]
ON_GPUS = [pytest.param(name, marks=NEEDS_GPU) for name in ("cupy", "numba_cuda")]


@pytest.mark.parametrize("backend", ["numpy", *ON_GPUS])
def test_accumulation_is_the_same_cut(backend: str) -> None:
    assert trained("normalized", backend, None, accumulate=SHARDS) == trained(
        "normalized", backend, DataParallel(SHARDS)
    )


def test_a_batch_of_one_sample() -> None:
    def work(distribution: DataParallel) -> str:
        model = plain("numpy", distribution)
        x, y = data()
        model.train_on_batch(x[:1], y[:1])
        return digest(model)

    assert len({made for count in (1, 3) for made in on_ranks(count, work)}) == 1


def test_a_training_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    def work(distribution: DataParallel, stop: int | None) -> str | None:
        def stopping(batch: int, logs: Any) -> None:
            if model.steps_taken == stop:
                raise KeyboardInterrupt

        model = normalized("numpy", distribution)
        callbacks = [LambdaCallback(on_train_batch_end=stopping), BackupAndRestore(tmp_path / "backup", save_freq=2)]
        try:
            model.fit(*data(), 12, 3, verbose=0, callbacks=callbacks)
        except (KeyboardInterrupt, threading.BrokenBarrierError):  # the second where another rank was first
            return None
        return digest(model)

    x, y = data()
    undisturbed = normalized("numpy", DataParallel(SHARDS))
    undisturbed.fit(x, y, 12, 3, verbose=0)
    for count, stop in ((4, 3), (1, 6), (3, 11), (2, None)):
        made = on_ranks(count, lambda d, stop=stop: work(d, stop))
    assert set(made) == {digest(undisturbed)}
    assert not (tmp_path / "backup").exists()


def test_another_number_of_shards_is_another_training(tmp_path: Path) -> None:
    def fit(shards: int, epochs: int) -> None:
        plain("numpy", DataParallel(shards)).fit(
            *data(), 12, epochs, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b", delete_checkpoint=False)]
        )

    fit(8, 1)
    with pytest.raises(ValueError, match="shards was 8, is 4"):
        fit(4, 2)


def test_only_the_first_rank_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(distribution: DataParallel) -> None:
        model, folder = plain("numpy", distribution), tmp_path / str(distribution.rank)
        folder.mkdir() if model.distribution.rank == 0 else None
        callbacks = [ModelCheckpoint(folder / "m.safetensors", verbose=1), CSVLogger(folder / "log.csv")]
        model.fit(*data(), 12, 1, verbose=2, callbacks=callbacks)
        model.evaluate(*data(), verbose=1)
        model.save_weights(folder / "weights.safetensors")

    on_ranks(2, work)
    assert sorted(p.name for p in (tmp_path / "0").iterdir()) == ["log.csv", "m.safetensors", "weights.safetensors"]
    assert not (tmp_path / "1").exists()
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["Epoch", "Epoch", "loss:"]


def test_ranks_that_are_about_to_do_otherwise_are_named() -> None:
    def work(distribution: DataParallel) -> None:
        plain("numpy", distribution).fit(*data(), 12, 1, verbose=0, seed=distribution.rank // 2)

    with pytest.raises(ValueError, match=r"the same seed\. Received: 0 on rank 0, 1 on rank 2\. Run the same"):
        on_ranks(3, work)


def test_a_program_shows_its_collectives() -> None:
    for ranks in (1, 2, 4):
        model = normalized("numpy", DataParallel(4, communicator=Planned(ranks - 1, ranks)))
        program = model.program(batch_size=12)
        names = [node.op.name for node in program.nodes]
        # Twice a normalisation, then once backward, and the end.
        assert names.count("all_reduce") == 2 * 2 + 2 + 1
        assert names.count("conv2d") == 2 * 4 // ranks
        assert program.value("x").shape[0] == 12 // ranks
        assert (program.bytes_sent > 0) == (ranks > 1)
    assert " all_reduce(" in str(model.explain(batch_size=12))
    assert "all_reduce" not in str(normalized("numpy", None).program())


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("name", ["normalized", "branched"])
def test_the_program_of_a_rank_does_what_its_step_does(name: str, count: int) -> None:
    """The same bits, and the same bytes to others."""
    ranks, stepwise = ThreadRanks(count), ThreadRanks(count)
    x, y = (a[:12] for a in data())

    def work(communicator: Any) -> int:
        model = MODELS[name]("numpy", DataParallel(4, communicator=communicator))
        program, held = model.program(batch_size=12), Group(4, communicator.rank, count).held()
        rows = slice(3 * held.start, 3 * held.stop)
        given: dict[str, Any] = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs}
        given |= {**model.get_weights(), "x": x[rows], "learning_rate": np.float32(model.optimizer.learning_rate)}
        labels = [y[rows].astype("int32"), y[rows, None].astype("float32")]
        given |= {"y": labels[0], "y0": labels[0], "y1": labels[1]}
        found = get_backend("numpy").compile(program)({v.name: given[v.name].copy() for v in program.inputs})
        model = MODELS[name]("numpy", DataParallel(4, communicator=stepwise.communicator(communicator.rank)))
        model.train_on_batch(x, targets(name, y))
        for path, array in model.get_weights().items():
            np.testing.assert_array_equal(found[path], array, err_msg=path)
        return program.bytes_sent

    assert ranks.run(work) == ranks.sent == stepwise.sent


def test_a_planned_rank_does_not_compute() -> None:
    with pytest.raises(ValueError, match="have numbers from 0 on"):
        Planned(2, 2)
    model = plain("numpy", DataParallel(4, communicator=Planned(1, 2)))
    with pytest.raises(RuntimeError, match=r"rank 1 of 2, which is planned only\. Print model\.program"):
        model.fit(*data(), 12, verbose=0)


def test_a_summary_tells_what_a_rank_has_of_split_kernels() -> None:
    layers = [Flatten(), Dense(8), Dense(3, activation="softmax")]
    model = Sequential([Input((16,)), *layers])
    model.compile("sgd", distribution=ModelParallel(4))
    text = str(model.summary(print_fn=None)).splitlines()[-1]
    assert text.startswith("163 weights, 163 of them trainable; ")
    assert text.endswith(f"for a batch of 1; each of 4 ranks has {16 * 2 + 8 + 8 * 3 + 3} weights")


class Counting(Layer):
    """Remembers something of the first sample that it saw."""

    def build(self, input_shape: Any) -> None:
        self.seen = self.add_weight("seen", (), "zeros", trainable=False)

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        from minicnn import ops

        if training:
            self.assign("seen", ops.sum(inputs[:1]))
        return inputs


class Centred(Layer):
    """Takes away the mean over the batch by itself."""

    def call(self, inputs: Any) -> Any:
        from minicnn import ops

        return inputs - ops.mean(inputs, axes=0, keepdims=True)


class Noise(Layer):
    """Adds the same numbers to all samples."""

    def __init__(self, per_sample: bool) -> None:
        super().__init__()
        self.per_sample = per_sample

    def call(self, inputs: Any) -> Any:
        return inputs + self.random_uniform(inputs.shape[1:], per_sample=self.per_sample)


def _with(layer: Layer) -> Sequential:
    model = Sequential([Input(SHAPE), Flatten(), layer, Dense(CLASSES, activation="softmax")])
    model.compile("sgd", distribution=DataParallel(4))
    return model


def test_what_depends_on_a_shard_is_refused() -> None:
    x, y = data()
    with pytest.raises(ValueError, match=r"Received: 'counting/seen', which depends on the samples of a shard"):
        _with(Counting()).train_on_batch(x, y)
    with pytest.raises(ValueError, match=r"Received: 'centred', in which mean goes over the samples"):
        _with(Centred()).train_on_batch(x, y)
    with pytest.raises(ValueError, match=r"its samples along the first axis.*Give per_sample=False"):
        _with(Noise(True)).train_on_batch(x, y)
    _with(Noise(False)).train_on_batch(x, y)


def test_a_mask_that_samples_share_is_one_mask() -> None:
    x, y = np.ones((8, *SHAPE), "float32"), np.zeros(8, "int32")
    for shared in (None, 1):
        whole, cut = (
            Sequential([Input(SHAPE), Flatten(), Dropout(0.5, (shared, None)), Dense(2, activation="softmax")], seed=3)
            for _ in range(2)
        )
        whole.compile("sgd")
        cut.compile("sgd", accumulate=8)
        for model in (whole, cut):
            model.train_on_batch(x, y)
        first = whole.get_weights()
        for path, array in cut.get_weights().items():
            np.testing.assert_allclose(array, first[path], rtol=SUM, atol=ELEMENT)


def test_arguments() -> None:
    for shards in (0, 2.5, True):
        with pytest.raises(ValueError, match="shards is an integer of at least 1"):
            DataParallel(shards)  # type: ignore[arg-type]
    for timeout in (0, "5", None, True):
        with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
            DataParallel(2, timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Received: object, which lacks rank, size, .*Give one of minicnn"):
        DataParallel(2, communicator=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Received: shards=2 for 3 ranks\. Give more shards"):
        ThreadRanks(3).run(lambda c: DataParallel(2, communicator=c))
    with pytest.raises(ValueError, match="Leave accumulate out"):
        plain("numpy", DataParallel(2), accumulate=2)
    with pytest.raises(ValueError, match="accumulate is an integer of at least 1"):
        plain("numpy", None, accumulate=0)
    with pytest.raises(TypeError, match="distribution is a DataParallel"):
        plain("numpy", "data")


def test_copies_and_pickles_are_distributed_likewise() -> None:
    model = plain("numpy", DataParallel(4, timeout=7))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(made.distribution) == "DataParallel(shards=4, timeout=7)"


def test_launchers_are_recognised_by_what_they_tell_a_process() -> None:
    assert isinstance(find(1.0, {}), OneProcess)
    assert isinstance(find(1.0, {"PMI_SIZE": "1"}), OneProcess)
    for environment, launcher in (
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("", 0, 1)), ({"RANK": "1", "WORLD_SIZE": "3"}, ("torchrun", 1, 3)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "RANK": "0", "WORLD_SIZE": "2"}, ("mpi", 2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpi", 0, 2)),
    ):  # fmt: skip
        assert launched(environment) == launcher


@pytest.mark.parametrize("name", ["normalized", "branched"])
def test_sums_that_go_while_gradients_are_made_have_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trained(name, "numpy", DataParallel(4))
    monkeypatch.setattr(passes, "BUCKET", 500)  # bytes, so that there are several
    beside: set[bool] = set()

    def work(communicator: Any) -> Any:
        thread, exchange = threading.get_ident(), communicator.exchange

        def noted(*arrays: Any) -> None:
            beside.add(threading.get_ident() != thread)
            exchange(*arrays)

        communicator.exchange = noted
        return trained(name, "numpy", DataParallel(4, communicator=communicator))

    assert trained(name, "numpy", DataParallel(4)) == alone
    for ranks in (2, 3):
        assert ThreadRanks(ranks).run(work) == [alone] * ranks
    assert True in beside


def test_an_error_beside_the_backward_pass_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BUCKET", 500)

    def work(communicator: Any) -> None:
        model = normalized("numpy", DataParallel(4, communicator=communicator))
        model.fit(*data(), 12, verbose=0)
        communicator.exchange = lambda *_: 1 / 0
        model.fit(*data(), 12, verbose=0)

    with pytest.raises(ZeroDivisionError):
        ThreadRanks(2).run(work)
