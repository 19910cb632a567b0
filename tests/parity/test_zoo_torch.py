"""Every network of the zoo against a plain torch.nn definition in float64: outputs, loss, gradients, training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from minicnn import Model, zoo
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program.graph import Program, Value

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_torch_thread")

from minicnn.measure import torch_networks  # noqa: E402
from minicnn.zoo import STUDIES  # noqa: E402

CLASSES = 5


@dataclass(frozen=True)
class Case:
    """A network at a size that is quick, with sides of different lengths where it takes any."""

    image: tuple[int, int, int]
    batch: int = 4
    rate: float = 0.01
    backend: str = "torch"
    options: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)


NARROW = {"hidden_units": (24, 16), "dropout": 0.0}
DIGITS = (28, 28, 1)

CASES = {
    "mlp": Case(DIGITS, backend="numpy"),
    "lenet_3x3": Case(DIGITS, rate=1e-3, backend="numpy"),
    "two_convs": Case(DIGITS, rate=1e-3, backend="numpy"),
    "lenet5": Case(DIGITS, backend="numpy"),
    "alexnet": Case((67, 103, 3), rate=1e-4, options=NARROW, theirs={"units": (24, 16)}),
    "overfeat": Case((71, 103, 3), 2, 1e-4, options=NARROW, theirs={"units": (24, 16), "features": 2048}),
    "vgg11": Case((32, 64, 3), 2, 1e-4, options=NARROW, theirs={"units": (24, 16)}),
    "vgg16": Case((32, 64, 3), 2, 1e-4, options=NARROW, theirs={"units": (24, 16)}),
    "googlenet": Case((40, 52, 3), options={"dropout": 0.0}),
    "resnet9": Case((36, 68, 3), rate=1e-3, theirs={"features": 768}),
    "resnet18": Case((36, 52, 3), rate=1e-3),
    "resnet34": Case((36, 52, 3), rate=1e-3),
    "resnet50": Case((36, 52, 3), rate=1e-4),
    "mobilenet_v2": Case((36, 52, 3), rate=2e-4, options={"dropout": 0.0}),
    "squeezenet1_1": Case((44, 53, 3), rate=1e-3, options={"dropout": 0.0}, backend="numpy"),
}
AT_NIGHT = pytest.mark.night("tests/parity/test_zoo_torch.py::test_network_agrees_with_torch")
NAMES = [name if name in ("mlp", "resnet18") else pytest.param(name, marks=AT_NIGHT) for name in CASES]


class Recording(SGD):
    """SGD whose Program hands back the gradients as well."""

    def apply(self, program: Program, parameters: Mapping[str, Value], gradients: Sequence[Value], step: Value) -> None:
        super().apply(program, parameters, gradients, step)
        program.outputs |= {f"gradient/{p}": g for p, g in zip(parameters, gradients, strict=True)}


def step(model: Model, x: Any, y: Any) -> dict[str, Any]:
    """Outputs of the model's first training step."""
    program = model.program("train", batch_size=len(x))
    known = {**model.get_weights(), "x": x, "y": y}
    arrays = {v.name: known.get(v.name, np.zeros(v.shape, v.dtype)) for v in program.inputs}
    made = model.backend.compile(program)({k: model.backend.asarray(a) for k, a in arrays.items()})
    return {name: model.backend.to_numpy(made[name]) for name in program.outputs}


def assert_near(ours: Any, theirs: Any, *, rtol: float = 1e-9, floor: float = 0.0) -> None:
    """Largest difference within rtol of the largest element, or of `floor` where that is larger."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    scale = max(float(np.max(np.abs(theirs))), floor)
    assert float(np.max(np.abs(ours - theirs))) <= rtol * scale


def test_every_network_has_a_case() -> None:
    assert list(CASES) == zoo.names()


@pytest.mark.parametrize("name", NAMES)
def test_network_agrees_with_torch(name: str) -> None:
    case = CASES[name]
    model = zoo.get_model(
        name, num_classes=CLASSES, input_shape=case.image, backend=case.backend, seed=3, **case.options
    )
    model.compile(
        Recording(case.rate, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), precision="float64"
    )
    network = getattr(torch_networks, STUDIES.get(name, name))(case.image[2], CLASSES, **case.theirs).double()

    rng = np.random.default_rng(7)
    x = rng.standard_normal((case.batch, *case.image))
    y = rng.integers(0, CLASSES, case.batch).astype("int32")
    images, labels = torch.tensor(x).permute(0, 3, 1, 2).contiguous(), torch.tensor(y).long()
    flattened = torch_networks.image_before_dense(network, images)
    torch_networks.load(network, model.get_weights(), flattened)

    def assert_same_outputs() -> None:
        network.eval()
        with torch.no_grad():
            assert_near(model.predict(x), network(images).numpy())

    assert_same_outputs()

    # The first step: loss and every gradient.
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), case.rate, momentum=0.9)
    made = step(model, x, y)
    loss = torch.nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    assert_near(made["loss"], loss.item())
    zeros = {p: np.zeros_like(w) for p, w in model.get_weights().items()}  # statistics have no gradient
    gradients = zeros | {p.removeprefix("gradient/"): g for p, g in made.items() if p != "loss"}
    found = torch_networks.in_torch_order(network, gradients, flattened)
    expected = [t for _, t in torch_networks.tensors(network)]
    largest = max(float(t.grad.abs().max()) for t in expected if t.grad is not None)
    for (_, ours), theirs in zip(found, expected, strict=True):
        if theirs.requires_grad:
            # The gradient of a shift is 0 where batch normalisation follows: then only rounding is left.
            assert_near(ours, theirs.grad, floor=1e-4 * largest)

    # Three steps of training: with momentum the third is the first that goes on from all there is.
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours = [model.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(3)]
    # A small loss is a difference of numbers as large as in the beginning, and so is its rounding, which steps magnify.
    np.testing.assert_allclose(ours, losses, rtol=1e-7, atol=1e-8 * losses[0])
    assert losses[-1] < losses[0]

    # Trained weights agree; running variances do not, because PyTorch's are unbiased: take over ours.
    trained = torch_networks.in_torch_order(network, model.get_weights(), flattened)
    for (_, weight), theirs in zip(trained, expected, strict=True):
        if theirs.requires_grad:
            assert_near(weight, theirs.detach(), rtol=1e-7, floor=1e-3)
    torch_networks.load(network, model.get_weights(), flattened)
    assert_same_outputs()
