"""Preprocessing within the model: what is drawn, where pixels come from, on every backend, and nothing in inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.layers import (
    CenterCrop,
    Dense,
    GlobalAveragePooling2D,
    Input,
    Layer,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomRotation,
    RandomTranslation,
    RandomZoom,
    Resizing,
)
from minicnn.layers.augmentation import _sine_and_cosine
from minicnn.ops.transforms import FILL_MODES
from minicnn.optimizers import SGD
from support.campaign import EVERY_CASE
from support.layer_check import assert_formats_agree, check_config, run, run_layer, run_layer_check
from support.model_cases import FAST
from support.model_cases import run as run_ops
from support.plans import plan_of
from support.strategies import normal
from support.tolerances import DOUBLE, ELEMENT, STEP, SUM, TRAINING

X = (np.random.default_rng(0).random((40, 5, 6, 2)) * 255).astype("float32")
RANDOM: list[Any] = [
    RandomFlip(), RandomCrop(3, 4), RandomTranslation(0.3, 0.2), RandomRotation(0.2), RandomZoom(0.3),
    RandomZoom(0.3, 0.1, "constant", fill_value=3.0), RandomBrightness(0.3), RandomContrast(0.5),
]  # fmt: skip


@pytest.mark.parametrize("layer", RANDOM, ids=lambda layer: type(layer).__name__)
def test_every_sample_and_step_has_draws_of_its_own(layer: Any) -> None:
    same = np.broadcast_to(X[:1], X.shape).copy()
    made = run_layer(layer, same, training=True)
    assert len(np.unique(made.reshape(len(made), -1), axis=0)) > 3
    np.testing.assert_array_equal(run_layer(layer, same, training=True), made)
    assert (run_layer(layer, same, training=True, step=1) != made).any()
    assert (run_layer(layer, same, training=True, seed=1) != made).any()
    if not isinstance(layer, RandomCrop):
        assert run(layer, X).program.nodes == []
    check_config(layer, [(5, 6, 2)])


@pytest.mark.parametrize("backend", FAST[1:])
def test_backends_draw_and_move_alike(backend: str) -> None:
    made = []
    for name in ("numpy", backend):
        layers = [RandomFlip(), RandomRotation(0.3), RandomTranslation(0.3, 0.3, "wrap"), RandomContrast(0.3)]
        x = Input((5, 6, 2))
        y = x
        for layer in layers if EVERY_CASE or backend != "jax" else layers[:2]:  # XLA takes seconds for each
            y = layer(y, training=True)
        from minicnn import Model

        made.append(Model(x, y, backend=name).predict(X))
    np.testing.assert_allclose(made[1], made[0], atol=0.05)  # of 255: pixels are found by rounded places


@pytest.mark.parametrize("layer", RANDOM, ids=lambda layer: type(layer).__name__)
def test_engines_have_kernels_for_all_of_it(layer: Any) -> None:
    pytest.importorskip("numba")
    from minicnn.backends import backend_class

    strict = backend_class("numba")(strict=True, threads=1)  # type: ignore[call-arg]
    made = []
    for backend in (strict, "numpy"):
        model = Sequential([Input((5, 6, 2)), layer, GlobalAveragePooling2D(), Dense(1)], backend=backend)
        model.compile(SGD(0.0), "mae")
        made.append(model.train_on_batch(X, np.zeros((len(X), 1))))
    assert made[0] == pytest.approx(made[1], rel=TRAINING)
    plan = plan_of(model.program("train", batch_size=len(X)))
    assert not [group for group in plan.groups if group.reference]


def test_flips_are_one_of_four() -> None:
    made = run_layer(RandomFlip(), X, training=True)
    counts = [0, 0, 0, 0]
    for i, image in enumerate(made):
        options = (X[i], X[i, ::-1], X[i, :, ::-1], X[i, ::-1, ::-1])
        counts[next(k for k, option in enumerate(options) if (image == option).all())] += 1
    assert min(counts) >= 3
    rows = run_layer(RandomFlip("vertical"), X, training=True)
    assert all((image == X[i]).all() or (image == X[i, ::-1]).all() for i, image in enumerate(rows))


def test_crops_are_parts_everywhere() -> None:
    made = run_layer(RandomCrop(3, 4), X, training=True)
    found = set()
    for i, part in enumerate(made):
        found.add(next((a, b) for a in range(3) for b in range(3) if (part == X[i, a : a + 3, b : b + 4]).all()))
    assert len(found) == 9
    np.testing.assert_array_equal(run_layer(RandomCrop(3, 4), X), X[:, 1:4, 1:5])
    for training in (False, True):
        np.testing.assert_array_equal(run_layer(CenterCrop(3, 4), X, training=training), X[:, 1:4, 1:5])


BEYOND = {
    "reflect": [2, 1, 0, 0, 1, 2, 3, 4, 4, 3, 2], "wrap": [2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2],
    "nearest": [0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 4], "constant": [-7, -7, -7, 0, 1, 2, 3, 4, -7, -7, -7],
}  # fmt: skip


@pytest.mark.parametrize("mode", FILL_MODES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("shift", [0, 1, 3, -2, -3])
def test_shifts_by_whole_pixels(mode: str, interpolation: str, shift: int) -> None:
    x = np.arange(5.0).reshape(1, 1, 5, 1)
    layer = RandomTranslation(0.0, (shift / 5, shift / 5), mode, interpolation, fill_value=-7.0)
    found = run_layer(layer, x, training=True).ravel()
    np.testing.assert_allclose(found, BEYOND[mode][3 - shift : 8 - shift], atol=DOUBLE)


def test_shifts_by_half_a_pixel_and_far_ones() -> None:
    x = np.arange(5.0).reshape(1, 5, 1, 1)
    found = run_layer(RandomTranslation((0.1, 0.1), 0.0, "nearest"), x, training=True).ravel()
    np.testing.assert_allclose(found, [0, 0.5, 1.5, 2.5, 3.5])
    far = run_layer(RandomTranslation((3.0, 3.0), 0.0, "reflect"), x, training=True).ravel()
    np.testing.assert_allclose(far, [4, 3, 2, 1, 0])


@pytest.mark.parametrize("turns", [0.25, -0.25, 0.5, 1.0])
def test_turns_of_whole_quarters(turns: float) -> None:
    x = normal((2, 5, 5, 3), 0)
    found = run_layer(RandomRotation((turns, turns)), x, training=True)
    np.testing.assert_allclose(found, np.rot90(x, round(4 * turns), axes=(1, 2)), atol=SUM)


def test_sine_and_cosine() -> None:
    turns = np.linspace(-1, 1, 41)
    found = run_ops(lambda t: dict(zip(("s", "c"), _sine_and_cosine(t), strict=True)), turns)
    np.testing.assert_allclose(found["s"], np.sin(2 * np.pi * turns), atol=1e-7)
    np.testing.assert_allclose(found["c"], np.cos(2 * np.pi * turns), atol=1e-7)


def test_zoom_by_hand() -> None:
    x = np.arange(5.0).reshape(1, 5, 1, 1)
    nearer = run_layer(RandomZoom((-0.5, -0.5), 0.0), x, training=True).ravel()
    np.testing.assert_allclose(nearer, [1, 1.5, 2, 2.5, 3])
    farther = run_layer(RandomZoom((1.0, 1.0), 0.0, "constant", fill_value=9.0), x, training=True).ravel()
    np.testing.assert_allclose(farther, [9, 0, 2, 4, 9])


def test_brightness_and_contrast() -> None:
    bright = run_layer(RandomBrightness((0.2, 0.2)), X, training=True)
    np.testing.assert_allclose(bright, np.clip(X + 51, 0, 255), rtol=ELEMENT)
    x = normal((50, 4, 4, 2), 0)
    made = run_layer(RandomContrast(0.5, (-1e9, 1e9)), x, training=True)
    mean = x.mean(axis=(1, 2), keepdims=True)
    scale = (made - mean) / (x - mean)
    np.testing.assert_allclose(scale, np.broadcast_to(scale[:, :1, :1, :1], x.shape), rtol=ELEMENT)
    assert 0.5 <= scale.min() < 0.6
    assert 1.4 < scale.max() <= 1.5


@pytest.mark.parametrize("size", [(5, 6), (10, 3), (2, 9), (1, 1)])
def test_resizing_against_torch(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    x = normal((2, 5, 6, 3), 0)
    given = torch.tensor(x.transpose(0, 3, 1, 2))
    expected = torch.nn.functional.interpolate(given, size, mode="bilinear").numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(run_layer(Resizing(*size), x), expected, atol=DOUBLE)
    expected = torch.nn.functional.interpolate(given, size, mode="nearest-exact").numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(run_layer(Resizing(*size, "nearest"), x), expected, atol=DOUBLE)
    run_layer_check(Resizing(*size), (5, 6, 2), output=(*size, 2))


@pytest.mark.parametrize(
    "make",
    [lambda **o: RandomFlip(**o), lambda **o: RandomCrop(3, 2, **o), lambda **o: RandomRotation(0.2, **o),
     lambda **o: RandomContrast(0.5, (-9, 9), **o), lambda **o: Resizing(7, 3, **o), lambda **o: CenterCrop(3, 2, **o)],
)  # fmt: skip
def test_channels_first(make: Any) -> None:
    class Named:
        def __new__(cls, **options: Any) -> Any:
            return make(name="layer", **options)

    assert_formats_agree(Named, normal((3, 5, 6, 2), 0), training=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", RANDOM, ids=lambda layer: type(layer).__name__)
def test_gradients_of_a_layer_before_it(layer: Any) -> None:
    """By a difference quotient; a bias, so that the loss is linear in it but for clipping."""

    def model() -> Sequential:
        made = Sequential([Input((5, 6, 2)), Bias(), layer, GlobalAveragePooling2D(), Dense(1)], backend="numpy")
        made.compile(SGD(0.0), "mae", precision="float64")
        return made

    x, y, step = X[:4], np.full((4, 1), 1e4), 1e-3
    weights = model().get_weights()
    found = model().trace(x, y).gradients["bias/bias"].array
    for channel in range(2):
        losses = []
        for sign in (1, -1):
            nudged, moved = model(), weights["bias/bias"].copy()
            moved[channel] += sign * step
            nudged.set_weights({"bias/bias": moved})
            losses.append(nudged.train_on_batch(x, y))
        assert found[channel] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=STEP, abs=ELEMENT)


class Bias(Layer):
    """Adds a number to each channel."""

    def build(self, input_shape: Any) -> None:
        self.bias = self.add_weight("bias", input_shape[-1:], "zeros")

    def call(self, inputs: Any) -> Any:
        return inputs + self.bias


def test_in_training_alone() -> None:
    model = Sequential([Input((5, 6, 2), dtype="uint8"), RandomTranslation(0.4, 0.4)], backend="numpy")
    np.testing.assert_array_equal(model.predict(X.astype("uint8")), X.astype("uint8"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip("both"), "mode is one of 'horizontal'"),
        (lambda: run_layer(RandomCrop(9, 2), X), "Received: 5 x 6. Enlarge them first"),
        (lambda: RandomTranslation((0.3, 0.1), 0.1), "does not fall"),
        (lambda: RandomTranslation(0.1, 0.1, "mirror"), "fill_mode is one of 'reflect', 'wrap'"),
        (lambda: RandomZoom(-1.5), "at least -1"),
        (lambda: RandomRotation(2.0), "share of a full turn"),
        (lambda: RandomContrast(-0.5), "factor is a number of at least 0"),
        (lambda: Resizing(3, 3, "bicubic"), "interpolation is one of 'nearest', 'bilinear'"),
        (lambda: RandomBrightness("a"), "factor is a number"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("layer", [RandomRotation(-0.2), RandomTranslation(-0.3, -0.4), RandomZoom(-0.4)])
def test_the_sign_of_a_factor_does_not_matter(layer: Layer) -> None:
    images = np.arange(25.0).reshape(1, 5, 5, 1).repeat(20, 0)
    moved = np.asarray(Sequential([Input((5, 5, 1)), layer])(images, training=True))
    assert len({image.tobytes() for image in moved}) == 20
