"""Fusion: groups of nodes merged into one `fused` node, for backends that have a kernel for the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicnn.ops.fused import Body, FusedOperation, fused
from minicnn.program.graph import Node, Program
from minicnn.program.readers import Readers


def merge(program: Program, group: Sequence[Node], name: str, readers: Readers | None = None) -> Node | None:
    """Replace nodes of a Program by one `fused` node, if no path leaves the group and comes back.

    Results of the group that nothing outside reads vanish. The merged node stands where the last node of
    the group stood; nodes between that read its results are moved behind it.

    Args:
        program: Program, changed in place.
        group: Nodes in the Program's order.
        name: Name of the pattern.
        readers: Who reads the values of the group; looked for among all nodes if None.

    Returns:
        The merged node, or None if the group cannot run as one or nothing reads it.
    """
    members = {id(n) for n in group}
    first = next(i for i, n in enumerate(program.nodes) if id(n) in members)
    last = max(i for i, n in enumerate(program.nodes) if id(n) in members)
    before, after = [], []
    tainted = {id(v) for n in group for v in n.outputs}  # depends on the group
    for node in program.nodes[first : last + 1]:
        if id(node) in members:
            # A path leaves the group and comes back: as one node it would have to run before and after what is outside.
            if any(id(v) in tainted and id(v.node) not in members for v in node.inputs):
                return None
        elif any(id(v) in tainted for v in node.inputs):
            tainted.update(id(v) for v in node.outputs)
            after.append(node)
        else:
            before.append(node)
    node = _fused_node(group, name, readers or Readers(program))
    if not node.outputs:  # nothing reads the group: it is for remove_dead_nodes
        return None
    for value in node.outputs:
        value.node = node
    program.nodes[first : last + 1] = [*before, node, *after]
    return node


def _fused_node(group: Sequence[Node], name: str, readers: Readers) -> Node:
    members = {id(n) for n in group}
    results = {id(v) for n in group for v in n.outputs}
    inputs = list({id(v): v for n in group for v in n.inputs if id(v) not in results}.values())
    places = {id(v): i for i, v in enumerate(inputs)}
    operations = []
    for node in group:
        operations.append(
            FusedOperation(node.op, tuple(places[id(v)] for v in node.inputs), node.attrs, len(node.outputs))
        )
        for value in node.outputs:
            # Numbered on from the inputs, in the order in which the reference appends results.
            places[id(value)] = len(places)
    outputs = [v for n in group for v in n.outputs if readers.outside(v, members)]
    body = Body(name, len(inputs), tuple(operations), tuple(places[id(v)] for v in outputs))
    return Node(fused, tuple(inputs), tuple(outputs), {"body": body}, group[-1].scope, group[-1].phase)


def fusion_groups(program: Program, member: Callable[[Node], bool]) -> list[list[Node]]:
    """Maximal groups of nodes of one result shape in which each but the first reads another of the group.

    Args:
        program: Program.
        member: Which nodes may be part of a group, such as elementwise ones that the backend can generate code for.

    Returns:
        Groups of at least two nodes, each in the Program's order, in which all nodes can run as one.
    """
    groups: list[list[Node]] = []
    group_of: dict[int, int] = {}
    # Groups grow node by node; a node may join one only if no path leads there through others outside of it.
    behind: dict[int, set[int]] = {}  # for each value, the groups that it depends on through outside nodes
    for node in program.nodes:
        reached: set[int] = set()
        for value in node.inputs:
            reached |= behind.get(id(value), set())
        at = _group_to_join(node, group_of, groups, reached) if member(node) else None
        if at is None and member(node):
            at = len(groups)
            groups.append([])
        if at is not None:
            groups[at].append(node)
            group_of[id(node)] = at
        for value in node.outputs:
            direct = {group_of[id(v.node)] for v in node.inputs if v.node is not None and id(v.node) in group_of}
            behind[id(value)] = reached | (direct - {at} if at is not None else direct)
    return [g for g in groups if len(g) > 1]


def _group_to_join(node: Node, group_of: dict[int, int], groups: list[list[Node]], reached: set[int]) -> int | None:
    """The latest group that the node reads directly, and does not also reach through nodes outside of it."""
    sources = {group_of[id(v.node)] for v in node.inputs if v.node is not None and id(v.node) in group_of}
    fitting = [
        g for g in sources - reached
        if groups[g][0].outputs[0].shape == node.outputs[0].shape and groups[g][0].phase == node.phase
    ]  # fmt: skip
    return max(fitting, default=None)
