from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import Loader
from minicnn.data.augment import compose, random_crop, random_flip, random_shift


def batch(n: int = 200, H: int = 5, W: int = 6, C: int = 2) -> np.ndarray:
    """Every pixel is another, none is zero."""
    return np.arange(1, n * H * W * C + 1).reshape(n, H, W, C)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def offsets(result: np.ndarray, x: np.ndarray, padding: int) -> list[tuple[int, int]]:
    """Where each result was cut out of its padded image."""
    padded = np.pad(x, ((0, 0), (padding,) * 2, (padding,) * 2, (0, 0)))
    _, KH, KW, _ = result.shape
    found = []
    for image, source in zip(result, padded, strict=True):
        places = [
            (r, c)
            for r in range(source.shape[0] - KH + 1)
            for c in range(source.shape[1] - KW + 1)
            if np.array_equal(image, source[r : r + KH, c : c + KW])
        ]
        assert places
        found.append(places[0])
    return found


@settings(deadline=None, max_examples=30)
@given(KH=st.integers(1, 5), KW=st.integers(1, 6), padding=st.integers(0, 2), seed=st.integers(0, 99))
def test_crops_are_windows_of_the_padded_image(KH, KW, padding, seed):
    x = batch(20)
    result = random_crop((KH, KW), padding)(x, rng(seed))
    assert result.shape == (20, KH, KW, 2)
    offsets(result, x, padding)


def test_every_place_is_used():
    x = batch(400)
    assert set(offsets(random_crop((4, 5))(x, rng()), x, 0)) == {(r, c) for r in range(2) for c in range(2)}
    assert set(offsets(random_shift(1)(x, rng()), x, 1)) == {(r, c) for r in range(3) for c in range(3)}


def test_flip():
    x = batch()
    assert np.array_equal(random_flip(0)(x, rng()), x)
    assert np.array_equal(random_flip(1)(x, rng()), x[:, :, ::-1])
    result = random_flip()(x, rng())
    flipped = (result == x[:, :, ::-1]).all((1, 2, 3))
    assert (flipped | (result == x).all((1, 2, 3))).all()
    assert 60 < flipped.sum() < 140


@pytest.mark.parametrize("transform", [random_flip(), random_crop((3, 3), 1), random_shift(2), random_shift(0)])
def test_transforms_are_pure(transform):
    x = batch(50).astype(np.uint8)
    x.flags.writeable = False
    first = transform(x, rng(1))
    assert first.dtype == np.uint8
    assert not np.shares_memory(first, x)
    assert np.array_equal(first, transform(x, rng(1)))


def test_compose():
    x = batch(30)
    both = compose(random_flip(), random_shift(1))
    generator = rng(4)
    assert np.array_equal(both(x, rng(4)), random_shift(1)(random_flip()(x, generator), generator))
    assert compose()(x, rng()) is x


def test_in_a_loader():
    x = batch(20).astype(np.uint8)
    loader = Loader(x, batch_size=7, transform=compose(random_shift(1), random_crop((4, 4))), workers=2)
    assert [out.shape for (out,) in loader] == [(7, 4, 4, 2), (7, 4, 4, 2), (6, 4, 4, 2)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: random_flip(1.5), "probability from 0 to 1. Received: 1.5"),
        (lambda: random_crop((0, 3)), "size from 1"),
        (lambda: random_crop((3, 3), -1), "padding from 0"),
        (lambda: random_shift(-1), "Received: -1"),
        (lambda: random_crop((6, 6))(batch(), rng()), r"window \(6, 6\). Received: 5x6"),
        (lambda: random_flip()(np.zeros((3, 4, 5)), rng()), r"shape \(3, 4, 5\)"),
        (lambda: random_shift(1)(np.zeros((3, 4)), rng()), r"\(N, H, W, C\)"),
    ],
)
def test_arguments_are_checked(make, match):
    with pytest.raises(ValueError, match=match):
        make()
