"""Strategies of convolution: the same values, errors and memory as stated, and refusals in words."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import array_api_compat.numpy as numpy_xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops, zoo
from minicnn.backends import get_backend
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.ops.strategies import DIRECTIONS, PRIMITIVES, STRATEGIES, Problem, get_strategy
from minicnn.ops.windows import Axes, Window
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.strategies import DATA_FORMATS, WindowCase, conv_cases, normal, seeds
from support.tolerances import STEP

Array = np.ndarray[Any, Any]
BASE = Problem(8, (16, 16), 16, 24, (3, 3), padding=((1, 1), (1, 1)))


def problem_of(case: WindowCase, dtype: str = "float64") -> Problem:
    shapes = (case.n, case.image, case.channels, case.filters, case.kernel)
    return Problem(*shapes, dtype=dtype, **case.convolution)


def operands(problem: Problem, seed: int = 0) -> tuple[Array, Array, Array]:
    """Images, kernel and a gradient of the result."""
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    x, w, dy = (normal(shape, seed, i).astype(problem.dtype) for i, shape in enumerate(shapes))
    return x, w, dy


def three(of: Any, problem: Problem, x: Any, w: Any, dy: Any, xp: Any) -> list[Any]:
    """All directions of a strategy, or of the references."""
    conv, dx, dw = (getattr(getattr(of, name), "reference", getattr(of, name)) for name in PRIMITIVES)
    attrs = {**problem.attrs, "xp": xp}
    return [
        conv(x, w, **attrs),
        dx(dy, w, image=problem.image, **attrs),
        dw(dy, x, kernel=problem.kernel, **attrs),
    ]


def check(problem: Problem, xp: Any, convert: Callable[[Array], Any], back: Callable[[Any], Array], seed: int) -> None:
    """Every strategy that takes the problem agrees with the references in float64."""
    x, w, dy = operands(problem, seed)
    expected = three(ops, problem, x, w, dy, numpy_xp)
    arrays = [convert(a) for a in (x, w, dy)]
    for strategy in STRATEGIES.values():
        if strategy.refusal(problem, xp) is not None:
            continue
        found = three(strategy, problem, *arrays, xp)
        for direction, ours, right in zip(DIRECTIONS, found, expected, strict=True):
            ours = back(ours)
            assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
            scale = max(float(np.abs(right).max(initial=0)), 1.0)
            error = float(np.abs(ours - right).max(initial=0)) / scale
            assert error < strategy.error * 1e-13 * 16, f"{strategy.name} {direction}"


@st.composite
def three_by_three(draw: st.DrawFn) -> WindowCase:
    """Problems that every strategy takes: 3x3 kernels in steps of 1, with any padding."""
    padding = draw(st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2))
    groups = draw(st.integers(1, 2))
    return WindowCase(
        n=draw(st.integers(1, 3)),
        image=draw(st.tuples(st.integers(3, 11), st.integers(3, 11))),
        channels=groups * draw(st.integers(1, 3)),
        kernel=(3, 3),
        strides=(1, 1),
        padding=padding,
        dilation=(1, 1),
        groups=groups,
        filters=groups * draw(st.integers(1, 3)),
        data_format=draw(st.sampled_from(DATA_FORMATS)),
        seed=draw(seeds),
    )


cases = st.one_of(conv_cases(), three_by_three())


@given(case=cases)
def test_agree_with_the_references(case: WindowCase) -> None:
    def read_only(array: Array) -> Array:
        array.flags.writeable = False
        return array

    check(problem_of(case), numpy_xp, read_only, np.asarray, case.seed)


@settings(max_examples=20)
@given(case=cases)
def test_agree_on_strict_arrays(case: WindowCase) -> None:
    strict = pytest.importorskip("array_api_strict")
    check(problem_of(case), strict, strict.asarray, np.asarray, case.seed)


@settings(max_examples=30)
@given(case=cases)
def test_agree_on_torch_arrays(case: WindowCase) -> None:
    torch = pytest.importorskip("torch")
    xp = get_backend("torch").xp
    check(problem_of(case), xp, torch.tensor, lambda t: t.numpy(), case.seed)


@pytest.mark.night("tests/ops/test_strategies_of_convolution.py::test_agree_on_torch_arrays")
def test_agree_on_jax_arrays() -> None:
    """One problem that no strategy refuses: JAX takes seconds to compile each."""
    jax = pytest.importorskip("jax")
    problem = Problem(2, (6, 5), 2, 4, (3, 3), padding=((1, 1), (1, 1)), data_format="NCHW")
    arrays = operands(problem)
    expected = three(ops, problem, *(a.astype("float64") for a in arrays), numpy_xp)
    for strategy in STRATEGIES.values():
        if strategy.refusal(problem, jax.numpy) is None:
            run = jax.jit(lambda x, w, dy, s=strategy: three(s, problem, x, w, dy, jax.numpy))
            for ours, right in zip(run(*arrays), expected, strict=True):
                np.testing.assert_allclose(ours, right, rtol=0, atol=STEP * float(np.abs(right).max()))


# Errors and memory --------------------------------------------------------------------------------


@settings(max_examples=25)
@given(case=three_by_three(), wide=st.sampled_from([1, 8, 24]), positive=st.booleans())
def test_errors_in_float32_are_within_the_stated_bound(case: WindowCase, wide: int, positive: bool) -> None:
    case = replace(case, channels=case.channels * wide)
    problem = problem_of(case, "float32")
    arrays = [np.abs(a) if positive else a for a in operands(problem, case.seed)]
    expected = three(ops, problem, *(a.astype("float64") for a in arrays), numpy_xp)
    for strategy in STRATEGIES.values():
        if strategy.refusal(problem, numpy_xp) is None:
            for ours, right in zip(three(strategy, problem, *arrays, numpy_xp), expected, strict=True):
                assert ours.dtype == np.float32
                error = float(np.abs(ours - right).max()) / float(np.abs(right).max())
                assert error <= strategy.error * tolerance("float32", case.terms)[0], strategy.name


def test_larger_winograd_tiles_err_more() -> None:
    problem = replace(BASE, channels=64)
    arrays = operands(problem, 1)
    right = three(ops, problem, *(a.astype("float64") for a in arrays), numpy_xp)[0]
    errors = [
        float(np.abs(STRATEGIES[n].conv2d(*arrays[:2], **problem.attrs, xp=numpy_xp) - right).max())
        for n in ("winograd2", "winograd4")
    ]
    assert errors[0] < errors[1] / 4


NUMPY_BUFFERS = 2**17  # where it adds strided arrays
MEMORY = {
    "base": {},
    "one image": {"batch": 1, "image": (64, 64)},
    "5x5": {"kernel": (5, 5), "padding": ((2, 2), (2, 2))},
    "1x1": {"kernel": (1, 1), "padding": ((0, 0), (0, 0))},
    "valid": {"padding": ((0, 0), (0, 0)), "image": (21, 18)},
    "stride": {"strides": (2, 2)},
    "groups": {"groups": 4},
    "dilation": {"dilation": (2, 2), "padding": ((2, 2), (2, 2))},
    "few channels": {"channels": 3, "batch": 32},
}
OLD_FFT = np.lib.NumpyVersion(np.__version__) < "2.4.0"  # NumPy's took up to twice the memory


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("changes", MEMORY.values(), ids=list(MEMORY))
def test_memory_is_as_stated_within_ten_percent(changes: dict[str, Any], data_format: str) -> None:
    problem = replace(replace(BASE, batch=32, channels=32), data_format=data_format, **changes)
    x, w, dy = operands(problem)
    for strategy in STRATEGIES.values():
        if strategy.refusal(problem, numpy_xp) is not None:
            continue
        calls = (
            lambda s=strategy: s.conv2d(x, w, **problem.attrs, xp=numpy_xp),
            lambda s=strategy: s.conv2d_input_gradient(dy, w, image=problem.image, **problem.attrs, xp=numpy_xp),
            lambda s=strategy: s.conv2d_weight_gradient(dy, x, kernel=problem.kernel, **problem.attrs, xp=numpy_xp),
        )
        for direction, call in zip(DIRECTIONS, calls, strict=True):
            tracemalloc.start()
            call()
            measured = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            stated = strategy.workspace(problem, direction) + problem.result_bytes(direction)
            off = 0.5 if strategy.name == "fft" and OLD_FFT else 0.1
            assert abs(stated - measured) <= off * measured + NUMPY_BUFFERS, f"{strategy.name} {direction}"


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("k", [3, 7, 11])
def test_columns_by_tiles_need_a_third_of_all_columns_at_most(k: int, data_format: str) -> None:
    problem = Problem(64, (32, 32), 64, 64, (k, k), padding=((k // 2, k // 2),) * 2, data_format=data_format)
    for direction in DIRECTIONS:
        tiled, whole = (STRATEGIES[name].workspace(problem, direction) for name in ("implicit", "unrolled"))
        assert tiled is not None
        assert whole is not None
        assert 3 * tiled <= whole, direction


def test_a_library_does_not_say_what_it_needs() -> None:
    assert STRATEGIES["vendor"].workspace(BASE, "forward") is None


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("winograd2", {"kernel": (5, 5)}, "its tiles are for 3x3 kernels, not 5x5"),
        ("winograd4", {"strides": (2, 1)}, "its tiles are for strides and dilation of 1, not (2, 1) and (1, 1)"),
        ("winograd4", {"dilation": (2, 2)}, "its tiles are for strides and dilation of 1"),
        ("winograd2", {"dtype": "bfloat16"}, "its transforms need float32 or float64, not bfloat16"),
        ("fft", {"dtype": "bfloat16"}, "transforms take float32 or float64, not bfloat16"),
        ("vendor", {}, "the arrays' library has no convolution of its own (numpy)"),
    ],
)
def test_refusals_say_why(name: str, changes: dict[str, Any], reason: str) -> None:
    problem = replace(BASE, **changes)
    assert str(STRATEGIES[name].refusal(problem, numpy_xp)).startswith(reason)


def test_fft_needs_the_extension() -> None:
    class Bare:
        __name__ = "bare"

    reason = STRATEGIES["fft"].refusal(BASE, Bare())
    assert reason == "the arrays' library has no fft extension of the Array API (bare)"


def test_unknown_names() -> None:
    assert get_strategy("fft") is get_strategy(STRATEGIES["fft"])
    with pytest.raises(ValueError, match=r"one of direct, unrolled, .*Received: 'quantum'"):
        get_strategy("quantum")
    with pytest.raises(ValueError, match="Received: 'quantum'"):
        get_backend("numpy", convolution="quantum")
    with pytest.raises(ValueError, match="convolution='fft'"):
        get_backend(get_backend("numpy"), convolution="fft")


# Choosing one -------------------------------------------------------------------------------------


def nodes(problem: Problem) -> list[Any]:
    program = Program()
    x, w = program.input("x", problem.x_shape), program.input("w", problem.w_shape)
    dy = program.input("dy", problem.y_shape)
    ops.conv2d(x, w, **problem.attrs)
    ops.conv2d_input_gradient(dy, w, image=problem.image, **problem.attrs)
    ops.conv2d_weight_gradient(dy, x, kernel=problem.kernel, **problem.attrs)
    ops.relu(x)
    return program.nodes


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_problem_of_a_node(data_format: str) -> None:
    problem = replace(BASE, strides=(2, 1), groups=2, data_format=data_format, dilation=(1, 2))
    *convolutions, relu = nodes(problem)
    assert [Problem.of(node) for node in convolutions] == [problem] * 3
    assert {node.cost.flops for node in convolutions} == {problem.flops}
    assert STRATEGIES["direct"].kernel(relu, numpy_xp) == "relu is no convolution"


def losses(backend: Any, batch: int = 8) -> list[float]:
    rng = np.random.default_rng(0)
    x, y = rng.random((batch, 12, 12, 1)).astype("float32"), rng.integers(0, 10, batch).astype("int32")
    model = zoo.get_model("kernels", input_shape=(12, 12, 1), backend=backend)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    return [float(model.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(3)]


@pytest.mark.parametrize("batch", [8, 40])  # images as they come, and with the batch last
@pytest.mark.parametrize("name", [n for n in STRATEGIES if n != "vendor"])
def test_a_network_trains_with_a_strategy(name: str, batch: int) -> None:
    np.testing.assert_allclose(losses(get_backend("numpy", convolution=name), batch), losses("numpy", batch), rtol=STEP)


@pytest.mark.parametrize("backend", ["torch", "jax", "numba", "array_api_strict"])
def test_every_backend_takes_a_strategy(backend: str) -> None:
    name = "vendor" if backend in ("torch", "jax") else "winograd2"
    chosen = get_backend(backend, convolution=name)
    assert repr(chosen) == f"<backend {backend}:cpu, convolution={name!r}>"
    np.testing.assert_allclose(losses(chosen), losses("numpy"), rtol=STEP)


def test_explain_says_which_strategy_runs_and_why_not() -> None:
    model = zoo.get_model("lenet5", backend=get_backend("numpy", convolution="winograd2"))
    text = str(model.explain())
    assert "reference: winograd2: its tiles are for 3x3 kernels, not 5x5" in text
    model = zoo.get_model("kernels", backend=get_backend("numpy", convolution="winograd2"))
    text = str(model.explain())
    assert "strategy: winograd2" in text
    assert "reference: relu is no convolution" in text
    off = get_backend("numpy", convolution="winograd2", reference_only=True)
    assert "winograd2" not in str(zoo.get_model("kernels", backend=off).explain())


def test_strict_is_about_convolutions() -> None:
    losses(get_backend("numpy", convolution="winograd2", strict=True))
    model = zoo.get_model("lenet5", backend=get_backend("numpy", convolution="winograd2", strict=True))
    with pytest.raises(RuntimeError, match=r"'winograd2' computes every convolution.*not 5x5.*strict=False"):
        model.predict(np.zeros((1, 28, 28, 1), "float32"))


@pytest.mark.parametrize(("name", "layout"), [("direct", "HWCN"), ("vendor", "NHWC")])
def test_the_library_gets_images_in_the_order_that_they_have(name: str, layout: str) -> None:
    pytest.importorskip("torch")
    backend = get_backend("torch", convolution=name)
    model = zoo.get_model("kernels", backend=backend)
    nodes = [node for node, _ in backend.explain(model.program("predict", batch_size=64))]
    assert {node.attrs["data_format"] for node in nodes if node.op.name == "conv2d"} == {layout}


def test_the_library_computes_float32_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    known, seen = torch.nn.functional.conv2d, []

    def watched(*args: Any) -> Any:
        seen.append(torch.backends.cudnn.allow_tf32)
        return known(*args)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    x, w = torch.ones((1, 4, 4, 2)), torch.ones((3, 3, 2, 3))
    axes, window = Axes.of("NHWC"), Window((3, 3))
    STRATEGIES["vendor"].forward(x, w, window, axes, get_backend("torch").xp)
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("padding", [0, 1])
def test_a_background_of_zeros_stays_zero(padding: int) -> None:
    x, w, _ = operands(replace(BASE, image=(13, 11)), 1)
    x = x * (np.random.default_rng(1).random(x.shape[:3]) < 0.03)[..., None]
    attrs = {"padding": ((padding,) * 2, (0, 1)), "xp": numpy_xp}
    background = ~ops.conv2d.reference(x, w, **attrs).any(axis=-1)
    assert background.mean() > 0.2
    for name in ("winograd2", "winograd4"):
        assert not STRATEGIES[name].conv2d(x, w, **attrs)[background].any()
