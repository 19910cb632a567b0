"""Launches of several fusion groups: those that do not wait for each other, where that saves time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.neighbours import width
from minicnn.backends._gpu.second_stream import is_aside
from minicnn.backends._gpu.tiling import ReductionTile

if TYPE_CHECKING:
    from minicnn.backends._gpu.fusing import Plan


def launches(plan: Plan) -> tuple[list[list[FusionGroup]], list[set[int]]]:
    """The groups of a plan in order, side by side where none waits for another; and what each launch waits for.

    Returns:
        The launches; for each the numbers of those that write what it reads, or read what it overwrites.
    """
    read = {id(v) for u in plan.groups for v in plan.reads(u)}
    shared: list[list[FusionGroup]] = []
    written: dict[int, int] = {}  # by value, the launch that writes it, or overwrites it
    looked_at: dict[int, set[int]] = {}  # the launches so far that read it
    waited_for: list[set[int]] = []
    begun = 0  # launches that there are when groups that are closing begin
    # What is short and nobody reads, at the end.
    ends = len(plan.groups)
    while ends and plan.groups[ends - 1].is_plain and not any(id(v) in read for v in plan.groups[ends - 1].stored):
        ends -= 1
    for number, group in enumerate(plan.groups):
        begun = begun if group.closing else len(shared)
        overwritten = [id(plan.program.value(name)) for name in plan.carried(group)]
        # A group waits for what it reads, and for whoever still reads what it overwrites.
        before = {written[id(v)] for v in plan.reads(group) if id(v) in written}
        before = before.union(*(looked_at.get(value, ()) for value in overwritten))
        begin = max(before, default=-1)
        first = begin + 1
        if number >= ends:  # all of them together
            first = max(first, len(shared) - (1 if shared and all(u.is_plain for u in shared[-1]) else 0))
        elif group.closing:
            first = max(first, begun)
        elif group.late:
            first = max(first, len(shared) - 1)
        # A launch aside begins as soon as it can, which a group that joins it may not put off.
        open_to = (
            j for j in range(first, len(shared)) if begin <= max(waited_for[j], default=-1) or not is_aside(shared[j])
        )
        # The earliest launch that it may join: a launch costs microseconds, which many groups take less than.
        at = next((j for j in open_to if plan.fuse and _beside(plan, group, shared[j])), len(shared))
        if at == len(shared):
            shared.append([])
            waited_for.append(set())
        shared[at].append(group)
        waited_for[at] |= before
        for value in plan.reads(group):
            looked_at.setdefault(id(value), set()).add(at)
        for value_id in [*map(id, group.stored), *overwritten]:
            written[value_id] = at
    for launch in shared:
        launch.sort(key=lambda u: u.is_plain)  # what takes longer begins first
        # All blocks of a launch have as many threads and registers as the one that needs most: sums take what is there.
        threads = max((u.tile.threads for u in launch if u.tile and not u.is_plain), default=0)
        for group in launch:
            if isinstance(group.tile, ReductionTile) and group.is_plain and threads and not group.fixed:
                group.tile = group.tile.narrowed(threads)
        for group in launch:
            group.width = width(plan, group, launch)
    return shared, waited_for


def _beside(plan: Plan, group: FusionGroup, launch: list[FusionGroup]) -> bool:
    """True if a group may join a launch: where neither of them fills the device, or all are small."""
    groups = [*launch, group]
    # What is aside goes on beside the others, unless it is half of a launch of products.
    others = [u for u in groups if not u.aside]
    apart = is_aside(launch) or all(u.is_plain for u in others)
    if others and (any(u.closing for u in groups) or (apart and any(u.aside and not u.is_plain for u in groups))):
        return False
    # A reference launches kernels of its own; and arguments of a kernel have limited room.
    if any(u.reference for u in groups) or len(groups) > plan.tiles.most_together:
        return False
    meeting = sum(u.meeting for u in groups)
    if meeting and meeting > plan.most_meeting(groups):
        return False
    # Short groups are dominated by the launch, so that sharing one always pays.
    if all(u.is_plain for u in groups):
        return True
    large = [u for u in groups if not u.is_plain]
    if len(large) < len(groups) and not plan.tiles.side_by_side:
        return False
    # Other sums would take what is there; and none of the blocks needs more than the tile's.
    threads = max(u.tile.threads for u in large if u.tile)
    if any(u.fixed and u.tile and u.tile.threads > threads for u in groups):
        return False
    # Blocks of a launch have the registers and the shared memory of the one that needs most.
    alike = all(u.is_product for u in large) and len({u.tile.threads for u in large if u.tile}) == 1
    if len(large) > 1 and not alike:
        return False
    gpu, blocks = plan.tiles.gpu, [u.tile.blocks if u.tile else -(-u.size // 256) for u in groups]
    declared, shared = plan.tiles.shared(groups)
    if declared > gpu.shared_unasked or declared + shared > gpu.shared_block:
        return False
    # If all blocks are resident at once, small groups run where the large one leaves multiprocessors idle; otherwise
    # they would wait for its last wave, with its shared memory held for nothing.
    room = gpu.multiprocessors * (gpu.shared_multiprocessor // max(1, shared + gpu.shared_reserved))
    if len(large) < len(groups) and sum(blocks) > room:
        return False
    # Beyond some waves each group fills the device by itself, and nothing is left to gain.
    return (sum(blocks) if len(large) > 1 else sum(blocks) - max(blocks)) <= 4 * gpu.multiprocessors
