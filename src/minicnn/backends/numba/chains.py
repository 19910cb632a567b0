"""Chains: neighbouring kernels that go through the batch together, some blocks of samples after the others.

What a kernel of a chain writes is then still in a cache when the next one reads it, and threads wait for each other at
the end alone. Every kernel does what it would do outside of a chain, in the same order, so that no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minicnn.backends.numba.kernel import KernelCode
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Task
from minicnn.backends.numba.operations import LANES
from minicnn.machine import last_level_cache

AGAIN = 1.9  # times that kernels of a chain use each of its arrays, at least: others would save too little

# chain(table, start, stop): entries are a kernel's address, its table, and its items in a block.
CHAIN = KernelCode(
    "chain",
    ("entries", "end", "blocks"),
    (
        "for begin in range(start, stop, blocks):",
        "    until = min(begin + blocks, stop)",
        "    entry = entries",
        "    while entry < end:",
        "        pieces = aload(entry + 16)",
        "        call_kernel(aload(entry), aload(entry + 8), begin * pieces, until * pieces)",
        "        entry += 24",
    ),
)


@dataclass
class Chain(Task):
    """Kernels that run one after the other on some blocks of samples, then on the next; one item a block.

    Attributes:
        tasks: The kernels.
        blocks: Blocks of samples that each does before the next one does them.
    """

    tasks: list[Task] = field(default_factory=list)
    blocks: int = 1


def chain(to: Lowering) -> None:
    """Join the tasks of a lowered Program to chains, where caches then hold what they hand on."""
    blocks = -(-to.samples // LANES)
    # Threads share whole blocks of a chain: as without it, only where all have equally many.
    if to.channels_in_lanes or not blocks or blocks % to.threads:
        return
    model = _Model(to, blocks)
    rest, to.tasks = to.tasks, []
    while rest:
        before, joined, after = _sorted(rest, blocks)
        count = len(before) + len(joined) + len(after)
        together = model.best(joined) if len(joined) > 1 else None
        if together is None:
            to.tasks += rest[:count]
        else:
            reads, writes = [k for t in joined for k in t.reads], [k for t in joined for k in t.writes]
            to.tasks += [*before, Chain(None, reads, writes, CHAIN, blocks, tasks=joined, blocks=together), *after]
            _explain(to, joined, together)
        rest = rest[count:]


def _sorted(tasks: Sequence[Task], blocks: int) -> tuple[list[Task], list[Task], list[Task]]:
    """The first tasks in three lists: tasks before a chain, tasks of the chain, and tasks behind it."""
    before, joined, after = list[Task](), list[Task](), list[Task]()
    chained, postponed = _Touched(), _Touched()
    for task in tasks:
        member = task.source is not None and task.in_blocks and task.items == blocks * task.source.pieces
        # What is not blocked may be read whole, rather than by the samples that a kernel works on.
        whole = any(key[1] != BLOCKED and key in chained.written for key in task.reads)
        if member and not whole and not postponed.hold(task):
            joined.append(task)
            chained.add(task)
        elif not chained.hold(task) and not postponed.hold(task):
            before.append(task)
        elif member:
            break  # it begins the next chain
        else:
            after.append(task)
            postponed.add(task)
    return before, joined, after


class _Touched:
    """Buffers that some tasks read and write."""

    def __init__(self) -> None:
        self.read, self.written = set[Key](), set[Key]()

    def add(self, task: Task) -> None:
        """Count a task among them."""
        self.read.update(task.reads)
        self.written.update(task.writes)

    def hold(self, task: Task) -> bool:
        """True if a task that comes after them cannot run before them."""
        return not (self.written.isdisjoint({*task.reads, *task.writes}) and self.read.isdisjoint(task.writes))


class _Model:
    """Model of what a chain saves, by the bytes of arrays and a core's share of the last-level cache.

    Args:
        to: A lowered Program.
        blocks: Blocks of its samples.
    """

    def __init__(self, to: Lowering, blocks: int) -> None:
        self._blocks, self._threads = blocks, to.threads
        self._rows = {(v.name, PLAIN) for v in to.program.inputs if v.shape[:1] == (to.samples,)}
        self._sizes = {(v.name, PLAIN): v.nbytes for v in to.program.inputs} | to.sizes
        nbytes, cores = last_level_cache()
        self._kept = nbytes // min(cores, to.threads)

    def best(self, tasks: Sequence[Task]) -> int | None:
        """Blocks that kernels do at a time; None if that saves little.

        It does not where all blocks of a thread stay in the cache, or one does not, or few arrays are used again.
        """
        used = [[key for key in task.order if key[1] == BLOCKED or key in self._rows] for task in tasks]
        images = {key for keys in used for key in keys}
        block = max(1, self._bytes(images) // self._blocks)
        written = {key for task in tasks for key in task.writes} - images
        weights = self._bytes({key for task in tasks for key in task.reads} - images - written)
        # Weights come from afar for each turn of the chain: then they weigh no more than the images do.
        count = max(1, -(-weights // block))
        fixed = weights + self._bytes(written) // self._threads  # each thread's sums and memory to work in
        fits = fixed + count * block <= self._kept < fixed + self._blocks // self._threads * block
        used_again = sum(map(self._bytes, used)) >= AGAIN * self._bytes(images)
        return count if fits and used_again else None

    def _bytes(self, keys: Iterable[Key]) -> int:
        return sum(self._sizes.get(key, 0) for key in keys)


def _explain(to: Lowering, tasks: Sequence[Task], count: int) -> None:
    """Say of the nodes of a chain how many samples its kernels do at a time."""
    results = {id(v) for task in tasks if task.node is not None for v in task.node.outputs}
    for node in to.program.nodes:
        if results & {id(v) for v in node.outputs}:
            to.how[id(node)] += f", {count * LANES} samples at a time"
