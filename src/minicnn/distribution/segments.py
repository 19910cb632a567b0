"""The Program of a shard, cut where shards compute together: what each does alone, and what is the same for all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import zip_longest

from minicnn.distribution import passes
from minicnn.ops.groups import Group
from minicnn.program.graph import Node, Program, Value
from minicnn.program.passes import PRODUCTS

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"})
EACH_ITS_OWN = frozenset({"reduce_scatter", "all_to_all"})  # the others give all shards the same
_NEARLY = 1.02  # times as many bytes count as no more
Names = dict[int, str]  # of Values that are handed from one part to another, by id


class Segments:
    """One shard's Program, cut into parts.

    A level ends with collectives. On each level come nodes that are the same for all shards, since they depend on
    weights, counters and results of collectives alone, and then nodes of the shard. The first are computed once, and
    the others, which are the same Program for all shards of one size, once for each shard.

    Args:
        program: Program of a shard.
        data: Names of the inputs that belong to the shard.
        samples: Samples of the shard.
        shards: Shards of the batch.

    Attributes:
        common: Nodes of each level that are the same for all shards.
        per_shard: Nodes of each level that are not.
        collectives: What ends each level; the last level has none.
        names: What values are called that parts hand to each other: in Programs of other sizes likewise, if they are
            the same for all shards.

    Raises:
        ValueError: If a result differs from shard to shard.
    """

    def __init__(self, program: Program, data: Collection[str], samples: int, shards: int) -> None:
        self.program, self.samples = program, samples
        # Ids of values of this shard alone; of a single one all others know as much.
        mine = {*data, *program.parts}
        self._dependent = (
            self._of_shard({id(v) for v in program.inputs if v.name in mine}) if shards > 1 else set[int]()
        )
        self._level = {id(v): 0 for v in (*program.inputs, *program.constants)}
        self.common, self.per_shard, self.collectives = ([list[Node]()] for _ in range(3))
        self.names: Names = {id(v): v.name for v in program.inputs}
        self._place_of = {id(node): place for place, node in enumerate(program.nodes)}
        for node in program.nodes:
            self._place(node)
        self._delay()
        self._read: dict[int, int] = {}  # first level that reads a Value, by id
        for level, lists in enumerate(zip(self.common, self.per_shard, self.collectives, strict=True)):
            for node in (n for nodes in lists for n in nodes):
                self._read |= {id(v): level for v in node.inputs if id(v) not in self._read}
        for name, value in (program.outputs | program.updates).items():
            if id(value) in self._dependent and name not in program.parts:
                raise ValueError(
                    f"What a step on several shards hands back is the same for all of them. Received: {name!r}, which "
                    "depends on the samples of a shard. Layers may assign what all samples have in common, such as the "
                    "statistics of BatchNormalization, and what does not depend on samples."
                )

    def _place(self, node: Node) -> None:
        # A node runs as soon as all collectives before it are done: on the level behind the last of them.
        level = max((self._level[id(v)] for v in node.inputs), default=0)
        results = node.outputs
        if node.op.name in COLLECTIVES:
            place, kind, after = self.collectives, "r", level + 1
            if each_its_own(node):
                kind = ""
        elif id(results[0]) in self._dependent:
            place, kind, after = self.per_shard, "", level
        else:
            place, kind, after = self.common, "c", level
        while len(self.common) <= after:
            for part in (self.common, self.per_shard, self.collectives):
                part.append([])
        for i, value in enumerate(results):
            self._level[id(value)] = after
            # Names of inputs have no "#".
            # Values in common are named by their place, the same in the Programs of shards of all sizes.
            self.names[id(value)] = f"{kind}{level}.{len(place[level])}.{i}#" if kind else f"{value.name}#"
        place[level].append(node)

    def _delay(self) -> None:
        """Leave what shards do not wait for, such as the update, to the last level: sums for it may be under way."""
        alike = {id(node) for nodes in self.common for node in nodes}
        awaited: set[int] = set()
        late: list[Node] = []
        for node in reversed(self.program.nodes):
            if id(node) not in alike or any(id(v) in awaited for v in node.outputs):
                awaited.update(map(id, node.inputs))
            else:
                late.append(node)
        delayed = set(map(id, late))
        self.common = [[node for node in nodes if id(node) not in delayed] for nodes in self.common]
        self.common[-1] += reversed(late)

    def _of_shard(self, dependent: set[int]) -> set[int]:
        """Ids of the values that depend on what has the given ids, and of those that only such values read.

        The others are the same for all shards but for their size: repeated for each sample, or made of constants.
        """
        # Ones like zeros of a shard's shape depend on no sample, and yet have a shard's number of rows: whoever reads
        # them decides.
        undecided: set[int] = set()
        for node in self.program.nodes:
            if each_its_own(node):
                dependent.update(map(id, node.outputs))
            if node.op.name in COLLECTIVES:
                continue
            repeated = node.op.name == "broadcast_to" and node.outputs[0].shape[:1] == (self.samples,)
            if any(id(v) in dependent for v in node.inputs):
                dependent.update(map(id, node.outputs))
            elif (
                repeated
                or any(id(v) in undecided or self._repeats(v) for v in node.inputs)
                or all(v.kind == "constant" for v in node.inputs)
            ):
                undecided.update(map(id, node.outputs))
        shared = {id(v) for v in self.program.results}
        for node in reversed(self.program.nodes):
            if id(node.outputs[0]) in undecided and not any(id(v) in shared for v in node.outputs):
                dependent.update(map(id, node.outputs))
            elif node.op.name not in COLLECTIVES and id(node.outputs[0]) not in dependent:
                shared.update(map(id, node.inputs))
        return dependent

    def _repeats(self, value: Value) -> bool:
        """True if it is such a constant: the first gradient of a step of one's own, which depends on no sample."""
        return value.kind == "constant" and value.shape[:1] == (self.samples,)

    def differs(self, other: Segments) -> str | None:
        """The difference of two shards that should have the same segments, in words; None if there is none."""
        for ours, theirs in ((self.common, other.common), (self.collectives, other.collectives)):
            if len(ours) != len(theirs):
                return f"{len(ours)} and {len(theirs)} levels"
            for left, right in zip(ours, theirs, strict=True):
                for a, b in zip_longest(left, right):
                    if a is None or b is None or _described(a) != _described(b):
                        return f"{(a or b).op.name} in {(a or b).scope or self.program.name!r}"
        return None

    # Parts as Programs --------------------------------------------------------------------------

    def needed(self, bucket: Collection[Node]) -> int:
        """The first level that reads one of some sums."""
        return min((self._read.get(id(v), len(self.common)) for node in bucket for v in node.outputs), default=0)

    def buckets(self, level: int) -> list[list[Node]]:
        """The sums of a level in groups that are read on one level, and of some size; a large one by itself.

        Those of a group begin when the shard's nodes have made them.
        """
        buckets: list[list[Node]] = [[]]
        large = min(passes.BUCKET, passes.LAST)
        for node in self.collectives[level]:
            if is_sum(node):
                filled, size = (sum(v.nbytes for n in nodes for v in n.outputs) for nodes in (buckets[-1], [node]))
                # A large sum by itself may begin early; small ones together save a collective each.
                apart = max(filled, size) >= large or self.needed([node]) != self.needed(buckets[-1])
                if buckets[-1] and apart:
                    buckets.append([])
                buckets[-1].append(node)
        return buckets

    def _pieces(self, level: int) -> list[list[Node]]:
        """The shard's own nodes of a level, cut where the sums of each bucket can begin."""
        nodes, pieces = self.per_shard[level], list[list[Node]]()
        for bucket in self.buckets(level)[:-1]:
            summands = {id(v) for node in bucket for v in node.inputs}
            # A piece ends where the last summand of a bucket is there.
            stop = max((i + 1 for i, node in enumerate(nodes) if summands & set(map(id, node.outputs))), default=0)
            piece = nodes[:stop]
            if self.needed(bucket) == len(self.common) - 1:
                # Of gradients, which are awaited last, it has what they need: that of a layer's input stays with what
                # comes next, which is computed in one kernel with it.
                piece = _needed_for(summands, piece)
            pieces.append(piece)
            taken = set(map(id, piece))
            nodes = [node for node in nodes if id(node) not in taken]
        pieces.append(nodes)
        # What is rounded to 16 bits is handed on so.
        for at, piece in enumerate(pieces):
            here = {id(v) for node in piece for v in node.outputs}
            for later in pieces[at + 1 :]:
                rounded = [node for node in later if _is_rounding(node) and id(node.inputs[0]) in here]
                piece += rounded
                later[:] = [node for node in later if node not in rounded]
        return pieces

    def _with_light(self, nodes: Sequence[Node], kept: Collection[int]) -> list[Node]:
        """Nodes, behind those that cost less to compute once more than what they make costs to store and to read.

        Such are the widening of what is stored in 16 bits, and x - mean where x is kept. `kept`: ids of what is.
        """
        read = {id(v): v for v in _read_by(nodes)}
        # A product reads an operand several times.
        multiplied = {id(v) for node in nodes if node.op.name in PRODUCTS for v in node.inputs}
        light, waiting = list[Node](), [v for v in read.values() if id(v) not in multiplied]
        while waiting:
            value = waiting.pop()
            remade, leaves = self._remade(value, {*kept, *read})
            leaves = {key: v for key, v in leaves.items() if key not in read}
            # What is smaller, such as a mean, costs next to nothing.
            if remade and sum(v.nbytes for v in leaves.values()) <= _NEARLY * value.nbytes:
                light += [node for node in remade if node not in light]
                del read[id(value)]
                read |= leaves
                waiting += leaves.values()
        return [*sorted(light, key=lambda node: self._place_of[id(node)]), *nodes]

    def _remade(self, value: Value, kept: Collection[int]) -> tuple[list[Node], dict[int, Value]]:
        """Light nodes that make a value once more, and what they read, kept or small; none if that cannot be."""
        node = value.node
        if node is None or id(value) not in self._dependent or not _is_light(node):
            return [], {}
        nodes, leaves = [node], dict[int, Value]()
        for operand in node.inputs:
            if operand.data is not None:
                continue
            before: list[Node] = []
            if id(operand) not in kept and 2 * operand.nbytes > value.nbytes:
                before, further = self._remade(operand, kept)
                if not before:
                    return [], {}
                leaves |= further
                nodes += before
            else:
                leaves[id(operand)] = operand
        return nodes, leaves

    def _updates(self) -> list[list[Node]]:
        """Nodes that all shards share on the last level, in parts that begin when their own sums are there."""
        nodes, waits = self.common[-1], dict[int, int]()  # by the id of a value, the last sum for which it waits
        ends, size = list[int](), 0  # of parts: the last of their sums
        for number, bucket in enumerate(b for level in range(len(self.collectives)) for b in self.buckets(level) if b):
            waits |= {id(v): number for node in bucket for v in node.outputs}
            size += sum(v.nbytes for node in bucket for v in node.outputs)
            if size >= passes.BUCKET:  # small sums wait for the next large one, as a part costs launches
                ends.append(number)
                size = 0
        # What one node overwrites, all its readers read in one part.
        readers: dict[int, list[Node]] = {id(self.program.value(name)): [] for name in self.program.updates}
        for node in nodes:
            for value in node.inputs:
                readers.get(id(value), []).append(node)
        last: dict[int, int] = {}  # by the id of a node, the last sum for which it waits
        while True:
            before = dict(last)
            for node in nodes:
                last[id(node)] = max(last.get(id(node), -1), *(waits.get(id(v), -1) for v in node.inputs), -1)
                waits |= {id(v): last[id(node)] for v in node.outputs}
            for each in readers.values():
                last |= dict.fromkeys(map(id, each), max((last[id(node)] for node in each), default=-1))
            if last == before:
                break
        parts: list[list[Node]] = [[] for _ in range(len(ends) + 1)]
        for node in nodes:
            parts[bisect_left(ends, last[id(node)])].append(node)
        return [each for each in parts if each] or [[]]

    def parts(self) -> tuple[list[list[Program]], list[list[Program]]]:
        """The Programs of all levels: of what is the same for all shards, and of pieces of the shard's own nodes."""
        pieces = [self._pieces(level) for level in range(len(self.per_shard))]
        kept = {id(v) for each in pieces for nodes in each for v in _read_by(nodes)}
        pieces = [[self._with_light(nodes, kept) for nodes in each] for each in pieces]
        alike = [*([nodes] for nodes in self.common[:-1]), self._updates()]
        levels = zip(alike, pieces, self.collectives, strict=True)
        order = [nodes for common, per_shard, collectives in levels for nodes in (*common, *per_shard, collectives)]
        read_after: list[set[int]] = []  # ids of values that are read after each part
        read = self.read_last()
        # From the end, since what is read later must be handed on.
        for nodes in reversed(order):
            read_after.append(set(read))
            read -= {id(v) for n in nodes for v in n.outputs} - self.read_last()
            read |= {id(v) for v in _read_by(nodes)}
        programs = iter([self.part(nodes, read) for nodes, read in zip(order, reversed(read_after), strict=True)])
        common, per_shard = list[list[Program]](), list[list[Program]]()
        for shared, each in zip(alike, pieces, strict=True):
            common.append([next(programs) for _ in shared])
            per_shard.append([next(programs) for _ in each])
            next(programs)
        return common, per_shard

    def read_last(self) -> set[int]:
        """Ids of the values that are read behind all nodes: outputs, and inputs that take another one's place."""
        program = self.program
        return {id(v) for v in (*program.outputs.values(), *(v for v in program.updates.values() if v.node is None))}

    def part(self, nodes: Sequence[Node], read_after: Collection[int]) -> Program:
        """Some nodes as a Program: inputs are what others made, outputs what others read.

        The update of an input that is not read any more stays one, so that it may be done in place.
        """
        program = Program(self.program.name)
        program.samples = self.samples
        new: dict[int, Value] = {}
        for node in nodes:
            for old in node.inputs:
                if id(old) not in new:
                    new[id(old)] = self._input(program, old)
            with program.scope_of(node, node.phase):
                outputs = program.append(
                    node.op, [new[id(v)] for v in node.inputs], [v.spec for v in node.outputs], node.attrs
                ).outputs
            new |= {id(a): b for a, b in zip(node.outputs, outputs, strict=True)}
        results = {id(v): v for n in nodes for v in n.outputs}
        handed_on = set(read_after)
        for name, value in self.program.updates.items():
            old = self.program.value(name)
            if id(value) not in results:
                continue
            # An update may overwrite its input only in the last part that reads it.
            if id(old) in new and id(old) not in read_after:
                program.updates[name] = new[id(value)]
            else:
                handed_on.add(id(value))
        program.outputs = {self.names[key]: new[key] for key in results if key in handed_on}
        return program

    def _input(self, program: Program, old: Value) -> Value:
        if old.data is not None:
            return program.constant(old.data, old.dtype)
        # What all shards share does not have their samples along an axis, whatever its shape.
        kind = old.kind if old.node is None else "input" if id(old) in self._dependent else "activation"
        return program.input(self.names[id(old)], old.shape, old.dtype, kind=kind)


def _needed_for(values: Collection[int], nodes: Sequence[Node]) -> list[Node]:
    """Those of some nodes that values, by id, are computed from."""
    read, needed = set(values), list[Node]()
    for node in reversed(nodes):
        if any(id(v) in read for v in node.outputs):
            read |= {id(v) for v in node.inputs}
            needed.append(node)
    return needed[::-1]


def _read_by(nodes: Sequence[Node]) -> list[Value]:
    """The values that some nodes read and do not make."""
    results = {id(v) for node in nodes for v in node.outputs}
    return [v for node in nodes for v in node.inputs if v.data is None and id(v) not in results]


def _is_light(node: Node) -> bool:
    """True if each element of a result needs one operation at most.

    What was rounded to be stored is stored, but not a product in 16 bits, of which backends keep more.
    """
    source = node.inputs[0].node if node.inputs else None
    if node.op.name == "cast" and (_is_rounding(node) or source is None or not _is_rounding(source)):
        return False
    return node.op.elementwise and node.cost.flops <= node.outputs[0].size


def _is_rounding(node: Node) -> bool:
    return node.op.name == "cast" and node.outputs[0].nbytes < node.inputs[0].nbytes


def is_sum(node: Node) -> bool:
    """True if a node is a sum over all shards, which is the same for all of them."""
    return node.op.name == "all_reduce" and not node.attrs["group"].stride


def each_its_own(node: Node) -> bool:
    """True if a node gives shards different things, as far as it is a collective."""
    group = node.attrs.get("group")
    return node.op.name in EACH_ITS_OWN or (isinstance(group, Group) and group.stride > 0)


def _described(node: Node) -> tuple[object, ...]:
    """Description of a node's results and the constants that it reads; a collective's are each shard's own."""
    numbers = [] if node.op.name in COLLECTIVES else [v.data.tobytes() for v in node.inputs if v.data is not None]
    return node.op.name, [v.spec for v in node.outputs], numbers
