"""Networks of dense layers, and training steps of them, for the tests of row-wise regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import note
from hypothesis import strategies as st

from minicnn import Sequential, layers, losses
from minicnn.optimizers import SGD
from support.kernel_check import made_of
from support.steps import runs_of

Made = tuple[Any, dict[str, Any]]


def dense_network(
    width: int,
    hidden: list[int],
    classes: int,
    *,
    dtype: str = "uint8",
    activation: str = "relu",
    loss: str = "sparse",
    dropout: bool = False,
) -> Sequential:
    """Dense layers on rows of bytes or of float32."""
    body: list[Any] = [layers.Input((width,), dtype=dtype)]
    body += [layers.Rescaling(1 / 255)] if dtype == "uint8" else []
    for units in hidden:
        body += [layers.Dense(units, activation=activation)] + ([layers.Dropout(0.4)] if dropout else [])
    body += [layers.Dense(classes)]
    model = Sequential(body, backend="numpy")
    chosen = {"sparse": losses.SparseCategoricalCrossentropy(from_logits=True), "mse": losses.MeanSquaredError()}[loss]
    model.compile(SGD(0.05, momentum=0.5), chosen, ["accuracy"] if loss == "sparse" else [])
    return model


def step(model: Sequential, batch: int, width: int, classes: int, loss: str = "sparse") -> Made:
    """A function that makes the training step's Program of a model, and arrays for it."""
    rng = np.random.default_rng(5)
    program = model.program("train", batch_size=batch)
    dtype, shapes = program.value("x").dtype, {v.name: v.shape for v in program.inputs}
    x = rng.integers(0, 256, (batch + 5, width)) if dtype == "uint8" else rng.normal(size=(batch + 5, width))
    y = rng.integers(0, classes, batch + 5) if loss == "sparse" else rng.normal(size=(batch + 5, classes))
    y = y.astype("int32" if loss == "sparse" else "float32")
    run = runs_of(model, x.astype(dtype), y, batch, shuffle=True, seed=1)[0]
    return made_of(model, run, lambda name: (rng.standard_normal(shapes[name]) * 0.2).astype("float32"))


@st.composite
def dense_steps(draw: st.DrawFn, widths: Sequence[int], units: int, batch: int) -> Made:
    """Training steps of one or two hidden dense layers of up to so many units, on batches of up to so many rows.

    Args:
        draw: Hypothesis's.
        widths: Elements that a row may have.
        units: The most units of a layer.
        batch: The most rows.
    """
    width, classes = draw(st.sampled_from(widths)), draw(st.integers(2, 11))
    hidden = draw(st.lists(st.integers(1, units), min_size=1, max_size=2))
    rows, loss = draw(st.integers(1, batch)), draw(st.sampled_from(["sparse", "mse"]))
    dtype = draw(st.sampled_from(["uint8", "uint8", "float32"]))
    activation, dropout = draw(st.sampled_from(["relu", "tanh", "leaky_relu"])), draw(st.booleans())
    note(f"{rows} rows of {width} {dtype}, layers of {hidden} and {classes}, {activation}, {loss}, dropout: {dropout}")
    model = dense_network(width, hidden, classes, dtype=dtype, activation=activation, loss=loss, dropout=dropout)
    return step(model, rows, width, classes, loss)
