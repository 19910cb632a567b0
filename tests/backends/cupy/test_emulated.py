"""The generated kernels, run on the CPU: plans, memory and whole steps on a machine without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import Ahead, Emulated, needs_gxx, prepared
from backends.cupy.networks import NETWORKS
from minicnn import Model, ops
from minicnn.backends import get_backend
from minicnn.backends._gpu.runtime import KernelText
from minicnn.layers import Average, Conv2D, Dense, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program
from support.kernel_check import CASES, add_case, case_program, check_results, step_of
from support.plans import plan_of
from support.tolerances import SHORT_SUM, STEP

pytestmark = needs_gxx


@pytest.mark.sampled(1)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_numpy(network: str) -> None:
    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    found = Emulated(program())(given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=STEP, atol=SHORT_SUM, err_msg=name)


def test_every_primitive() -> None:
    """All in few launches, as compiling takes its time; other formats of images have tests of their own."""
    program, cases, without = Program(), {}, set()
    for k, case in enumerate(c for c in CASES if c.attrs.get("data_format", "NHWC") == "NHWC"):
        reasons = {u.reference for u in plan_of(case_program(case, "float32")[0], tiled=False).groups}
        if reasons <= {None}:
            cases[f"{k}"] = case, add_case(program, case, "float32", f"{k}")
        elif "kernels take no empty arrays" not in reasons:
            without.add(case.op.name)
    assert without == {"take_gradient", "affine_transform_gradient"}
    made = Emulated(program, tiled=False)({name: a for _, arrays in cases.values() for name, a in arrays.items()})
    for name, (case, arrays) in cases.items():
        check_results(case, arrays.values(), lambda k, name=name: made[f"{name}y{k}"])


def test_what_is_read_beside_its_maxima_is_stored() -> None:
    """Windows of one element: the sum has the shape of both, and knows of what was pooled the maximum alone."""
    models = []
    for backend in ("numpy", EmulatedBackend(strict=True)):
        image = Input((6, 5, 3))
        convolved = Conv2D(4, 3, activation="tanh")(image)
        models.append(Model(image, Average()([MaxPooling2D(1)(convolved), convolved]), backend=backend))
    models[1].set_weights(models[0].get_weights())
    x = np.random.default_rng(0).standard_normal((3, 6, 5, 3)).astype("float32")
    np.testing.assert_allclose(models[1].predict(x), models[0].predict(x), rtol=STEP, atol=SHORT_SUM)


def test_rows_by_an_index_that_the_step_makes() -> None:
    """In a kernel; an index outside reads the nearest row rather than memory that is not there."""
    program = Program()
    x, at = program.input("x", (6, 3), kind="parameter"), program.input("at", (4, 1))
    index = ops.reshape(ops.cast(at * 1.0, dtype="int32"), shape=(4,))
    program.outputs["y"] = ops.take(x, index) + 1.0
    given = {"x": np.arange(18, dtype="float32").reshape(6, 3), "at": np.asarray([[5], [1], [-3], [99]], "float32")}
    np.testing.assert_array_equal(Emulated(program)(given)["y"], given["x"][[5, 1, 0, 5]] + 1)


@pytest.mark.night("tests/backends/cupy/test_emulated.py::test_every_primitive")
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_of_poolings_whose_windows_overlap_and_do_not(size: int) -> None:
    rng, weights = np.random.default_rng(0), []
    x, y = rng.standard_normal((8, 11, 11, 3)).astype("float32"), rng.integers(0, 5, 8).astype("int32")
    for backend in ("numpy", EmulatedBackend(strict=True)):
        image = Input((11, 11, 3))
        made = Conv2D(4, 3, activation="relu")(MaxPooling2D(size, 2)(Conv2D(8, 3, padding="same")(image)))
        model = Model(image, Dense(5)(Flatten()(made)), backend=backend, seed=1)
        model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        weights.append(model.get_weights())
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, rtol=STEP, atol=SHORT_SUM, err_msg=name)


def test_launches_are_in_place_before_the_one_ahead_has_written() -> None:
    """What they read through restricted pointers, and before they wait, is what was there; each block has to wait."""
    head = '#include "core.cuh"\nextern "C" __global__ void kernel(const float* {} x, float* y) {{ '
    wait, move = "wait_for_previous(); ", "y[0] = x[0] + 1.0f; }"
    texts = [head.format("") + wait + move, head.format("__restrict__") + wait + move]
    texts += [head.format("") + "const float early = x[0]; " + wait + "y[0] = early + 1.0f; }", head.format("") + move]
    results = []
    for text in texts[:3]:
        x, ahead = np.zeros((3, 1), "float32"), Ahead()
        for k, each in enumerate((texts[0], text)):
            prepared(KernelText(each, ("float32*", "float32*"), 1), (x[k], x[k + 1]), 1)(ahead)
        results.append(x[2, 0])
    assert results == [2.0, 1.0, 1.0]
    with pytest.raises(AssertionError, match="Every block waits for the launch ahead"):
        prepared(KernelText(texts[3], ("float32*", "float32*"), 1), (x[0], x[1]), 1)(Ahead())
