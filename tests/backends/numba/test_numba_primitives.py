"""Every primitive has a kernel for every case, and it computes what the reference does, compiled or interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.conformance.cases import CASES, COLLECTIVES, Case
from minicnn.kernels.elements import ELEMENTS
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.campaign import EVERY_CASE
from support.numba_check import both, run_both
from support.tolerances import ELEMENT, STEP

pytest.importorskip("numba")

from minicnn.backends.numba import rules

# Weights and what training carries along come as parameters; where the first input is one, nothing has a batch axis.
UPDATES = ("sgd_update", "momentum_update", "adam_update", "rmsprop_update", "random_uniform")
KERNELS = {"conv2d": 1, "conv2d_input_gradient": 1, "depthwise_conv2d": 1, "depthwise_conv2d_input_gradient": 1}

# float64 is for the references.
CASES = [c for c in CASES if "float64" not in c.attrs.values() and c.op.name not in COLLECTIVES]


def narrow(case: Case) -> tuple[np.ndarray[Any, Any], ...]:
    return tuple(a.astype("float32") if a.dtype == "float64" else a for a in case.arrays)


def weights(case: Case) -> tuple[int, ...]:
    if case.op.name in UPDATES:
        return tuple(range(len(case.arrays)))
    return (KERNELS[case.op.name],) if case.op.name in KERNELS else ()


FIRST = {case.op.name: case for case in reversed(CASES)}


@pytest.mark.cover
@pytest.mark.parametrize(
    ("jit", "case"),
    [
        *(pytest.param("compiled", c, marks=pytest.mark.no_cover) for c in (CASES if EVERY_CASE else FIRST.values())),
        *(("interpreted", c) for c in CASES),
    ],
    ids=str, indirect=["jit"],
)  # fmt: skip
@pytest.mark.usefixtures("jit")
def test_kernels_agree_with_references(case: Case) -> None:
    made, expected = both(case.op, narrow(case), case.attrs, weights(case), threads=1)
    rtol, atol = tolerance("float32", max(case.terms, 8))
    for one, other in zip(made, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        size = max(1.0, float(np.abs(other).max(initial=0))) if other.dtype == "float32" else 1.0
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * size)


def test_what_minicnn_defines_has_a_kernel_of_its_own() -> None:
    """The general one is for what others define: here it would hide that a rule is missing."""
    made_by_a_pass_for_gpus = {"max_pool2d_index", "max_pool2d_scatter"}
    assert set(ELEMENTS) - set(rules.RULES) == made_by_a_pass_for_gpus
    program = Program()
    program.outputs["y"] = ops.relu(program.input("x", (3, 4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "RULES", {})
        patch.setattr(rules, "group", lambda lowering: None)
        ((_, how),) = backend_class("numba")().explain(program)
    assert how == "kernel: relu by elements"


ONCE = {c.op.name: c for c in CASES if c.op.name in ELEMENTS and c.op is not ops.random_uniform}


@pytest.mark.sampled(46)
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("case", ONCE.values(), ids=str)
def test_a_primitive_without_a_rule_has_the_kernel_of_its_elements(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one has that somebody else defines."""
    monkeypatch.setattr(rules, "RULES", {})
    monkeypatch.setattr(rules, "expand", lambda program: None)
    monkeypatch.setattr(rules, "group", lambda lowering: None)
    made, expected = both(case.op, narrow(case), case.attrs, weights(case), threads=2)
    rtol, atol = tolerance("float32", max(case.terms, 8))
    for one, other in zip(made, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        size = max(1.0, float(np.abs(other).max(initial=0))) if other.dtype == "float32" else 1.0
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * size)


@pytest.mark.sampled(96)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", [c for c in CASES if c.op is not ops.take], ids=str)
def test_no_input_needs_a_batch_axis(case: Case) -> None:
    made, expected = both(case.op, narrow(case), case.attrs, tuple(range(len(case.arrays))), threads=1)
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=STEP, atol=STEP)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("n", [16, 19])
def test_lanes_beyond_the_last_sample_do_not_count(n: int) -> None:
    program = Program()
    x, image = program.input("x", (n, 5)), program.input("image", (n, 3, 4, 6))
    one = program.input("one", (6,), kind="parameter")
    h, maps = ops.exp(x), ops.exp(image)  # 1 in those lanes
    dy = maps[:, 1:, 1:, :] + 1.0
    program.outputs = {
        "sum": ops.sum(h, axes=0),
        "some": ops.sum(maps, axes=(0, 2)),
        "mean": ops.mean(maps),
        "max": ops.max(h * -1.0, axes=0),
        "product": ops.matmul(h, h + 1.0, transpose_a=True),
        "kernel": ops.conv2d_weight_gradient(dy, maps, kernel=(2, 2)),
        "groups": ops.conv2d_weight_gradient(dy, maps, kernel=(2, 2), groups=2),
        "depthwise": ops.depthwise_conv2d_weight_gradient(dy, maps, kernel=(2, 2)),
    }
    y, mean, variance = ops.normalize(maps, one, one, axes=(0, 1, 2), epsilon=1e-3)
    program.outputs |= {"y": y, "average": mean, "variance": variance}
    made = ops.normalize_gradient(y + 1.0, maps, one, mean, variance, axes=(0, 1, 2), epsilon=1e-3)
    program.outputs |= {f"gradient{i}": value for i, value in enumerate(made)}
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal(v.shape).astype("float32") for v in program.inputs}
    found, expected = run_both(program, arrays)
    rtol, atol = tolerance("float32", 12 * n)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol * 9, err_msg=name)


@pytest.mark.usefixtures("either")
def test_powers_of_special_values() -> None:
    special = np.asarray([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3, -3, 1e-40, 1e38], "float32")
    a, b = (m.ravel() for m in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        (made,), (expected,) = both(ops.power, (a, b), {}, threads=1)
    np.testing.assert_allclose(made, expected, rtol=ELEMENT)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(expected) & ~np.isnan(expected))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", ["float32", "bool", "int32", "uint8"])
def test_labels_in_bytes_and_many_classes(dtype: str) -> None:
    labels = np.asarray([[0, 255], [7, 254], [1, 2]], "uint8")
    (made,), (expected,) = both(ops.one_hot, (labels,), {"classes": 300, "dtype": dtype}, threads=1)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == expected.dtype


def test_strict_refuses_a_fallback() -> None:
    program = Program("predict")
    x = program.input("x", (4, 3), "float64")
    with program.scope("head"):
        program.outputs["y"] = ops.exp(x)
    with pytest.raises(RuntimeError, match=r"strict=True.*Received 1 without one, first .*exp.* in head: .*float64"):
        backend_class("numba")(strict=True).compile(program)
    made = backend_class("numba")().compile(program)({"x": np.ones((4, 3))})
    np.testing.assert_allclose(made["y"], np.full((4, 3), np.e))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("axes", [(1,), (1, 2), (1, 3), (3,), (1, 2, 3)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_of_maxima_within_samples(axes: tuple[int, ...], keepdims: bool) -> None:
    program = Program()
    image = program.input("image", (19, 4, 3, 20))
    h = ops.abs(image)
    y = ops.max(h, axes=axes, keepdims=keepdims)
    program.outputs["dx"] = ops.max_gradient(y * 2.0, h, y, axes=axes, keepdims=keepdims)
    arrays = {"image": np.round(np.random.default_rng(0).standard_normal((19, 4, 3, 20))).astype("float32")}
    found, expected = run_both(program, arrays)
    np.testing.assert_array_equal(found["dx"], expected["dx"])
