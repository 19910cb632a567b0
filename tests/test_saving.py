from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, losses, metrics, ops
from minicnn.callbacks import ModelCheckpoint
from minicnn.files import SavedModelError, write_tensors
from minicnn.layers import (
    Activation,
    Dense,
    Flatten,
    Input,
    Layer,
)
from minicnn.losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    SparseCategoricalCrossentropy,
)
from minicnn.metrics import Accuracy, ConfusionMatrix, MeanIoU, Metric, TopKCategoricalAccuracy
from minicnn.optimizers import SGD, Adam, AdamW, Optimizer, RMSprop
from minicnn.saving import load_model, load_weights, save_model, save_weights
from minicnn.schedules import CosineDecay, ExponentialDecay, OneCycle, PiecewiseConstantDecay, Schedule
from minicnn.tolerance import tolerance
from support.small_training import (
    CLASSES,
    arrays,
    assert_equal_models,
    assert_same_bits,
    compiled,
    digits,
    go_on,
    network,
    trained,
    two_tasks,
)

BACKENDS = ["numpy", "torch", "jax"]

OPTIMIZERS = {
    "sgd": SGD(0.05),
    "momentum": SGD(0.05, 0.9, nesterov=True, weight_decay=0.01),
    "adam": Adam(0.01, 0.8, 0.99, 1e-5, clipvalue=0.1),
    "adamw": AdamW(0.01, 0.02, clipnorm=1.0),
    "rmsprop": RMSprop(0.01, 0.8, 0.5, centered=True, global_clipnorm=1.0),
    "step": SGD(ExponentialDecay(0.1, 3, 0.5, staircase=True)),
    "piecewise": Adam(PiecewiseConstantDecay([2, 5], [0.1, 0.05, 0.01])),
    "exponential": RMSprop(ExponentialDecay(0.1, 4, 0.7)),
    "cosine": SGD(CosineDecay(0.01, 8, 0.1, warmup_target=0.1, warmup_steps=4)),
    "onecycle": AdamW(OneCycle(0.1, 12)),
}


# Round trips ----------------------------------------------------------------------------------------------


def gone_on(model: Model, path: Path) -> Model:
    """The model that was saved after an epoch and loaded; it goes on as the other does, bit for bit."""
    go_on(model)
    model.save(path)
    loaded = Model.load(path, backend=model.backend.name)
    assert_equal_models(model, loaded, digits()[0])
    ours, theirs = (go_on(m, 3, initial_epoch=1).history for m in (model, loaded))
    assert theirs == ours
    assert_equal_models(model, loaded, digits()[0])
    return loaded


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_as_if_the_model_had_not_been_saved(optimizer: Optimizer, tmp_path: Path) -> None:
    assert type(gone_on(compiled(optimizer=optimizer), tmp_path / "m").optimizer) is type(optimizer)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_goes_on_bit_for_bit(backend: str, tmp_path: Path) -> None:
    gone_on(compiled(backend), tmp_path / "m")


@pytest.mark.parametrize(
    ("source", "target"), [("numpy", "torch"), ("torch", "jax"), ("jax", "numpy"), ("numpy", "numpy")]
)
def test_saved_on_one_backend_and_loaded_on_another(source: str, target: str, tmp_path: Path) -> None:
    pytest.importorskip(source)
    pytest.importorskip(target)
    model = trained(source)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m", target)
    assert loaded.backend.name == target
    assert_same_bits(arrays(loaded), arrays(model))
    rtol, atol = tolerance("float32", 64)
    np.testing.assert_allclose(loaded.predict(digits()[0]), model.predict(digits()[0]), rtol=rtol, atol=atol)


def test_a_functional_model_with_branches_inputs_and_outputs(tmp_path: Path) -> None:
    model, x, y = two_tasks()
    model.fit(x, y, 6, 1, verbose=0)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (type(loaded), loaded.name, loaded.seed) == (Model, "two", 3)
    assert_equal_models(model, loaded, x)
    histories = [m.fit(x, y, 6, 3, verbose=0, initial_epoch=1).history for m in (model, loaded)]
    assert histories[0] == histories[1]
    assert {"dense_loss", "dense_1_loss", "dense_1_accuracy", "dense_1_top_k_categorical_accuracy"} <= set(histories[0])
    assert_equal_models(model, loaded, x)


def test_a_model_with_one_input_in_a_list(tmp_path: Path) -> None:
    x = Input((4,))
    model = Model([x], [Dense(2)(x)], backend="numpy")
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.input_shape, loaded.output_shape) == ([(None, 4)], [(None, 2)])


LOSSES: dict[str, tuple[Loss, str]] = {
    "sparse": (SparseCategoricalCrossentropy(True, label_smoothing=0.1), "sparse"),
    "categorical": (CategoricalCrossentropy(True, 0.2), "one_hot"),
    "binary": (BinaryCrossentropy(True, 0.1), "one_hot"),
    "mse": (MeanSquaredError(), "one_hot"),
    "mae": (MeanAbsoluteError(), "one_hot"),
    "huber": (Huber(0.3), "one_hot"),
}


@pytest.mark.parametrize(("loss", "labels"), LOSSES.values(), ids=LOSSES)
def test_every_loss_and_metric(loss: Loss, labels: str, tmp_path: Path) -> None:
    model = network()
    metrics = [
        Accuracy("acc", threshold=0.25),
        TopKCategoricalAccuracy(2),
        TopKCategoricalAccuracy(1, "top"),
        ConfusionMatrix(),
    ]
    model.compile(SGD(0.01), loss, metrics)
    x, y = digits()
    y = y if labels == "sparse" else np.eye(CLASSES)[y]
    model.save(tmp_path / "m")  # compiled, but not trained
    loaded = load_model(tmp_path / "m")
    ours, theirs = (m.fit(x, y, 6, 2, verbose=0).history for m in (model, loaded))
    assert list(theirs) == ["loss", "acc", "top_k_categorical_accuracy", "top", "confusion_matrix"]
    np.testing.assert_equal(theirs, ours)
    assert_equal_models(model, loaded, x)


def settings(module: Any, base: type[Any]) -> list[Any]:
    """One of each class of a module that files may name, with arguments that are not the defaults where it has some."""
    given = {"num_classes": CLASSES, "loss": "mse", "name": "named", "from_logits": True, "label_smoothing": 0.1,
             "ignore_class": 255, "threshold": 0.25, "sparse_y_pred": False, "class_id": 1, "delta": 0.5,
             "num_thresholds": 7, "target_class_ids": [0, 2]}  # fmt: skip
    kinds = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base)]
    kinds = [c for c in kinds if c not in (base, metrics.Mean, losses.FunctionLoss)]
    return [c(**{n: given[n] for n in inspect.signature(c).parameters if n in given}) for c in kinds]


SETTINGS = settings(losses, Loss) + settings(metrics, Metric)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: type(setting).__name__)
def test_every_loss_and_every_metric_is_loaded_as_it_was(setting: Any, tmp_path: Path) -> None:
    model = network()
    is_loss = isinstance(setting, Loss)
    model.compile("sgd", setting if is_loss else SparseCategoricalCrossentropy(True), [] if is_loss else [setting])
    model.save(tmp_path / "m")
    objective = load_model(tmp_path / "m")._training.step.objective
    assert objective is not None
    loaded = objective.losses[0] if is_loss else objective.metrics[0][0]
    assert type(loaded) is type(setting)
    assert loaded.get_config() == setting.get_config()


def test_a_model_with_mean_iou_goes_on(tmp_path: Path) -> None:
    model = network()
    model.compile("sgd", SparseCategoricalCrossentropy(True), [MeanIoU(CLASSES, sparse_y_pred=False)])
    gone_on(model, tmp_path / "m")


@pytest.mark.parametrize("precision", ["float32", "float64", "mixed_bfloat16"])
def test_every_precision(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = network("torch")
    model.compile("adam", SparseCategoricalCrossentropy(True), precision=precision)
    assert gone_on(model, tmp_path / "m").precision == precision


def test_a_model_that_is_not_compiled(tmp_path: Path) -> None:
    model = network(seed=2)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert_equal_models(model, loaded, digits()[0])
    with pytest.raises(RuntimeError, match="compile"):
        go_on(loaded)


def test_a_sequential_stays_one(tmp_path: Path) -> None:
    layer = Dense(4, "tanh")
    model = Sequential([Input((4,)), layer, layer, Activation("relu"), layer], backend="numpy", name="thrice", seed=7)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (type(loaded), loaded.name, loaded.seed) == (Sequential, "thrice", 7)
    assert [type(v) for v in loaded.layers] == [type(v) for v in model.layers]
    assert_equal_models(model, loaded, np.ones((3, 4)))


def test_a_sequential_that_saw_its_data_first(tmp_path: Path) -> None:
    model = Sequential([Flatten(), Dense(2)], backend="numpy")
    with pytest.raises(RuntimeError, match=r"once it is built.*call build"):
        model.save(tmp_path / "m")
    with pytest.raises(RuntimeError, match=r"once it is built.*call build"):
        model.save_weights(tmp_path / "m")
    assert not list(tmp_path.iterdir())
    predicted = model.predict(digits()[0])
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(digits()[0]), predicted)


def test_the_initial_weights_of_a_loaded_model_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained()
    model.save(tmp_path / "m")
    monkeypatch.setattr("minicnn.loop.training._first", lambda *_: pytest.fail("drawn"))
    assert_equal_models(model, load_model(tmp_path / "m"), digits()[0])


# Custom objects -------------------------------------------------------------------------------------------


class Scale(Layer):
    def __init__(self, power: int = 1, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.power = power

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight("gain", input_shape[-1:], "ones")

    def call(self, inputs: Any) -> Any:
        for _ in range(self.power):
            inputs = inputs * self.gain
        return inputs


class Cubic(Loss):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def call(self, y_true: Any, y_pred: Any) -> Any:
        d = ops.abs(y_true - y_pred)
        return ops.sum(d * d * d, axes=-1) * self.factor


class Bias(Metric):
    def __init__(self) -> None:
        super().__init__("bias")

    def totals(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        return {"sum": ops.sum(y_pred - y_true)}

    def result(self, totals: Mapping[str, Any]) -> float:
        return float(totals["sum"])


class Sign(Optimizer):
    slots = ("last",)

    def update(self, p: Any, g: Any, state: Any, rate: Any, step: Any) -> Any:
        return [p - rate * (g + state[0]), g]


@dataclass(frozen=True)
class Inverse(Schedule):
    first: float

    def __call__(self, step: int) -> float:
        return self.first / (1 + step)


CUSTOM: dict[str, type[Any]] = {c.__name__: c for c in (Scale, Cubic, Bias, Sign, Inverse)}


def custom(classes: Mapping[str, Any] = CUSTOM) -> Sequential:
    scale, cubic, bias, sign, inverse = classes.values()
    model = Sequential([Input((4,)), scale(2), Dense(2)], backend="numpy")
    model.compile(sign(inverse(0.01)), cubic(0.5), [bias()])
    return model


def test_classes_of_the_caller(tmp_path: Path) -> None:
    model = custom()
    x = np.random.default_rng(0).normal(size=(8, 4))
    model.fit(x, x[:, :2], 4, 1, verbose=0)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m", custom_objects=CUSTOM)
    assert_equal_models(model, loaded, x)
    ours, theirs = (m.fit(x, x[:, :2], 4, 3, verbose=0, initial_epoch=1).history for m in (model, loaded))
    assert theirs == ours
    assert_equal_models(model, loaded, x)


@pytest.mark.parametrize("missing", CUSTOM)
def test_a_class_that_is_not_given_is_named(missing: str, tmp_path: Path) -> None:
    custom().save(tmp_path / "m")
    rest = {name: c for name, c in CUSTOM.items() if name != missing}
    with pytest.raises(SavedModelError, match=rf"cannot be built.*'{missing}'.*custom_objects"):
        load_model(tmp_path / "m", custom_objects=rest)


@pytest.mark.parametrize("name", ["Dense", "Huber", "MeanSquaredError", "Accuracy", "Adam", "CosineDecay", "Graph"])
@pytest.mark.parametrize("own", CUSTOM)
def test_a_class_with_the_name_of_one_of_minicnns_own_is_refused(own: str, name: str, tmp_path: Path) -> None:
    classes = {**CUSTOM, own: type(name, (CUSTOM[own],), {})}
    with pytest.raises(ValueError, match=rf"name that none of minicnn's own has.* Received: '{name}' of .* Rename it"):
        custom(classes).save(tmp_path / "m")


def test_what_does_not_keep_its_arguments_is_refused(tmp_path: Path) -> None:
    class Forgetful(Loss):
        def __init__(self, factor: float) -> None:
            self._factor = factor

    model = network()
    model.compile("sgd", Forgetful(2.0))
    with pytest.raises(TypeError, match=r"attribute of the same name. Received: Forgetful without 'factor'. Set self"):
        model.save(tmp_path / "m")


def test_state_that_an_optimizer_does_not_name_is_refused(tmp_path: Path) -> None:
    class Secretive(SGD):
        def apply(self, program: Any, parameters: Any, gradients: Any, step: Any) -> None:
            super().apply(program, parameters, gradients, step)
            hidden = program.input("hidden", (), "float32", kind="optimizer")
            program.updates["hidden"] = hidden + 1.0

    model = compiled(optimizer=Secretive())
    go_on(model)
    with pytest.raises(ValueError, match=r"state_names\(\) lists. Received: hidden besides"):
        model.save(tmp_path / "m")


def test_functions_and_numbers_that_json_lacks_are_refused(tmp_path: Path) -> None:
    model = Sequential([Input((2,)), Dense(1, activation=lambda x: x * 2.0)], backend="numpy")
    with pytest.raises(TypeError, match="Functions cannot be saved"):
        model.save(tmp_path / "m")
    with pytest.raises(ValueError, match="plain data with finite numbers"):
        write_tensors(tmp_path / "m", {}, {"x": float("nan")})
    with pytest.raises(ValueError, match="plain data with finite numbers"):
        write_tensors(tmp_path / "m", {}, {"x": object()})
    assert not list(tmp_path.iterdir())


# Weights alone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [save_model, save_weights])
def test_weights_go_into_a_model_of_the_same_architecture(write: Callable[[Model, Path], None], tmp_path: Path) -> None:
    write(trained(), tmp_path / "w")
    other = compiled(optimizer="sgd", seed=9)
    other.load_weights(tmp_path / "w")
    assert_same_bits(other.get_weights(), trained().get_weights())


def test_weights_change_their_precision(tmp_path: Path) -> None:
    trained().save_weights(tmp_path / "w")
    model = network()
    model.compile("sgd", "mse", precision="float64")
    load_weights(model, tmp_path / "w")
    assert {a.dtype.name for a in model.get_weights().values()} == {"float64"}
    model.save_weights(tmp_path / "d")
    single = network()
    single.load_weights(tmp_path / "d")
    assert_same_bits(single.get_weights(), trained().get_weights())


@pytest.mark.parametrize("write", [save_model, save_weights])
def test_weights_of_another_architecture_are_refused(write: Callable[[Model, Path], None], tmp_path: Path) -> None:
    write(trained(), tmp_path / "w")
    wider = network(units=4)
    before = wider.get_weights()
    with pytest.raises(SavedModelError, match=r"'dense/kernel' is float32 \(16, 3\), not float32 \(16, 4\)"):
        wider.load_weights(tmp_path / "w")
    assert_same_bits(wider.get_weights(), before)
    one, two = (Sequential([Input((2,)), *(Dense(2) for _ in range(n))], backend="numpy") for n in (1, 2))
    write(one, tmp_path / "w")
    with pytest.raises(SavedModelError, match=r"tensor 'dense_1/kernel' is missing. Build the model like"):
        two.load_weights(tmp_path / "w")
    write(two, tmp_path / "w")
    with pytest.raises(SavedModelError, match=r"tensor 'dense_1/bias' is one too many. Build the model like"):
        one.load_weights(tmp_path / "w")


def test_layers_that_differ_are_named_or_skipped(tmp_path: Path) -> None:
    sizes = ((4, 5, 3), (4, 6, 3), (4, 5, 2))
    one, other, head = (Sequential([Input((2,)), *(Dense(n) for n in units)], backend="numpy") for units in sizes)
    one.save_weights(tmp_path / "w")
    pattern = (
        r"'dense_1/kernel' is float32 \(4, 5\), not .*; tensor 'dense_2/kernel' is .*, or load with skip_mismatch=True"
    )
    with pytest.raises(SavedModelError, match=pattern):
        other.load_weights(tmp_path / "w")
    before = head.get_weights()
    head.set_weights({path: array + 1 for path, array in before.items()})
    with pytest.warns(
        UserWarning, match=r"keep their weights where the file's differ: tensor 'dense_2/kernel' is .*3\)"
    ):
        head.load_weights(tmp_path / "w", skip_mismatch=True)
    for path, array in head.get_weights().items():
        np.testing.assert_array_equal(array, before[path] + 1 if "dense_2" in path else one.get_weights()[path])


def test_weights_go_only_into_a_model_that_is_built(tmp_path: Path) -> None:
    trained().save_weights(tmp_path / "w")
    with pytest.raises(RuntimeError, match="once it is built"):
        Sequential([Dense(2)]).load_weights(tmp_path / "w")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("m.keras", "Keras"), ("m.weights.h5", "Keras"), ("M.ONNX", "ONNX"), ("m.pt", "PyTorch"), ("m.npz", "NumPy")],
)
def test_names_of_other_formats_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    model, path = trained(), tmp_path / name
    match = rf"promises no other format\. Received: '.*{name}', the ending of {kind}\. Use '.*\.safetensors'\."
    for save in (save_model, save_weights):
        with pytest.raises(ValueError, match=match):
            save(model, path)
    with pytest.raises(ValueError, match=match):
        ModelCheckpoint(tmp_path / f"{{epoch}}-{name}")
    assert not list(tmp_path.iterdir())
    save_weights(model, tmp_path / "m.keras.safetensors")
    save_weights(model, tmp_path / "0.5")
