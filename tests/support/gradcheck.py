"""Gradients against finite differences, and the promises that every primitive makes, checked node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn.ops.primitive import Primitive
from minicnn.program import Program, Value, gradients

Array = np.ndarray[Any, Any]


def read_only(array: Any) -> Array:
    """A copy that raises when somebody writes to it."""
    result = np.array(array)
    result.flags.writeable = False
    return result


def run_checked(program: Program, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run on NumPy; check for each node the shape rule, the dtype, and that no result shares memory with another array.

    All arrays that a node reads are read-only, so one that changes its input raises.
    """
    found: dict[int, Array] = {id(v): read_only(arrays[v.name]) for v in program.inputs}
    found |= {id(v): read_only(v.data) for v in program.constants}
    for node in program.nodes:
        inputs = [found[id(v)] for v in node.inputs]
        made = node.op.reference(*inputs, xp=xp, **node.attrs)
        results = made if len(node.outputs) > 1 else (made,)
        assert len(results) == len(node.outputs)
        for i, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            assert (result.shape, result.dtype.name) == (value.shape, value.dtype), node
            for other in (*inputs, *results[:i]):
                assert not np.may_share_memory(result, other), f"{node} returns a view"
            found[id(value)] = read_only(result)
        cost = node.cost
        assert min(cost.flops, cost.bytes, cost.workspace) >= 0
    return {name: found[id(v)] for name, v in (program.outputs | program.updates).items()}


def check_gradients(
    function: Callable[..., Any] | Primitive,
    *arrays: Any,
    wrt: Sequence[int] | None = None,
    step: float = 1e-5,
    rtol: float = 1e-7,
    seed: int = 0,
    **attrs: Any,
) -> list[Array]:
    """Compare the gradients of `function(*values, **attrs)` with central differences along random directions.

    Every floating-point result is weighted by an upstream gradient drawn at random, so no factor of it can be
    missing; each input is moved along a direction of its own, so none hides behind a larger one.

    Args:
        function: Primitive, or composition of primitives, of Values.
        arrays: Inputs; floating-point ones are taken in float64.
        wrt: Positions of the inputs to differentiate by; all floating-point ones by default.
        step: Of the difference; the error of the difference is of the order of step^2 + eps / step.
        rtol: |numeric - analytic| <= rtol * max(1, |numeric|).
        seed: Of the upstream gradients and directions.
        attrs: Keyword arguments of the function.

    Returns:
        The gradients.
    """
    rng = np.random.default_rng(seed)
    inputs = [np.asarray(a, dtype="float64" if np.asarray(a).dtype.kind == "f" else None) for a in arrays]
    if wrt is None:
        wrt = [i for i, a in enumerate(inputs) if a.dtype.kind == "f"]

    def trace(differentiate: bool) -> tuple[Program, dict[str, Array]]:
        program = Program("gradcheck")
        given = {f"x{i}": a for i, a in enumerate(inputs)}
        values = [program.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(inputs)]
        made = function(*values, **attrs)
        results = [v for v in (made if isinstance(made, tuple | list) else (made,)) if "float" in v.dtype]
        upstream = np.random.default_rng([seed, 1])
        terms: list[Value] = []
        for i, v in enumerate(results):
            given[f"dy{i}"] = upstream.standard_normal(v.shape)
            terms.append(_ops().sum(v * program.input(f"dy{i}", v.shape, v.dtype)))
        loss = terms[0]
        for term in terms[1:]:
            loss = loss + term
        program.outputs["loss"] = loss
        if differentiate:
            for i, g in zip(wrt, gradients(program, loss, [values[i] for i in wrt]), strict=True):
                program.outputs[f"g{i}"] = g
        return program, given

    program, given = trace(True)
    backward = run_checked(program, given)
    forward, _ = trace(False)
    found = [backward[f"g{i}"] for i in wrt]
    for i, gradient in zip(wrt, found, strict=True):
        direction = rng.standard_normal(inputs[i].shape)
        direction /= max(float(np.linalg.norm(direction.ravel())), 1e-300)
        ends = []
        for sign in (1.0, -1.0):
            moved = given | {f"x{i}": inputs[i] + sign * step * direction}
            ends.append(float(_run(forward, moved)["loss"]))
        numeric = (ends[0] - ends[1]) / (2 * step)
        analytic = float(np.sum(gradient * direction))
        assert abs(numeric - analytic) <= rtol * max(1.0, abs(numeric)), (
            f"gradient of input {i}: analytic {analytic}, numeric {numeric}, input {inputs[i]}, attributes {attrs}"
        )
    return found


def run_primitive(op: Primitive, *arrays: Any, namespace: Any = xp, **attrs: Any) -> Any:
    """Result of a primitive's reference on arrays, after its shape rule has accepted them."""
    program = Program()
    values = [program.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(map(np.asarray, arrays))]
    made = op(*values, **attrs)
    program.outputs = {f"y{i}": v for i, v in enumerate(made if isinstance(made, tuple) else (made,))}
    results = list(run_checked(program, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}).values())
    return results[0] if len(results) == 1 else tuple(results)


def _run(program: Program, arrays: Mapping[str, Array]) -> dict[str, Array]:
    from minicnn.backends import get_backend

    return get_backend("numpy").compile(program)(arrays)


def _ops() -> Any:
    from minicnn import ops

    return ops
