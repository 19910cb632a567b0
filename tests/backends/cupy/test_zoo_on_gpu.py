"""A hundred training steps of every network of the zoo, at small sizes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from minicnn import zoo
from minicnn.backends._gpu.options import Options
from support.zoo_steps import BATCH, CLASSES, model_of, worst_difference

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy")

from minicnn.backends.cupy.backend import CupyBackend  # noqa: E402


@pytest.mark.parametrize("name", zoo.names())
def test_a_hundred_steps_are_those_of_numpy(name: str) -> None:
    worst, where = worst_difference(model_of(name, "cupy"), model_of(name, "numpy"), 100)
    assert worst <= 1, where


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1", "vgg11"])
def test_a_step_of_pipelined_convolutions_is_that_of_the_usual_ones(name: str, precision: str) -> None:
    strict, usually = CupyBackend(strict=True), CupyBackend(strict=True, options=Options(pipelined=False))
    models = [model_of(name, strict), model_of(name, usually, precision)]
    models += [model_of(name, strict, precision) for _ in range(2)]
    rng, start, ways = np.random.default_rng(0), models[0].get_weights(), []
    y = rng.integers(0, CLASSES, 4 * BATCH).astype("int32")
    x = (rng.integers(0, 100, (y.size, *models[0].input_shape[1:])) + 30 * y[:, None, None, None]).astype("uint8")
    for model in models:
        model.set_weights(start)
        model.train_on_batch(x, y)
        ways.append({key: weight - start[key] for key, weight in model.get_weights().items()})
    exact, usual, ahead, again = ways
    longest = max(float(np.linalg.norm(way)) for way in exact.values())
    for key, way in exact.items():
        assert np.array_equal(ahead[key], again[key]), key
        off, usually_off = (float(np.linalg.norm(found[key] - way)) for found in (ahead, usual))
        # Both round to 16 bits in other places, and are as far from float32 as that takes them.
        assert off < 2 * usually_off + 0.02 * np.linalg.norm(way) + 1e-4 * longest, key
