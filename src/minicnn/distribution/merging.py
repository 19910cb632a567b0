"""Several shards in one process: their Programs, put together to one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from minicnn import ops
from minicnn.ops.groups import Group, RunningSums
from minicnn.program.graph import Node, Program, Value

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"})
EACH_ITS_OWN = frozenset({"reduce_scatter", "all_to_all"})  # the others give all shards the same


def merge(programs: Sequence[Program], group: Group, cut: Collection[str] = ()) -> Program:
    """One Program that does what those of several shards do.

    Between two collectives the shards come one after the other, so that the memory of one is free for the next. Sums
    over shards are taken as soon as both summands are there. What does not depend on a shard's own data is computed
    once.

    Args:
        programs: Programs of the shards that `group` holds, in order; the collectives of each are of a group with as
            many ranks as there are shards, and come in the same order in all.
        group: The shards of this process.
        cut: Names of the inputs that belong to a shard; of the merged Program they are joined along the first axis.
            All other inputs are the same for all shards.

    Returns:
        The Program. Collectives are left in it if there are other ranks.

    Raises:
        ValueError: If the Programs do not belong together, or a result differs from shard to shard.
    """
    return _Merge(programs, group, frozenset(cut)).run()


class _Merge:
    """One merging.

    Attributes:
        new: For each shard the merged Program's Value by the id of that of the shard's Program.
        per_shard: Ids of Values of the merged Program that depend on a shard's data.
        known: Results of the nodes that do not, by what they compute.
    """

    def __init__(self, programs: Sequence[Program], group: Group, cut: frozenset[str]) -> None:
        self.programs, self.group, self.cut = programs, group, cut
        self.merged = Program(programs[0].name)
        self.new: list[dict[int, Value]] = [{} for _ in programs]
        self.per_shard: set[int] = set()
        # What all shards compute alike is there once: equal nodes on equal inputs are one node.
        self.known: dict[Any, tuple[Value, ...]] = {}

    def run(self) -> Program:
        self._inputs()
        walks = [iter(p.nodes) for p in self.programs]
        first = next(iter(self.group.held()), 0)
        while True:
            stops: list[Node | None] = []
            sums = RunningSums(self.group)
            for s, walk in enumerate(walks):
                stop = self._walk(s, walk)
                stops.append(stop)
                if stop is not None and stop.op.name == "all_reduce":
                    with self.merged.scope_of(stop, stop.phase):
                        sums.add(first + s, [self.value(s, v) for v in stop.inputs])
            # All shards have come to their end.
            if not any(stops):
                break
            self._collective([_checked(stop, stops[0]) for stop in stops], sums)
        for results in ("outputs", "updates"):
            getattr(self.merged, results).update(
                {n: self._result(results, n) for n in getattr(self.programs[0], results)}
            )
        return self.merged

    def _inputs(self) -> None:
        for value in self.programs[0].inputs:
            each = [p.value(value.name) for p in self.programs]
            if value.name not in self.cut:
                shared = self.merged.input(value.name, value.shape, value.dtype, kind=value.kind)
                for new, old in zip(self.new, each, strict=True):
                    new[id(old)] = shared
                continue
            lengths = [v.shape[0] for v in each]
            whole = self.merged.input(value.name, (sum(lengths), *value.shape[1:]), value.dtype, kind=value.kind)
            self.per_shard.add(id(whole))
            start = 0
            for new, old, length in zip(self.new, each, lengths, strict=True):
                with self.merged.scope("data"):
                    part = whole if length == whole.shape[0] else whole[start : start + length]
                self.per_shard.add(id(part))
                new[id(old)], start = part, start + length

    def value(self, shard: int, old: Value) -> Value:
        """The merged Program's Value for one of a shard's."""
        new = self.new[shard]
        if id(old) not in new and old.data is not None:  # a constant; all else was made before it is read
            key = ("constant", old.data.tobytes(), old.spec)
            if key not in self.known:
                self.known[key] = (self.merged.constant(old.data, old.dtype),)
            new[id(old)] = self.known[key][0]
        return new[id(old)]

    def _walk(self, shard: int, nodes: Iterator[Node]) -> Node | None:
        """Copy a shard's nodes up to the next collective, which is returned."""
        new = self.new[shard]
        for node in nodes:
            if node.op.name in COLLECTIVES:
                return node
            inputs = [self.value(shard, v) for v in node.inputs]
            # Nodes of a shard's own data are never merged, equal as they may look.
            mine = any(id(v) in self.per_shard for v in inputs)
            key = (node.op.name, tuple(map(id, inputs)), repr(node.attrs), tuple(v.spec for v in node.outputs))
            outputs = None if mine else self.known.get(key)
            if outputs is None:
                with self.merged.scope_of(node, node.phase):
                    outputs = self.merged.append(node.op, inputs, [v.spec for v in node.outputs], node.attrs).outputs
                if mine:
                    self.per_shard.update(map(id, outputs))
                else:
                    self.known[key] = outputs
            new |= {id(old): value for old, value in zip(node.outputs, outputs, strict=True)}
        return None

    def _collective(self, nodes: Sequence[Node], sums: RunningSums) -> None:
        node, group = nodes[0], self.group
        with self.merged.scope_of(node, node.phase):
            if node.op.name == "all_reduce":
                totals = sums.arrays
                if group.ranks > 1:
                    reduced = ops.all_reduce(*totals, group=group)
                    totals = list(reduced) if isinstance(reduced, tuple) else [reduced]
                results = [totals] * len(nodes)
            elif group.ranks == 1:
                rule = _LOCALLY[node.op.name]
                operands = [self.value(s, n.inputs[0]) for s, n in enumerate(nodes)]
                results = [[value] for value in rule(operands, {k: v for k, v in node.attrs.items() if k != "group"})]
            else:
                raise ValueError(
                    f"Of collectives only all_reduce runs with several shards in each of several processes. Received: "
                    f"{node.op.name} with {group}. Use as many ranks as shards, or one."
                )
        for new, old, values in zip(self.new, nodes, results, strict=True):
            new |= {id(a): b for a, b in zip(old.outputs, values, strict=True)}
        if node.op.name in EACH_ITS_OWN:
            self.per_shard.update(id(v) for values in results for v in values)

    def _result(self, results: str, name: str) -> Value:
        each = [self.value(s, getattr(p, results)[name]) for s, p in enumerate(self.programs)]
        if id(each[0]) in self.per_shard or any(v is not each[0] for v in each):
            raise ValueError(
                f"What a step on several shards hands back is the same for all of them. Received: {name!r}, which "
                "depends on the samples of a shard. Layers may assign what all samples have in common, such as the "
                "statistics of BatchNormalization, and what does not depend on samples."
            )
        return each[0]


def _checked(node: Node | None, first: Node | None) -> Node:
    if node is None or first is None or node.op is not first.op or len(node.inputs) != len(first.inputs):
        raise ValueError(f"Shards have the same collectives in the same order. Received: {first!r} beside {node!r}.")
    return node


def _tree_sum(values: Sequence[Value]) -> Value:
    return Group(len(values)).total({(s, s + 1): v for s, v in enumerate(values)}, lambda a, b: a + b)


def _pieces(x: Value, axis: int, count: int) -> list[Value]:
    n = x.shape[axis] // count
    key: list[Any] = [slice(None)] * x.ndim
    return [x[(*key[: axis % x.ndim], slice(i * n, i * n + n), ...)] for i in range(count)]


def _gathered(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return [ops.concat(*values, axis=attrs["axis"])] * len(values)


def _scattered(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return _pieces(_tree_sum(values), attrs["axis"], len(values))


def _exchanged(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    pieces = [_pieces(x, attrs["split"], len(values)) for x in values]
    return [ops.concat(*each, axis=attrs["join"]) for each in zip(*pieces, strict=True)]


def _broadcast(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return [values[attrs["root"]]] * len(values)


# What a collective is where all shards are in one Program: from the array of each shard to the result of each.
_LOCALLY: dict[str, Callable[[Sequence[Value], Mapping[str, Any]], list[Value]]] = {
    "all_gather": _gathered, "reduce_scatter": _scattered, "all_to_all": _exchanged, "broadcast": _broadcast,
}  # fmt: skip
