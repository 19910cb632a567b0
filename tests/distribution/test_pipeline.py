"""Layers on different ranks: the same bits on any number of them, and the numbers of a training in one piece."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn import layers as nn
from minicnn.backends import get_backend
from minicnn.callbacks import BackupAndRestore
from minicnn.distribution import Pipeline, Planned
from minicnn.distribution.pipeline_schedule import SubCommunicator
from minicnn.optimizers import OPTIMIZERS, SGD, Adam
from minicnn.program import Program
from support.distributed import CLASSES, SHAPE, HalfBackend, branched, data, deep, digest, left_by, targets
from support.ranks import ThreadRanks
from support.tolerances import LONG_SUM, LONG_TRAINING

CUTS, SHARDS = ["conv2d_1", "flatten", "dense_1"], 5


# Without a bias in front of a normalisation, whose gradient is rounding: some optimizers step by its sign.
made = partial(deep, {"kernel_regularizer": "l2", "use_bias": False})
trained = partial(left_by, 12)  # and one of 2


def on_ranks(count: int, work: Any, cuts: Any = CUTS) -> list[Any]:
    return ThreadRanks(count).run(lambda c: work(Pipeline(cuts, shards=SHARDS, communicator=c)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", [SGD(0.05, momentum=0.9), Adam(0.01, global_clipnorm=0.5)], ids=["sgd", "adam"])
def test_any_number_of_ranks_computes_the_same_bits(optimizer: Any) -> None:
    """Of more than four ranks there are several pipelines, of which the last batch leaves some without a shard."""
    (alone,) = on_ranks(1, lambda d: trained(made(d, optimizer=copy.deepcopy(optimizer))))
    for count in (2, 3, 4, 6, 11):
        found = on_ranks(count, lambda d: trained(made(d, optimizer=copy.deepcopy(optimizer))))
        assert found == [alone] * count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["adagrad", "lion", "muon", "nadam", "rmsprop"])
def test_every_optimizer_trains_in_stages(name: str) -> None:
    """The same bits on any number of ranks, the numbers of a training in one piece, and state beside its weight."""
    x, y = data()
    options = {} if name == "muon" else {"weight_decay": 0.1}

    def work(distribution: Any) -> Any:
        model = made(distribution, optimizer=OPTIMIZERS[name](learning_rate=0.01, **options))  # type: ignore[call-arg]
        for size in (15, 14):
            model.train_on_batch(x[:size], y[:size])
        if isinstance(distribution, Pipeline):
            held = {
                n: c.value.array is not None
                for n, c in model._training.variables.cells.items()
                if hasattr(c.value, "array")
            }
            for path in model._weights:
                assert all(there == held[path] for n, there in held.items() if n.endswith(f"/{path}")), held
        return digest(model), model.get_weights()

    (alone,) = on_ranks(1, work)
    for count in (2, 4):
        assert [bits for bits, _ in on_ranks(count, work)] == [alone[0]] * count
    for path, array in work(None)[1].items():
        # Where a gradient is near 0 these optimizers step by little more than its sign.
        tolerance = {"atol": 2e-2 if name in ("lion", "muon", "nadam") else 2e-3}
        np.testing.assert_allclose(alone[1][path], array, rtol=LONG_TRAINING, err_msg=path, **tolerance)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_stages_learn_what_the_whole_does(backend: str) -> None:
    x, y = data()
    whole, cut = (made(d, backend, SGD(0.05, momentum=0.9)) for d in (None, Pipeline(CUTS, shards=SHARDS)))
    for model in (whole, cut):
        for size in (15, 14):
            model.train_on_batch(x[:size], y[:size])
    for path, array in whole.get_weights().items():
        np.testing.assert_allclose(cut.get_weights()[path], array, rtol=LONG_TRAINING, atol=LONG_SUM, err_msg=path)


def test_what_crosses_in_mixed_precision() -> None:
    pytest.importorskip("torch")
    x, y = data()

    def work(distribution: Any) -> str:
        model = made(distribution, "torch", precision="mixed_bfloat16")
        model.train_on_batch(x[:15], y[:15])
        return digest(model)

    (alone,) = on_ranks(1, work)
    for count in (3, 5):
        assert on_ranks(count, work) == [alone] * count


def test_a_step_that_is_skipped_is_skipped_in_all_stages() -> None:
    x, y = data()
    x[2] = 1e6  # more than float16 holds

    def work(distribution: Any) -> Any:
        model = made(distribution, HalfBackend(), SGD(0.1), precision="mixed_float16")  # type: ignore[arg-type]
        before = digest(model)
        with np.errstate(all="ignore"):
            logs = model.train_on_batch(x[:15], y[:15], return_dict=True)
        assert logs["skipped_steps"] == 1
        assert digest(model) == before
        model.train_on_batch(x[15:30], y[15:30])
        return digest(model)

    (alone,) = on_ranks(1, work)
    assert on_ranks(3, work) == [alone] * 3


def test_branches_that_are_joined_in_another_stage() -> None:
    def work(distribution: Any) -> Any:
        model, (x, y) = branched("numpy", distribution), data()
        logs = model.fit(x, targets("branched", y), 12, 1, verbose=0).history
        return digest(model), logs

    (alone,) = on_ranks(1, work, ["add", "max_pooling2d"])
    for count in (2, 3, 5):
        assert on_ranks(count, work, ["add", "max_pooling2d"]) == [alone] * count


def test_a_rank_has_the_weights_of_its_layers_alone() -> None:
    summaries = [None, None]

    def work(distribution: Any) -> Any:
        model = made(distribution)
        summaries[distribution.rank] = model.summary(print_fn=None)
        model.train_on_batch(*(a[:15] for a in data()))
        return [path for path in model._weights if model._training.variables.cells[path].value.array is not None]

    first, second = on_ranks(2, work)
    assert {path.split("/")[0] for path in first} == {"conv2d", "batch_normalization", "conv2d_1"}
    assert {path.split("/")[0] for path in second} == {"dense", "dense_1"}
    sizes = {path: a.size for path, a in made(None).get_weights().items()}
    for rank, paths in enumerate((first, second)):
        assert f"; rank {rank} of 2 trains with {sum(sizes[path] for path in paths):,} weights" in str(summaries[rank])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_the_program_of_a_rank_does_what_its_step_does(count: int) -> None:
    """The same bits, and the same bytes to others; what it has of a batch are the rows of its pipeline."""
    ranks, stepwise = ThreadRanks(count), ThreadRanks(count)
    x, y = (a[:14] for a in data())

    def work(communicator: Any) -> int:
        model = made(Pipeline(CUTS, shards=SHARDS, communicator=communicator))
        program = model.program(batch_size=14)
        given = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs}
        # Seven ranks are two pipelines, with 2 and 3 of the shards.
        rows = slice(0, 14) if count < 5 else slice(0, 5) if communicator.rank < 3 else slice(5, 14)
        given |= {**model.get_weights(), "learning_rate": np.float32(0.01)}
        given |= {"x": x[rows], "y": y[rows].astype("int32")}
        found = get_backend("numpy").compile(program)({v.name: given[v.name].copy() for v in program.inputs})
        model = made(Pipeline(CUTS, shards=SHARDS, communicator=stepwise.communicator(communicator.rank)))
        assert model.train_on_batch(x, y)[0] == pytest.approx(found["loss"])
        cells = model._training.variables.cells
        held = {path: getattr(cells[path].value, "array", cells[path].value) for path in cells}
        assert {path for path, array in held.items() if array is not None} == found.keys() & held.keys()
        for path in found.keys() & held.keys():
            np.testing.assert_array_equal(found[path], held[path])
        return program.bytes_sent

    stated = ranks.run(work)
    assert stated == ranks.sent == stepwise.sent
    assert all(letters.empty() for each in (ranks, stepwise) for letters in each.boxes.values())


def test_the_program_shows_what_crosses_and_the_memory_of_a_rank() -> None:
    def shown(rank: int, size: int) -> Program:
        model = made(Pipeline(CUTS, shards=SHARDS, communicator=Planned(rank, size)))
        assert ("send(" in str(model.explain(batch_size=15))) == (size > 1)
        return model.program("train", batch_size=15)

    first, second, alone = shown(0, 2), shown(1, 2), shown(0, 1)
    assert alone.bytes_sent == 0
    for program in (first, second):
        assert {"send", "receive"} <= {node.op.name for node in program.nodes}
        assert program.memory().peak_bytes <= alone.memory().peak_bytes
    assert "x" in {v.name for v in first.inputs}
    assert "y" in {v.name for v in second.inputs}
    assert not {"x", "conv2d/kernel"} & {v.name for v in second.inputs}
    assert "receive(" in str(second)


def test_ranks_send_what_crosses_between_their_stages() -> None:
    """Images between two layers and their gradients, and some numbers."""
    ranks = ThreadRanks(2)
    x, y = data()

    def work(communicator: Any) -> None:
        layers = [nn.Dense(6), nn.Dense(5), nn.Dense(CLASSES, activation="softmax")]
        model = Sequential([nn.Input(SHAPE), nn.Flatten(), *layers])
        model.compile(SGD(0.1), distribution=Pipeline(["dense_1"], shards=2, communicator=communicator))
        model.train_on_batch(x[:16], y[:16])

    ranks.run(work)
    crossing = 16 * 6 * 4  # bytes of what the first layer gives
    assert [crossing <= sent <= crossing + 50 for sent in ranks.sent] == [True, True], ranks.sent


def test_a_batch_of_one_sample_goes_through_all_stages() -> None:
    def work(distribution: Any) -> Any:
        model, (x, y) = made(distribution), data()
        return model.train_on_batch(x[:1], y[:1]), digest(model)

    (alone,) = on_ranks(1, work)
    for count in (2, 5):
        assert on_ranks(count, work) == [alone] * count


def test_a_rank_with_the_first_stage_keeps_no_more_shards_than_there_are_stages() -> None:
    """Of its arena, since each shard goes back as soon as it can."""

    def arena(shards: int) -> int:
        layers = [nn.Conv2D(8, 3), nn.ReLU(), nn.Conv2D(4, 3), nn.Flatten(), nn.Dense(CLASSES, activation="softmax")]
        model = Sequential([nn.Input(SHAPE), *layers])
        pipeline = Pipeline(["conv2d_1"], shards=shards, communicator=ThreadRanks(2).communicator(0))
        model.compile(SGD(0.1), distribution=pipeline)
        return model.program(batch_size=4 * shards).memory().arena_bytes

    assert arena(12) < 1.2 * arena(3)


def test_a_training_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    def work(distribution: Any, epochs: int) -> Any:
        backup = BackupAndRestore(tmp_path / "backup", save_freq=1, delete_checkpoint=False)
        return trained(made(distribution), epochs, callbacks=[backup])

    (undisturbed,) = on_ranks(1, lambda d: trained(made(d), 3))
    for count, epochs in ((4, 1), (1, 2), (3, 3)):
        found = on_ranks(count, lambda d, epochs=epochs: work(d, epochs))
    assert [each[0] for each in found] == [undisturbed[0]] * 3


def test_what_does_not_go_is_refused() -> None:
    x, y = data()
    for cuts in (["dense_7"], ["dense", "conv2d_1"]):
        with pytest.raises(
            ValueError, match=r"stages come in the order of the layers\. Received: '(dense_7|conv2d_1)'"
        ):
            made(Pipeline(cuts, shards=2)).train_on_batch(x, y)
    for stages in ("flatten", 5, None):
        with pytest.raises(ValueError, match=rf"stages is a list of names .* Received: stages={stages!r}"):
            Pipeline(stages, shards=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"which are 2, and shards=2 for 5 ranks\. Name more layers"):
        ThreadRanks(5).run(lambda c: Pipeline(["dense"], shards=2, communicator=c))


def test_copies_and_pickles_are_distributed_likewise() -> None:
    model = made(Pipeline(CUTS, shards=SHARDS, timeout=7))
    model.train_on_batch(*data())
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(same.distribution) == f"Pipeline({CUTS}, shards=5, timeout=7)"
        assert digest(same) == digest(model)


def test_some_ranks_of_a_communicator_are_one_with_numbers_of_their_own() -> None:
    """Ranks 2 and 0 of three, in this order: rank 1 takes no part."""
    members = [2, 0]

    def work(communicator: Any) -> Any:
        if communicator.rank not in members:
            return None
        part = SubCommunicator(communicator, members)
        total, texts = np.full(3, part.rank + 1.0), part.share(b"ab"[: part.rank + 1])
        part.add(total)
        if part.rank == 0:
            part.send(np.arange(2.0), 1, 7)
            return part.size, total, texts
        received = np.zeros(2)
        part.receive(received, 0, 7)
        return part.size, total, texts, received

    second, outsider, first = ThreadRanks(3).run(work)
    assert outsider is None
    assert first[0] == second[0] == 2
    assert first[2] == second[2] == [b"a", b"ab"]
    for total in (first[1], second[1]):
        np.testing.assert_array_equal(total, [3.0, 3.0, 3.0])
    np.testing.assert_array_equal(second[3], [0.0, 1.0])
