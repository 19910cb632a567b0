"""Mixed precision stores images in 16 bits: the kernels compute what the Program says, rounding where it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.pipelined import convolution
from backends.cupy.short_storage import by_numpy, check_scale, distance, residual, rounded, steps
from minicnn.backends import get_backend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from support.campaign import NIGHT

pytestmark = needs_gxx


@pytest.mark.night("tests/backends/cupy/test_short_storage.py::test_convolutions_of_short_images_and_their_gradients")
@pytest.mark.parametrize(
    ("dtype", "channels", "strides", "batch", "overlapping", "depthwise"),
    [("bfloat16", 8, 2, 3, True, True), *([("float16", 5, 1, 4, False, False)] if NIGHT else [])],
)
def test_a_step_rounds_where_the_program_says(
    dtype: str, channels: int, strides: int, batch: int, overlapping: bool, depthwise: bool
) -> None:
    model = residual(channels, strides, overlapping=overlapping, depthwise=depthwise)
    plain, short, arrays = steps(model, batch, dtype)
    expected = by_numpy(short, arrays)
    exact = get_backend("numpy").compile(plain)(arrays)
    found = Emulated(short, tiles=TensorTiles(H200, precision=dtype))(arrays)
    # A number between two of 16 bits may go either way, by what float32 rounds before.
    assert distance(found, expected) < 0.05 * distance(exact, expected)


@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
@example("bfloat16", 3, 3, 5, 7, 1, 1, 1)
@example("bfloat16", 3, 16, 8, 3, 2, 1, 2)
@given(
    dtype=st.sampled_from(["bfloat16", "float16"]), n=st.sampled_from([1, 3, 9]), c=st.sampled_from([3, 8, 16, 24]),
    f=st.sampled_from([5, 8, 32]), kernel=st.sampled_from([1, 3, 7]), strides=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2]), groups=st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolutions_of_short_images_and_their_gradients(
    dtype: str, n: int, c: int, f: int, kernel: int, strides: int, dilation: int, groups: int
) -> None:
    program = convolution(dtype, n, c, f, kernel, strides, dilation, groups, 9)
    rng = np.random.default_rng(0)
    sizes = {"x": 1.0, "weight": 1 / (kernel * c**0.5)}  # results of size 1, which are cubed
    arrays = {
        v.name: rounded((sizes[v.name] * rng.standard_normal(v.shape)).astype("float32"), dtype) for v in program.inputs
    }
    expected = by_numpy(program, arrays)
    found = Emulated(program, tiles=TensorTiles(H200, precision=dtype))(arrays)
    assert distance(found, expected) < 1e-3


def test_a_step_whose_gradients_are_not_finite_in_float16_changes_the_scale_alone() -> None:
    check_scale(EmulatedBackend(strict=True))
