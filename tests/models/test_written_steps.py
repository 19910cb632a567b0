"""Steps that a model's author has written: GANs, several optimizers, state, shards, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Input, Model, Sequential, gradients, ops
from minicnn.callbacks import BackupAndRestore, Callback
from minicnn.distribution import DataParallel
from minicnn.layers import Dense, Layer
from minicnn.metrics import Mean
from minicnn.optimizers import SGD, Adam
from minicnn.program import Value
from support.distributed import SHARDS, HalfBackend, on_ranks
from support.model_cases import UNCOMPILED
from support.numerics import assert_close
from support.tolerances import ELEMENT, STEP, SUM, TRAINING
from support.written_steps import LABELS, SAMPLES, WEIGHTS, Spelled, adversaries, classifier, fitted


@pytest.mark.parametrize(("backend", "options"), [("numpy", {}), ("numba", {}), ("numpy", {"accumulate": 4})])
def test_the_built_in_step_written_out_gives_the_same_bits(backend: str, options: dict[str, Any]) -> None:
    pytest.importorskip(backend)
    data = {"sample_weight": WEIGHTS, "validation_data": (SAMPLES, LABELS, WEIGHTS)}
    (theirs, expected), (ours, weights) = (
        fitted(
            classifier(kind, backend, **options), SAMPLES[:45], LABELS[:45], **{**data, "sample_weight": WEIGHTS[:45]}
        )
        for kind in (Sequential, Spelled)
    )
    assert list(ours) == list(theirs)
    for log, values in theirs.items():
        np.testing.assert_allclose(ours[log], values, rtol=ELEMENT)
    for path, array in expected.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


@pytest.mark.parametrize("backend", ["numba", *UNCOMPILED[1:]])
def test_adversaries_train_alike_on_each_backend(backend: str) -> None:
    pytest.importorskip(backend)
    (logs, weights), (expected, wanted) = (fitted(adversaries(b), SAMPLES, epochs=1) for b in (backend, "numpy"))
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, rtol=STEP, err_msg=name)
    for path, array in wanted.items():
        np.testing.assert_allclose(weights[path], array, rtol=TRAINING, atol=STEP, err_msg=path)


def test_adversaries_have_their_optimizers_states_and_logs() -> None:
    model = adversaries()
    logs, weights = fitted(model, SAMPLES, validation_data=(SAMPLES, None))
    assert list(logs) == ["c_loss", "g_loss", "penalty", "val_score"]
    assert np.any(weights["mean"])
    arrays = model.get_state()["arrays"]
    assert arrays["step"] == 6
    assert arrays["c_optimizer/step"] == 12
    assert arrays["g_optimizer/step"] == 6
    assert "c_optimizer/m/critic/dense/kernel" in arrays
    assert "c_optimizer/m/generator/dense/kernel" not in arrays
    names = [v.name for v in model.program("train").inputs]
    assert {"c_optimizer/learning_rate", "g_optimizer/learning_rate"} <= set(names)
    assert "learning_rate" not in names
    assert "c_optimizer" in str(model.program("train"))
    assert "critic/dense" in str(model.explain("train"))
    assert set(model.evaluate(SAMPLES, return_dict=True)) == {"score"}
    assert np.isfinite(model.trace(SAMPLES[:4])["mean"].array).all()


def test_each_optimizer_moves_its_own_weights_alone() -> None:
    model = adversaries()
    model.c_optimizer.learning_rate = 0.0
    before = model.get_weights()
    _, after = fitted(model, SAMPLES)
    moved = {path for path in before if np.any(before[path] != after[path])}
    assert not any(path.startswith("critic") for path in moved)
    assert "generator/dense/kernel" in moved


def test_shards_give_what_the_whole_batch_gives_on_any_number_of_ranks() -> None:
    def work(distribution: DataParallel) -> Any:
        logs, weights = fitted(adversaries(distribution=distribution), SAMPLES[:45], validation_data=(SAMPLES, None))
        return repr(logs), {path: array.tobytes() for path, array in weights.items()}

    expected, wanted = fitted(adversaries(), SAMPLES[:45], validation_data=(SAMPLES, None))
    logs, weights = fitted(adversaries(accumulate=SHARDS), SAMPLES[:45], validation_data=(SAMPLES, None))
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, rtol=STEP, err_msg=name)
    for path, array in wanted.items():
        np.testing.assert_allclose(weights[path], array, rtol=TRAINING, atol=STEP, err_msg=path)
    alone = repr(logs), {path: array.tobytes() for path, array in weights.items()}
    for count in (1, 3):
        assert all(made == alone for made in on_ranks(count, work))


def test_a_state_has_the_learning_rate_of_each_optimizer() -> None:
    models = [adversaries(), adversaries()]
    models[0].g_optimizer.learning_rate = 0.5
    fitted(models[0], SAMPLES, epochs=1)
    models[1].set_state(models[0].get_state())
    assert (models[1].g_optimizer.learning_rate, models[1].c_optimizer.learning_rate) == (0.5, 2e-3)
    assert fitted(models[1], SAMPLES, epochs=1)[0] == fitted(models[0], SAMPLES, epochs=1)[0]
    state = models[0].get_state()
    with pytest.raises(ValueError, match=r"A state of Adversaries has .*Received: rates = \{\}"):
        models[1].set_state({**state, "rates": {}})


def test_an_interrupted_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:
            if batch == 1:
                raise KeyboardInterrupt

    expected, wanted = fitted(adversaries(), SAMPLES)
    with pytest.raises(KeyboardInterrupt):
        fitted(adversaries(), SAMPLES, callbacks=[Stop(), BackupAndRestore(tmp_path, save_freq=1)])
    with pytest.raises(KeyboardInterrupt):
        fitted(adversaries(), SAMPLES, callbacks=[BackupAndRestore(tmp_path, save_freq=1), Stop()])
    logs, weights = fitted(adversaries(), SAMPLES, callbacks=[BackupAndRestore(tmp_path, save_freq=1)])
    assert logs == expected
    for path, array in wanted.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


@pytest.mark.parametrize("precision", ["float64", "mixed_bfloat16"])
def test_other_precisions(precision: str) -> None:
    pytest.importorskip("torch")
    backend = "numpy" if precision == "float64" else "torch"
    expected, _ = fitted(adversaries(), SAMPLES)
    logs, _ = fitted(adversaries(backend, precision=precision), SAMPLES)
    np.testing.assert_allclose(logs["penalty"], expected["penalty"], rtol=SUM if precision == "float64" else 0.05)


@pytest.mark.parametrize("options", [{}, {"accumulate": 4}], ids=["whole", "accumulate"])
def test_losses_are_scaled_in_float16_and_steps_left_out_that_are_not_finite(options: dict[str, Any]) -> None:
    expected, _ = fitted(adversaries(), SAMPLES)
    model = adversaries(HalfBackend(), precision="mixed_float16", **options)
    with np.errstate(all="ignore"):  # the first factor may be too large
        logs, weights = fitted(model, SAMPLES)
        assert sum(logs["skipped_steps"]) < 4
        np.testing.assert_allclose(logs["penalty"], expected["penalty"], rtol=0.2)  # after a step that is left out
        model.fit(SAMPLES[:16] * np.float32(1e30), batch_size=16, verbose=0)
    for path, array in weights.items():
        np.testing.assert_array_equal(model.get_weights()[path], array, err_msg=path)


class OneStep(Model):
    """A network of one layer, trained by a function."""

    def __init__(self, function: Any) -> None:
        super().__init__(backend="numpy")
        self.layer = Dense(2)
        self.slow = Sequential([Input((6,)), Dense(2)])
        self.further = Adam(0.1)
        self.tracker = Mean("tracked")
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs)

    def train_step(self, data: Any) -> Any:
        return self.function(self, data)


def one_step(function: Any, **options: Any) -> OneStep:
    model = OneStep(function)
    model.compile(SGD(0.1), **options)
    return model


def test_an_average_of_weights_follows_them() -> None:
    def step(self: Any, data: Any) -> Any:
        weights = self.layer.trainable_weights
        loss = ops.mean(ops.square(self(data)))
        self.optimizer.apply(gradients(loss, weights), weights)
        for slow, fast in zip(self.slow.weights, self.layer.weights, strict=True):
            self.assign(slow, self.value_of(slow) * 0.5 + self.value_of(fast) * 0.5)
        self.tracker.update_state(ops.square(self(data)))
        return {"loss": loss, "after": self.tracker.result()}

    model = one_step(step)
    model.build((None, 6))
    slow = model.get_weights()["slow/dense/kernel"]
    logs, weights = fitted(model, SAMPLES[:16], epochs=1)
    assert_close(weights["slow/dense/kernel"], slow * 0.5 + weights["layer/kernel"] * 0.5)
    assert logs["after"][0] < logs["loss"][0]


def branch(self: Any, data: Any) -> Any:
    loss = ops.mean(self(data))
    return {"loss": loss} if loss > 0 else {}


def as_number(self: Any, data: Any) -> Any:
    return {"loss": float(ops.mean(self(data)))}


def on_array(self: Any, data: Any) -> Any:
    return {"loss": ops.mean(self(np.ones((3, 6))))}


def twice(self: Any, data: Any) -> Any:
    weights = self.layer.trainable_weights
    for _ in range(2):
        self.optimizer.apply(gradients(ops.mean(self(data)), weights), weights)
    return {}


def too_late(self: Any, data: Any) -> Any:
    weights, loss = self.layer.trainable_weights, ops.mean(self(data))
    self.further.apply(gradients(loss, weights), weights)
    self.further.apply(gradients(loss, weights), weights)
    return {}


def of_samples(self: Any, data: Any) -> Any:
    return {"loss": ops.mean(self(data), axes=1)}


def nothing(self: Any, data: Any) -> Any:
    return None


def foreign(self: Any, data: Any) -> Any:
    layer = Dense(2)
    layer.build((None, 6))
    return {"loss": ops.mean(self(data)), "other": gradients(ops.mean(self(data)), layer.weights)[0]}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (branch, r"has no truth value\. Use ops\.where"),
        (as_number, r"it is no number of Python\. Compute with it by minicnn\.ops"),
        (on_array, r"A model is called on Values in a step\. Received: ndarray"),
        (twice, r"takes one step on each weight in a training step\. Received: a second one on 'layer/kernel'"),
        (too_late, r"Gradients are taken before an optimizer changes the weights.* Move gradients before apply"),
        (of_samples, r"A step returns a dictionary of logs: scalars.* Received: 'loss' = .* Take ops\.mean of it"),
        (nothing, r"train_step returns a dictionary of logs\. Received: NoneType from that of OneStep"),
        (foreign, r"weights of a step are those of layers that its model holds.* Set it, or the layer"),
    ],
)
def test_what_a_step_cannot_do(step: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        fitted(one_step(step), SAMPLES)


def test_the_line_of_the_author_is_named() -> None:
    with pytest.raises(TypeError) as caught:
        fitted(one_step(branch), SAMPLES)
    (note,) = caught.value.__notes__
    assert "In OneStep.train_step" in note
    assert 'return {"loss": loss} if loss > 0 else {}' in note


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda y: ops.sum(y), "a sum over them"),
        (lambda y: ops.sqrt(ops.mean(ops.square(y))), "more than a mean over them"),
        (lambda y: 1e-4 * ops.mean(ops.square(ops.matmul(y, y, transpose_b=True))), "more than a mean over them"),
    ],
)
def test_with_shards_a_loss_is_a_mean_over_samples(loss: Any, said: str) -> None:
    def step(self: Any, data: Any) -> Any:
        weights = self.layer.trainable_weights
        value = loss(self(data))
        self.optimizer.apply(gradients(value, weights), weights)
        return {"loss": value}

    fitted(one_step(step), SAMPLES)
    with pytest.raises(ValueError, match=rf"is a mean over samples where a batch is cut .* which is {said}"):
        fitted(one_step(step, accumulate=4), SAMPLES)


def contrasted(self: Any, data: Any) -> Any:
    """Raise the similarity of samples with one label among all of the batch."""
    x, labels = data
    y, count = self(x), x.shape[0]
    every, classes = self.gather(y), self.gather(labels)
    similarity = ops.matmul(y, every, transpose_b=True)
    number, label = (ops.reshape(v, shape=(count, 1)) for v in (self.sample_numbers(), labels))
    itself = ops.equal(number, np.arange(every.shape[0], dtype="int32"))
    pairs = ops.where(itself, 0.0, ops.cast(ops.equal(label, classes), dtype="float32"))
    loss = -ops.mean(ops.sum(ops.log_softmax(similarity) * pairs, axes=1))
    weights = self.layer.trainable_weights
    self.optimizer.apply(gradients(loss, weights), weights)
    return {"loss": loss}


def test_a_loss_between_samples_is_of_the_whole_batch_on_any_number_of_ranks() -> None:
    def work(distribution: DataParallel | None = None, **options: Any) -> Any:
        model = one_step(contrasted, distribution=distribution, **options)
        return fitted(model, SAMPLES[:45], LABELS[:45])  # the last shards are smaller

    def in_bytes(result: Any) -> Any:
        return repr(result[0]), {path: array.tobytes() for path, array in result[1].items()}

    expected, alone = work(), work(accumulate=SHARDS)
    np.testing.assert_allclose(alone[0]["loss"], expected[0]["loss"], rtol=SUM)
    for path, array in expected[1].items():
        np.testing.assert_allclose(alone[1][path], array, rtol=STEP, atol=ELEMENT, err_msg=path)
    for count in (1, 3):
        assert all(in_bytes(made) == in_bytes(alone) for made in on_ranks(count, work))


class Centred(Layer):
    """A layer that takes the mean of the batch away."""

    def call(self, inputs: Value) -> Value:
        return inputs - ops.mean(inputs, axes=0, keepdims=True)


@pytest.mark.parametrize("kind", [Sequential, Spelled])
def test_with_shards_a_layer_sees_each_sample_alone(kind: type[Sequential]) -> None:
    model = kind([Input((6,)), Centred(), Dense(3)], backend="numpy")
    model.compile("sgd", "mse", accumulate=2)
    with pytest.raises(ValueError, match=r"what is computed of a sample depends on no other sample.*'centred'"):
        model.train_on_batch(SAMPLES[:4], np.zeros((4, 3)), WEIGHTS[:4])


class Regularized(Layer):
    """A layer that adds a scalar to the loss, and logs it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Value) -> Value:
        self.add_loss(self.function(inputs))
        self.add_metric(self.function(inputs), "size")
        return inputs


@pytest.mark.parametrize("kind", [Sequential, Spelled])
def test_with_shards_a_layer_adds_means_over_samples(kind: type[Sequential]) -> None:
    def logs(function: Any, **options: Any) -> dict[str, float]:
        model = kind([Input((6,)), Dense(3), Regularized(function)], backend="numpy")
        model.compile("sgd", "mse", **options)
        return model.train_on_batch(SAMPLES[:5], np.zeros((5, 3)), WEIGHTS[:5], return_dict=True)

    for log, value in logs(lambda x: ops.mean(ops.square(x))).items():
        np.testing.assert_allclose(logs(lambda x: ops.mean(ops.square(x)), accumulate=2)[log], value, rtol=SUM)
    with pytest.raises(ValueError, match=r"What a layer adds to the loss is a mean over samples.*a sum over them"):
        logs(ops.sum, accumulate=2)


def test_each_output_has_its_loss_in_the_logs() -> None:
    class Branched(Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return dict(super().train_step(data))

    logs = []
    for kind in (Model, Branched):
        x = Input((6,))
        model = kind(x, [Dense(1, name="b")(x), Dense(2, name="a")(x)], backend="numpy")
        model.compile("sgd", "mse", {"a": "mae", "b": "mae"})
        logs.append(model.train_on_batch(SAMPLES, [SAMPLES[:, :1], SAMPLES[:, :2]], return_dict=True))
    assert list(logs[0].items()) == list(logs[1].items())
    assert list(logs[0]) == ["loss", "b_loss", "a_loss", "a_mae", "b_mae"]


def test_what_is_gathered_is_of_the_samples() -> None:
    def step(self: Any, data: Any) -> Any:
        return {"loss": ops.mean(self.gather(ops.mean(data, axes=0)))}

    with pytest.raises(ValueError, match=r"gather takes numbers of the step's 16 samples, along the first axis"):
        fitted(one_step(step), SAMPLES)


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_a_loss_of_gathered_numbers_alone_is_refused(own: float) -> None:
    def step(self: Any, data: Any) -> Any:
        y, weights = self(data), self.layer.trainable_weights
        loss = ops.mean(ops.square(self.gather(y)))
        self.optimizer.apply(gradients(loss + ops.mean(y) if own else loss, weights), weights)
        return {}

    fitted(one_step(step), SAMPLES)
    with pytest.raises(
        ValueError, match=r"each shard has the loss of its own samples.*a loss of what is gathered alon"
    ):
        fitted(one_step(step, accumulate=4), SAMPLES)


def test_stop_gradient_and_an_optimizer_s_steps_are_constants() -> None:
    def step(self: Any, data: Any) -> Any:
        weights = self.layer.trainable_weights
        y = self(data)
        stopped, direct = (gradients(ops.mean(v), weights)[0] for v in (ops.stop_gradient(y) * y, y * y))
        return {"stopped": ops.sum(stopped), "direct": ops.sum(direct)}

    logs, _ = fitted(one_step(step), SAMPLES[:16], epochs=1)
    np.testing.assert_allclose(2 * logs["stopped"][0], logs["direct"][0], rtol=SUM)


def test_gradients_belong_inside_a_step() -> None:
    with pytest.raises(RuntimeError, match=r"gradients belongs inside train_step or test_step of a model"):
        gradients(1.0, [])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"belong inside train_step and test_step.* Received: a call outside"):
        Spelled([Input((2,)), Dense(1)]).compute_loss()


class Noisy(Layer):
    """A layer that adds to the loss, and logs."""

    def call(self, inputs: Value) -> Value:
        self.add_loss(ops.mean(ops.square(inputs), axes=1))
        self.add_metric(ops.abs(inputs), "size")
        return inputs


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}], ids=["whole", "accumulate"])
def test_layers_add_to_the_loss_and_to_the_logs(options: dict[str, Any]) -> None:
    def made(loss: Any) -> Sequential:
        model = Sequential([Input((6,)), Dense(3), Noisy()], backend="numpy")
        model.compile(SGD(0.1), loss, **options)
        return model

    added = made([])
    first = np.mean(np.square(added.predict(SAMPLES)))
    logs, _ = fitted(added, SAMPLES[:16], epochs=1, validation_data=(SAMPLES[:16], None))
    np.testing.assert_allclose(logs["loss"][0], np.mean(np.square(made([]).predict(SAMPLES[:16]))), rtol=SUM)
    assert {"size", "val_size", "val_loss"} <= set(logs)
    assert np.mean(np.square(added.predict(SAMPLES))) < first
    both, zeros = made("mse"), np.zeros((16, 3), "float32")
    logs = both.fit(SAMPLES[:16], zeros, 16, 1, 0).history
    np.testing.assert_allclose(logs["loss"][0], 2 * np.mean(np.square(made([]).predict(SAMPLES[:16]))), rtol=SUM)
