"""Hybrids: the forward pass on one backend, all that follows on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import needs_gxx
from minicnn import Input, Sequential
from minicnn.backends import get_backend
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, Flatten, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.hybrid import Hybrid, cut
from minicnn.optimizers import SGD
from minicnn.program.graph import Node
from minicnn.zoo import get_model
from support.tolerances import STEP, TRAINING


def model_on(backend: Any) -> Sequential:
    layers = [
        Input((12, 12, 2)), Conv2D(4, 3, use_bias=False), BatchNormalization(), MaxPooling2D(2),
        Conv2D(6, 3, activation="relu"), Flatten(), Dropout(0.3), Dense(5),
    ]  # fmt: skip
    model = Sequential(layers, backend=backend, seed=3)
    model.compile(SGD(0.05, momentum=0.9, clipnorm=1.0), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("emulated cupy", marks=needs_gxx)])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_two_backends_train_as_one(library: str, backend: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 12, 12, 2), np.float32), rng.integers(0, 5, 40)
    forward = EmulatedBackend() if library == "emulated cupy" else get_backend(library)
    found = []
    for trainer in ("numpy", Hybrid(forward, get_backend(backend))):
        model = model_on(trainer)
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
        found.append((history, model.evaluate(x, y, verbose=0), model.predict(x[:7]), model.get_weights()))
    (losses, score, outputs, weights), (ours, our_score, our_outputs, our_weights) = found
    assert ours["loss"] == pytest.approx(losses["loss"], rel=STEP)
    assert ours["accuracy"] == losses["accuracy"]
    assert our_score == pytest.approx(score, rel=STEP)
    np.testing.assert_allclose(our_outputs, outputs, rtol=TRAINING, atol=STEP)
    assert our_weights.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_allclose(our_weights[name], array, rtol=TRAINING, atol=STEP, err_msg=name)


def forward(node: Node) -> bool:
    return node.phase == "forward"


def test_a_batch_is_copied_and_not_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    first, copied = get_backend("numpy"), list[int]()

    def asarray(data: Any, dtype: str | None = None) -> Any:
        copied.append(np.asarray(data).nbytes)
        return np.asarray(data, dtype)

    monkeypatch.setattr(first, "asarray", asarray)
    x, y = np.zeros((400, 12, 12, 2), np.float32), np.zeros(400, np.int64)
    model_on(Hybrid(first, get_backend("numpy"))).fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert max(copied) == x.nbytes // 25


def test_each_node_is_in_one_half() -> None:
    program = model_on("numpy").program("train", batch_size=16)
    first, second = cut(program, forward)
    assert {node.phase for node in first.nodes} == {"forward"}
    assert {node.phase for node in second.nodes} == {"backward", "update"}
    assert [n.op.name for n in (*first.nodes, *second.nodes)] == [
        n.op.name for phases in (("forward",), ("backward", "update")) for n in program.nodes if n.phase in phases
    ]
    handed = first.outputs.keys() - program.outputs.keys()
    assert handed
    assert handed == {v.name for v in second.inputs} - {v.name for v in program.inputs}
    assert {v.name for v in second.inputs if v.kind == "optimizer"}, "the optimizer's state is with the update"
    assert not {v.name for v in first.inputs if v.kind == "optimizer"}
    assert first.updates.keys() | second.updates.keys() == program.updates.keys()
    assert not first.updates.keys() & second.updates.keys()
    rows = Hybrid(get_backend("numpy"), get_backend("numpy")).explain(program)
    assert len(rows) == len(program.nodes)


def test_what_has_a_forward_pass_alone_is_on_the_first() -> None:
    first, second = cut(model_on("numpy").program("predict", batch_size=4), forward)
    assert first.nodes
    assert not second.nodes
    assert not second.results


def test_the_page_says_how_much_is_handed_on_in_each_step() -> None:
    model = get_model("platforms", preprocessing=[Rescaling(1 / 255)], input_dtype="uint8")
    model.compile(SGD(momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    first, _ = cut(model.program("train", batch_size=512), forward)
    handed = sum(v.spec.nbytes for name, v in first.outputs.items() if name.endswith("#")) / 1e6
    page = Path(__file__).parents[2] / "docs" / "studies" / "platforms.md"
    assert f"hands {handed:.0f} MB of activations from the GPU to the CPU in each step" in page.read_text("utf-8")
