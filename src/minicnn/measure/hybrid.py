"""A hybrid of two backends: one computes the forward pass, the other one the backward pass and the update.

So the published program of the study `platforms` trains on a GPU and a CPU. In each step the two wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from minicnn.backends.base import Array, Backend, Executable
from minicnn.measure.candidates import HYBRID
from minicnn.program import Program
from minicnn.program.graph import Node
from minicnn.program.passes import remove_dead_nodes


class Hybrid(Backend):
    """A backend of two. Weights, the optimizer's state and batches are on the second, and are copied in each step.

    Args:
        forward: Computes the forward pass, and so predictions and evaluations; such as a GPU's.
        backward: Computes all that follows.
    """

    def __init__(self, forward: Backend, backward: Backend) -> None:
        self.forward, self.backward = forward, backward
        self.name = f"{forward.name}{HYBRID}{backward.name}"
        self.device, self.xp = backward.device, backward.xp
        self.precisions = tuple(p for p in forward.precisions if p in backward.precisions)
        self.survives_fork = forward.survives_fork and backward.survives_fork
        self.reference_only = self.strict = False

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`."""
        return self.backward.asarray(data, dtype)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        return self.backward.to_numpy(array)

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return self.backward.owns(array)

    def keeps(self, nbytes: int) -> bool:
        """See `Backend.keeps`: a whole data set would go to the other backend in each step."""
        return False

    def active(self) -> AbstractContextManager[Any]:
        """See `Backend.active`."""
        return self.backward.active()

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        self.forward.synchronize()
        self.backward.synchronize()

    def memory(self) -> int | None:
        """See `Backend.memory`."""
        return self.forward.memory()

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        """See `Backend.explain`."""
        return [row for backend, part in self._parts(program) for row in backend.explain(part)]

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`."""
        parts = [(part, self._compiled(backend, part)) for backend, part in self._parts(program)]
        results = program.outputs.keys() | program.updates.keys()

        def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
            known, outputs = dict(arrays), dict[str, Array]()
            for part, execute in parts:
                produced = execute({v.name: known[v.name] for v in part.inputs})
                known |= {name: array for name, array in produced.items() if name not in results}
                outputs |= {name: array for name, array in produced.items() if name in results}
            return outputs

        return run

    def _parts(self, program: Program) -> list[tuple[Backend, Program]]:
        """Parts of a step and their devices: samples are picked where they are, so that a batch alone is copied."""
        picking, rest = cut(program, lambda n: n.op.name == "take" and all(v.kind == "input" for v in n.inputs))
        first, second = cut(rest, lambda node: node.phase == "forward")
        parts = [(self.backward, picking), (self.forward, first), (self.backward, second)]
        return [(backend, part) for backend, part in parts if part.results]

    def _compiled(self, backend: Backend, part: Program) -> Executable:
        """A part, on arrays of the second backend."""
        execute = backend.compile(part)
        if backend is self.backward:
            return execute

        def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
            host = {name: self.backward.to_numpy(array) for name, array in arrays.items()}
            # An array that is donated here may be read by a later part, too.
            outputs = execute({n: backend.asarray(a.copy() if n in part.updates else a) for n, a in host.items()})
            return {name: self.backward.asarray(backend.to_numpy(array)) for name, array in outputs.items()}

        return run


def cut(program: Program, chosen: Callable[[Node], bool]) -> tuple[Program, Program]:
    """The nodes of a Program that are chosen, and all others, which read what the first hand on.

    The inputs of each are those that it reads. A chosen node that reads what others make is one of these.
    """
    first, second = program.copy(), program.copy()
    late: set[int] = set()
    for node in program.nodes:
        if not chosen(node) or any(id(v) in late for v in node.inputs):
            late.update(id(v) for v in node.outputs)
    early = {
        id(v): (one, other)
        for node, ours, theirs in zip(program.nodes, first.nodes, second.nodes, strict=True)
        for v, one, other in zip(node.outputs, ours.outputs, theirs.outputs, strict=True)
        if id(v) not in late
    }
    for half, side in ((first, True), (second, False)):
        half.outputs = {n: half.outputs[n] for n, v in program.outputs.items() if (id(v) in early) == side}
        half.updates = {n: half.updates[n] for n, v in program.updates.items() if (id(v) in early) == side}
    handed = {}
    for node in (n for n in program.nodes if id(n.outputs[0]) in late):
        for value in node.inputs:
            if id(value) in early and id(early[id(value)][1]) not in handed:
                ours, theirs = early[id(value)]
                name = f"{value.name}#"  # not the name of an input
                first.outputs[name] = ours
                handed[id(theirs)] = second.input(name, value.shape, value.dtype, kind="activation")
    second.substitute(handed)
    for half in (first, second):
        remove_dead_nodes(half)
        read = {id(v) for v in (*half.results, *(v for node in half.nodes for v in node.inputs))}
        half.inputs = [v for v in half.inputs if id(v) in read or v.name in half.updates]
    return first, second
