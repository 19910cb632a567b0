"""Executors of a pipeline's schedule: on arrays of a backend, or on Values, which makes it a Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.ops.collectives import all_reduce, receive, send
from minicnn.ops.groups import Group
from minicnn.program.graph import Node, Program, Value

if TYPE_CHECKING:
    from minicnn.backends.base import Backend

Array = Any
Host = np.ndarray[Any, Any]


class ArrayExecutor:
    """Stage executor that computes on a backend's arrays.

    Args:
        backend: What runs the pieces.
        group: All ranks, with what connects them.
    """

    def __init__(self, backend: Backend, group: Group) -> None:
        self._backend, self.group = backend, group
        self.compile, self.constant = backend.compile, backend.asarray

    def send(self, array: Array, value: Value, to: int, tag: int) -> None:
        """See `StageExecutor`; bfloat16, which NumPy has not, goes as its bits."""
        host = self._backend.to_numpy(array)
        if value.dtype == "bfloat16":
            # A bfloat16 is the upper half of a float32: as bits nothing is lost.
            host = (np.ascontiguousarray(host).view(np.uint32) >> 16).astype(np.uint16)
        send.reference(host, to=to, tag=tag, group=self.group, xp=np)

    def receive(self, value: Value, source: int, tag: int) -> Array:
        """See `StageExecutor`."""
        short = value.dtype == "bfloat16"
        token = np.empty(0, np.uint16 if short else value.dtype)
        host = receive.reference(token, shape=value.shape, source=source, tag=tag, group=self.group, xp=np)
        if short:
            host = (host.astype(np.uint32) << 16).view(np.float32)
        return self._backend.asarray(host, value.dtype)

    def total(self, arrays: Sequence[Array], group: Group) -> list[Array]:
        """See `StageExecutor`."""
        totals = all_reduce.reference(*[self._backend.to_numpy(array) for array in arrays], group=group, xp=np)
        return [self._backend.asarray(total) for total in (totals if isinstance(totals, tuple) else (totals,))]

    def within(self, node: Node | None) -> AbstractContextManager[None]:
        """See `StageExecutor`."""
        return nullcontext()


class ProgramWriter:
    """Stage executor that writes a Program.

    Args:
        program: To be written.
        group: Its ranks. If it is one, the Program has what several would do, each by an executor of its own.
        rank: The rank whose part this writes.
        tokens: What has been sent, by source, receiver and tag.
    """

    def __init__(self, program: Program, group: Group, rank: int, tokens: dict[tuple[int, int, int], Value]) -> None:
        self._program, self.group, self._rank, self._tokens = program, group, rank, tokens
        self._constants: dict[tuple[bytes, object], Value] = {}

    def constant(self, data: Any, dtype: str | None = None) -> Value:
        """See `StageExecutor`."""
        array = np.asarray(data)
        key = array.tobytes(), (array.shape, dtype)
        # One constant for equal numbers, however many shards read it: the Program stays readable.
        if key not in self._constants:
            self._constants[key] = self._program.constant(array, dtype)
        return self._constants[key]

    def compile(self, program: Program) -> Callable[[Mapping[str, Value]], dict[str, Value]]:
        """See `StageExecutor`."""

        def run(values: Mapping[str, Value]) -> dict[str, Value]:
            new = {id(v): values[v.name] for v in program.inputs}
            for node in program.nodes:
                inputs = [new[id(v)] if v.data is None else self.constant(v.data, v.dtype) for v in node.inputs]
                with self._program.scope_of(node, node.phase):
                    results = self._program.append(node.op, inputs, [v.spec for v in node.outputs], node.attrs).outputs
                new |= {id(old): value for old, value in zip(node.outputs, results, strict=True)}
            return {name: new[id(v)] for name, v in (program.outputs | program.updates).items()}

        return run

    def send(self, array: Value, value: Value, to: int, tag: int) -> None:
        """See `StageExecutor`."""
        with self.within(value.node):
            self._tokens[self._rank, to, tag] = send(array, to=to, tag=tag, group=self.group)

    def receive(self, value: Value, source: int, tag: int) -> Value:
        """See `StageExecutor`."""
        with self.within(value.node):
            token = self._tokens.get((source, self._rank, tag))
            # Its sender is another rank, whose Program is not this one.
            if token is None:
                token = self.constant(np.empty(0), value.dtype)
            received: Value = receive(token, shape=value.shape, source=source, tag=tag, group=self.group)
        return received

    def total(self, arrays: Sequence[Value], group: Group) -> list[Value]:
        """See `StageExecutor`."""
        totals = all_reduce(*arrays, group=group)
        return list(totals) if isinstance(totals, tuple) else [totals]

    def within(self, node: Node | None) -> AbstractContextManager[None]:
        """See `StageExecutor`."""
        return nullcontext() if node is None else self._program.scope_of(node, node.phase)
