"""Exported training steps of the zoo and of random networks, by ONNX Runtime, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import losses, optimizers, zoo
from minicnn.tolerance import EPSILON, tolerance
from support import random_networks
from support.campaign import FULL, size
from support.onnx_runtime import OnnxBackend, session_of, state_of, step

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]

# Of an ordinary run one network with normalisation; the small ones are in tests/interop.
NETWORKS = zoo.names() if FULL else ["resnet9"]
SHAPES = {
    "alexnet": (63, 63, 3),
    "overfeat": (71, 71, 3),
    **dict.fromkeys(("mlp", "platforms", "kernels", "lenet5"), (28, 28, 1)),
}
STEPS, BATCH, RATE = 5, 8, 0.001


def model_of(name: str) -> Any:
    options: dict[str, Any] = {"hidden_units": (32, 16)} if name.startswith(("vgg", "alexnet", "overfeat")) else {}
    shape = SHAPES.get(name, (32, 32, 3))
    model = zoo.get_model(name, num_classes=10, input_shape=shape, backend="numpy", **options)
    model.compile(optimizers.SGD(RATE, 0.9), losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def trained(name: str, batches: list[tuple[Array, Array]], nudge: int | None = None) -> dict[str, Array]:
    """Weights after five steps of NumPy; from first weights that roundings have moved, if a seed is given."""
    model = model_of(name)
    if nudge is not None:
        rng = np.random.default_rng(nudge)
        model.set_weights({
            path: w * (1 + 4 * EPSILON["float32"] * rng.standard_normal(w.shape))
            for path, w in model.get_weights().items()
        })  # fmt: skip
    found = [model.train_on_batch(x, y) for x, y in batches]
    return {**model.get_weights(), "loss": np.asarray(found)}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", NETWORKS)
def test_five_steps_of_the_zoo(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.export(tmp_path / "model.onnx")
    model.export(tmp_path / "train.onnx", "train")
    model.export(tmp_path / "state.onnx", "state")
    rng = np.random.default_rng(1)
    batches = [
        (
            rng.standard_normal((BATCH, *model.input_shape[1:])).astype("float32"),
            rng.integers(0, 10, BATCH).astype("int32"),
        )
        for _ in range(STEPS)
    ]
    session, state, found = session_of(tmp_path / "train.onnx"), state_of(tmp_path / "state.onnx"), []
    for x, y in batches:
        found.append(step(session, {"x": x, "y": y, "learning_rate": np.asarray(RATE, "float32")}, state)["loss"])
    wanted = trained(name, batches)
    terms = max(n.cost.flops // (2 * max(n.outputs[0].size, 1)) for n in model.program(batch_size=BATCH).nodes)
    rtol, _ = tolerance("float32", terms * STEPS)
    error, where = random_networks.worst({**state, "loss": np.asarray(found)}, wanted, rtol)
    if error > 1:  # a normalisation over a few numbers, or a ReLU at its kink, makes much of the last place
        moved = [trained(name, batches, nudge) for nudge in range(size(6, 3))]
        allowed = max(random_networks.worst(m, wanted, rtol)[0] for m in moved)
        assert error <= 1 + 4 * allowed, where


@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(size(10, 1)))
def test_random_networks(part: int) -> None:
    count = size(30, 5)
    backend = OnnxBackend()
    for seed in range(part * count, (part + 1) * count):
        assert random_networks.disagreement(seed, backend) == "", seed
