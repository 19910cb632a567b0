"""float16 on webgpu: values are stored in 16 bits, and computed in float32."""

from __future__ import annotations

import numpy as np
import pytest

import backends.webgpu.running  # noqa: F401 - skips all of this where there is no adapter
from backends.cupy.pipelined import convolution
from backends.cupy.short_storage import by_numpy, check_scale, distance, rounded, small
from minicnn import Sequential, layers, ops
from minicnn.backends.webgpu.backend import WebGpuBackend
from minicnn.program import Program


def test_numbers_are_rounded_as_numpy_rounds_them() -> None:
    rng = np.random.default_rng(0)
    ends = [np.inf, -np.inf, np.nan, 65504, 65519.9, 65520, 6e-8, 2.9e-8, 3e-8, -0.0, 0, 6.1e-5, 2**-25, 3 * 2**-25]
    halves = [1 + 2**-11, 1 + 3 * 2**-11]  # between two numbers: the even one
    x = np.concatenate([rng.normal(size=2000) * 10.0 ** rng.integers(-9, 7, 2000), ends, halves]).astype("float32")
    program = Program()
    short = ops.cast(program.input("x", x.shape), dtype="float16")
    program.outputs = {"short": short, "wide": ops.cast(program.input("y", x.shape, "float16"), dtype="float32")}
    with np.errstate(over="ignore"):
        expected = x.astype("float16")
    backend = WebGpuBackend(strict=True)
    results = backend.compile(program)({"x": x, "y": expected})
    for name, dtype in (("short", "float16"), ("wide", "float32")):
        array = backend.to_numpy(results[name])
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, expected.astype(dtype))


@pytest.mark.parametrize("sizes", [(3, 8, 8, 3, 1, 1, 1), (1, 16, 5, 3, 2, 1, 2)])
def test_a_convolution_of_short_images_and_its_gradients(sizes: tuple[int, int, int, int, int, int, int]) -> None:
    program, rng = convolution("float16", *sizes, 9), np.random.default_rng(0)
    scales = {"x": 1.0, "weight": 1 / (sizes[3] * sizes[1] ** 0.5)}  # results of size 1, which are cubed
    arrays = {
        v.name: rounded((scales[v.name] * rng.standard_normal(v.shape)).astype("float32"), "float16")
        for v in program.inputs
    }
    backend = WebGpuBackend(strict=True)
    results = backend.compile(program.copy())({k: backend.asarray(a) for k, a in arrays.items()})
    assert distance({k: backend.to_numpy(a) for k, a in results.items()}, by_numpy(program, arrays)) < 1e-3


def test_a_step_whose_gradients_are_not_finite_changes_the_scale_alone() -> None:
    check_scale(WebGpuBackend(strict=True))


def test_training_follows_float32_and_is_the_same_twice() -> None:
    curves, weights = [], []
    for precision in ("float32", "mixed_float16", "mixed_float16"):
        model, x, y = small("webgpu", precision)
        curves.append(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"])
        weights.append(model.get_weights())
    assert 0 < abs(curves[0][0] - curves[1][0]) < 0.01 * curves[0][0]
    assert curves[1] == curves[2]
    for key, array in weights[1].items():
        np.testing.assert_array_equal(array, weights[2][key])


@pytest.mark.parametrize("precision", ["float64", "mixed_bfloat16"])
def test_other_precisions_are_refused_by_name(precision: str) -> None:
    model = Sequential([layers.Input((4,)), layers.Dense(2)], backend="webgpu")
    with pytest.raises(ValueError, match=rf"computes in float32, mixed_float16\. Received: .*{precision}"):
        model.compile("sgd", "mse", precision=precision)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_arrays_of_other_types_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"WGSL has no others. Received: {dtype}. Convert it"):
        WebGpuBackend().asarray(np.zeros(3, dtype))
