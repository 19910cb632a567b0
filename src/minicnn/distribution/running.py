"""A rank's step on the arrays of a backend: its pieces one after the other, collectives by what connects the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends.base import Span
from minicnn.distribution.exchanges import exchange
from minicnn.distribution.parts import KernelParts, StageParts
from minicnn.distribution.schedule import (
    Arrays,
    Collective,
    Columns,
    Instruction,
    Piece,
    RankSchedule,
    ShardRows,
    ShardSum,
    Transfer,
    described,
)  # fmt: skip
from minicnn.distribution.worker import SideThread
from minicnn.ops.collectives import all_reduce, receive, send
from minicnn.ops.groups import Group

if TYPE_CHECKING:
    from minicnn.backends.base import Backend

Array = Any


class RankStep:
    """An Executable that is given the arrays of a whole batch, or this rank's rows of them, and runs a schedule.

    Args:
        schedule: The list of pieces and collectives.
        backend: What runs the pieces.
    """

    overlaps = True  # sums between ranks, with what a rank has still to compute
    watches = True  # what the rank has added to sums before that of the loss

    def __init__(self, schedule: RankSchedule, backend: Backend) -> None:
        self._schedule, self._backend = schedule, backend
        programs = {id(each.program): each.program for each in schedule.instructions if isinstance(each, Piece)}
        # All at once, so that compilers can work in parallel.
        self._compiled = dict(zip(programs, backend.compile_each(list(programs.values())), strict=True))
        self._constants = {slot: backend.asarray(v.data, v.dtype) for slot, v in schedule.constants.items()}
        if "rows" in schedule.cut:
            self._constants["rows"] = backend.asarray(np.arange(schedule.batch, dtype=np.int32))
        # While a rank goes on with its last shard, this adds up what is there.
        self._spans: list[Span] | None = None  # of the step whose parts are timed
        self._worker = SideThread() if self.overlaps and schedule.overlaps and schedule.group.ranks > 1 else None

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """Outputs and updates by name; inputs that are updated are donated."""
        schedule = self._schedule
        known = {name: a.array if isinstance(a, StageParts) else a for name, a in arrays.items()}
        slots = schedule.run(self._constants | known, self._perform if self._spans is None else self._timed)
        results = {**schedule.results, **(schedule.watched if self.watches else {})}
        return {name: _arrived(slots[slot]) for name, slot in results.items()} | {
            name: join([slots[slot] for slot in parts], self._backend) for name, (parts, join) in schedule.kept.items()
        }

    def timeline(self, arrays: Mapping[str, Array]) -> tuple[Arrays, list[Span]]:
        """See `TimedStep`: the host waits for each instruction."""
        self._spans = spans = list[Span]()
        try:
            return self(arrays), sorted(spans, key=lambda span: span.start)
        finally:
            self._spans = None

    def _timed(self, instruction: Instruction, operands: list[Any]) -> Sequence[Any]:
        waited = partial(self._span, "waits for a sum", "computing")
        arrays = [waited(array) if isinstance(array, partial) else array for array in operands]
        between = isinstance(instruction, Transfer | Collective) and instruction.group.ranks > 1

        def work() -> Sequence[Any]:
            results = self._perform(instruction, arrays)
            self._backend.synchronize()
            return results

        return self._span(described(instruction), "computing", work, between and self._worker is None)

    def _span(self, name: str, lane: str, work: Callable[[], Any], between: bool = False) -> Any:
        """Result of some work, whose time is noted if anybody asks."""
        start = time.perf_counter()
        result = work()
        if self._spans is not None:
            self._spans.append(Span(name, lane, start, time.perf_counter() - start, between))
        return result

    def _perform(self, instruction: Any, operands: list[Any]) -> Sequence[Any]:
        arrays = [_arrived(array) for array in operands]
        match instruction:
            case Piece():
                results = self._piece(instruction, dict(zip(instruction.inputs, arrays, strict=True)))
                return [results[name] for name in instruction.results]
            case ShardRows():
                return [instruction.of(arrays[0])]
            case Columns():
                return [self._columns(instruction, arrays[0])]
            case Collective():
                return (self._exchange if instruction.exchanges else self._total)(instruction, arrays)
            case ShardSum():
                half = len(arrays) // 2
                return self._add(instruction, arrays[:half], arrays[half:])
            case _:
                return self._send(instruction, arrays[0]) if arrays else self._receive(instruction)

    def _piece(self, piece: Piece, arrays: Arrays) -> Arrays:
        return self._call(self._compiled[id(piece.program)], arrays)

    def _call(self, run: Callable[[Mapping[str, Array]], Arrays], arrays: Arrays) -> Arrays:
        return run(arrays)

    def _columns(self, columns: Columns, kernel: Array) -> Array:
        if isinstance(kernel, KernelParts):
            return kernel.arrays[columns.number]
        width = kernel.shape[-1] // columns.count
        part = slice(columns.place * width, (columns.place + 1) * width)
        return self._backend.asarray(self._backend.to_numpy(kernel)[..., part].copy())

    def _add(self, addition: ShardSum, a: list[Array], b: list[Array]) -> list[Array]:
        return [x + y for x, y in zip(a, b, strict=True)]

    # Between ranks ------------------------------------------------------------------------------

    def _total(self, collective: Collective, arrays: list[Array]) -> Sequence[Any]:
        """Sums over all ranks, which may be under way."""
        if collective.group.ranks == 1:
            return arrays
        work = self._between_ranks(arrays, collective.group)
        if self._worker is None:
            return [self._backend.asarray(array) for array in work()]
        done = self._worker.begin(partial(self._span, described(collective), "sums", work, between=True))
        return [partial(self._waited_for, done, i) for i in range(len(collective.writes))]

    def _waited_for(self, done: Future[Sequence[Array]], place: int) -> Array:
        return self._backend.asarray(done.result()[place])

    def _between_ranks(self, arrays: list[Array], group: Group) -> Callable[[], Sequence[Array]]:
        """Sum over ranks, not yet taken: of arrays on the host, unless the communicator takes the backend's."""
        takes = getattr(group.communicator, "takes", None)
        if takes is not None and takes(self._backend):
            return partial(group.communicator.total, arrays, group)  # type: ignore[union-attr]
        host = [self._backend.to_numpy(array) for array in arrays]
        return partial(_summed, host, group)

    def _exchange(self, collective: Collective, arrays: list[Array]) -> list[Array]:
        host = [self._backend.to_numpy(array) for array in arrays]
        work = partial(exchange, collective.node, host, collective.group)
        # Behind the sums under way, in the order of the ranks' schedules.
        results = work() if self._worker is None else self._worker.begin(work).result()
        dtype = collective.node.outputs[0].dtype
        return [self._backend.asarray(array, dtype) for array in results[: len(collective.writes)]]

    def _send(self, sent: Transfer, array: Array) -> list[Array]:
        host = self._backend.to_numpy(array)
        if sent.value.dtype == "bfloat16":
            # A bfloat16, which NumPy has not, is the upper half of a float32: as bits nothing is lost.
            host = (np.ascontiguousarray(host).view(np.uint32) >> 16).astype(np.uint16)
        send.reference(host, to=sent.rank, tag=sent.tag, group=sent.group, xp=np)
        return []

    def _receive(self, received: Transfer) -> list[Array]:
        value, short = received.value, received.value.dtype == "bfloat16"
        token = np.empty(0, np.uint16 if short else value.dtype)
        about: dict[str, Any] = {"shape": value.shape, "source": received.rank, "tag": received.tag}
        host = receive.reference(token, **about, group=received.group, xp=np)
        if short:
            host = (host.astype(np.uint32) << 16).view(np.float32)
        return [self._backend.asarray(host, value.dtype)]


def _arrived(array: Any) -> Array:
    """An array, waited for if it is a sum under way."""
    return array() if isinstance(array, partial) else array


def _summed(arrays: list[Array], group: Group) -> Sequence[Array]:
    totals = all_reduce.reference(*arrays, group=group, xp=np)
    return totals if isinstance(totals, tuple) else (totals,)
