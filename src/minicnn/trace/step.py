"""A step as it ran: every value by name, with the node that made it, its statistics and pictures.

A trace is made of the step's Program with every value among its outputs. By default the references of the primitives
compute it, node by node, on the backend's own arrays: backends that merge nodes into kernels do not merge then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minicnn import html
from minicnn.backends.base import Backend
from minicnn.ops.elementwise import cast
from minicnn.pictures import Picture, picture
from minicnn.program.graph import Node, Program, Value
from minicnn.program.printing import operation
from minicnn.trace.comparison import TraceComparison, compare

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Statistics:
    """Statistics of an array's elements; the first four are of the finite ones, NaN if there are none.

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
                raise ValueError(f"sample is a number from 0 to {self.samples - 1}. Received: sample={sample}.")
            array, what = array[sample], f"{self.path}, sample {sample}"
            if array.ndim == 3 and data_format == "channels_last":
                array = array.transpose(2, 0, 1)
        elif array.ndim == 4:  # a kernel (KH, KW, C, F)
            array = array.transpose(3, 2, 0, 1).reshape(-1, *array.shape[:2])
        if array.ndim in (1, 2):
            array = array.reshape(1, -1, array.shape[-1])
        if array.ndim != 3 or not array.size:
            raise ValueError(
                f"A picture shows an array of one to four axes. Received: {self.path!r}, {self.value.spec}."
            )
        return picture(array, what)

    def _repr_html_(self) -> str:
        rows = [(name, f"{number:.4g}") for name, number in vars(self.statistics).items()]
        return html.block(f"{self!r}", html.table(("", ""), rows))

    def __repr__(self) -> str:
        source = f"{self.value.name} = {operation(self.node)}" if self.node else f"{self.value.kind} {self.value.name}"
        return f"<{self.path}: {source}, {self.value.spec}, {self.statistics}>"


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
            followers = tuple(becomes.get(id(value), ()))
            self._by_path[path] = TracedValue(path, value, arrays[value.name], followers, samples)
        self._by_name = {traced.value.name: traced for traced in self._by_path.values()}

    def _path(self, value: Value) -> str:
        node = value.node
        if node is None:
            return value.name
        base = f"{node.scope}/{node.op.name}" if node.scope else node.op.name
        # One name for each value, and the same in traces of other backends: by the order of the Program.
        path, number = base, 0
        while path in self._by_path:
            number += 1
            path = f"{base}_{number}"
        return path

    def __getitem__(self, name: str) -> TracedValue:
        try:
            return self._by_path[name] if name in self._by_path else self._by_name[name]
        except KeyError:
            raise KeyError(
                f"A trace has values by path or by their names in the Program. Received: {name!r}. Paths: "
                f"{', '.join(self._by_path)}."
            ) from None

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
        gradients = {name: _gradient(self.program.updates[name], weight) for name, weight in weights.items()}
        return {name: self[value.name] for name, value in gradients.items() if value is not None}

    def diff(self, other: StepTrace) -> TraceComparison:
        """Compare with another trace of the same step, usually of another backend: differences beyond rounding.

        A value differs if it is further off than `minicnn.tolerance` allows after as many additions as there are on
        the way to it, relative to its largest element. The node that made it is to blame if its results do not follow
        from what it was given, which float64 tells; else the difference comes from nodes before it.

        Raises:
            ValueError: If the other is of another step.
        """
        return compare(self, other)

    def to_html(self) -> str:
        """A page to explore the step: see `Program.to_html`; with the kernel that runs each node, and its values."""
        return self.program.to_html(run_by=self.backend.explain(self.program.copy()), trace=self)

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
            # Only what has the weight's shape on the way back: rates and moments of another shape lead elsewhere.
            waiting += [v for v in reversed(value.node.inputs) if v.shape == weight.shape]
    return None


def _has_samples(value: Value, batch: int) -> bool:
    """True if the first axis is that of the samples."""
    kernel = value.node is not None and value.node.op.name.endswith("weight_gradient")
    return value.kind in ("input", "activation", "gradient") and value.shape[:1] == (batch,) and not kernel


def traced(program: Program, backend: Backend, inputs: Mapping[str, Array], *, kernels: bool = False) -> StepTrace:
    """Run a Program and keep every value.

    Args:
        program: The Program, which is not changed.
        backend: What runs it.
        inputs: Its inputs by name.
        kernels: Whether the backend's kernels compute it, rather than the references; they do in bfloat16 where its
            arrays do not know that.
    """
    # A backend may rewrite what it compiles.
    whole = program.copy()
    every = {v.name: v for node in whole.nodes for v in node.outputs}
    bits = {name for name, v in every.items() if v.dtype == "bfloat16" and not hasattr(backend.xp, "bfloat16")}
    kernels = kernels or bool(bits)
    whole.outputs = {name: cast(v, dtype="float32") if name in bits else v for name, v in every.items()}
    # Without updates nothing is donated, so that inputs keep their values for the trace.
    whole.updates = {}
    # The user's backend keeps its own settings.
    runner = copy.copy(backend)
    runner.reference_only, runner.strict = backend.reference_only or not kernels, False
    arrays = {v.name: backend.asarray(np.array(inputs[v.name]), v.dtype) for v in whole.inputs}
    results = runner.compile(whole)(arrays)
    how = (
        "every kernel's results kept"
        if not runner.reference_only
        else "node by node by the references of the primitives"
    )
    host_arrays = {name: np.array(backend.to_numpy(array)) for name, array in (arrays | results).items()}
    return StepTrace(program, backend, how, host_arrays)
