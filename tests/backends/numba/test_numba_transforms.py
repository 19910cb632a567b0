"""Images read at the places of an affine map: as the reference does, near and far, on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.ops.transforms import FILL_MODES
from support.numba_check import both, single
from support.tolerances import LONG_TRAINING

pytest.importorskip("numba")

ROTATED = (0.9, -0.37, 4.3, 0.41, 1.1, -3.7)
MAPS = {  # (a, b, c, d, e, f), see `ops.affine_transform`
    "same": (1, 0, 0, 0, 1, 0), "shifted": (1, 0, 2.3, 0, 1, -3.6), "mirrored": (-1, 0, 36, 0, 1, 0),
    "smaller": (2.1, 0, -9.3, 0, 1.7, 2.2), "rotated": ROTATED, "far": (1, 0, 301.3, 0, 1, -77.6),
}  # fmt: skip


def transformed(
    h: int, w: int, size: tuple[int, int], maps: list[Any], how: dict[str, Any], samples: int = 18, threads: int = 1
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(0).normal(size=(samples, h, w, 2)).astype("float32")
    matrix = np.asarray([maps[n % len(maps)] for n in range(samples)], "float32")
    made, expected = both(ops.affine_transform, (x, matrix), {"size": size, "fill_value": 0.7, **how}, threads=threads)
    return made[0], expected[0]


@pytest.mark.parametrize("mode", FILL_MODES)
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize(("h", "w", "size"), [(21, 37, (21, 37)), (5, 3, (7, 50)), (1, 1, (3, 16)), (40, 18, (9, 4))])
def test_every_size_and_map(mode: str, interpolation: str, h: int, w: int, size: tuple[int, int]) -> None:
    how = {"interpolation": interpolation, "fill_mode": mode}
    made, expected = transformed(h, w, size, list(MAPS.values()), how)
    np.testing.assert_allclose(made, expected, atol=LONG_TRAINING if interpolation == "bilinear" else 0)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("mode", FILL_MODES)
@pytest.mark.parametrize("name", MAPS)
def test_interpreted(mode: str, name: str) -> None:
    for interpolation in ("bilinear", "nearest"):
        how = {"interpolation": interpolation, "fill_mode": mode}
        made, expected = transformed(3, 37, (2, 37), [MAPS[name]], how, samples=1)
        np.testing.assert_allclose(made, expected, atol=LONG_TRAINING if interpolation == "bilinear" else 0)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_threads_and_batches_do_not_matter(interpolation: str) -> None:
    how = {"interpolation": interpolation, "fill_mode": "reflect"}
    maps = list(MAPS.values())
    whole, _ = transformed(21, 37, (20, 30), maps, how, samples=70)
    for threads in (2, 3):
        made, _ = transformed(21, 37, (20, 30), maps, how, samples=70, threads=threads)
        np.testing.assert_array_equal(made, whole)
    x = np.random.default_rng(0).normal(size=(70, 21, 37, 2)).astype("float32")
    part = np.asarray([maps[n % len(maps)] for n in range(5, 12)], "float32")
    made, _ = both(ops.affine_transform, (x[5:12], part), {"size": (20, 30), "fill_value": 0.7, **how}, threads=2)
    np.testing.assert_array_equal(made[0], whole[5:12])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("mode", FILL_MODES)
def test_a_map_that_is_no_number_spoils_its_own_image_only(mode: str, bad: float) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6, 20, 1)).astype("float32")
    matrix = np.asarray([(1, 0, bad, 0, 1, 0), (bad,) * 6, MAPS["same"]], "float32")
    attrs = {"size": (6, 20), "interpolation": "bilinear", "fill_mode": mode, "fill_value": 0.0}
    backend = backend_class("numba")(strict=True, threads=1)  # type: ignore[call-arg]
    made = backend.compile(single(ops.affine_transform, (x, matrix), attrs))({"x": x, "x1": matrix})
    np.testing.assert_array_equal(made["y0"][2], x[2])
    assert np.isnan(made["y0"][1]).all() or not np.isnan(bad)
