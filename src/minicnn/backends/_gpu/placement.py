"""Placement of a plan's values: in the arena, in the memory of an input they replace, or in a queue of rows."""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends._gpu.fusing import Plan
from minicnn.program.graph import Value
from minicnn.program.memory import ALIGNMENT, Buffer, assign


@dataclass(frozen=True)
class Placement:
    """Memory of one executable.

    Attributes:
        offsets: Place in the arena of each temporary value, by its id.
        nbytes: Size of the arena.
        in_place: For a value that overwrites the input it replaces, by its id: that input.
        copies: Carried inputs that are overwritten at the end of a step, and what with.
    """

    offsets: dict[int, int]
    nbytes: int
    in_place: dict[int, Value]
    copies: list[tuple[Value, Value]]


def place(plan: Plan, piece: int | None = None) -> Placement:
    """Find a place for every value that a plan stores.

    Args:
        plan: The plan.
        piece: Bytes of the largest piece of memory that can be had, if that is limited.

    Raises:
        ValueError: If a value is larger than that.
    """
    program, end = plan.program, len(plan.launches)
    in_place: dict[int, Value] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    stored: dict[int, Value] = {}
    for at, launch in enumerate(plan.launches):
        until = plan.beside.get(at, at + 1) - 1  # the last launch that it may go on beside
        for group in launch:
            in_place |= {id(value): program.value(name) for name, value in plan.carried(group).items()}
            for value in group.stored:
                stored[id(value)], first[id(value)] = value, at
                last[id(value)] = until
            # A value lives from the launch that makes it to the last that reads it: launches are the time here, since
            # groups of one launch run side by side.
            for value in plan.reads(group):
                last[id(value)] = max(until, last.get(id(value), 0))
    # Results are read after the step.
    last |= {id(plan.root(v)): end for v in program.results}
    names = {key: str(k) for k, key in enumerate(stored) if key not in in_place}
    # Weights first, as their gradients are no smaller: these have a name that people know.
    weights = [v for v in program.inputs if v.kind not in ("input", "constant")]
    for value in (*weights, *stored.values()):
        if piece is not None and value.nbytes > piece:
            remedy = "fewer units or smaller images" if value.node is None else "a smaller batch_size"
            raise ValueError(
                f"An array of a step fits into one binding of the GPU: {piece:,} bytes. Received: {value.name}, "
                f"{value.spec}, of {value.nbytes:,} bytes. Use {remedy}, a GPU with larger ones, or another backend."
            )
    sizes = [Buffer(name, "", stored[key].nbytes, first[key], last[key]) for key, name in names.items()]
    buffers = assign(sizes, piece)
    offsets = {b.name: b.offset for b in buffers}
    size = max((b.offset + -(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in buffers), default=0)
    replaced = [(program.value(name), value) for name, value in program.updates.items()]
    # Where a group could not write in place, a copy at the end of the step does.
    copies = [(old, new) for old, new in replaced if in_place.get(id(new)) is not old and plan.root(new) is not old]
    return Placement({key: offsets[name] for key, name in names.items()}, size, in_place, copies)
