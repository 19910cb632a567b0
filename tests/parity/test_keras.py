"""Losses, metrics and optimizers against Keras 3 over random configurations."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import minicnn  # noqa: E402
from minicnn import Model, Sequential, constraints, layers, losses, metrics, optimizers, regularizers, schedules  # noqa: E402
from minicnn.layers import activations  # noqa: E402
from support.model_cases import measure, run  # noqa: E402

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.filterwarnings("ignore")  # of Keras and its JAX
ROUNDS = 6  # configurations of each


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)


def shares(rng: Any, *shape: int) -> Array:
    x = rng.random(shape) + 0.05
    return (x / x.sum(axis=-1, keepdims=True)).astype("float32")


# For each loss its random arguments, and the kind of its targets and predictions.
LOSSES: dict[str, tuple[dict[str, list[Any]], str]] = {
    "BinaryCrossentropy": ({"from_logits": [False, True], "label_smoothing": [0.0, 0.2]}, "binary"),
    "BinaryFocalCrossentropy": (
        {"from_logits": [False, True], "label_smoothing": [0.0, 0.2], "apply_class_balancing": [False, True],
         "alpha": [0.25, 0.6], "gamma": [2.0, 0.0, 1.5]}, "binary"),
    "CategoricalCrossentropy": ({"from_logits": [False, True], "label_smoothing": [0.0, 0.2]}, "shares"),
    "CategoricalFocalCrossentropy": (
        {"from_logits": [False, True], "label_smoothing": [0.0, 0.2], "alpha": [0.25, 1.0], "gamma": [2.0, 0.5]},
        "shares"),
    "SparseCategoricalCrossentropy": ({"from_logits": [False, True], "ignore_class": [None, 1, 255]}, "labels"),
    "MeanSquaredError": ({}, "numbers"),
    "MeanAbsoluteError": ({}, "numbers"),
    "Huber": ({"delta": [1.0, 0.3]}, "numbers"),
    "LogCosh": ({}, "numbers"),
    "KLDivergence": ({}, "shares"),
    "Poisson": ({}, "counts"),
    "CosineSimilarity": ({"axis": [-1, 1]}, "numbers"),
    "Dice": ({"axis": [None, (1,), (1, 2)]}, "binary"),
    "Tversky": ({"axis": [None, (1, 2)], "alpha": [0.5, 0.3], "beta": [0.5, 0.9]}, "binary"),
}  # fmt: skip


def _swapped(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of Tversky as this Keras names them: before 2026 alpha weighed false negatives."""
    missed = keras.losses.Tversky(alpha=1.0, beta=0.0)(np.ones((1, 1)), np.full((1, 1), 0.5))
    return {**given, "alpha": given["beta"], "beta": given["alpha"]} if float(missed) > 0.25 else given


def chosen(rng: Any, options: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: values[rng.integers(len(values))] for name, values in options.items()}


def pairs(rng: Any, kind: str, shape: tuple[int, ...], logits: bool) -> tuple[Array, Array]:
    numbers = rng.normal(size=shape).astype("float32")
    if kind == "labels":
        return rng.integers(0, shape[-1], shape[:-1]).astype("int32"), numbers if logits else shares(rng, *shape)
    if kind == "shares":
        return shares(rng, *shape), numbers if logits else shares(rng, *shape)
    if kind == "binary":
        y = rng.integers(0, 2, shape).astype("float32")
        return y, numbers if logits else rng.random(shape).astype("float32")
    if kind == "counts":
        return rng.integers(0, 5, shape).astype("float32"), (rng.random(shape) * 4 + 0.1).astype("float32")
    return rng.normal(size=shape).astype("float32"), numbers


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    options, kind = LOSSES[name]
    rng = np.random.default_rng(len(name))
    for _ in range(ROUNDS):
        given = chosen(rng, options)
        shape = (3, 4, 5)
        y, p = pairs(rng, kind, shape, given.get("from_logits", False))
        theirs = getattr(keras.losses, name)(reduction=None, **(_swapped(given) if name == "Tversky" else given))(y, p)
        ours = run(getattr(losses, name)(**given).call, y, p)
        close(ours.mean(), np.asarray(theirs).mean())
        if np.ndim(theirs):
            close(ours, theirs)


METRICS: dict[str, tuple[dict[str, list[Any]], str]] = {
    "Precision": ({"thresholds": [None, 0.3, [0.2, 0.7]], "top_k": [None, 2], "class_id": [None, 1]}, "binary"),
    "Recall": ({"thresholds": [None, 0.3, [0.2, 0.7]], "top_k": [None, 2], "class_id": [None, 1]}, "binary"),
    "AUC": (
        {"num_thresholds": [200, 7], "curve": ["ROC", "PR"], "from_logits": [False, True],
         "summation_method": ["interpolation", "minoring", "majoring"], "thresholds": [None, [0.2, 0.55]]}, "binary"),
    "F1Score": ({"average": [None, "micro", "macro", "weighted"], "threshold": [None, 0.4]}, "one_hot"),
    "FBetaScore": ({"average": [None, "micro", "macro"], "beta": [0.5, 2.0], "threshold": [None, 0.4]}, "one_hot"),
    "MeanIoU": ({"num_classes": [5], "ignore_class": [None, 1], "sparse_y_pred": [False]}, "labels"),
    "BinaryAccuracy": ({"threshold": [0.5, 0.3]}, "binary"),
    "CategoricalAccuracy": ({}, "one_hot"),
    "SparseCategoricalAccuracy": ({}, "labels"),
    "TopKCategoricalAccuracy": ({"k": [1, 2, 3]}, "one_hot"),
    "SparseTopKCategoricalAccuracy": ({"k": [1, 2, 3]}, "labels"),
    "RootMeanSquaredError": ({}, "numbers"),
    "CosineSimilarity": ({"axis": [-1, 1]}, "numbers"),
    "IoU": ({"num_classes": [5], "target_class_ids": [[0], [1, 3]], "sparse_y_pred": [False]}, "labels"),
}  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics(name: str, weighted: bool) -> None:
    options, kind = METRICS[name]
    rng = np.random.default_rng(len(name))
    for _ in range(ROUNDS):
        given, shape = chosen(rng, options), (7, 5)
        if name == "AUC" and given["thresholds"]:
            given["num_thresholds"] = 200
        if kind == "one_hot":
            y, p = np.eye(5, dtype="float32")[rng.integers(0, 5, 7)], shares(rng, *shape)
        else:
            y, p = pairs(rng, kind, shape, given.get("from_logits", False))
        # Those for confusion matrices are integers in Keras.
        weight = rng.integers(0, 4, 7).astype("int32" if "IoU" in name else "float32") if weighted else None
        theirs = getattr(keras.metrics, name)(**given)
        theirs.update_state(y, p, sample_weight=weight)
        ours = getattr(metrics, name)(**given)
        assert ours.name == type(theirs)(**given).name.rstrip("_0123456789") or "IoU" in name
        close(measure(ours, y, p.astype("float32"), weight), theirs.result())


OPTIMIZERS: dict[str, dict[str, list[Any]]] = {
    "SGD": {"momentum": [0.0, 0.9], "nesterov": [False, True]},
    "Adam": {"beta_1": [0.9, 0.5], "epsilon": [1e-7, 0.1]},
    "AdamW": {"weight_decay": [0.004, 0.1]},
    "RMSprop": {"rho": [0.9, 0.5], "momentum": [0.0, 0.5], "centered": [False, True]},
    "Adagrad": {"initial_accumulator_value": [0.1, 1.0], "epsilon": [1e-7, 0.1]},
    "Adadelta": {"rho": [0.95, 0.5], "epsilon": [1e-7, 0.1]},
    "Lion": {"beta_1": [0.9, 0.5], "beta_2": [0.99, 0.5]},
    "Nadam": {"beta_1": [0.9, 0.5], "beta_2": [0.999, 0.9], "epsilon": [1e-7, 0.1]},
    "Muon": {"momentum": [0.95, 0.5], "nesterov": [True, False], "ns_steps": [5, 2], "rms_rate": [0.2, None],
             "weight_decay": [0.004, 0.1], "adam_lr_ratio": [1.0, 0.5]},
}  # fmt: skip
LIMITS: list[dict[str, float]] = [{}, {"clipvalue": 0.3}, {"clipnorm": 0.5}, {"global_clipnorm": 0.5}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for limits in LIMITS:
        given = {"learning_rate": 0.05, **chosen(rng, OPTIMIZERS[name]), **limits}
        if name not in ("Muon", "AdamW") and rng.random() < 0.5:
            given["weight_decay"] = 0.1
        x, y = rng.normal(size=(6, 4)).astype("float32"), rng.normal(size=(6, 3)).astype("float32")
        kernel, bias = rng.normal(size=(4, 3)).astype("float32"), rng.normal(size=3).astype("float32")
        theirs = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        theirs.set_weights([kernel, bias])
        theirs.compile(getattr(keras.optimizers, name)(**given), "mse")
        ours = Sequential([layers.Input((4,)), layers.Dense(3)], backend="numpy")
        ours.set_weights({"dense/kernel": kernel, "dense/bias": bias})
        ours.compile(getattr(optimizers, name)(**given), "mse")
        for model in (theirs, ours):
            model.fit(x, y, batch_size=3, epochs=3, shuffle=False, verbose=0)
        for a, b in zip(ours.get_weights().values(), theirs.get_weights(), strict=True):
            close(a, b, 1e-4 if name == "Muon" else 2e-5)


# Random arguments, and the shape of a sample.
LAYERS: dict[str, tuple[dict[str, list[Any]], tuple[int, ...]]] = {
    "Conv1D": (
        {"filters": [4], "kernel_size": [3, 2], "strides": [1, 2], "padding": ["valid", "same", "causal"],
         "groups": [1, 2], "activation": [None, "selu", "mish"], "use_bias": [True, False]}, (9, 4)),
    "MaxPooling1D": ({"pool_size": [2, 3], "strides": [None, 1], "padding": ["valid", "same"]}, (9, 4)),
    "AveragePooling1D": ({"pool_size": [2, 3], "strides": [None, 1], "padding": ["valid", "same"]}, (9, 4)),
    "GlobalMaxPooling1D": ({"keepdims": [False, True]}, (9, 4)),
    "GlobalAveragePooling1D": ({"keepdims": [False, True]}, (9, 4)),
    "PReLU": ({"alpha_initializer": ["random_normal"], "shared_axes": [None, [1], [1, 2]]}, (3, 4, 2)),
    "Identity": ({}, (3,)),
    "Dense": ({"units": [3], "activation": ["celu", "softsign", "hard_silu", "exponential"]}, (5,)),
    "Conv2D": (
        {"filters": [4], "kernel_size": [3, (2, 1)], "strides": [1, 2], "padding": ["valid", "same"],
         "groups": [1, 2], "activation": [None, "softplus", "log_sigmoid"]}, (6, 7, 2)),
    "DepthwiseConv2D": ({"kernel_size": [3], "depth_multiplier": [1, 2], "padding": ["valid", "same"]}, (6, 7, 2)),
    "SeparableConv2D": ({"filters": [3], "kernel_size": [3], "depth_multiplier": [1, 2]}, (6, 7, 2)),
    "Conv2DTranspose": (
        {"filters": [3], "kernel_size": [3, 2], "strides": [1, 2], "padding": ["valid", "same"]}, (4, 5, 2)),
    "MaxPooling2D": ({"pool_size": [2, 3], "strides": [None, 1], "padding": ["valid", "same"]}, (6, 7, 2)),
    "AveragePooling2D": ({"pool_size": [2, 3], "strides": [None, 1], "padding": ["valid", "same"]}, (6, 7, 2)),
    "BatchNormalization": ({"epsilon": [1e-3, 0.1], "scale": [True, False]}, (4, 5, 3)),
    "LayerNormalization": ({"epsilon": [1e-3, 0.1], "axis": [-1, (1, 2)]}, (4, 5, 3)),
    "GroupNormalization": ({"groups": [2, 4, -1]}, (4, 5, 4)),
    "UpSampling2D": ({"size": [2, (1, 3)], "interpolation": ["nearest", "bilinear"]}, (4, 5, 3)),
    "ZeroPadding2D": ({"padding": [1, ((0, 1), (2, 3))]}, (4, 5, 3)),
    "Cropping2D": ({"cropping": [1, ((0, 1), (2, 1))]}, (4, 5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    options, shape = LAYERS[name]
    rng = np.random.default_rng(len(name))
    for _ in range(ROUNDS // 2 if options else 1):
        given, x = chosen(rng, options), rng.normal(size=(2, *shape)).astype("float32")
        if given.get("groups", 1) != 1 and given.get("strides", 1) != 1:
            given["strides"] = 1  # JAX on a CPU knows no other
        theirs = keras.Sequential([keras.Input(shape), getattr(keras.layers, name)(**given)])
        ours = Sequential([layers.Input(shape), getattr(layers, name)(**given)], backend="numpy")
        assert ours.output_shape == theirs.output_shape
        weights = {}
        for variable in theirs.weights:
            weight = next(w for w in ours.get_weights() if w.endswith(f"/{variable.name}"))
            weights[weight] = np.abs(rng.normal(size=variable.shape)).astype("float32") + 0.1
            variable.assign(weights[weight])
        assert len(weights) == len(ours.get_weights())
        ours.set_weights(weights)
        close(ours.predict(x), theirs.predict(x, verbose=0), 5e-5)


def test_embedding() -> None:
    x = np.random.default_rng(0).integers(0, 9, (12, 4))
    table = np.random.default_rng(1).normal(size=(9, 3)).astype("float32")
    found = []
    for lib, kind in ((keras.layers, keras.Sequential), (layers, lambda ls: Sequential(ls, backend="numpy"))):
        layer = lib.Embedding(9, 3)
        model = kind([lib.Input((4,), dtype="int32"), layer])
        layer.set_weights([table])
        model.compile("sgd", "mse")
        model.fit(x, np.ones((12, 4, 3), "float32"), batch_size=4, epochs=2, shuffle=False, verbose=0)
        found.append((model.predict(x, verbose=0), layer.get_weights()[0]))
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours, theirs)


ACTIVATIONS = sorted(set(activations.ACTIVATIONS) - {"swish", "hard_swish"})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 9)).astype("float32") * 4
    close(run(activations.get_activation(name), x), getattr(keras.activations, name)(x))


@pytest.mark.parametrize("name", ["L1", "L2", "L1L2", "OrthogonalRegularizer"])
def test_regularizers(name: str) -> None:
    w = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    close(run(getattr(regularizers, name)(), w), getattr(keras.regularizers, name)()(w))


@pytest.mark.parametrize("name", ["MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"])
def test_constraints(name: str) -> None:
    w = np.random.default_rng(0).normal(size=(4, 3)).astype("float32") * 3
    given = {"rate": 0.5, "min_value": 0.5} if name == "MinMaxNorm" else {}
    close(run(getattr(constraints, name)(**given), w), getattr(keras.constraints, name)(**given)(w))


def test_training_with_regularizers_and_constraints() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 6, 6, 2)).astype("float32"), rng.normal(size=(12, 3)).astype("float32")
    found = []
    for library, kind in ((keras, keras.Sequential), (None, lambda ls: Sequential(ls, backend="numpy"))):
        lib, norms = (layers, constraints) if library is None else (keras.layers, keras.constraints)
        model = kind([
            lib.Input((6, 6, 2)),
            lib.Conv2D(3, 3, kernel_regularizer="l2", kernel_constraint=norms.MaxNorm(0.9, (0, 1, 2))),
            lib.BatchNormalization(gamma_regularizer="l1"), lib.Flatten(),
            lib.Dense(3, kernel_regularizer="L1L2", bias_constraint="NonNeg"),
        ])  # fmt: skip
        given = model.get_weights()
        if library is not None:
            weights = [w.copy() for w in given]
            found.append((weights, None))
        else:
            names = ["kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "kernel", "bias"]
            assert [n.rpartition("/")[2] for n in given] == names
            model.set_weights(dict(zip(given, found[0][0], strict=True)))
        model.compile("sgd", "mse")
        history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
        after = model.get_weights()
        found.append((list(after.values()) if isinstance(after, dict) else after, history))
    close(found[2][1], found[1][1], 5e-4)
    for a, b in zip(found[2][0], found[1][0], strict=True):
        close(a, b, 5e-4)


SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "PiecewiseConstantDecay": [{"boundaries": [3, 6], "values": [0.5, 0.2, 0.1]}],
    "ExponentialDecay": [{"initial_learning_rate": 0.5, "decay_steps": 3, "decay_rate": 0.5, "staircase": s}
                         for s in (True, False)],
    "InverseTimeDecay": [{"initial_learning_rate": 0.5, "decay_steps": 3, "decay_rate": 0.5, "staircase": s}
                         for s in (True, False)],
    "PolynomialDecay": [{"initial_learning_rate": 0.5, "decay_steps": 4, "power": 2.0, "cycle": c}
                        for c in (True, False)],
    "CosineDecay": [{"initial_learning_rate": 0.5, "decay_steps": 8, "alpha": 0.1},
                    {"initial_learning_rate": 0.1, "decay_steps": 6, "warmup_target": 0.5, "warmup_steps": 4},
                    {"initial_learning_rate": 0.1, "decay_steps": 6, "warmup_steps": 4}],
    "CosineDecayRestarts": [{"initial_learning_rate": 0.5, "first_decay_steps": 3, "alpha": 0.1, "m_mul": 0.5},
                            {"initial_learning_rate": 0.5, "first_decay_steps": 3, "t_mul": 1.0, "m_mul": 0.5}],
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    for given in SCHEDULES[name]:
        theirs, ours = getattr(keras.optimizers.schedules, name)(**given), getattr(schedules, name)(**given)
        close([ours(step) for step in range(14)], [float(theirs(step)) for step in range(14)])


# Factors whose bounds are equal leave nothing to chance.
MOVES: dict[str, list[dict[str, Any]]] = {
    "RandomTranslation": [{"height_factor": (0.23, 0.23), "width_factor": (-0.4, -0.4), "fill_mode": m,
                           "interpolation": i, "fill_value": 3.0}
                          for m in ("reflect", "wrap", "constant", "nearest") for i in ("bilinear", "nearest")],
    "RandomRotation": [{"factor": (f, f), "fill_mode": m, "fill_value": 3.0} for f in (0.1, -0.3)
                       for m in ("reflect", "wrap", "constant", "nearest")],
    "RandomZoom": [{"height_factor": (0.3, 0.3), "width_factor": w, "fill_mode": m} for w in (None, (-0.4, -0.4))
                   for m in ("reflect", "constant")],
    "RandomBrightness": [{"factor": (0.3, 0.3)}, {"factor": (-0.2, -0.2), "value_range": (0, 200)}],
    "Resizing": [{"height": 9, "width": 4, "interpolation": i} for i in ("bilinear", "nearest")],
    "CenterCrop": [{"height": 3, "width": 4}],
    "CategoryEncoding": [{"num_tokens": 300, "output_mode": m} for m in ("multi_hot", "count")],
    "Rescaling": [{"scale": 0.5, "offset": 1.0}],
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_preprocessing(name: str) -> None:
    rng = np.random.default_rng(0)
    for given in MOVES[name]:
        if name == "CategoryEncoding":
            x = rng.integers(0, 300, (4, 5)).astype("float32")
        else:
            x = (rng.random((3, 6, 7, 2)) * 255).astype("float32")
        theirs = getattr(keras.layers, name)(**given)
        expected = theirs(x.astype("int32")) if name == "CategoryEncoding" else theirs(x, training=True) if (
            name.startswith("Random")) else theirs(x)  # fmt: skip
        symbol = layers.Input(x.shape[1:])
        ours = Model(symbol, getattr(layers, name)(**given)(symbol, training=True), backend="numpy").predict(x)
        expected, wrong = np.asarray(expected), np.abs(ours - np.asarray(expected)) > 0.05
        assert ours.shape == expected.shape
        assert wrong.mean() <= 0.0, (given, wrong.mean())


def test_normalization() -> None:
    x = (np.random.default_rng(0).normal(size=(20, 4, 3)) * 3 + 7).astype("float32")
    for axis in (-1, (1, 2), None):
        ours, theirs = layers.Normalization(axis), keras.layers.Normalization(axis=axis)
        ours.adapt(x)
        theirs.adapt(x)
        close(Sequential([layers.Input((4, 3)), ours], backend="numpy").predict(x), theirs(x), 1e-4)


PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text(encoding="utf-8")
HOMES = {"schedules": "optimizers.schedules"}
CLASSES = ["layers", "losses", "metrics", "optimizers", "schedules", "callbacks", "initializers"]
CLASSES += ["regularizers", "constraints"]
# Classes whose methods are compared, and what they share with classes named before.
METHODS = {"Layer": "layers", "Model": "models", "Sequential": "models", "Callback": "callbacks", "Loss": "losses"}
METHODS |= {"Metric": "metrics", "Optimizer": "optimizers"}
FUNCTIONS = [("utils", "to_categorical"), ("utils", "plot_model"), ("models", "clone_model"), ("saving", "load_model")]
FUNCTIONS += [("saving", "save_model"), ("keras", "Input")]


def listed_names(heading: str) -> set[str]:
    table = PAGE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.rpartition(" | ")[0])}


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "args", "kwargs", "limits"}


def arguments(kind: type) -> set[str]:
    ours = kind.__module__.startswith("minicnn.")  # whose signature says what a constructor hands on
    return parameters(kind if ours else kind.__init__) | set(
        kind._limit_names() if hasattr(kind, "_limit_names") else ()
    )


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def written_arguments() -> set[tuple[str, str, str]]:
    table = PAGE.partition("## Arguments left out\n")[2].partition("\n## ")[0]
    entries = re.findall(r"`(\w+)\.([\w*]+)\(([\w, ]+)\)`", table)
    return {(space, kind, a) for space, kind, given in entries for a in given.split(", ")}


@pytest.mark.skipif(not keras.__version__.startswith("3.15."), reason="docs/keras.md is about Keras 3.15")
def test_the_page_lists_what_is_left_out_and_nothing_else() -> None:
    missing, listed = {}, {}
    left_out: set[tuple[str, str, str]] = set()
    for space in CLASSES:
        theirs: Any = keras
        for part in HOMES.get(space, space).split("."):
            theirs = getattr(theirs, part)
        ours = importlib.import_module(f"minicnn.keras.{HOMES.get(space, space)}")
        # Aliases bear another name than their class.
        kinds = {n: k for n, k in vars(theirs).items() if inspect.isclass(k) and k.__name__ == n}
        missing[space] = {n for n in kinds if not hasattr(ours, n)}
        aliases = {n: k.__name__ for n, k in vars(theirs).items() if inspect.isclass(k) and k.__name__ in kinds}
        here = {n: k for n, k in aliases.items() if space == "layers" and inspect.isclass(getattr(ours, k, None))}
        assert [n for n, name in here.items() if getattr(ours, n, None) is not getattr(ours, name)] == []
        listed[space] = listed_names(space)
        for n in kinds.keys() - missing[space]:
            if inspect.isclass(mine := inspect.unwrap(getattr(ours, n))):
                left_out |= {(space, n, a) for a in arguments(kinds[n]) - arguments(mine)}
    found = {n for n, f in vars(keras.activations).items() if inspect.isfunction(f)}
    known = found - {"get", "serialize", "deserialize"}
    missing["activations"], listed["activations"] = known - set(activations.ACTIVATIONS), listed_names("activations")
    assert {space: listed[space] ^ names for space, names in missing.items()} == {space: set() for space in missing}
    written = {e for e in written_arguments() if e[0] in CLASSES}
    general = {(space, a) for space, kind, a in written if kind == "*"}
    assert {e for e in left_out if (e[0], e[2]) not in general} == {e for e in written if e[1] != "*"}
    assert general <= {(space, a) for space, _, a in left_out}


@pytest.mark.skipif(not keras.__version__.startswith("3.15."), reason="docs/keras.md is about Keras 3.15")
def test_the_page_lists_functions_and_methods_that_are_left_out_and_no_others() -> None:
    homes = {"utils": ["utils"], "models, saving": ["models", "saving"], "keras": [""]}
    for heading, spaces in homes.items():
        pairs = [
            (getattr(keras, s), importlib.import_module(f"minicnn.keras.{s}")) if s else (keras, minicnn.keras)
            for s in spaces
        ]
        missing = {n for theirs, ours in pairs for n in public(theirs) if not hasattr(ours, n)}
        assert missing ^ listed_names(heading) <= {"src", "distribution"}  # ours is another thing
    missing, left_out = set(), set()
    for name, home in METHODS.items():
        theirs = getattr(getattr(keras, home), name)
        ours = getattr(importlib.import_module(f"minicnn.keras.{home}"), name)
        parent = next((k.__name__ for k in theirs.__mro__[1:] if METHODS.keys() & {k.__name__}), None)
        known = public(getattr(keras, parent)) if parent else set()
        missing |= {(name, n) for n in public(theirs) - known if not has(ours, n)}
        both = {n for n in public(theirs) if has(ours, n) and inspect.isroutine(getattr(theirs, n))}
        both = {n for n in both if n not in known or getattr(theirs, n) is not getattr(getattr(keras, str(parent)), n)}
        left_out |= {(name, n, a) for n in both for a in parameters(getattr(theirs, n)) - parameters(getattr(ours, n))}
    for home, name in FUNCTIONS:
        theirs, ours = (m if home == "keras" else getattr(m, home) for m in (keras, minicnn.keras))
        left = parameters(getattr(theirs, name)) - parameters(getattr(ours, name))
        left_out |= {(home, name, a) for a in left}
    table = PAGE.partition("### Methods\n")[2].partition("\n#")[0]
    assert set(re.findall(r"`([A-Z]\w+)\.(\w+)`", table)) == missing
    assert {e for e in written_arguments() if e[0] not in CLASSES} == left_out


def has(kind: type, name: str) -> bool:
    """Whether objects of a class have an attribute, which its constructor may set."""
    return hasattr(kind, name) or f"self.{name}: " in inspect.getsource(kind) or (kind.__name__, name) in SET_ELSEWHERE


SET_ELSEWHERE = {("Callback", "model")}
