"""What launches of a plan that go on at the same time do to each other's memory."""

from __future__ import annotations

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.placement import Placement, place
from minicnn.program.graph import Value

Region = tuple[str, int, int]  # of the arena, or of an array by name, its first byte and that behind its last


def conflicts(plan: Plan, placement: Placement | None = None) -> list[tuple[int, int]]:
    """Pairs of launches that go on at the same time, of which one writes what the other reads or writes."""
    placement = placement or place(plan)
    found = []
    for aside, waiting in plan.beside.items():
        for other in range(aside + 1, waiting):
            if other in plan.beside:  # in one stream they come one after the other
                continue
            (reads, writes), (other_reads, other_writes) = (_regions(plan, placement, k) for k in (aside, other))
            if _meet(writes, other_reads + other_writes) or _meet(other_writes, reads):
                found.append((aside, other))
    return found


def read_before_it_is_there(plan: Plan) -> list[tuple[int, int]]:
    """Pairs of launches, of which the second reads what the first writes, and has not waited for it."""
    found = []
    for reader, launch in enumerate(plan.launches):
        for value in (v for group in launch for v in plan.reads(group)):
            writer = plan.written_in.get(id(value)) if value.node is not None else None
            if writer is None:
                continue
            # One aside waits for all that is ahead of it; others for one aside where they or others before them do.
            waits = plan.beside.get(writer, 0) <= reader or reader in plan.beside
            if writer >= reader or not waits:
                found.append((writer, reader))
    return found


def _regions(plan: Plan, placement: Placement, launch: int) -> tuple[list[Region], list[Region]]:
    """What a launch reads, and what it writes."""
    groups = plan.launches[launch]
    reads = [_region(plan, placement, v) for group in groups for v in plan.reads(group)]
    return reads, [_region(plan, placement, v) for group in groups for v in group.stored]


def _region(plan: Plan, placement: Placement, value: Value) -> Region:
    root = plan.root(value)
    if id(root) in placement.offsets:
        offset = placement.offsets[id(root)]
        return "the arena", offset, offset + root.nbytes
    return placement.in_place.get(id(root), root).name, 0, max(1, root.nbytes)


def _meet(some: list[Region], others: list[Region]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)
