"""Record of what a step of a rank runs: calls of Executables, and the arrays that one hands to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from minicnn.backends._gpu.rank_sums import Sum
from minicnn.backends._gpu.runtime import Launch, Runtime
from minicnn.distribution.schedule import Arrays
from minicnn.program.graph import Spec


@dataclass(frozen=True)
class Given:
    """An array that a step reads, or overwrites, where it is."""

    name: str


@dataclass(eq=False)
class Result:
    """An array that a part of a step makes, perhaps within another, so many bytes behind its first."""

    spec: Spec
    within: Result | None = None
    offset: int = 0

    @property
    def holder(self) -> Result:
        """The result in whose memory it lies: itself, or one that holds several."""
        return self.within or self


@dataclass(frozen=True, eq=False)
class Call:
    """Call of an Executable in a step, with its operands and results."""

    run: Any
    operands: Arrays
    results: Arrays

    @property
    def all(self) -> list[Any]:
        """Operands and results."""
        return [*self.operands.values(), *self.results.values()]

    @property
    def overwrites(self) -> set[str]:
        """Names of the arrays that it overwrites where they are."""
        return {a.name for a in self.run.updated(self.operands).values() if isinstance(a, Given)}

    @property
    def _reads(self) -> tuple[set[int], set[str]]:
        """Results that it reads, by id, and names of the arrays that it reads where they are."""
        results = {id(a.holder) for a in self.operands.values() if isinstance(a, Result)}
        return results, {a.name for a in self.operands.values() if isinstance(a, Given)}

    def waits_for(self, other: Call) -> bool:
        """True if it reads what another makes or overwrites, or overwrites what the other reads."""
        results, names = self._reads
        written = {id(a.holder) for a in other.results.values() if isinstance(a, Result)}
        return bool(results & written or names & other.overwrites or self.overwrites & other._reads[1])


@dataclass(frozen=True)
class Copy:
    """A copy, as an Executable that is a part of something longer."""

    runtime: Runtime
    titles: tuple[str, ...] = ()

    def updated(self, arrays: Arrays) -> Arrays:
        """See `StepExecutable.updated`."""
        return {}

    def bind(self, arrays: Arrays, outputs: Arrays) -> list[Launch]:
        """See `StepExecutable.bind`."""
        return [partial(self.runtime.copy, arrays["x"], outputs["x"])]


@dataclass(frozen=True)
class BoundStep:
    """A step on arrays that begin where some do.

    Attributes:
        calls: Launches of each call.
        launches: All of these, in turn.
        results: The arrays in which it leaves results.
        runs: What runs so many steps, by their number and the names of what is new in each.
    """

    calls: list[list[Launch]]
    launches: list[Launch]
    results: Arrays
    runs: dict[tuple[int, tuple[str, ...]], Launch] = field(default_factory=dict)


def updates_early(tape: Sequence[Call]) -> list[Call]:
    """Calls with updates where all is there that they read, and nobody reads any more what they overwrite."""
    order = list(tape)
    for update in [call for call in tape if call.overwrites and call.run.is_alone]:
        at = order.index(update)
        before = [k for k, call in enumerate(order[:at]) if update.waits_for(call)]
        del order[at]
        order.insert(max(before, default=-1) + 1, update)
    return order


def beside_others(tape: Sequence[Call]) -> dict[int, int]:
    """Of each sum and update that goes on beside others the first call that waits for it."""
    beside: dict[int, int] = {}
    for at in reversed(range(len(tape))):
        call = tape[at]
        if not (isinstance(call.run, Sum) or call.overwrites) or not call.run.is_alone:
            continue
        # What is begun beside stays in order, as an update behind its sum: only others wait.
        others = [k for k in range(at + 1, len(tape)) if k not in beside]
        reader = next((k for k in others if tape[k].waits_for(call)), len(tape))
        # A short one that is waited for would have to wait itself, for large ones that are under way.
        if isinstance(call.run, Sum) and call.run.is_short and reader < len(tape) and not tape[reader].overwrites:
            continue
        if any(k < reader for k in others):
            beside[at] = reader
    return beside


def lives_of(
    tape: Sequence[Call], awaited: Mapping[int, int], returned: Iterable[Any]
) -> dict[Result, tuple[int, int]]:
    """Of each result that has memory of its own by which call it is made, and which one reads it last.

    Args:
        tape: The calls.
        awaited: See `beside_others`.
        returned: What is read behind them all.
    """
    lives: dict[Result, tuple[int, int]] = {}

    def used(result: Any, at: int) -> None:
        if isinstance(result, Result):
            first, last = lives.get(result.holder, (at, at))
            lives[result.holder] = first, max(last, at)

    for at, call in enumerate(tape):
        for each in call.all:
            used(each, at)
    for begun, until in awaited.items():  # until then it is under way
        for each in tape[begun].all:
            used(each, until)
    for each in returned:
        used(each, len(tape))
    return lives
