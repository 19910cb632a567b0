"""Which units share a launch: those that do not wait for each other, where that saves time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minicnn.backends._gpu import tiling
from minicnn.backends._gpu.units import Unit

if TYPE_CHECKING:
    from minicnn.backends._gpu.fusing import Plan


def launches(plan: Plan) -> list[list[Unit]]:
    """The units of a plan in order; those that do not wait for each other side by side."""
    read = {id(v) for u in plan.units for v in plan.reads(u)}
    made: list[list[Unit]] = []
    written: dict[int, int] = {}  # by value, the launch that writes it, or overwrites it
    looked_at: dict[int, int] = {}  # the last launch so far that reads it
    for unit in plan.units:
        overwritten = [id(plan.program.value(name)) for name in plan.carried(unit)]
        before = [written.get(id(v), -1) for v in plan.reads(unit)]
        before += [looked_at.get(value, -1) for value in overwritten]
        first = max(before, default=-1) + 1
        last = unit.is_plain and not any(id(v) in read for v in unit.stored)
        if last:  # all of them together, at the end
            first = max(first, len(made) - (1 if made and all(u.is_plain for u in made[-1]) else 0))
        at = next((j for j in range(first, len(made)) if plan.fuse and _beside(plan, unit, made[j])), len(made))
        if at == len(made):
            made.append([])
        made[at].append(unit)
        for value in plan.reads(unit):
            looked_at[id(value)] = max(at, looked_at.get(id(value), -1))
        for value_id in [*map(id, unit.stored), *overwritten]:
            written[value_id] = at
    for launch in made:
        launch.sort(key=lambda u: u.is_plain)  # what takes longer begins first
        # All blocks of a launch have as many threads, with the registers of the greediest: sums take what is there.
        threads = max((u.tile.threads for u in launch if u.tile and not u.is_plain), default=0)
        for unit in launch:
            if unit.tile and unit.is_plain and threads:
                unit.tile = tiling.narrowed(unit.tile, threads)
    return made


def _beside(plan: Plan, unit: Unit, launch: list[Unit]) -> bool:
    """Whether a unit may join a launch: where neither of them fills the device, or all are small."""
    units = [*launch, unit]
    if any(u.reference for u in units) or len(units) > plan.tiles.most_together:
        return False
    if all(u.is_plain for u in units):
        return True
    large = [u for u in units if not u.is_plain]
    if len(large) < len(units) and not plan.tiles.side_by_side:
        return False
    # Blocks of a launch have the registers and the shared memory of the greediest.
    alike = all(u.is_product for u in large) and len({u.tile.threads for u in large if u.tile}) == 1
    if len(large) > 1 and not alike:
        return False
    gpu, blocks = plan.tiles.gpu, [u.tile.blocks if u.tile else -(-u.size // 256) for u in units]
    declared, shared = plan.tiles.shared(units)
    if declared > gpu.shared_unasked or declared + shared > gpu.shared_block:
        return False
    room = gpu.multiprocessors * (gpu.shared_multiprocessor // max(1, shared + gpu.shared_reserved))
    if len(large) < len(units) and sum(blocks) > room:
        return False
    return (sum(blocks) if len(large) > 1 else sum(blocks) - max(blocks)) <= 4 * gpu.multiprocessors
