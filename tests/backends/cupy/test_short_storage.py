"""Mixed precision stores images in 16 bits: the kernels compute what the Program says, rounding where it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import Emulated, needs_gxx
from backends.cupy.pipelined import convolution
from backends.cupy.short_storage import by_numpy, distance, residual, rounded, steps
from minicnn import Sequential, layers
from minicnn.backends import get_backend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.loop.tracing import FIRST_SCALE, GROWTH_STEPS
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
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
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (32, 6, 6, 1)).astype("uint8"), rng.integers(0, 4, 32).astype("int32")
    parts = [layers.Input((6, 6, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.Conv2D(8, 3, activation="relu")]
    model = Sequential([*parts, layers.Flatten(), layers.Dense(4)], backend=EmulatedBackend(strict=True))
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(0.1, momentum=0.9), loss, precision="mixed_float16")
    assert model.fit(x, y, 16, 1, 0).history["skipped_steps"] == [0]
    assert model._training.variables.get("loss_scale/factor") == FIRST_SCALE
    before = model.get_state()["arrays"]
    model._training.variables.set({"loss_scale/factor": np.float32(2.0**60), "loss_scale/steps": np.int32(7)})
    history = model.fit(x, y, 16, 1, 0).history
    assert history["skipped_steps"] == [2]
    assert np.isfinite(history["loss"][0])
    after = model.get_state()["arrays"]
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"loss_scale/factor", "loss_scale/steps"}
    assert (after["loss_scale/factor"], after["loss_scale/steps"]) == (2.0**58, 0)
    model._training.variables.set(
        {"loss_scale/factor": np.float32(64.0), "loss_scale/steps": np.int32(GROWTH_STEPS - 1)}
    )
    assert model.fit(x, y, 16, 1, 0).history["skipped_steps"] == [0]
    after = model.get_state()["arrays"]
    assert (after["loss_scale/factor"], after["loss_scale/steps"]) == (128.0, 1)
