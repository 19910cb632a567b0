"""Comparison of two traces: values that differ by more than rounding, and the node to blame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn import html
from minicnn.program.printing import operation
from minicnn.tolerance import EPSILON, tolerance

if TYPE_CHECKING:
    from minicnn.trace.step import StepTrace, TracedValue

Array = np.ndarray[Any, Any]

# Operations without cancellation: their error is relative to the result.
_RELATIVE = frozenset({"multiply", "divide"})
# Operations whose terms are products of their inputs.
_PRODUCTS = ("matmul", "conv2d")


@dataclass(frozen=True)
class Difference:
    """A value that differs between two traces.

    Attributes:
        value: The value in the first trace.
        error: Largest difference, in units of what rounding explains.
        off: How far each side is from what its own inputs lead to in float64, in the same units; equal for what both
            were given.
    """

    value: TracedValue
    error: float
    off: tuple[float, float]

    @property
    def is_culprit(self) -> bool:
        """True if the node that made the value is to blame, or nobody, as the value is an input."""
        return self.value.node is None or not max(self.off) <= 1


@dataclass(frozen=True)
class TraceComparison:
    """Differences of two traces; true if there are any.

    Attributes:
        names: The two backends.
        differences: Values that differ by more than rounding, in the order in which they are made.
        largest: Largest difference of all values, in units of what rounding explains.
        count: Values compared.
    """

    names: tuple[str, str]
    differences: Sequence[Difference]
    largest: float
    count: int

    @property
    def first(self) -> Difference | None:
        """The first value whose difference does not come from values before it."""
        return next((d for d in self.differences if d.is_culprit), None)

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        one, other = self.names
        first, many = self.first, len(self.differences)
        if not many:
            most = f"the largest difference is {self.largest:.2g} of what rounding explains"
            return f"{one} and {other} agree in {self.count} values; {most}."
        if first is None:
            return (
                f"No node differs: {many} of {self.count} values of {one} and {other} do, first "
                f"{self.differences[0].value.path}, but each follows from what its node was given. That is rounding "
                "that grows, as at the kink of a ReLU, or where a gradient is zero but for rounding."
            )
        value = first.value
        if value.node is None:
            return (
                f"{one} and {other} were given different arrays: {value.path} differs by {first.error:.2g} roundings."
            )
        worse, off = max(zip(self.names, first.off, strict=True), key=lambda side: (math.isnan(side[1]), side[1]))
        return (
            f"First node that differs: {value.path}, {value.value.name} = {operation(value.node)}, {value.phase}. The "
            f"result of {worse} is off by {off:.2g} times what rounding explains. {many} of {self.count} values differ."
        )

    def _repr_html_(self) -> str:
        rows = [(d.value.path, f"{d.error:.2g}", *(f"{off:.2g}" for off in d.off)) for d in self.differences]
        return html.block(str(self), html.table(("path", "difference", *self.names), rows) if rows else "")

    __repr__ = __str__


def compare(one: StepTrace, other: StepTrace) -> TraceComparison:
    """See `StepTrace.diff`."""
    if [_signature(t) for t in one.values()] != [_signature(t) for t in other.values()]:
        raise ValueError(
            "Two traces are compared value by value, so they are of one model, compiled alike, and as many samples. "
            f"Received: {one!r} and {other!r}. Trace both anew."
        )
    terms: dict[str, float] = {}
    differences, largest = [], 0.0
    for path, a in one.items():
        b = other[path]
        terms_of_node, before = 1.0, 0.0
        # The error grows with all additions on the way to a value, not only with those of its own node.
        if a.node is not None:
            terms_of_node = max(1.0, a.node.cost.flops / (2 * max(a.value.size, 1)))
            before = max((terms.get(v.name, 0.0) for v in a.node.inputs), default=0.0)
        terms[a.value.name] = terms_of_node + before
        # The coarser of both types decides about what rounding explains.
        dtype = max((a.value.dtype, b.value.dtype), key=lambda name: EPSILON.get(name, 0.0))
        scale = max(_largest(a.array), _largest(b.array))
        error = _error(a.array, b.array, dtype, terms_of_node + before, scale)
        largest = max(largest, error)
        if not error <= 1:
            off = (
                (error, error)
                if a.node is None
                else (_off(a, one, dtype, terms_of_node), _off(b, other, dtype, terms_of_node))
            )
            differences.append(Difference(a, error, off))
    names = tuple(f"{t.backend.name}:{t.backend.device}" for t in (one, other))
    return TraceComparison((names[0], names[1]), differences, largest, len(one))


def _signature(traced: TracedValue) -> tuple[Any, ...]:
    node = traced.node
    return (
        traced.path,
        traced.value.shape,
        () if node is None else [v.name for v in node.inputs if v.kind != "constant"],
    )


def _largest(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))


def _error(a: Array, b: Array, dtype: str, terms: float, scale: float) -> float:
    """The largest difference in units of the tolerance; infinite where only one is finite, or integers differ."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if dtype not in EPSILON or not np.isfinite(np.abs(a - b)[~same]).all():
        return math.inf
    rtol, _ = tolerance(dtype, math.ceil(terms))
    return float(np.abs(a - b)[~same].max()) / (rtol * max(scale, np.finfo(np.float64).tiny))


def _off(traced: TracedValue, trace: StepTrace, dtype: str, terms: float) -> float:
    """Distance of a value from what its node's inputs lead to in float64, in units of the tolerance."""
    import array_api_compat.numpy as xp  # loads much, and only who compares needs it

    node, value = traced.node, traced.value
    if node is None:
        return 0.0
    arrays = [trace[v.name].array if v.kind != "constant" else np.asarray(v.data) for v in node.inputs]
    # In float64, from what the node was given: its own mistakes show, those before it do not.
    exact = [a.astype(np.float64) if "float" in v.dtype else a for a, v in zip(arrays, node.inputs, strict=True)]
    attrs = dict(node.attrs)
    sizes = [_largest(a) for a, v in zip(exact, node.inputs, strict=True) if "float" in v.dtype]
    if sizes and "float" in str(attrs.get("dtype", "")):
        attrs["dtype"] = "float64"
    with np.errstate(all="ignore"):
        results = node.op.reference(*exact, xp=xp, **attrs)
    expected = np.asarray(
        (results if isinstance(results, tuple) else (results,))[[v is value for v in node.outputs].index(True)]
    )
    scale = _largest(expected)
    if sizes and node.op.name not in _RELATIVE:  # what was given may nearly cancel
        # A sum of large terms that cancel is off by the rounding of the terms, not of the result.
        usual = math.prod(sizes) if any(p in node.op.name for p in _PRODUCTS) else max(sizes)
        scale = max(scale, usual * math.sqrt(terms))
    return _error(traced.array, expected, dtype, terms, scale)
