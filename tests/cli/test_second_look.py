"""`minicnn compare` accuses no candidate of a ReLU at its kink, where either side is right, but of wrong kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends.numpy import NumpyBackend
from minicnn.cli import compare
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.layers import Dense, Flatten, Input, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import trainer
from minicnn.measure.parity import largest_difference
from minicnn.optimizers import SGD
from support.command_line import error_of, minicnn, settings_of
from support.in_process import in_this_process

ROUNDING = np.float32(1 + 1e-5)  # a fifth of what is allowed for sums of 784 terms
KINKED = 0  # the seed from which a pre-activation is zero but for rounding


class Products(NumpyBackend):
    """NumPy whose products are changed.

    Args:
        forward: Applied to the results of the network's products.
        backward: Applied to gradients of kernels.
    """

    def __init__(
        self, forward: Callable[[Any], Any] | None = None, backward: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        self._forward, self._backward = forward, backward

    def kernel(self, node: Any) -> Any:
        if node.op.name != "matmul" or node.attrs["transpose_b"]:
            return super().kernel(node)
        if node.attrs["transpose_a"]:
            return self._changed(self._backward, lambda a, b: a.T @ b)
        return self._changed(self._forward, lambda a, b: a @ b)

    @staticmethod
    def _changed(change: Callable[[Any], Any] | None, product: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda a, b: change(product(a, b)) if change else product(a, b)


def first_column(gradient: Any) -> Any:
    return np.concatenate([gradient[:, :1] * np.float32(1.01), gradient[:, 1:]], axis=1)


BACKENDS: dict[str, Callable[[], NumpyBackend]] = {
    "numpy": NumpyBackend,
    "rounds": lambda: Products(forward=lambda x: x * ROUNDING),
    "wrong": lambda: Products(backward=lambda x: x * np.float32(1.01)),
    "wrong_in_a_column": lambda: Products(backward=first_column),
}


def make_model(settings: Settings, samples: job.Samples, backend: NumpyBackend, *_: Any, **__: Any) -> Sequential:
    model = Sequential(
        [Input((28, 28, 1), dtype="uint8"), Rescaling(1 / 255), Flatten(), Dense(16, "relu", name="a"), Dense(10)],
        backend=backend, seed=settings.seed,
    )  # fmt: skip
    model.compile(SGD(settings.learning_rate), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    if settings.seed == KINKED:
        sums = samples["x_train"][0].ravel() / 255.0 @ model.get_weights()["a/kernel"]
        bias = np.zeros(16, np.float32)
        bias[sums.argmax()] = -sums.max() * (1 + 4e-6)
        model.set_weights({"a/bias": bias})
    return model


def compared(monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> Any:
    """What `compare` ends with for NumPy and another."""
    in_this_process(monkeypatch)
    monkeypatch.setattr(compare, "usable_backends", lambda settings: (["numpy", name], []))
    monkeypatch.setattr(job, "make_model", make_model)
    monkeypatch.setattr(trainer, "open_candidate", lambda name, *_: BACKENDS[name]())
    options = {"--samples": 10, "--batch-size": 10, "--epochs": 2, "--lr": 0.01, "--seed": seed, "--out": "out"}
    return minicnn("compare", "mlp", "--no-peer", *(str(part) for option in options.items() for part in option))


@pytest.mark.parametrize("seed", [KINKED, KINKED + 1])
def test_a_relu_at_its_kink_is_no_disagreement(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    result = compared(monkeypatch, "rounds", seed)
    assert result.exit_code == 0, result.output
    assert any(line.startswith("rounds agrees: loss") for line in result.stdout.splitlines())
    note = "note: rounds: a few elements differ, which may be chance; all train from seed 1"
    assert (note in result.stderr) == (seed == KINKED)


def test_the_kink_is_one() -> None:
    settings = settings_of("mlp", samples=10, batch_size=10, learning_rate=0.01, seed=KINKED, hold_out=0)
    samples = job.load_samples(settings)
    gradients = []
    for make in (BACKENDS["numpy"], BACKENDS["rounds"]):
        model = make_model(settings, samples, make())
        before = model.get_weights()
        model.train_on_batch(samples["x_train"], samples["y_train"])
        gradients.append({path: before[path] - after for path, after in model.get_weights().items()})
    assert largest_difference(gradients[1], gradients[0], {})[0] > 0.01


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["wrong", "wrong_in_a_column"])
@pytest.mark.parametrize("seed", [KINKED, KINKED + 1])
def test_a_wrong_kernel_is_accused(monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    result = compared(monkeypatch, name, seed)
    assert f"{name} failed or differed" in error_of(result, 1)
    assert f"{name} DISAGREES: refused, because its gradient of " in result.stdout
