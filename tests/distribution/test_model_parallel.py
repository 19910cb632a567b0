"""Kernels split by columns: the same bits on any number of ranks, the same numbers as whole ones but for rounding."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, ops
from minicnn import layers as nn
from minicnn.callbacks import BackupAndRestore, EarlyStopping, ModelCheckpoint
from minicnn.distribution import DataParallel, ModelParallel, Planned
from minicnn.distribution.exchanges import exchange
from minicnn.ops import all_gather, all_to_all, reduce_scatter
from minicnn.ops.groups import Group
from minicnn.optimizers import SGD, Muon
from minicnn.program.graph import Program
from support.distributed import CLASSES, SHAPE, data, deep, digest, left_by
from support.ranks import ThreadRanks
from support.tolerances import LONG_SUM, LONG_TRAINING

SHARDS = 4
DENSE = {"dense.*kernel": (None, "model")}


made = partial(deep, {"strides": 2, "padding": "same"})
trained = partial(left_by, 15)  # and one of 5


def on_ranks(count: int, work: Any, **about: Any) -> list[Any]:
    return ThreadRanks(count).run(lambda c: work(ModelParallel(SHARDS, communicator=c, **about)))


def close(split: Model, whole: Model) -> None:
    for path, array in whole.get_weights().items():
        np.testing.assert_allclose(split.get_weights()[path], array, rtol=LONG_TRAINING, atol=LONG_SUM, err_msg=path)


@pytest.mark.parametrize("about", [{"layout_map": None}, {"layout_map": DENSE}, {"layout_map": DENSE, "groups": 2}],
                         ids=["model", "hybrid", "groups"])  # fmt: skip
def test_any_number_of_ranks_computes_the_same_bits(about: Any) -> None:
    (alone,) = on_ranks(1, lambda d: trained(made(d)), **about)
    for count in (2, 3, 4):
        assert on_ranks(count, lambda d: trained(made(d)), **about) == [alone] * count


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_split_kernels_learn_what_whole_ones_do(backend: str, groups: int) -> None:
    x, y = data()
    models = [made(d, backend, SGD(0.05, momentum=0.9)) for d in (None, ModelParallel(SHARDS, groups=groups))]
    for model in models:
        for size in (15, 14):  # shards of 4 and 3 samples
            model.train_on_batch(x[:size], y[:size])
    close(models[1], models[0])


def test_a_loss_without_labels_is_one_of_all_samples() -> None:
    def work(distribution: DataParallel | None) -> Model:
        model = Sequential([nn.Input(SHAPE), nn.Flatten(), nn.Dense(4)], backend="numpy")
        model.compile(SGD(0.05), lambda y_true, y_pred: ops.sum(ops.square(y_pred), axes=1), distribution=distribution)
        model.train_on_batch(*(array[:8] for array in data()))
        return model

    close(work(ModelParallel(2)), work(None))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_compiled_steps_with_split_kernels(backend: str) -> None:
    x, y = data()
    models = []
    for distribution in (None, ModelParallel(2)):
        models.append(Sequential([nn.Input(SHAPE), nn.Flatten(), nn.Dense(4, activation="softmax")], backend=backend))
        models[-1].compile(SGD(0.05, momentum=0.9), distribution=distribution)
        for _ in range(2):
            models[-1].train_on_batch(x[:8], y[:8] % 4)
    close(models[1], models[0])


@pytest.mark.parametrize("clip", [{"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}])
def test_norms_are_those_of_whole_gradients(clip: dict[str, float]) -> None:
    x, y = data()
    ways = (None, ModelParallel(SHARDS), ModelParallel(SHARDS, groups=2))
    models = [made(d, optimizer=SGD(0.5, **clip)) for d in ways]  # type: ignore[arg-type]
    for model in models:
        model.train_on_batch(x[:16], y[:16])
    for model in models[1:]:
        close(model, models[0])


def test_a_program_shows_what_is_split() -> None:
    rank = Planned(0, SHARDS)
    program = made(ModelParallel(SHARDS, communicator=rank)).program(batch_size=16)
    assert program.value("conv2d_1/kernel").shape == (3, 3, 4, 2)
    assert program.value("dense/kernel").shape == (32, 2)
    assert program.value("dense_1/kernel").shape == (8, CLASSES)  # 5 columns are not 4 parts
    text = str(program)
    assert text.count(" all_to_all(") == 3 + 3  # forward and backward
    assert text.count(" reduce_scatter(") == 2  # the gradients of the samples; nobody wants that of the images
    hybrid = made(ModelParallel(SHARDS, layout_map=DENSE, communicator=rank)).program(batch_size=16)
    assert hybrid.value("conv2d_1/kernel").shape == (3, 3, 4, 8)
    assert hybrid.value("dense/kernel").shape == (32, 2)
    summed = {v.shape for n in hybrid.nodes if n.op.name == "all_reduce" and n.phase == "backward" for v in n.inputs}
    assert (3, 3, 4, 8) in summed
    assert (32, 2) not in summed
    whole = made(ModelParallel(SHARDS)).program(batch_size=16)  # one rank has all columns
    assert whole.value("dense/kernel").shape == whole.updates["dense/kernel"].shape == (32, 8)
    assert not {"all_gather", "all_to_all", "reduce_scatter"} & {node.op.name for node in whole.nodes}


def test_groups_split_kernels_within_and_sum_gradients_between_them() -> None:
    """Two of two: columns in two parts, the gradient of each summed with that of the other group."""
    split = ModelParallel(SHARDS, layout_map=DENSE, groups=2, communicator=Planned(0, SHARDS))
    program = made(split).program(batch_size=16)
    assert program.value("dense/kernel").shape == (32, 4)
    gathers = [n.attrs["group"] for n in program.nodes if n.op.name == "all_gather"]
    assert gathers
    assert {(group.shards, group.stride) for group in gathers} == {(2, 1)}
    summed = [n for n in program.nodes if n.op.name == "all_reduce" and n.attrs["group"].stride == 2]
    assert [n.inputs[0].shape for n in summed] == [(32, 4)]
    assert [list(Group(2, 0, 2, stride=2).peers(s)) for s in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [list(Group(2, 0, 2, stride=1).peers(s)) for s in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    with pytest.raises(ValueError, match=r"groups divides the shards\. Received: groups=3 and shards=4"):
        ModelParallel(4, groups=3)


@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_send_what_the_program_of_a_shard_says(groups: int) -> None:
    """One shard a rank, one dense layer; of metrics and the batch's numbers a few bytes more."""
    ranks = ThreadRanks(4)

    def work(communicator: Any) -> int:
        model = Sequential([nn.Input((64,)), nn.Dense(128, use_bias=False)])
        model.compile(SGD(0.1), "mse", distribution=ModelParallel(4, groups=groups, communicator=communicator))
        x = np.zeros((16, 64), "float32")
        model.train_on_batch(x, np.zeros((16, 128), "float32"))
        return model.program(batch_size=16).bytes_sent

    assert ranks.run(work) == pytest.approx(ranks.sent, abs=20)


def test_a_rank_keeps_its_columns_alone() -> None:
    def work(distribution: Any) -> Any:
        model = made(distribution)
        model.train_on_batch(*(a[:16] for a in data()))
        return [a.shape for a in model._training.variables.cells["dense/kernel"].value.arrays]

    assert on_ranks(2, work) == [[(32, 2)] * 2] * 2
    assert on_ranks(4, work) == [[(32, 2)]] * 4


def test_limited_kernels_are_not_split() -> None:
    model = Sequential([nn.Input((4,)), nn.Dense(4, kernel_regularizer="l2"), nn.Dense(4, kernel_constraint="non_neg")])
    model.compile("sgd", "mse", distribution=ModelParallel(2))
    assert "all_gather" not in str(model.program(batch_size=4))


def test_a_training_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    def work(distribution: Any, epochs: int) -> Any:
        backup = BackupAndRestore(tmp_path / "backup", save_freq=1, delete_checkpoint=False)
        checkpoint = ModelCheckpoint(tmp_path / "{epoch}.safetensors", save_freq=2)
        stopping = EarlyStopping("loss", patience=9, restore_best_weights=True)
        return trained(made(distribution), epochs, callbacks=[backup, checkpoint, stopping])

    (undisturbed,) = on_ranks(1, lambda d: trained(made(d), 3))
    for count, epochs in ((4, 1), (1, 2), (3, 3)):
        found = on_ranks(count, lambda d, epochs=epochs: work(d, epochs))
    assert [each[0] for each in found] == [undisturbed[0]] * 3
    assert digest(Model.load(tmp_path / "3.safetensors", backend="numpy")) == undisturbed[0]
    with pytest.raises(ValueError, match="layout"):
        on_ranks(2, lambda d: work(d, 4), layout_map=DENSE)


def test_what_does_not_go_is_refused() -> None:
    x, y = data()
    with pytest.raises(ValueError, match=r"at least as many samples as there are shards. Received: 3 samples for 4"):
        made(ModelParallel(SHARDS)).train_on_batch(x[:3], y[:3])
    with pytest.raises(ValueError, match=r"Received: muon, in which matmul mixes elements"):
        made(ModelParallel(SHARDS), optimizer=Muon(0.01)).train_on_batch(x, y)
    with pytest.raises(ValueError, match="Kernels are split along their last axis"):
        ModelParallel(2, layout_map={"kernel": ("model", None)})
    with pytest.raises(ValueError, match=r"layout_map is a dictionary .* Received: \[\('kernel'"):
        ModelParallel(2, layout_map=[("kernel", (None, "model"))])  # type: ignore[arg-type]
    for key, wrong in (("(", "missing \\)"), (5, "first argument")):
        with pytest.raises(ValueError, match=f"are regular expressions of weights' paths. Received: .*: {wrong}"):
            ModelParallel(2, layout_map={key: (None, "model")})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"Received: 'kernal', and the weights .*/kernel.*, or use DataParallel"):
        made(ModelParallel(SHARDS, layout_map={"kernal": (None, "model")})).train_on_batch(x, y)
    plain = Sequential([nn.Input((4,)), nn.PReLU()])
    plain.compile("sgd", "mse", distribution=ModelParallel(2))
    with pytest.raises(ValueError, match=r"Received: 'kernel', and the weights .*alpha. Mend it, or use DataParallel"):
        plain.train_on_batch(np.ones((4, 4), "float32"), np.ones((4, 4), "float32"))
    frozen = made(None)
    frozen.get_layer("dense").trainable = False
    frozen.compile("sgd", distribution=ModelParallel(SHARDS, layout_map={"dense/kernel": (None, "model")}))
    frozen.train_on_batch(x, y)  # its path is there


def test_copies_and_pickles_are_distributed_likewise() -> None:
    x, y = data()
    model = made(ModelParallel(SHARDS, layout_map=DENSE, timeout=7))
    model.train_on_batch(x, y)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(same.distribution) == "ModelParallel(shards=4, layout=[('dense.*kernel', 2)], timeout=7)"
        assert digest(same) == digest(model)


def test_one_shard_is_the_whole() -> None:
    x, y = data()
    digests = []
    for distribution in (DataParallel(1), ModelParallel(1)):
        model = made(distribution)
        model.train_on_batch(x, y)
        digests.append(digest(model))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("op", [all_gather, all_to_all, reduce_scatter], ids=lambda op: op.name)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_collectives_of_several_shards_in_a_rank(op: Any, ranks: int) -> None:
    """What they are with a rank for each shard, whoever has which shards."""
    shards, rng = 6, np.random.default_rng(0)
    given = list(rng.standard_normal((shards, 6, 12)).astype("float32"))
    attrs = {"split": 0, "join": 1} if op is all_to_all else {"axis": 1}

    def alone(communicator: Any) -> Any:
        rank = communicator.rank
        return op.reference(given[rank], **attrs, group=Group(shards, rank, shards, communicator), xp=np)

    def several(communicator: Any) -> Any:
        group, program = Group(shards, communicator.rank, ranks, communicator), Program()
        op(program.input("x", given[0].shape), **attrs, group=Group(shards, 0, shards))
        return exchange(program.nodes[0], [given[s] for s in group.held()], group)

    expected = ThreadRanks(shards).run(alone)
    found = [array for each in ThreadRanks(ranks).run(several) for array in each]
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
