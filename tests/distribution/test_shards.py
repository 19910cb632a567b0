"""What a batch that is cut into shards computes is what it computes whole: penalties, draws, metrics, optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, layers, metrics, ops
from minicnn.backends import get_backend
from minicnn.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateScheduler,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from minicnn.constraints import MaxNorm, MinMaxNorm, UnitNorm
from minicnn.distribution import DataParallel, Planned, passes
from minicnn.distribution.schedule import Piece
from minicnn.layers import Dense, Flatten, Input, Layer
from minicnn.loop.tracing import FIRST_SCALE
from minicnn.losses import Dice
from minicnn.optimizers import OPTIMIZERS, SGD
from minicnn.program.graph import Value
from minicnn.regularizers import L1, L1L2, L2, OrthogonalRegularizer
from minicnn.utils import PyDataset
from support.distributed import HalfBackend, digest
from support.ranks import ThreadRanks
from support.tolerances import SUM

SHAPE, CLASSES, BATCH = (6, 5, 3), 4, 12
CUT = 5  # 12 samples are shards of 3, 3, 2, 2 and 2


def data(samples: int = BATCH) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return rng.random((samples, *SHAPE)).astype("float32"), rng.integers(0, CLASSES, samples)


def made(*first: Layer, loss: Any = "sparse_categorical_crossentropy", optimizer: Any = None, **about: Any) -> Any:
    rest = [Flatten(), Dense(CLASSES, activation="softmax")]
    model = Sequential([Input(SHAPE), *first, *rest], backend=about.pop("backend", "numpy"), seed=2)
    model.compile(optimizer or SGD(0.1), loss, **about)
    return model


def same(*models: Any, tolerance: float = 1e-5) -> None:
    whole, cut = (model.get_weights() for model in models)
    for path, array in whole.items():
        np.testing.assert_allclose(cut[path], array, rtol=tolerance, atol=tolerance, err_msg=path)


def ranks_agree(work: Any, *counts: int) -> Any:
    """The result of work(distribution), which is the same on all ranks, however many there are."""
    (alone,) = ThreadRanks(1).run(lambda c: work(DataParallel(CUT, communicator=c)))
    for count in counts or (2, 3):
        assert ThreadRanks(count).run(lambda c: work(DataParallel(CUT, communicator=c))) == [alone] * count
    return alone


# Penalties and constraints ------------------------------------------------------------------------------------------


def centred(w: Value) -> Value:
    """A penalty with a node made of constants alone, and one that repeats a number as often as a shard has samples."""
    ones = ops.broadcast_to(w.program.constant(1.0, w.dtype), shape=(3, w.shape[-1]))
    return ops.sum(ops.square(w - ops.sum(ones, axes=0, keepdims=True) * 0.1)) * 0.03


def penalised(**about: Any) -> Any:
    hidden = [
        Dense(3, kernel_regularizer=OrthogonalRegularizer(0.2), bias_regularizer=L1(0.1)),  # its kernel is (3, 3)
        Dense(2, kernel_regularizer=L1L2(0.02, 0.05), bias_constraint="non_neg"),
        Dense(3, kernel_regularizer=centred, kernel_constraint=MaxNorm(0.5)),
        Flatten(),
        Dense(6, kernel_regularizer=L1L2(), kernel_constraint=UnitNorm(), activation="relu"),
        Dense(4, kernel_regularizer=L2(0.1), kernel_constraint=MinMaxNorm(0.3, 0.8, 0.5)),
    ]
    return made(*hidden, **about)


@pytest.mark.parametrize("cut", [2, CUT, BATCH])
def test_penalties_count_once(cut: int) -> None:
    models = [penalised(), penalised(accumulate=cut)]
    x, y = data()
    for _ in range(3):
        whole, parts = (model.train_on_batch(x, y) for model in models)
        assert parts == pytest.approx(whole, rel=SUM)
    same(*models)
    whole, parts = (model.evaluate(x, y) for model in models)
    assert parts == pytest.approx(whole, rel=SUM)
    plain = made(accumulate=cut)
    assert plain.evaluate(x, y) < parts  # penalties are a part of it


def test_penalties_have_the_same_bits_on_any_number_of_ranks() -> None:
    def work(distribution: DataParallel) -> Any:
        model = penalised(distribution=distribution)
        history = model.fit(*data(20), 12, 2, verbose=0).history  # 12 and 8 samples
        return digest(model), history

    ranks_agree(work, 2, 3, 5)


# Draws --------------------------------------------------------------------------------------------------------------


class Custom(Layer):
    """Adds a number of its own to each pixel."""

    def call(self, inputs: Any) -> Any:
        return inputs + self.random_uniform(inputs.shape)


DRAWING = {
    "Dropout": layers.Dropout(0.4),
    "GaussianNoise": layers.GaussianNoise(0.5),
    "RandomBrightness": layers.RandomBrightness(0.5, (0.0, 1.0)),
    "RandomContrast": layers.RandomContrast(0.5),
    "RandomCrop": layers.RandomCrop(3, 3),
    "RandomFlip": layers.RandomFlip(),
    "RandomRotation": layers.RandomRotation(0.3),
    "RandomTranslation": layers.RandomTranslation(0.4, 0.4),
    "RandomZoom": layers.RandomZoom(0.4),
    "SpatialDropout2D": layers.SpatialDropout2D(0.4),
    "Custom": Custom(),
}


def test_all_layers_that_draw_are_tried() -> None:
    named = {name for name in vars(layers) if any(word in name for word in ("Random", "Drop", "Noise"))}
    assert named | {"Custom"} == set(DRAWING)


@pytest.mark.parametrize("name", DRAWING)
def test_draws_go_by_the_place_in_the_whole_batch(name: str) -> None:
    x, y = data()
    models = [made(DRAWING[name]), made(DRAWING[name], accumulate=CUT)]
    for _ in range(2):
        whole, parts = (model.train_on_batch(x, y) for model in models)
        assert parts == pytest.approx(whole, rel=SUM)
    same(*models)


def test_draws_have_the_same_bits_on_any_number_of_ranks() -> None:
    def work(distribution: DataParallel) -> str:
        drawing = [DRAWING[name] for name in ("RandomFlip", "RandomTranslation", "GaussianNoise", "Custom")]
        model = made(*drawing, distribution=distribution)
        model.fit(*data(20), 12, 1, verbose=0)
        return digest(model)

    ranks_agree(work)


class BySize(Layer):
    """Adds a weight times the number of samples that it sees."""

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight("w", (), "ones")

    def call(self, inputs: Any) -> Any:
        return inputs + self.w * float(inputs.shape[0])


def test_what_depends_on_the_size_of_a_shard_is_refused() -> None:
    made(BySize(), accumulate=4).train_on_batch(*data())
    with pytest.raises(
        ValueError, match=r"otherwise for 2 than for 3 samples: multiply in 'by_size'\. Choose a batch size"
    ):
        made(BySize(), accumulate=CUT).train_on_batch(*data())


# Metrics and losses -------------------------------------------------------------------------------------------------


def all_metrics() -> list[Any]:
    others = (metrics.RootMeanSquaredError, metrics.CosineSimilarity)  # of numbers, not of class numbers
    kinds = {kind for kind in metrics.METRICS.values() if kind not in others}
    given = [kind() for kind in sorted(kinds, key=lambda kind: kind.__name__)]
    return [
        *given, metrics.MeanIoU(CLASSES, sparse_y_pred=False), metrics.AUC(curve="PR", name="pr", num_thresholds=20),
        metrics.Precision(top_k=2, name="top"), metrics.Recall(class_id=1, name="one"),
        metrics.F1Score("weighted", name="f1"),
    ]  # fmt: skip


def test_metrics_are_sums_over_shards() -> None:
    x, y = data(20)
    weight = np.linspace(0.5, 2, 20).astype("float32")
    whole, parts = (
        made(metrics=all_metrics(), **about).evaluate(x, y, 12, sample_weight=weight, return_dict=True)
        for about in ({}, {"accumulate": CUT})
    )
    assert len(whole) == len(all_metrics()) + 1
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=SUM, err_msg=name)


def test_metrics_are_the_same_on_all_ranks() -> None:
    def work(distribution: DataParallel) -> Any:
        model = made(metrics=all_metrics(), distribution=distribution)
        logs = model.fit(*data(20), 12, 1, verbose=0).history | model.evaluate(*data(20), 7, return_dict=True)
        return {name: np.asarray(value).tobytes() for name, value in logs.items()}

    ranks_agree(work)


def test_a_loss_over_the_whole_batch_is_refused() -> None:
    x, y = data()
    targets = np.eye(CLASSES, dtype="float32")[y]
    made(loss=Dice()).train_on_batch(x, targets)
    for call in ("train_on_batch", "evaluate"):
        with pytest.raises(
            ValueError, match=r"depends on no other sample, .* Received: 'Dice', in which sum goes over"
        ):
            getattr(made(loss=Dice(), accumulate=CUT), call)(x, targets)
    models = [made(loss=Dice(axis=-1)), made(loss=Dice(axis=-1), accumulate=CUT)]
    for model in models:
        model.train_on_batch(x, targets)
    same(*models)


# Optimizers ---------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(18)
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.02}])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_see_the_gradients_of_the_whole_batch(name: str, clip: dict[str, float]) -> None:
    x, y = data()
    models = []
    for cut in (1, CUT):
        optimizer = OPTIMIZERS[name](0.01, weight_decay=0.01, **clip)  # type: ignore[call-arg]
        # Signs of gradients that are nearly zero are rounding: there are none here.
        models.append(made(Dense(3, kernel_constraint="max_norm"), optimizer=optimizer, accumulate=cut))
        for _ in range(2):
            models[-1].train_on_batch(x, y)
    same(*models, tolerance=1e-3)


# Loss scaling -------------------------------------------------------------------------------------------------------


def scaled(**about: Any) -> Any:
    return made(Dense(3, kernel_regularizer=L2(0.1)), backend=HalfBackend(), precision="mixed_float16", **about)


def test_loss_scaling_is_that_of_the_whole_batch() -> None:
    models = [scaled(), scaled(accumulate=CUT)]
    for model in models:
        for _ in range(3):
            model.train_on_batch(*data())
        assert model.get_state()["arrays"]["loss_scale/factor"] == FIRST_SCALE
    same(*models, tolerance=2e-3)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_all_shards_skip_a_step_together() -> None:
    x, y = data(20)
    x[[2, 13]] = 1e6  # more than float16 holds, in one shard of each batch

    def work(distribution: DataParallel) -> Any:
        model = scaled(distribution=distribution)
        before = digest(model)
        history = model.fit(x, y, 12, 1, verbose=0, shuffle=False).history
        assert history["skipped_steps"] == [2]
        assert digest(model) == before
        state = model.get_state()["arrays"]
        assert state["loss_scale/factor"] == FIRST_SCALE / 4
        model.fit(*data(), verbose=0)
        assert digest(model) != before
        return digest(model), float(state["step"])

    ranks_agree(work)


# Data and callbacks -------------------------------------------------------------------------------------------------


class Batches(PyDataset):
    """Batches of 12 and 8."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        x, y = data(20)
        return x[12 * index :][:12], y[12 * index :][:12]


def endless() -> Iterator[Any]:
    while True:
        yield from Batches()


class Counted(Callback):
    """Counts the batches of each kind."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.seen.append((batch, logs["loss"]))

    def on_test_batch_end(self, batch: int, logs: Any) -> None:
        self.seen.append((batch, logs["loss"]))

    def on_predict_batch_end(self, batch: int, logs: Any) -> None:
        self.seen.append((batch, logs["outputs"][0].tobytes()))


@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator"])
def test_kinds_of_data_and_the_arguments_of_fit(kind: str) -> None:
    def work(distribution: DataParallel) -> Any:
        model, counted = made(distribution=distribution), Counted()
        x, y = data(20)
        given = {"arrays": (x, y), "dataset": (Batches(),), "generator": (endless(),)}[kind]
        history = model.fit(
            *given, epochs=4, verbose=0, steps_per_epoch=3, validation_data=(x, y), validation_freq=2,
            validation_batch_size=7, validation_steps=2, callbacks=[counted],
            **({"batch_size": 12} if kind == "arrays" else {}),
        ).history  # fmt: skip
        model.evaluate(x, y, 7, callbacks=[counted])
        model.test_on_batch(x, y)
        model.predict(x, 7, callbacks=[counted])
        return digest(model), history, counted.seen

    _, history, seen = ranks_agree(work, 3)
    assert len(history["loss"]) == 4
    assert len(history["val_loss"]) == 2
    assert len(seen) == 4 * 3 + 2 * 2 + 3 + 3


def test_adapted_layers_are_the_same_on_all_ranks() -> None:
    x, y = data()

    def work(distribution: DataParallel, part: int = 0) -> str:
        layer = layers.Normalization()
        layer.adapt(x[part:])
        model = made(layer, distribution=distribution)
        model.fit(x, y, verbose=0)
        return digest(model)

    ranks_agree(work)
    with pytest.raises(ValueError, match=r"begin with the same normalization/mean\."):
        ThreadRanks(2).run(lambda c: work(DataParallel(CUT, communicator=c), c.rank))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"validation_freq": 2}, r"validation_freq\. Received: '1' on rank 0, '2' on rank 1"),
        ({"validation_steps": 1}, r"validation steps\. Received: 2 on rank 0, 1 on rank 1"),
        ({"class_weight": {0: 5.0}}, r"class_weight\. Received: 'None' on rank 0, '{0: 5.0}' on rank 1"),
        ({"sample_weight": np.ones(BATCH)}, r"sample_weight\. Received: 'none' on rank 0, 'given' on rank 1"),
    ],
)
def test_other_arguments_of_fit_are_named(other: dict[str, Any], named: str) -> None:
    def work(communicator: Any) -> None:
        model = made(distribution=DataParallel(CUT, communicator=communicator))
        model.fit(*data(), 6, verbose=0, validation_data=data(), **(other if communicator.rank else {}))

    with pytest.raises(ValueError, match=f"begin with the same {named}"):
        ThreadRanks(2).run(work)


def test_ranks_have_one_backend_with_a_device_each() -> None:
    def work(communicator: Any, strict: bool = False) -> None:
        backend = type(get_backend("numpy"))(f"cpu:{communicator.rank}", strict=strict)
        made(distribution=DataParallel(CUT, communicator=communicator), backend=backend).fit(*data(), verbose=0)

    ThreadRanks(2).run(work)
    with pytest.raises(ValueError, match=r"begin with the same backend\. Received: '<backend numpy:cpu>' on rank 0"):
        ThreadRanks(2).run(lambda c: work(c, strict=c.rank == 1))


@pytest.mark.filterwarnings("ignore:Inputs are finite numbers")
def test_callbacks_print_on_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = data()

    def work(communicator: Any) -> None:
        model = made(distribution=DataParallel(CUT, communicator=communicator))
        callbacks = [
            LearningRateScheduler(lambda epoch, rate: rate, verbose=1),
            ReduceLROnPlateau("loss", patience=1, min_delta=9, verbose=1), EarlyStopping("loss", 9, 3, verbose=1),
        ]  # fmt: skip
        model.fit(x, y, epochs=9, verbose=0, callbacks=callbacks)
        model.fit(x * np.nan, y, verbose=0, callbacks=[TerminateOnNaN()])
        model.predict(x, verbose=1)
        model.evaluate(x, y, verbose=1)

    printed = []
    for count in (1, 3):
        ThreadRanks(count).run(work)
        printed.append([line.split(" - ")[0] for line in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1]
    for part in ("stopped early", "lowered", "training is stopped", "12 samples", "loss:"):
        assert any(part in line for line in printed[0]), (part, printed[0])


# What goes in a message ---------------------------------------------------------------------------


def sums(model: Any) -> list[list[int]]:
    """Elements of what the collectives of a training step sum, in their order."""
    nodes = model.program("train", batch_size=BATCH).nodes
    return [[v.size for v in node.outputs] for node in nodes if node.op.name == "all_reduce"]


def test_statistics_of_images_in_16_bits_are_one_message() -> None:
    def trained(**about: Any) -> Any:
        model = made(layers.Conv2D(2, 3, use_bias=False), layers.BatchNormalization(), backend=HalfBackend(), **about)
        model.train_on_batch(*data())
        return model

    two, one = (trained(distribution=DataParallel(2), precision=p) for p in ("float32", "mixed_float16"))
    assert sums(two)[:3] == [[2], [2], [2, 2]]  # mean, variance, and what the gradient sums
    assert sums(one)[:2] == [[2, 2], [2, 2]]
    same(trained(precision="mixed_float16"), one, tolerance=5e-3)


def pieces(model: Any) -> list[Piece]:
    """The parts of a training step."""
    step, feed = model._training.executor.step, model._training.step.feed(BATCH)
    schedule = model.distribution.schedule(partial(step.trace, "train"), feed)
    return [each for each in schedule.instructions if isinstance(each, Piece)]


def test_a_part_has_what_its_gradients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a layer's input is in one part with what reads it."""
    monkeypatch.setattr(passes, "BUCKET", 100)
    convolutions = [layers.Conv2D(4, 3, padding="same", activation="relu") for _ in range(3)]
    model = made(*convolutions, distribution=DataParallel(2, communicator=Planned(0, 2)))
    found = [[n.op.name for n in each.program.nodes] for each in pieces(model)]
    apart = [names[:2] for names in found if "conv2d_input_gradient" in names]
    assert apart == [["conv2d_input_gradient", "relu_gradient"]] * 2


def test_what_is_summed_for_a_normalization_is_handed_on_as_it_is() -> None:
    """Shards sum their parts of means, which nobody divides afterwards, and no part hands on what it is handed."""
    about = {"distribution": DataParallel(2, communicator=Planned(0, 2))}
    model = made(layers.Conv2D(2, 3, use_bias=False), layers.BatchNormalization(), **about)
    reductions = [n for n in model.program("train", batch_size=BATCH).nodes if n.op.name == "all_reduce"]
    parts = [v.node.op.name for node in reductions[:3] for v in node.inputs if v.node is not None]
    assert parts == ["multiply"] * 4  # mean, variance, and what the gradient sums
    for each in pieces(model):
        results = [v.node for v in each.program.outputs.values() if v.node is not None and v.node.op.name == "reshape"]
        assert not {id(node.inputs[0]) for node in results} & set(map(id, each.program.inputs)), "a copy"


def test_an_update_waits_for_its_own_sum_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BUCKET", 100)

    def parts(optimizer: Any) -> list[set[str]]:
        """What parts of a step overwrite, of kernels."""
        model = made(Flatten(), Dense(5), optimizer=optimizer, distribution=DataParallel(2))
        updates = [set(each.program.updates) for each in pieces(model)]
        return [kernels for each in updates if (kernels := {n for n in each if n.endswith("/kernel") and "/" in n})]

    kernels = {"dense/kernel", "dense_1/kernel"}
    apart = parts(SGD(0.1, momentum=0.9))
    assert [each & kernels for each in apart] == [{"dense_1/kernel"}, {"dense/kernel"}]
    (together,) = parts(SGD(0.1, global_clipnorm=1.0))  # reads all gradients
    assert kernels <= together


def test_the_last_sum_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to compute beside it."""
    model = made(Flatten(), Dense(20), Dense(300), distribution=DataParallel(2))
    assert len(sums(model)) == 1
    monkeypatch.setattr(passes, "LAST", 4 * 2000)
    assert sum(sums(model)[-1]) == 90 * 20 + 20
