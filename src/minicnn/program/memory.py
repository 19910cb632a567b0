"""The memory plan: liveness of values, and an arena in which those share bytes that never live together."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from minicnn import html

if TYPE_CHECKING:
    from minicnn.program.graph import Program, Value


ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

# Kinds that live through the whole step; the others share the arena.
PERSISTENT = {
    "parameter": "parameters",
    "input": "input",
    "optimizer": "optimizer state",
    "statistic": "statistics",
    "counter": "counters and metrics",
    "metric": "counters and metrics",
    "constant": "constants",
}
TEMPORARY = {"activation": "activations", "gradient": "gradients", "update": "updates"}


@dataclass(frozen=True)
class Buffer:
    """A stretch of the arena: bytes [offset, offset + nbytes) while nodes first .. last run."""

    name: str
    kind: str
    nbytes: int
    first: int
    last: int
    offset: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """Memory plan: the place of every temporary value of a Program, and the bytes of each kind.

    Attributes:
        buffers: Place and lifetime of each temporary value and of each node's workspace.
        arena_bytes: Bytes that hold all buffers, those that never live together sharing memory.
        without_reuse_bytes: Bytes if every buffer had memory of its own.
        by_kind: Bytes by kind: persistent kinds in full; activations, gradients, updates and workspace
            as they are at the moment when most bytes are live.
        peak_bytes: Persistent bytes and the arena together.
    """

    buffers: list[Buffer]
    arena_bytes: int
    without_reuse_bytes: int
    by_kind: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0

    def __str__(self) -> str:
        rows = [f"{kind:<22}{n / 1e6:>12.3f} MB" for kind, n in self.by_kind.items() if n]
        rows.append(
            f"{'arena':<22}{self.arena_bytes / 1e6:>12.3f} MB ({self.without_reuse_bytes / 1e6:.3f} without reuse)"
        )
        rows.append(f"{'peak':<22}{self.peak_bytes / 1e6:>12.3f} MB")
        return "\n".join(rows)

    __repr__ = __str__

    def strip(self) -> html.Drawing:
        """Bytes that live while each node runs, by kind: a drawing."""
        nodes = max((b.last for b in self.buffers), default=0) + 1
        change = {kind: [0] * (nodes + 1) for kind in (*TEMPORARY.values(), "workspace")}
        for b in self.buffers:
            kind = TEMPORARY.get(b.kind, "workspace")
            change[kind][b.first] += b.nbytes
            change[kind][b.last + 1] -= b.nbytes
        live = {kind: list(accumulate(changes)) for kind, changes in change.items() if any(changes)}
        moments = [{kind: amounts[i] for kind, amounts in live.items()} for i in range(nodes)]
        return html.strip("memory while each node runs", moments, "bytes")

    def _repr_html_(self) -> str:
        rows = [(kind, f"{n / 1e6:.3f} MB") for kind, n in self.by_kind.items() if n]
        rows += [("arena", f"{self.arena_bytes / 1e6:.3f} MB"), ("peak", f"{self.peak_bytes / 1e6:.3f} MB")]
        title = "Memory plan: bytes by kind when most live, and from node to node"
        return html.block(title, html.table(("kind", "memory"), rows), self.strip()._repr_html_())


def plan(program: Program, *, in_place: bool = True) -> MemoryPlan:
    """Plan the memory of one run of a Program.

    A value lives from the node that makes it to the last that reads it; results live to the end. A
    value that replaces a carried input (an updated parameter) takes over that input's memory when no later node
    reads the input, so it costs nothing.

    Args:
        program: The Program.
        in_place: Whether it does; a backend that makes every result in new memory needs some for it.
    """
    placed = assign(_lifetimes(program, in_place=in_place))
    by_kind = dict.fromkeys((*PERSISTENT.values(), *TEMPORARY.values(), "workspace"), 0)
    for value in (*program.inputs, *program.constants):
        by_kind[PERSISTENT[value.kind]] += value.nbytes
    persistent = 0
    for nbytes in by_kind.values():
        persistent += nbytes
    for buffer in _live_at_peak(placed, len(program.nodes)):
        by_kind[TEMPORARY.get(buffer.kind, "workspace")] += buffer.nbytes
    arena = max((b.offset + _aligned(b.nbytes) for b in placed), default=0)
    total = sum(_aligned(b.nbytes) for b in placed)
    return MemoryPlan(placed, arena, total, by_kind, persistent + arena)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lifetimes(program: Program, *, in_place: bool) -> list[Buffer]:
    end = len(program.nodes)
    last_read: dict[int, int] = {id(v): end for v in program.results}
    # From the end: the first reader that is met is the last one.
    for i in range(end - 1, -1, -1):
        for value in program.nodes[i].inputs:
            last_read.setdefault(id(value), i)
    replacing = _in_place(program, last_read) if in_place else set()
    buffers = []
    for i, node in enumerate(program.nodes):
        temporary = [v for v in node.outputs if id(v) not in replacing]
        buffers += [Buffer(v.name, v.kind, v.nbytes, i, last_read.get(id(v), i)) for v in temporary]
        workspace = node.cost.workspace
        if workspace:
            buffers.append(Buffer(f"{node.outputs[0].name}.workspace", "workspace", workspace, i, i))
    return buffers


def _in_place(program: Program, last_read: dict[int, int]) -> set[int]:
    """Ids of update results that can overwrite the input they replace."""
    maker = {id(v): i for i, node in enumerate(program.nodes) for v in node.outputs}
    result = set()
    for name, value in program.updates.items():
        old: Value = program.value(name)
        at = maker.get(id(value))
        if at is None or old.spec != value.spec:
            continue
        # An elementwise operation may write each element where it has just read it.
        free = last_read.get(id(old), -1) + (not program.nodes[at].op.elementwise)
        if free <= at:
            result.add(id(value))
    return result


def assign(buffers: list[Buffer], piece: int | None = None) -> list[Buffer]:
    """Offsets by the greedy-by-size rule: largest first, into the tightest gap that is free for its lifetime.

    (Y. Pisarchyk, J. Lee, Efficient memory management for deep neural net inference, arXiv:2001.03288.)

    Args:
        buffers: The buffers, whose offsets do not count.
        piece: Bytes of a piece of the memory, where that comes in pieces: no buffer begins in one and ends in another.
    """
    placed: list[Buffer] = []
    taken: list[tuple[int, int, int, int]] = []  # of those, in the order of memory: begin, end, first and last

    def start(cursor: int, nbytes: int) -> int:
        return cursor if piece is None or cursor % piece + nbytes <= piece else -(-cursor // piece) * piece

    # Large ones first, as small ones fit into the gaps that these leave.
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first)):
        # Only buffers that live at the same time can be in the way.
        begin, end = buffer.first, buffer.last
        rivals = [rival for rival in taken if rival[2] <= end and begin <= rival[3]]
        best, best_gap, cursor = None, 0, 0
        for rival in rivals:
            cursor = cursor if piece is None else start(cursor, buffer.nbytes)
            gap = rival[0] - cursor
            if gap >= buffer.nbytes and (best is None or gap < best_gap):
                best, best_gap = cursor, gap
            cursor = max(cursor, rival[1])
        offset = start(cursor, buffer.nbytes) if best is None else best
        placed.append(replace(buffer, offset=offset))
        insort(taken, (offset, offset + _aligned(buffer.nbytes), begin, end))
    return sorted(placed, key=lambda b: (b.first, b.offset))


def _live_at_peak(buffers: list[Buffer], steps: int) -> list[Buffer]:
    change = [0] * (steps + 2)
    for b in buffers:
        change[b.first] += b.nbytes
        change[b.last + 1] -= b.nbytes
    live, most, peak = 0, -1, 0
    for i, delta in enumerate(change):
        live += delta
        if live > most:
            most, peak = live, i
    return [b for b in buffers if b.first <= peak <= b.last]
