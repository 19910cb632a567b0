"""Parts of a step that only small sums separate, as one Program, whose kernels take these sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from minicnn.backends._gpu.peer_nodes import ROUND, ROUNDS, places_name
from minicnn.distribution.schedule import Collective, Instruction, Piece, RankSchedule, ShardRows, Slot, updated
from minicnn.kernels.peers import addresses
from minicnn.program.graph import Program, Spec, Value


@dataclass(frozen=True)
class SumBetween:
    """A sum between two parts.

    Attributes:
        source: Slot of what this rank adds.
        target: Slot of the sum.
        spec: Shape and dtype.
        number: Which of the step's sums it is.
        late: Whether only updates read it, or nobody.
    """

    source: Slot
    target: Slot
    spec: Spec
    number: int
    late: bool = False


class Joined(Program):
    """Parts of a step and the sums between them, which are planned by themselves: see `joined_plan`.

    Until then its nodes are those of the parts.

    Attributes:
        pieces: Parts and sums, in order.
        given: Its inputs, by their slots.
        slots: Those of its outputs and updates, by name.
        fills: Whether its kernels may fill the device, since other sums never go on beside them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pieces: list[Piece | SumBetween] = []
        self.given: dict[Slot, Value] = {}
        self.slots: dict[str, Slot] = {}
        self.fills = False

    def copy(self) -> Joined:
        """See `Program.copy`; its results are placeholders until it is planned."""
        copied = Joined(self.name)
        copied.samples, copied.slots, copied.fills = self.samples, dict(self.slots), self.fills
        copied.pieces = [replace(p, program=p.program.copy()) if isinstance(p, Piece) else p for p in self.pieces]
        copied.nodes = [n for p in copied.pieces if isinstance(p, Piece) for n in p.program.nodes]
        for slot, value in self.given.items():
            copied.given[slot] = copied.input(value.name, value.shape, value.dtype, kind=value.kind)
        copied.outputs, copied.updates = dict(self.outputs), dict(self.updates)
        return copied


def join(schedule: RankSchedule, taken: Collection[Collective]) -> list[Spec]:
    """Change a schedule so that kernels take sums; what separates its parts from then on are the other sums.

    Args:
        schedule: The schedule of a rank with one shard.
        taken: The sums.

    Returns:
        What kernels sum, in the order of the sums' numbers.
    """
    sums = list[Spec]()
    read = {*schedule.results.values(), *schedule.watched.values()}
    read |= {slot for slots, _ in schedule.kept.values() for slot in slots}
    late = _read_late(schedule.instructions, taken)
    runs = _runs(_waited_for_late(schedule.instructions, late), taken)
    wanted: list[set[Slot]] = []  # what is read behind each run
    for run in reversed(runs):
        wanted.append(set(read))
        read |= {slot for each in run for slot in each.reads}
    instructions = list[Instruction]()
    fills = all(each in taken for each in schedule.instructions if isinstance(each, Collective))
    for run, slots in zip(runs, reversed(wanted), strict=True):
        if len(run) > 1 or run[0] in taken:
            instructions.append(_joined(run, slots, sums, schedule.group.ranks, late, fills=fills))
        else:
            instructions += run
    schedule.instructions = instructions
    return sums


def _read_late(instructions: Sequence[Instruction], taken: Collection[Instruction]) -> set[Instruction]:
    """Sums that kernels take and only updates read, or nobody."""
    late = set[Instruction]()
    for at, each in enumerate(instructions):
        readers = (one for one in instructions[at + 1 :] if not {*one.reads}.isdisjoint(each.writes))
        if each in taken and ((first := next(readers, None)) is None or _updates(first)):
            late.add(each)
    return late


def _waited_for_late(instructions: Sequence[Instruction], late: Collection[Instruction]) -> list[Instruction]:
    """Instructions with some sums ahead of what reads them: until then nobody waits for these."""
    order, waiting = list[Instruction](), list[Instruction]()
    for each in instructions:
        if each in late:
            waiting.append(each)
            continue
        ready = [one for one in waiting if not {*each.reads}.isdisjoint(one.writes)]
        waiting = [one for one in waiting if one not in ready]
        order += [*ready, each]
    return order + waiting


def _updates(instruction: Instruction) -> bool:
    return isinstance(instruction, Piece) and any(n.phase == "update" for n in instruction.program.nodes)


def _runs(instructions: Sequence[Instruction], taken: Collection[Instruction]) -> list[list[Instruction]]:
    """Instructions in an order in which some follow each other that become one Program."""
    runs: list[list[Instruction]] = []
    run, later = list[Instruction](), list[Instruction]()
    awaited: set[Slot] = set()  # what other sums make, and what is made of that
    for each in instructions:
        if isinstance(each, ShardRows):
            runs.append([each])
            continue
        waits = not awaited.isdisjoint(each.reads)
        if waits and _updates(each):
            # Nobody waits for an update: what else is to be computed goes on without it.
            later.append(each)
            awaited.update(each.writes)
        elif isinstance(each, Collective) and each not in taken:
            runs += [run, *([one] for one in later), [each]]
            run, later = [], []
            awaited.update(each.writes)
        else:
            if waits:
                runs += [run, *([one] for one in later)]
                run, later = [], []
            run.append(each)
    return [each for each in (*runs, run, *([one] for one in later)) if each]


def _joined(
    run: Sequence[Instruction], read: set[Slot], sums: list[Spec], ranks: int, late: Collection[Instruction], *,
    fills: bool,
) -> Piece:  # fmt: skip
    """The part that some parts are, with the sums between them, which are counted; it hands on what is read later."""
    pieces = [each for each in run if isinstance(each, Piece)]
    program, written = Joined(pieces[0].program.name if pieces else "sums"), set[Slot]()
    program.fills = fills

    def give(slot: Slot, name: str, spec: Spec, kind: str) -> None:
        if slot not in written and slot not in program.given:
            program.given[slot] = program.input(name, spec.shape, spec.dtype, kind=kind)  # type: ignore[arg-type]

    for each in run:
        if isinstance(each, Piece):
            program.samples = program.samples or each.program.samples
            program.pieces.append(each)
            program.nodes += each.program.nodes
            for name, slot in zip(each.inputs, each.reads, strict=True):
                value = each.program.value(name)
                give(slot, name, value.spec, value.kind)
            for name, slot in zip(each.results, each.writes, strict=True):
                if name in each.program.updates:
                    program.updates[name] = each.program.updates[name]
                    program.slots[name] = slot
                elif slot in read:
                    program.outputs[name] = each.program.outputs[name]
                    program.slots[name] = slot
        elif isinstance(each, Collective):
            for source, target, spec in zip(each.reads, each.writes, each.specs, strict=True):
                give(source, source, spec, "activation")
                give(places_name(len(sums)), places_name(len(sums)), Spec((addresses(ranks),), "uint64"), "counter")
                give(ROUND, ROUND, ROUNDS, "counter")
                if not sums:  # the first one of a step begins a round
                    program.updates[ROUND], program.slots[ROUND] = program.value(ROUND), updated(ROUND)
                program.pieces.append(SumBetween(source, target, spec, len(sums), each in late))
                sums.append(spec)
                if target in read:
                    program.outputs[target] = Value(program, target, spec, "activation")
                    program.slots[target] = target
        written.update(each.writes)
    results = (*program.outputs, *program.updates)
    slots = tuple(program.slots[name] for name in results)
    return Piece(tuple(program.given), slots, program, tuple(v.name for v in program.inputs), results)
