from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import load, synthetic_digits, synthetic_digits_dataset
from minicnn.data.synthetic import BLOCK, GLYPHS, MAX_CONTROLS, _skeleton


def test_shapes_and_types():
    x, y = synthetic_digits(30, size=20, seed=3)
    assert (x.shape, x.dtype) == ((30, 20, 20, 1), np.uint8)
    assert (y.shape, y.dtype) == ((30,), np.int32)


GOLDEN = "057a1c8d7c12"  # of 1,500 images, seed 7


@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(1, 2 * BLOCK),
    longer=st.integers(0, BLOCK),
    size=st.sampled_from([8, 11]),
    seed=st.integers(0, 2**64 - 1),
)
def test_an_image_does_not_depend_on_how_many_are_drawn(n, longer, size, seed):
    x, y = synthetic_digits(n, size, seed)
    x_more, y_more = synthetic_digits(n + longer, size, seed)
    assert np.array_equal(x, x_more[:n])
    assert np.array_equal(y, y_more[:n])


def test_every_machine_draws_the_same():
    # Holds for any CPU and BLAS: what they may round differently is rounded off before anything is drawn.
    x, y = synthetic_digits(1500, seed=7)
    assert hashlib.sha256(x.tobytes() + y.astype("<i4").tobytes()).hexdigest().startswith(GOLDEN)


@settings(deadline=None, max_examples=10)
@given(tens=st.integers(1, 150), rest=st.integers(0, 9), seed=st.integers(0, 99))
def test_classes_are_balanced_and_mixed(tens, rest, seed):
    _, y = synthetic_digits(10 * tens + rest, 8, seed)
    assert np.array_equal(np.sort(y[: 10 * tens].reshape(tens, 10), axis=1), np.tile(np.arange(10), (tens, 1)))
    assert len(np.unique(y[10 * tens :])) == rest


def test_seeds_and_splits_differ():
    x, _ = synthetic_digits(100)
    assert not np.array_equal(x, synthetic_digits(100, seed=1)[0])
    dataset = synthetic_digits_dataset(100, 100)
    assert np.array_equal(dataset.x_train, x)
    pairs = (dataset.x_train[:, None, ::4, ::4] == dataset.x_test[None, :, ::4, ::4]).mean((2, 3, 4))
    assert pairs.max() < 0.95  # no test image is a training image
    images = synthetic_digits(2000)[0].reshape(2000, -1)
    assert len(np.unique(images, axis=0)) == 2000  # not even from one block to the next


def test_size_scales_the_same_digits():
    small, y = synthetic_digits(200, size=14)
    large, y_large = synthetic_digits(200, size=56)
    assert np.array_equal(y, y_large)
    shrunk = large[..., 0].reshape(200, 14, 4, 14, 4).mean((2, 4))
    correlation = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(small[..., 0], shrunk, strict=True)]
    assert np.median(correlation) > 0.9


def test_images_look_like_ink_on_paper():
    x, y = synthetic_digits(2000)
    values = x[..., 0] / 255
    assert 0.1 < values.mean() < 0.2  # MNIST: 0.13
    assert 0.25 < values.std() < 0.35  # MNIST: 0.31
    assert values.reshape(2000, -1).max(axis=1).min() > 0.6  # every image has ink
    assert values[:, [0, -1]].mean() < 0.05  # and a margin
    ink = (values > 0.5).sum((1, 2))
    assert ink[y == 1].mean() < 0.75 * ink[y == 8].mean()


def test_skeletons():
    assert len(GLYPHS) == 10
    for glyph in (glyph for variants in GLYPHS for glyph in variants):
        controls, spline, segments = _skeleton(glyph)
        assert len(controls) <= MAX_CONTROLS
        assert np.abs(controls).max() <= 0.55
        assert np.allclose(spline.sum(axis=1), 1)  # so that a shift of the control points is one of the spline
        points = spline @ controls
        assert all(np.isclose(np.linalg.norm(points - control, axis=1).min(), 0) for control in controls)
        assert np.linalg.norm(points[segments[:, 0]] - points[segments[:, 1]], axis=1).max() < 0.45


@pytest.mark.parametrize("options", [{"n": 0}, {"size": 7}, {"size": 257}, {"seed": -1}, {"seed": 2**64}])
def test_arguments_are_checked(options):
    with pytest.raises(ValueError, match=f"takes {next(iter(options))} from"):
        synthetic_digits(**({"n": 10} | options))


def test_speed():
    start = time.process_time()
    synthetic_digits(6000)  # about 0.2 s
    assert time.process_time() - start < 4


def softmax_regression(x, y, x_test, y_test, steps: int = 300) -> float:
    """Test accuracy of a linear classifier, trained by Nesterov's method on the whole set."""
    x, x_test = (
        np.concatenate([a.reshape(len(a), -1) / 255, np.ones((len(a), 1))], 1).astype("f4") for a in (x, x_test)
    )
    target = np.eye(10, dtype=np.float32)[y]
    weights = velocity = np.zeros((x.shape[1], 10), np.float32)
    for _ in range(steps):
        logits = x @ (weights + 0.9 * velocity)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        velocity = 0.9 * velocity - 0.1 * (x.T @ (p - target)) / len(x)
        weights = weights + velocity
    return float(((x_test @ weights).argmax(1) == y_test).mean())


def test_too_hard_for_a_linear_classifier_but_learnable():
    dataset = load("synthetic_digits", n_train=4000, n_test=1000)
    accuracy = softmax_regression(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)
    assert 0.75 < accuracy < 0.92  # 0.91 with all 60,000, trained to the end
