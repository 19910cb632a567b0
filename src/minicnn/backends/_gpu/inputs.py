"""Inputs of a Program as its step's kernels read them: queued in rows, copied, or used in place."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from minicnn.backends._gpu.runtime import ALIGNMENT
from minicnn.backends.base import State, is_new_each_step
from minicnn.program.graph import Program, Value


@dataclass(frozen=True)
class Inputs:
    """The inputs of a step's Program.

    Attributes:
        queued: Those that are new in each step, of which there is a queue of rows.
        copied: Those that are copied to where graphs find them: they lie somewhere else in each step.
        totals: Running totals of metrics, which the executable keeps.
        bound: The others, which are read, or overwritten, where they are: weights, state, data sets.
    """

    queued: list[Value]
    copied: list[Value]
    totals: list[Value]
    bound: list[Value]

    @property
    def moved(self) -> list[Value]:
        """Those that are not where they are given."""
        return [*self.queued, *self.copied, *self.totals]

    @classmethod
    def of(cls, program: Program) -> Inputs:
        """The inputs of a Program that is not rewritten yet: regions take rows of a data set without a node for it."""
        data_sets = {n.inputs[0].name for n in program.nodes if n.op.name == "take" and n.inputs[0].node is None}
        # An activation is what another part of the same step made, at an address of its own each time.
        new = [v for v in program.inputs if v.kind in ("input", "activation")]
        batches = [v for v in new if v.name not in program.updates and v.name not in data_sets]
        # They stay on the device for an epoch: reading them after each step would wait for it.
        totals = [v for v in program.inputs if v.kind == "metric" and v.name in program.updates]
        others = {id(v) for v in (*batches, *totals)}
        return cls(
            # Each has one row a step, so that many steps run without the host in between.
            queued=[v for v in batches if is_new_each_step(v.name)],
            copied=[v for v in batches if not is_new_each_step(v.name)],
            totals=totals,
            bound=[v for v in program.inputs if id(v) not in others],
        )


def lies_askew(value: Value, address: int | None) -> bool:
    """True if an array is not where kernels can read an input; None is the address of one that is not contiguous.

    They read many bytes at once, but of a row of a queue, which follows others like it, no more than such rows allow.
    """
    whole = value.nbytes & -value.nbytes if is_new_each_step(value.name) else ALIGNMENT
    return address is None or address % min(whole or ALIGNMENT, ALIGNMENT) > 0


@dataclass(frozen=True)
class Known:
    """Memory of a State that steps have run on, so that it is checked and bound once.

    Attributes:
        known: The State.
        addresses: Where its arrays begin that steps read, or overwrite.
        passed: Those of such inputs that it does not have.
        returned: Updates of what it does not have.
    """

    known: weakref.ref[State]
    addresses: tuple[int, ...]
    passed: list[Value]
    returned: list[str]
