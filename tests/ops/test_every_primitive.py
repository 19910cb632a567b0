"""What holds for every primitive: covered by a case, differentiable where it should be, the same on every library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.conformance import cases as op_cases
from minicnn.conformance.cases import Case
from minicnn.program import Program
from support.campaign import EVERY_CASE
from support.gradcheck import check_gradients, run_checked
from support.numerics import assert_close

# Integer or boolean results, updates at the end of a step, and groups that are merged after differentiation.
NOT_DIFFERENTIABLE = {
    "adam_update", "argmax", "equal", "fused", "greater", "greater_equal", "less", "less_equal", "momentum_update",
    "one_hot", "random_uniform", "rmsprop_update", "sgd_update",
}  # fmt: skip
ZERO_DERIVATIVE = {"sign"}

OWN = sorted(name for name, op in ops.REGISTRY.items() if op.__module__.startswith("minicnn."))
CASES: dict[str, list[Case]] = defaultdict(list)
for _case in op_cases.CASES:
    CASES[_case.op.name].append(_case)


def test_every_primitive_has_a_case() -> None:
    assert sorted(CASES) == OWN


def test_every_primitive_is_gradient_tested_or_listed() -> None:
    tested = {name for name, cases in CASES.items() if any(c.wrt for c in cases)}
    assert sorted(tested | NOT_DIFFERENTIABLE | ZERO_DERIVATIVE) == OWN
    assert not tested & NOT_DIFFERENTIABLE
    assert {name for name in OWN if not ops.REGISTRY[name].differentiable} == NOT_DIFFERENTIABLE


def test_every_primitive_is_public_and_documented() -> None:
    for name in OWN:
        assert name in ops.__all__
        assert ops.REGISTRY[name].__doc__


@pytest.mark.parametrize("case", [c for c in op_cases.CASES if c.wrt], ids=str)
def test_gradient(case: Case) -> None:
    check_gradients(case.differentiable, *case.arrays, wrt=case.wrt, **case.attrs)


@pytest.fixture(params=["numpy", "array_api_strict", "torch", "jax"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param != "array_api_strict":
        yield get_backend(request.param)
        return
    from array_api_strict import ArrayAPIStrictFlags

    with ArrayAPIStrictFlags(boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()):
        yield get_backend("array_api_strict")


def _program(cases: list[Case], dtype: str) -> tuple[Program, dict[str, np.ndarray[Any, Any]]]:
    """All cases side by side in one Program, with `dtype` for float64, and the arrays for its inputs."""
    program, given = Program(), {}
    for i, case in enumerate(cases):
        values = []
        for j, array in enumerate(case.arrays):
            given[f"x{i}.{j}"] = array.astype(dtype) if array.dtype == "float64" else array
            values.append(program.input(f"x{i}.{j}", array.shape, given[f"x{i}.{j}"].dtype.name))
        attrs = {k: dtype if v == "float64" else v for k, v in case.attrs.items()}
        made = case.op(*values, **attrs)
        for j, value in enumerate(made if isinstance(made, tuple) else (made,)):
            program.outputs[f"y{i}.{j}"] = value
    return program, given


@pytest.mark.parametrize("name", OWN)
def test_reference_on_every_library(name: str, backend: Any) -> None:
    """Float32 on each library (jitted on JAX) against float64 on NumPy, from the same numbers."""
    cases = CASES[name]
    if backend.name == "jax" and not EVERY_CASE:  # XLA takes half a second for two cases: by day these, far apart
        cases = cases[:: -(-len(cases) // 2)]
    program, given = _program(cases, "float32")
    precise, _ = _program(cases, "float64")
    expected = run_checked(precise, {k: a.astype("float64") if a.dtype == "float32" else a for k, a in given.items()})
    results = backend.compile(program)({k: backend.asarray(a) for k, a in given.items()})
    for key, value in program.outputs.items():
        assert backend.owns(results[key]) or isinstance(results[key], np.generic)
        actual = backend.to_numpy(results[key])
        assert actual.dtype.name == value.dtype
        terms = cases[int(key[1:].split(".")[0])].terms
        assert_close(actual, expected[key].astype(actual.dtype) if actual.dtype.kind != "f" else expected[key], terms)


@pytest.mark.parametrize("name", OWN)
def test_no_library_result_changes_or_shares_its_input(name: str) -> None:
    torch = pytest.importorskip("torch")
    backend = get_backend("torch")
    for case in CASES[name]:
        inputs = [backend.asarray(a) for a in case.arrays]
        made = case.op.reference(*inputs, xp=backend.xp, **case.attrs)
        for result in made if isinstance(made, tuple) else (made,):
            for tensor, array in zip(inputs, case.arrays, strict=True):
                assert torch.equal(tensor, backend.asarray(array))
                assert result.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_jax_without_jit() -> None:
    pytest.importorskip("jax")
    backend = get_backend("jax")
    names = ("conv2d", "adam_update", "max_pool2d_gradient", "random_uniform")
    for name in names if EVERY_CASE else names[:2]:
        case = CASES[name][-1]
        arrays = [a.astype("float32") if a.dtype == "float64" else a for a in case.arrays]
        eager = case.op.reference(*map(backend.asarray, arrays), xp=backend.xp, **case.attrs)
        plain = case.op.reference(*arrays, xp=get_backend("numpy").xp, **case.attrs)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (eager, plain)), strict=True):
            assert_close(backend.to_numpy(a), b, case.terms)
