"""Second stream of a step: weight gradients, which only updates wait for, go on beside the gradients of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.runtime import Launch, Runtime

if TYPE_CHECKING:
    from minicnn.backends._gpu.fusing import Plan
    from minicnn.program.graph import Value

# Launches aside that are waited for at a time, when as many have begun behind them. What they read, such as images and
# their gradients, is kept until then; and a launch that waits is not in place early.
TOGETHER = 4


def set_aside(plan: Plan) -> None:
    """Mark the groups that only updates wait for, and order them: see `FusionGroup.aside` and `FusionGroup.closing`."""
    readers: dict[int, list[FusionGroup]] = {}
    for group in plan.groups:
        for value in plan.reads(group):
            readers.setdefault(id(value), []).append(group)
    behind = {id(group): [u for value in group.stored for u in readers.get(id(value), [])] for group in plan.groups}
    for_updates: set[int] = set()  # groups that only short ones read, which such groups alone read again
    for group in reversed(plan.groups):
        # One that other ranks wait for, or that waits for them, may not be held up by what is beside it.
        held_up = group.reference is not None or group.exchanges
        if not held_up and all(id(u) in for_updates and u.is_plain for u in behind[id(group)]):
            for_updates.add(id(group))
    rounds: dict[int, int] = {}  # of values that longer groups aside make, and of all that is made of them
    longer = 0
    for group in plan.groups:
        read = [rounds[id(v)] for v in plan.reads(group) if id(v) in rounds]
        group.aside = id(group) in for_updates and not group.is_plain
        group.closing = id(group) in for_updates and group.is_plain and bool(read)
        if group.aside or group.closing:
            rounds |= dict.fromkeys(map(id, group.stored), longer // TOGETHER if group.aside else max(read))
            longer += group.aside
    for group in plan.groups:
        group.aside = id(group) in for_updates and (
            group.aside or all(u.closing or not behind[id(u)] for u in behind[id(group)])
        )
    plan.groups = _in_order(plan, rounds, readers)


def _in_order(plan: Plan, rounds: Mapping[int, int], readers: Mapping[int, Sequence[FusionGroup]]) -> list[FusionGroup]:
    """The groups in order: a short one that closes a round of longer ones aside comes where a later round begins.

    It is behind all that it waits for, and behind all that read the weights which it overwrites. What is left then,
    and what is short and nobody reads, is last.

    Args:
        plan: The plan.
        rounds: By value the round of longer groups aside that it is of, or the last of the rounds that it is made of.
        readers: By value the groups that read it.
    """
    makers = {id(v): group for group in plan.groups for v in group.stored}
    replaced: dict[int, list[Value]] = {}
    for name, value in plan.program.updates.items():
        replaced.setdefault(id(plan.root(value)), []).append(plan.program.value(name))
    waits: dict[int, set[int]] = {}  # by group that is closing, those that it is behind
    for group in (each for each in plan.groups if each.closing):
        old = [weight for value in group.stored for weight in replaced.get(id(value), ())]
        waits[id(group)] = {id(makers[id(v)]) for v in plan.reads(group) if id(v) in makers}
        waits[id(group)] |= {id(reader) for weight in old for reader in readers.get(id(weight), ())} - {id(group)}
    closing = [group for group in plan.groups if group.closing]
    result: list[FusionGroup] = []
    placed: set[int] = set()
    longer = 0

    def take(group: FusionGroup) -> None:
        result.append(group)
        placed.add(id(group))

    def is_last(group: FusionGroup) -> bool:
        return group.is_plain and not any(id(v) in readers for v in group.stored)

    for group in plan.groups:
        if group.aside and not group.is_plain:
            for one in list(closing) if longer % TOGETHER == 0 else ():
                early = max(rounds[id(v)] for v in one.stored) < longer // TOGETHER
                if early and waits[id(one)] <= placed:
                    closing.remove(one)
                    take(one)
            longer += 1
        if not group.closing and not is_last(group):
            take(group)
    rest = [group for group in plan.groups if id(group) not in placed]
    return [*result, *sorted(rest, key=is_last)]


def is_aside(launch: Sequence[FusionGroup]) -> bool:
    """True if a launch is long enough to be worth a stream of its own, and nothing but updates waits for it."""
    return all(group.aside for group in launch) and not all(group.is_plain for group in launch)


def put_aside(
    launches: Sequence[list[FusionGroup]], before: Sequence[Set[int]]
) -> tuple[list[list[FusionGroup]], dict[int, int]]:
    """Launches in another order, and which of them run beside others.

    Args:
        launches: The launches.
        before: For each the numbers of the launches that it waits for.

    Returns:
        The launches, each of those aside right behind the last that it waits for; and by the number of each that runs
        beside others the number of the first that waits for it.
    """
    start: dict[int, int] = {}  # by launch aside, the one in order behind which it begins
    # The last of all waits for those aside that nobody else waits for.
    for at in [k for k, launch in enumerate(launches[:-1]) if all(group.aside for group in launch)]:
        first = next((k for k in range(at + 1, len(launches)) if at in before[k]), len(launches))
        last = max((start.get(k, k) for k in before[at]), default=-1)
        # A second stream pays where something goes on in the first.
        if last >= 0 and any(k != at and k not in start for k in range(last + 1, first)):
            start[at] = last
    order = sorted(range(len(launches)), key=lambda k: (start.get(k, k), k in start, k))
    number = {k: n for n, k in enumerate(order)}
    waiting = {at: [number[k] for k in range(len(launches)) if at in before[k] and k not in start] for at in start}
    beside = {number[at]: min(waiting[at], default=len(order) - 1) for at in start}
    begun = sorted(beside)
    for n, at in enumerate(begun):
        later = (n // TOGETHER + 2) * TOGETHER
        if later < len(begun):
            behind = next(k for k in range(begun[later], len(order)) if k not in beside)
            beside[at] = min(beside[at], behind)
    return [launches[k] for k in order], beside


def with_second_stream(launches: Sequence[Launch], beside: Mapping[int, int], runtime: Runtime) -> list[Launch]:
    """Launches of a plan, and what follows them, of which some go on beside others: see `put_aside`."""
    result: list[Launch] = []
    waits: dict[int, Launch] = {}  # by the launch that comes behind; who waits for one waits for those before it, too
    for at, launch in enumerate(launches):
        if at in beside:
            begin, waits[beside[at]] = runtime.beside([launch], kind="gradients")
            result.append(begin)
        else:
            result += [waits[at], launch] if at in waits else [launch]
    return result
