"""Places between pixels, where a compiler computes them more than once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.ops.arrays import materialized, rounded
from minicnn.program import Program
from support.numerics import assert_close

SAMPLES, SIZE, MIDDLE = 32, 7, 3.0


def zoom(u: Any) -> Any:
    """Matrices of a map that leaves the middle where it is: one pixel is read there, but for roundings."""
    scale = np.asarray([[1, 0, -MIDDLE, 0, 1, -MIDDLE]], "float32")
    return (u * 0.6 - 0.3) * scale + np.asarray([[1, 0, 0, 0, 1, 0]], "float32")


def zoom_in_two_steps(u: Any) -> Any:
    """The same with offsets that are themselves a sum with a product."""
    scale, zero = u * 0.37 + 1.0, u * 0.0
    offset = scale * -MIDDLE + MIDDLE
    return ops.concat(scale, zero, offset, zero, scale, offset, axis=1)


@pytest.mark.parametrize("matrix", [zoom, zoom_in_two_steps])
def test_pixels_and_their_weights_belong_together_however_they_are_compiled(matrix: Any) -> None:
    """XLA computes pixels and weights of the results in kernels of their own, for each reader anew, with other sums."""
    pytest.importorskip("jax")
    program = Program()
    x, u = program.input("x", (SAMPLES, SIZE, SIZE, 4), "float32"), program.input("u", (SAMPLES, 1), "float32")
    moved = ops.affine_transform(x, matrix(u), size=(SIZE, SIZE))
    pooled = ops.max_pool2d(moved, kernel=(1, 3), strides=(1, 3))
    one, zero = (program.constant(np.full((1, 1, 1, 4), v), "float32") for v in (1.0, 0.0))
    program.outputs["y"] = ops.normalize(pooled, one, zero, axes=(1, 2, 3), epsilon=1e-3)[0]
    found: dict[str, list[Any]] = {"jax:cpu": [], "numpy": []}
    for name, results in found.items():
        backend, rng = get_backend(name), np.random.default_rng(0)
        run = backend.compile(program)
        for _ in range(10):
            given = {v.name: backend.asarray(rng.random(v.shape, "float32")) for v in (x, u)}
            results.append(backend.to_numpy(run(given)["y"]))
    assert_close(np.asarray(found["jax:cpu"]), np.asarray(found["numpy"]), pooled.size // SAMPLES)


def test_what_compilers_are_kept_from_changes_no_number() -> None:
    x = np.random.default_rng(0).standard_normal((5, 6)).astype("float32")
    x[0, :3] = -0.0, np.finfo("float32").tiny, -np.inf
    for result in (rounded(x, np), materialized(x, np)):
        assert (result.dtype, result.tobytes()) == (x.dtype, x.tobytes())
        assert not np.may_share_memory(result, x)
