"""Winograd's minimal filtering: its matrices exactly, its errors beside the table of tolerances, its bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.ops import winograd_matrices as matrices
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.numba_check import Array, both
from support.strategies import normal, seeds

KINDS = [(outputs, taps) for taps, every in matrices.OUTPUTS.items() for outputs in every]
KERNELS = [(3, 3), (5, 5), (3, 5)]


@pytest.mark.parametrize(("outputs", "taps"), KINDS)
def test_matrices_are_exact(outputs: int, taps: int) -> None:
    """On unit vectors, of which everything is made: output i is input i + k for tap k."""
    ends, of_taps, of_inputs = matrices.matrices(outputs, taps)
    for k in range(taps):
        for j in range(outputs + taps - 1):
            products = [row[k] * other[j] for row, other in zip(of_taps, of_inputs, strict=True)]
            results = [sum(a * m for a, m in zip(row, products, strict=True)) for row in ends]
            assert results == [Fraction(int(i + k == j)) for i in range(outputs)]


def program(n: int, image: tuple[int, int], channels: int, filters: int, kernel: tuple[int, int], pad: int) -> Program:
    """A convolution and its gradients."""
    made, attrs = Program(), {"padding": ((pad, pad), (pad, pad))}
    x, w = made.input("x", (n, *image, channels)), made.input("w", (*kernel, channels, filters), kind="parameter")
    y = made.outputs["y"] = ops.conv2d(x, w, **attrs)
    dy = made.input("dy", y.shape)
    with made.scope("", "backward"):
        made.outputs["dx"] = ops.conv2d_input_gradient(dy, w, image=image, **attrs)
        made.outputs["dw"] = ops.conv2d_weight_gradient(dy, x, kernel=kernel, **attrs)
    return made


def arrays_of(made: Program, seed: int) -> dict[str, Array]:
    """Normal numbers."""
    return {v.name: normal(v.shape, seed + i).astype("float32") for i, v in enumerate(made.inputs)}


def backend(threads: int = 2) -> Any:
    """Winograd's way wherever there is one."""
    return backend_class("numba")(strict=True, threads=threads, convolution_kernel="winograd")  # type: ignore[call-arg]


@pytest.mark.no_cover
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([1, 15, 16, 40]), st.tuples(st.integers(5, 14), st.integers(5, 14)), st.integers(1, 40),
    st.integers(1, 5), st.integers(0, 2), seeds,
)  # fmt: skip
def test_errors_are_within_the_table(
    kernel: tuple[int, int], n: int, image: tuple[int, int], channels: int, panels: int, pad: int, seed: int
) -> None:
    """Beside float64: the largest error, relative to the size that sums of so many normal terms have."""
    filters = 8 * panels  # one width of products, so that few kernels are compiled
    made = program(n, image, channels, filters, kernel, pad)
    arrays = arrays_of(made, seed)
    results = backend().compile(made)(arrays)
    x, w, dy = (arrays[name].astype("float64") for name in ("x", "w", "dy"))
    attrs, taps = {"padding": ((pad, pad), (pad, pad)), "xp": xp}, kernel[0] * kernel[1]
    expected = {
        "y": (ops.conv2d.reference(x, w, **attrs), taps * channels),
        "dx": (ops.conv2d_input_gradient.reference(dy, w, image=image, **attrs), taps * filters),
        "dw": (ops.conv2d_weight_gradient.reference(dy, x, kernel=kernel, **attrs), dy.size // filters),
    }
    for name, (right, terms) in expected.items():
        error = np.abs(results[name] - right).max() / terms**0.5
        assert error <= tolerance("float32", terms)[0], (name, error)


def test_every_number_of_threads_gives_the_same_bits() -> None:
    made = program(20, (9, 7), 12, 24, (3, 3), 1)
    first, *others = (backend(threads).compile(made)(arrays_of(made, 0)) for threads in (1, 2, 3, 64))
    for other in others:
        for name in ("y", "dx"):
            np.testing.assert_array_equal(other[name], first[name])
    for threads in (3, 64):  # sums over the batch are added by parts, for one number of threads always the same
        one, two = (backend(threads).compile(made)(arrays_of(made, 0)) for _ in range(2))
        np.testing.assert_array_equal(one["dw"], two["dw"])


@pytest.mark.usefixtures("interpreted")
def test_transforms_as_python() -> None:
    x, w = normal((3, 5, 4, 2), 0).astype("float32"), normal((3, 3, 2, 3), 1).astype("float32")
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("conv2d", (x, w), {}), ("conv2d_input_gradient", (x, w[..., :2]), {"image": (7, 6)}),
    ]  # fmt: skip
    for name, arrays, more in cases:
        attrs = more | {"padding": ((0, 0), (0, 0))}
        made, expected = both(getattr(ops, name), arrays, attrs, (1,), convolution_kernel="winograd")
        np.testing.assert_allclose(made[0], expected[0], rtol=tolerance("float32", 27)[0], atol=1e-4)


def ways(made: Program) -> dict[str, str]:
    """The kernel of each operation that is computed by Winograd's filtering."""
    texts = [how.removeprefix("kernel: ") for _, how in backend().explain(made)]
    return dict(text.split(" by winograd ") for text in texts if "winograd" in text)


def test_large_tiles_where_they_fit_and_small_ones_where_they_do_not() -> None:
    small, large = (ways(program(16, (side, side), 16, 16, (3, 3), 1)) for side in (2, 16))
    assert set(small.values()) == {"F(2x2)"}
    assert len(large) >= 2
    assert set(large.values()) == {"F(4x4)"}
    direct = backend_class("numba")(threads=1)  # type: ignore[call-arg]
    texts = [how for _, how in direct.explain(program(16, (8, 8), 2, 4, (3, 3), 1))]  # too few channels to gain by it
    assert not [text for text in texts if "winograd" in text]


@pytest.mark.parametrize(("kernel", "end"), [((3, 3), "relu6"), ((5, 5), ""), ((3, 5), "relu")])
def test_a_background_of_zeros_stays_zero(kernel: tuple[int, int], end: str) -> None:
    """Gradients of relu and of maxima depend on it: noise would be positive half the time."""
    made = program(16, (12, 11), 24, 32, kernel, 1)
    assert ways(made)["conv2d"] == "F(4x4)"
    y = made.outputs["y"] = made.outputs["y"] + made.input("b", (32,), kind="parameter")
    if end:
        made.outputs["y"] = getattr(ops, end)(y)
    arrays, rng = arrays_of(made, 0), np.random.default_rng(1)
    arrays["x"] *= rng.random(arrays["x"].shape[:3])[..., None] < 0.03
    arrays["b"] *= 5
    expected = ops.conv2d.reference(arrays["x"], arrays["w"], padding=((1, 1), (1, 1)), xp=xp)
    background = ~expected.any(axis=-1)
    assert background.mean() > 0.2
    run = backend().compile(made)
    result = run(arrays)["y"]
    of_zeros = np.clip(arrays["b"], 0 if end else None, 6 if end == "relu6" else None)
    assert np.all(result[background] == of_zeros)
    arrays["w"][0, 0, 0, 0] = np.nan
    assert np.isnan(run(arrays)["y"][..., 0][background]).all()
