"""A step as it ran: every value by name, with the node that made it, its statistics and pictures; and what differs.

A trace is made of the step's Program with every value among its outputs. By default the references of the primitives
compute it, node by node, on the backend's own arrays: backends that merge nodes into kernels do not merge then.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn import html
from minicnn.backends.base import Backend
from minicnn.pictures import Picture, picture
from minicnn.program.graph import Node, Program, Value
from minicnn.program.printing import operation
from minicnn.tolerance import EPSILON, tolerance

Array = np.ndarray[Any, Any]

# Operations without cancellation: their error is relative to the result.
_RELATIVE = frozenset({"multiply", "divide"})
# Operations whose terms are products of their inputs.
_PRODUCTS = ("matmul", "conv2d")


@dataclass(frozen=True)
class Statistics:
    """What there is to say of an array's elements; the first four are of the finite ones, NaN if there are none.

    Attributes:
        min: Least.
        max: Largest.
        mean: Mean.
        std: Standard deviation.
        zeros: Share of elements that are zero.
        nan: Share that are NaN.
        inf: Share that are infinite.
    """

    min: float
    max: float
    mean: float
    std: float
    zeros: float
    nan: float
    inf: float

    @classmethod
    def of(cls, array: Array) -> Statistics:
        """The statistics of an array, computed in float64."""
        every = array.astype(np.float64)
        finite = every[np.isfinite(every)]
        if not finite.size:
            finite = np.full(1, np.nan)
        shares = [
            float(np.mean(test)) if every.size else 0.0 for test in (every == 0, np.isnan(every), np.isinf(every))
        ]
        return cls(*(float(f(finite)) for f in (np.min, np.max, np.mean, np.std)), *shares)

    def __str__(self) -> str:
        broken = "".join(
            f", {share:.0%} {name}" for share, name in ((self.nan, "NaN"), (self.inf, "infinite")) if share
        )
        return (
            f"{self.min:.3g} to {self.max:.3g}, mean {self.mean:.3g}, standard deviation {self.std:.3g}, "
            f"{self.zeros:.0%} zeros{broken}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class TracedValue:
    """One value of a step.

    Attributes:
        path: What it is called after: layer and operation, such as "conv2d/relu", numbered where one comes again; of
            an input its name.
        value: The Value of the Program: name, shape, dtype, kind, and the node that made it.
        array: Its elements.
        becomes: The outputs and carried inputs of the step that it is, such as "loss" or "conv2d/kernel".
        samples: Samples of the batch, if the first axis is theirs; else 0.
    """

    path: str
    value: Value
    array: Array
    becomes: tuple[str, ...]
    samples: int

    @property
    def node(self) -> Node | None:
        """The node that made it; None for what the step was given."""
        return self.value.node

    @property
    def phase(self) -> str:
        """In which part of the step it is made: "given", "forward", "backward" or "update"."""
        return self.node.phase if self.node else "given"

    @cached_property
    def statistics(self) -> Statistics:
        """Statistics of the elements."""
        return Statistics.of(self.array)

    def picture(self, sample: int = 0, data_format: str = "channels_last") -> Picture:
        """The channels of one sample beside each other; of a kernel the taps of each pair of channels; else rows.

        Args:
            sample: Number of the sample in the batch.
            data_format: Where images have their channels, "channels_last" or "channels_first".

        Raises:
            ValueError: If it is a single number, or has more than four axes or no such sample.
        """
        array, what = self.array, self.path
        if self.samples and array.ndim > 2:
            if not 0 <= sample < self.samples:
                message = f"sample is a number from 0 to {self.samples - 1}. Received: sample={sample}."
                raise ValueError(message)
            array, what = array[sample], f"{self.path}, sample {sample}"
            if array.ndim == 3 and data_format == "channels_last":
                array = array.transpose(2, 0, 1)
        elif array.ndim == 4:  # a kernel (KH, KW, C, F)
            array = array.transpose(3, 2, 0, 1).reshape(-1, *array.shape[:2])
        if array.ndim in (1, 2):
            array = array.reshape(1, -1, array.shape[-1])
        if array.ndim != 3 or not array.size:
            message = f"A picture shows an array of one to four axes. Received: {self.path!r}, {self.value.spec}."
            raise ValueError(message)
        return picture(array, what)

    def _repr_html_(self) -> str:
        rows = [(name, f"{number:.4g}") for name, number in vars(self.statistics).items()]
        return html.block(f"{self!r}", html.table(("", ""), rows))

    def __repr__(self) -> str:
        made = f"{self.value.name} = {operation(self.node)}" if self.node else f"{self.value.kind} {self.value.name}"
        return f"<{self.path}: {made}, {self.value.spec}, {self.statistics}>"


class StepTrace(Mapping[str, TracedValue]):
    """The values of one step, in the order in which they are made; `Model.trace` gives one.

    It is a mapping: `trace["conv2d/relu"]`, by path, or `trace["v3"]`, by the name in the Program.

    Attributes:
        program: The step.
        backend: What computed it.
        how: By what, in words.
    """

    def __init__(self, program: Program, backend: Backend, how: str, arrays: Mapping[str, Array]) -> None:
        self.program, self.backend, self.how = program, backend, how
        batch = next((v.shape[0] for v in program.inputs if v.kind == "input" and v.shape), 0)
        becomes: dict[int, list[str]] = {}
        for name, value in (program.outputs | program.updates).items():
            becomes.setdefault(id(value), []).append(name)
        self._by_path: dict[str, TracedValue] = {}
        for value in (*program.inputs, *(v for node in program.nodes for v in node.outputs)):
            path = self._path(value)
            samples = batch if _has_samples(value, batch) else 0
            made = tuple(becomes.get(id(value), ()))
            self._by_path[path] = TracedValue(path, value, arrays[value.name], made, samples)
        self._by_name = {traced.value.name: traced for traced in self._by_path.values()}

    def _path(self, value: Value) -> str:
        node = value.node
        if node is None:
            return value.name
        base = f"{node.scope}/{node.op.name}" if node.scope else node.op.name
        path, number = base, 0
        while path in self._by_path:
            number += 1
            path = f"{base}_{number}"
        return path

    def __getitem__(self, name: str) -> TracedValue:
        try:
            return self._by_path[name] if name in self._by_path else self._by_name[name]
        except KeyError:
            message = (
                f"A trace has values by path or by their names in the Program. Received: {name!r}. Paths: "
                f"{', '.join(self._by_path)}."
            )
            raise KeyError(message) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    @property
    def updates(self) -> dict[str, TracedValue]:
        """The values that take the place of carried inputs, such as weights, by the names of these."""
        return {name: self[value.name] for name, value in self.program.updates.items() if value.node}

    @property
    def gradients(self) -> dict[str, TracedValue]:
        """The gradient of each weight that is trained, by its path: what the optimizer reads, before it clips."""
        weights = {v.name: v for v in self.program.inputs if v.kind == "parameter" and v.name in self.program.updates}
        found = {name: _gradient(self.program.updates[name], weight) for name, weight in weights.items()}
        return {name: self[value.name] for name, value in found.items() if value is not None}

    def diff(self, other: StepTrace) -> Comparison:
        """Where another trace of the same step, usually of another backend, differs by more than rounding.

        A value differs if it is further off than `minicnn.tolerance` allows after as many additions as there are on
        the way to it, relative to its largest element. The node that made it is to blame if its results do not follow
        from what it was given, which float64 tells; else the difference comes from nodes before it.

        Raises:
            ValueError: If the other is of another step.
        """
        return compare(self, other)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                traced.value.name, traced.path, str(traced.value.spec), traced.phase,
                *(f"{getattr(traced.statistics, n):.3g}" for n in ("min", "max", "mean", "std")),
                *(f"{getattr(traced.statistics, n):.0%}" for n in ("zeros", "nan", "inf")), ", ".join(traced.becomes),
            )
            for traced in self.values()
        ]  # fmt: skip

    def __str__(self) -> str:
        rows = [_HEADER, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(
                c.ljust(w) if i < 4 or i > 10 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
        return "\n".join([self._title, *(line.rstrip() for line in lines)])

    @property
    def _title(self) -> str:
        return f"Step {self.program.name!r} on {self.backend.name}:{self.backend.device}, {self.how}"

    def _repr_html_(self) -> str:
        return html.block(self._title, html.table(_HEADER, self._rows()))

    def __repr__(self) -> str:
        return f"<StepTrace: {self._title}, {len(self)} values>"


_HEADER = ("name", "path", "shape", "phase", "min", "max", "mean", "std", "zeros", "NaN", "inf", "becomes")


def _gradient(updated: Value, weight: Value) -> Value | None:
    """The gradient of a weight's shape from which the optimizer has made the updated weight."""
    waiting = [updated]
    while waiting:
        value = waiting.pop()
        if value.kind == "gradient":
            return value
        if value.node is not None and value.node.phase == "update":
            waiting += [v for v in reversed(value.node.inputs) if v.shape == weight.shape]
    return None


def _has_samples(value: Value, batch: int) -> bool:
    """Whether the first axis is that of the samples."""
    kernel = value.node is not None and value.node.op.name.endswith("weight_gradient")
    return value.kind in ("input", "activation", "gradient") and value.shape[:1] == (batch,) and not kernel


def traced(program: Program, backend: Backend, given: Mapping[str, Array], *, kernels: bool = False) -> StepTrace:
    """Run a Program and keep every value.

    Args:
        program: The Program, which is not changed.
        backend: What runs it.
        given: Its inputs by name.
        kernels: Whether the backend's kernels compute it, rather than the references.
    """
    whole = program.copy()
    whole.outputs, whole.updates = {v.name: v for node in whole.nodes for v in node.outputs}, {}
    runner = copy.copy(backend)
    runner.reference_only, runner.strict = backend.reference_only or not kernels, False
    arrays = {v.name: backend.asarray(np.array(given[v.name]), v.dtype) for v in whole.inputs}
    made = runner.compile(whole)(arrays)
    how = "every kernel's results kept" if kernels else "node by node by the references of the primitives"
    found = {name: np.array(backend.to_numpy(array)) for name, array in (arrays | made).items()}
    return StepTrace(program, backend, how, found)


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
    def own(self) -> bool:
        """Whether the node that made it is to blame, or nobody, as it was given."""
        return self.value.node is None or not max(self.off) <= 1


@dataclass(frozen=True)
class Comparison:
    """What differs between two traces; true if anything does.

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
        return next((d for d in self.differences if d.own), None)

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


def compare(one: StepTrace, other: StepTrace) -> Comparison:
    """See `StepTrace.diff`."""
    if [_signature(t) for t in one.values()] != [_signature(t) for t in other.values()]:
        message = (
            "Two traces are compared value by value, so they are of one model, compiled alike, and as many samples. "
            f"Received: {one!r} and {other!r}. Trace both anew."
        )
        raise ValueError(message)
    terms: dict[str, float] = {}
    differences, largest = [], 0.0
    for path, a in one.items():
        b = other[path]
        own, before = 1.0, 0.0
        if a.node is not None:
            own = max(1.0, a.node.cost.flops / (2 * max(a.value.size, 1)))
            before = max((terms.get(v.name, 0.0) for v in a.node.inputs), default=0.0)
        terms[a.value.name] = own + before
        dtype = max((a.value.dtype, b.value.dtype), key=lambda name: EPSILON.get(name, 0.0))
        scale = max(_largest(a.array), _largest(b.array))
        error = _error(a.array, b.array, dtype, own + before, scale)
        largest = max(largest, error)
        if not error <= 1:
            off = (error, error) if a.node is None else (_off(a, one, dtype, own), _off(b, other, dtype, own))
            differences.append(Difference(a, error, off))
    names = tuple(f"{t.backend.name}:{t.backend.device}" for t in (one, other))
    return Comparison((names[0], names[1]), differences, largest, len(one))


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
    """How far a value is from what its node's inputs lead to in float64, in units of the tolerance."""
    node, value = traced.node, traced.value
    if node is None:
        return 0.0
    given = [trace[v.name].array if v.kind != "constant" else np.asarray(v.data) for v in node.inputs]
    exact = [a.astype(np.float64) if "float" in v.dtype else a for a, v in zip(given, node.inputs, strict=True)]
    attrs = dict(node.attrs)
    sizes = [_largest(a) for a, v in zip(exact, node.inputs, strict=True) if "float" in v.dtype]
    if sizes and "float" in str(attrs.get("dtype", "")):
        attrs["dtype"] = "float64"
    with np.errstate(all="ignore"):
        made = node.op.reference(*exact, xp=xp, **attrs)
    expected = np.asarray(
        (made if isinstance(made, tuple) else (made,))[[v is value for v in node.outputs].index(True)]
    )
    scale = _largest(expected)
    if sizes and node.op.name not in _RELATIVE:  # what was given may nearly cancel
        usual = math.prod(sizes) if any(p in node.op.name for p in _PRODUCTS) else max(sizes)
        scale = max(scale, usual * math.sqrt(terms))
    return _error(traced.array, expected, dtype, terms, scale)
