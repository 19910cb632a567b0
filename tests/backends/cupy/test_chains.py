"""Chains of rows: which nodes they take, and that what they compute is what NumPy computes."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Sequential, get_backend, layers, losses
from minicnn.backends._cuda import chains
from minicnn.backends._cuda.fusing import Plan
from minicnn.optimizers import SGD

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels run on the host through g++")


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads, each of which is one of the host's, and so few blocks that each takes several tiles."""
    monkeypatch.setattr(chains, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(chains, "THREADS", 64)
    monkeypatch.setattr(chains, "BYTE_THREADS", (64,))


def dense_network(
    width: int, hidden: list[int], classes: int, *, dtype: str, activation: str, loss: str, dropout: bool
) -> Sequential:
    """Dense layers on rows of bytes or of float32."""
    body: list[Any] = [layers.Input((width,), dtype=dtype)]
    body += [layers.Rescaling(1 / 255)] if dtype == "uint8" else []
    for units in hidden:
        body += [layers.Dense(units, activation=activation)] + ([layers.Dropout(0.4)] if dropout else [])
    body += [layers.Dense(classes)]
    model = Sequential(body, backend="numpy")
    chosen = {
        "sparse": losses.SparseCategoricalCrossentropy(from_logits=True),
        "mse": losses.MeanSquaredError(),
    }[loss]
    model.compile(SGD(0.05, momentum=0.5), chosen, ["accuracy"] if loss == "sparse" else [])
    return model


def step(model: Sequential, batch: int, samples: int, loss: str) -> tuple[Any, dict[str, Any]]:
    """A function that makes the training step's Program of a model, and arrays for it."""
    rng = np.random.default_rng(5)
    shape, dtype = model.layers[0].output_shape[1:] if False else None, None
    del shape, dtype
    value = model.program("train", batch_size=batch).value("x")
    x = (
        rng.integers(0, 256, (samples, *value.shape[1:]))
        if value.dtype == "uint8"
        else rng.normal(size=(samples, *value.shape[1:]))
    )
    outputs = next(v for v in reversed(list(model.get_weights().values()))).shape[-1]
    y = rng.integers(0, outputs, samples) if loss == "sparse" else rng.normal(size=(samples, outputs))
    y = y.astype("int32" if loss == "sparse" else "float32")
    source = model._source(x.astype(value.dtype), y, None, batch, "keep")
    feed, arrays = next(iter(source.epoch(shuffle=True, seed=1, epoch=0)))
    given: dict[str, Any] = {}
    for value in model._program_of("train", feed)[0].inputs:
        if value.name in arrays:
            given[value.name] = np.asarray(arrays[value.name])
        elif value.kind in ("optimizer", "metric"):
            given[value.name] = np.abs(rng.standard_normal(value.shape) * 0.1).astype(value.dtype)
        elif value.shape == ():
            given[value.name] = np.asarray({"learning_rate": 0.05, "step": 4}[value.name], value.dtype)
        else:
            given[value.name] = (rng.standard_normal(value.shape) * 0.2).astype("float32")
    return lambda: model._program_of("train", feed)[0], given


def check(model: Sequential, batch: int, loss: str) -> Plan:
    """Compare a step's kernels with NumPy; returns their plan."""
    from backends.cupy.emulator import Emulated

    program, given = step(model, batch, batch + 5, loss)
    expected = get_backend("numpy").compile(program())(given)
    kernels = Emulated(program())
    found = kernels(given)
    for name, array in expected.items():
        scale = max(1e-3, float(np.abs(array).max())) if array.size else 1.0
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=4e-6 * scale, err_msg=name)
    return kernels.plan


def found_chains(plan: Plan) -> list[chains.Chain]:
    """The chains of a plan."""
    return [n.attrs["chain"] for u in plan.units for n in u.nodes if n.op.name == "chain"]


@emulated
@pytest.mark.usefixtures("small_device")
@settings(max_examples=8, deadline=None)
@given(
    width=st.sampled_from([1, 3, 16, 20, 33, 40, 70, 104]),
    hidden=st.lists(st.integers(1, 21), min_size=1, max_size=2),
    classes=st.integers(2, 11),
    batch=st.integers(1, 90),
    dtype=st.sampled_from(["uint8", "uint8", "float32"]),
    activation=st.sampled_from(["relu", "tanh", "leaky_relu"]),
    loss=st.sampled_from(["sparse", "mse"]),
    dropout=st.booleans(),
)
def test_a_step_of_dense_layers_is_that_of_numpy(
    width: int, hidden: list[int], classes: int, batch: int, dtype: str, activation: str, loss: str, dropout: bool
) -> None:
    model = dense_network(width, hidden, classes, dtype=dtype, activation=activation, loss=loss, dropout=dropout)
    check(model, batch, loss)
