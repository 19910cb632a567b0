"""Arguments that are numbers of NumPy, or arrays without axes: they do what Python's do, and are kept as these."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, data, layers, utils, zoo
from minicnn.callbacks import BackupAndRestore
from minicnn.configured import Configured, encode
from minicnn.conformance.cases import CASES, Case
from minicnn.data import augment
from minicnn.ops import relu
from minicnn.program import Program

# Of each kind the value with one of these types, which all have it exactly.
KINDS: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda v: np.int64(v) if isinstance(v, int) else np.float64(v),
    "short": lambda v: np.min_scalar_type(v).type(v) if isinstance(v, int) else np.float32(v),
    "array": np.asarray,
}

MODULES = (
    "callbacks", "constraints", "data", "distribution", "initializers", "layers", "losses", "metrics", "optimizers",
    "regularizers", "schedules",
)  # fmt: skip
CLASSES = {
    f"{module}.{kind.__name__}": kind
    for module in MODULES
    for kind in vars(importlib.import_module(f"minicnn.{module}")).values()
    if inspect.isclass(kind) and kind.__module__.startswith("minicnn.") and not kind.__name__.startswith("_")
}
# What is no user's: abstract, or made by the library.
for internal in ("distribution.Group", "distribution.Shard", "optimizers.Optimizer", "data.DataError",
                 "regularizers.Limits", *(n for n in CLASSES if n.endswith("Communicator"))):  # fmt: skip
    del CLASSES[internal]

# Arguments that a class cannot be made without, and numbers in place of None.
NEEDED: dict[str, Any] = {
    "units": 3, "filters": 4, "kernel_size": 3, "rate": 0.5, "stddev": 0.5, "num_tokens": 4, "height": 2, "width": 2,
    "output_size": 2, "scale": 0.5, "target_shape": (2, -1), "dims": (2, 1), "factor": 0.5, "height_factor": 0.5,
    "width_factor": 0.25, "activation": "relu", "function": relu, "op": "relu", "num_classes": 3, "loss": "mse",
    "initial_learning_rate": 0.5, "decay_steps": 4, "decay_rate": 0.5, "first_decay_steps": 4, "peak": 0.5, "steps": 8,
    "boundaries": (2, 4), "values": (1.0, 0.5, 0.25), "schedule": abs, "filename": "log.csv", "filepath": "m", "x":
    np.zeros((4, 2)), "shards": 4, "stages": ["flatten"], "backup_dir": "b", "learning_rate": 0.5,
    "input_dim": 5, "output_dim": 3, "target_class_ids": (0, 2), "rank": 1, "size": 3,
}  # fmt: skip
IN_PLACE: dict[str, Any] = {
    "strides": 2, "output_padding": 0, "seed": 3, "noise_shape": (None, 1), "shared_axes": (1,), "max_value": 6.0,
    "axis": -1, "thresholds": (0.25, 0.5), "threshold": 0.5, "top_k": 2, "class_id": 1, "ignore_class": 2,
    "warmup_target": 1.0, "weight_decay": 0.5, "clipvalue": 0.5, "clipnorm": 0.5, "global_clipnorm": 0.5,
    "baseline": 0.5, "initial_value_threshold": 0.5, "padding": 1, "save_freq": 3, "groups": 2,
    "width_factor": 0.25,
}  # fmt: skip


def numbers(value: Any, kind: Callable[[Any], Any]) -> Any:
    """The value with each number in it made one of a kind."""
    if isinstance(value, list | tuple):
        return type(value)(numbers(v, kind) for v in value)
    if isinstance(value, dict):
        return {k: numbers(v, kind) for k, v in value.items()}
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def exact(value: Any) -> Any:
    """A value like it that float32 has as well."""
    if isinstance(value, list | tuple):
        return type(value)(map(exact, value))
    return float(np.float32(value)) if isinstance(value, float) else value


def numeric(kind: type[Any]) -> list[str]:
    """Names of the arguments that are numbers or hold some."""
    return [
        p.name for p in inspect.signature(kind).parameters.values()
        if re.search(r"\b(int|float|Factor|PaddingArgument|SaveFrequency)\b", str(p.annotation))
        and "Callable" not in str(p.annotation)
    ]  # fmt: skip


def kept(made: Any) -> Any:
    """What an object keeps of its arguments, as plain data."""
    if isinstance(made, Configured | Configured):
        try:
            return encode(made.get_config())
        except TypeError:  # of one with a function, which cannot be saved
            return encode({k: v for k, v in vars(made).items() if k in numeric(type(made))})
    return {k: v for k, v in vars(made).items() if isinstance(v, int | float | np.generic | np.ndarray)}


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if numeric(kind)])
def test_every_numeric_argument_of_every_class(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = CLASSES[name]
    parameters = inspect.signature(kind).parameters
    needed = {p: NEEDED[p] for p in parameters if parameters[p].default is inspect.Parameter.empty and p in NEEDED}
    for argument in numeric(kind):
        default = parameters[argument].default
        value = needed.get(argument, default)
        value = exact(IN_PLACE[argument] if value is None or isinstance(value, str) else value)
        expected = kept(kind(**{**needed, argument: value}))
        for like in KINDS.values():
            given = numbers(value, like)
            found = kept(kind(**{**needed, argument: given}))
            assert repr(found) == repr(expected), f"{argument}={given!r}"
            if isinstance(kind, type(Configured)) and not issubclass(kind, data.Loader):
                json.dumps(found)


@pytest.mark.parametrize("case", [c for c in CASES if c.attrs], ids=str)
def test_every_attribute_of_every_primitive(case: Case) -> None:
    def program(attrs: dict[str, Any]) -> str:
        traced = Program("case")
        values = [traced.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(case.arrays)]
        case.op(*values, **attrs)
        return "\n".join(f"{n} {n.attrs} {n.outputs}" for n in traced.nodes)

    for like in KINDS.values():
        attrs = {k: exact(v) for k, v in case.attrs.items()}
        assert program(numbers(attrs, like)) == program(attrs)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "synthetic_digits": (data.synthetic_digits, {"n": 3, "size": 28, "seed": 200}),
    "load": (lambda **options: data.load("synthetic_digits", **options).x_train, {"n_train": 3, "n_test": 2}),
    "epoch_order": (data.epoch_order, {"n": 200, "shuffle": True, "seed": 200, "epoch": 3}),
    "batch_indices": (data.batch_indices, {"order": np.arange(300), "batch_size": 200, "last_batch": "pad"}),
    "shard_rows": (data.shard_rows, {"samples": 250, "index": 3, "count": 7}),
    "to_categorical": (utils.to_categorical, {"x": [0, 2], "num_classes": 4}),
    "get_model": (
        lambda **options: zoo.get_model("kernels", **options).get_weights(),
        {"num_classes": 3, "input_shape": (28, 28, 1), "seed": 5},
    ),
    "random_crop": (lambda **options: changed(augment.random_crop(**options)), {"size": (4, 4), "padding": 130}),
    "random_shift": (lambda **options: changed(augment.random_shift(**options)), {"pixels": 130}),
    "random_flip": (lambda **options: changed(augment.random_flip(**options)), {"probability": 0.5}),
    "Loader": (lambda **options: list(data.Loader(np.arange(300.0), **options)), {"batch_size": 200, "seed": 200}),
    "Input": (lambda **options: layers.Input(**options).shape, {"shape": (200, None)}),
}  # fmt: skip


def changed(transform: Any) -> Any:
    return transform(np.arange(96.0).reshape(2, 6, 4, 2), np.random.default_rng(0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numeric_arguments_of_functions(name: str) -> None:
    """With short integers, in which twice 130 is 4."""
    function, given = FUNCTIONS[name]
    for like in KINDS.values():
        expected, found = function(**given), function(**numbers(given, like))
        assert repr(found) == repr(expected)


def test_methods_of_a_model(tmp_path: Any) -> None:
    x = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")

    def trained(like: Callable[[Any], Any]) -> Any:
        model = Sequential([layers.Input((4,)), layers.Dense(like(2), activation="softmax")], seed=like(7))
        model.compile(metrics=["accuracy"], loss_weights=[like(0.5)], accumulate=like(3))
        backup = BackupAndRestore(tmp_path / "backup", save_freq=like(1), delete_checkpoint=False)
        history = model.fit(
            x, y, like(200), like(3), like(0), backup, like(0.25), initial_epoch=like(1), steps_per_epoch=like(1),
            validation_steps=like(1), validation_batch_size=like(200), validation_freq=like(2), seed=like(200),
            class_weight={0: like(0.5), 1: like(2.0)},
        )  # fmt: skip
        state = model.get_state()
        json.dumps({k: v for k, v in state.items() if k not in ("arrays", "totals")})
        model.save(tmp_path / "m")
        return (
            history.history, model.evaluate(x, y, like(200), steps=like(2)), model.predict(x, like(200)).tobytes(),
            model.get_layer(index=like(0)).name, model.summary(None, batch_size=like(200)),
            str(model.program(batch_size=like(200))), str(model.explain(batch_size=like(2))),
        )  # fmt: skip

    expected = trained(lambda v: v)
    for like in KINDS.values():
        assert trained(like) == expected
