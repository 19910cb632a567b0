"""Max-poolings of a step that is cut: a part that goes forward hands on where maxima are, not the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minicnn.backends._gpu.rewriting import POOL_INDEX, POOL_SCATTER, has_byte
from minicnn.distribution.schedule import Instruction, Piece, RankSchedule, Slot
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.passes import remove_dead_nodes

Names = dict[int, str]  # of arrays with the places of maxima, by the id of a node


def remember_maxima(schedule: RankSchedule) -> None:
    """Change the parts of a schedule so that gradients of max-poolings read where maxima are.

    Within one Program `rewriting.remember_maxima` does so; between two, the image before the pooling would be stored,
    and be read again.
    """
    pieces = [each for each in schedule.instructions if isinstance(each, Piece)]
    handed_on: dict[Slot, tuple[Piece, Node]] = {}
    for piece in pieces:
        slots = dict(zip(piece.results, piece.writes, strict=True))
        pooled = {id(n.outputs[0]): n for n in piece.program.nodes if n.op.name == "max_pool2d" and has_byte(n)}
        handed_on |= {slots[n]: (piece, pooled[id(v)]) for n, v in piece.program.outputs.items() if id(v) in pooled}
    # All shards of one size have the same Programs: each is changed once.
    indices, gradients = dict[int, Names](), dict[int, Names]()
    for piece in pieces:
        slots = dict(zip(piece.inputs, piece.reads, strict=True))
        for node in piece.program.nodes:
            y = node.inputs[2] if node.op.name == "max_pool2d_gradient" else None
            if y is None or y.node is not None or y.data is not None or slots[y.name] not in handed_on:
                continue
            maker, pooling = handed_on[slots[y.name]]
            if pooling.attrs == node.attrs:
                gradients.setdefault(id(piece.program), {})[id(node)] = _named(y.name)
                indices.setdefault(id(maker.program), {})[id(pooling)] = _named(y.name)
    if not gradients:
        return
    for program in {id(piece.program): piece.program for piece in pieces}.values():
        _change(program, indices.get(id(program), {}), gradients.get(id(program), {}))
    schedule.instructions = [_named_anew(each) for each in schedule.instructions]
    _drop_unread(schedule)


def _named(pooled: str) -> str:
    """Name of the places of maxima, by that of the pooled image; of its slot, by that slot, likewise."""
    name, at, shard = pooled.partition("@")
    return f"{name}maxima{at}{shard}"


def _change(program: Program, indices: Names, gradients: Names) -> None:
    """Have a Program hand out where maxima are, and read it."""
    places: dict[str, Value] = {}

    def rule(node: Node) -> Sequence[Value] | None:
        if id(node) in indices:
            program.nodes.append(node)
            y = node.outputs[0]
            index = program.append(POOL_INDEX, [node.inputs[0], y], [Spec(y.shape, "uint8")], node.attrs)
            program.outputs[indices[id(node)]] = index.outputs[0]
            return node.outputs
        if id(node) in gradients:
            name, y = gradients[id(node)], node.inputs[2]
            if name not in places:
                places[name] = program.input(name, y.shape, "uint8")
            read = node.inputs[0], places[name]
            return program.append(POOL_SCATTER, read, [node.outputs[0].spec], node.attrs).outputs
        return None

    if indices or gradients:
        program.replace(rule)
        _clean(program)


def _clean(program: Program) -> None:
    """Drop nodes that nobody needs, and inputs that nobody reads."""
    remove_dead_nodes(program)
    read = {id(v) for v in (*program.results, *(v for node in program.nodes for v in node.inputs))}
    program.inputs[:] = [v for v in program.inputs if id(v) in read or v.name in program.updates]


def _named_anew(each: Instruction) -> Instruction:
    """An instruction with the slots of what its Program reads and makes now."""
    if not isinstance(each, Piece):
        return each
    reads, writes = dict(zip(each.inputs, each.reads, strict=True)), dict(zip(each.results, each.writes, strict=True))
    reads |= {_named(name): _named(slot) for name, slot in reads.items()}
    writes |= {_named(name): _named(slot) for name, slot in writes.items()}
    program = each.program
    inputs, results = tuple(v.name for v in program.inputs), (*program.outputs, *program.updates)
    return replace(
        each,
        inputs=inputs, reads=tuple(reads[name] for name in inputs),
        results=results, writes=tuple(writes[name] for name in results),
    )  # fmt: skip


def _drop_unread(schedule: RankSchedule) -> None:
    """Let no part hand on what nobody reads any more."""
    last = {*schedule.results.values(), *schedule.watched.values()}
    last |= {slot for slots, _ in schedule.kept.values() for slot in slots}
    while True:
        read = {slot for each in schedule.instructions for slot in each.reads} | last
        pieces = [each for each in schedule.instructions if isinstance(each, Piece)]
        needed: dict[int, set[str]] = {}
        for piece in pieces:
            slots = zip(piece.results, piece.writes, strict=True)
            needed.setdefault(id(piece.program), set()).update(name for name, slot in slots if slot in read)
        unread = False
        for program in {id(piece.program): piece.program for piece in pieces}.values():
            outputs = {name: v for name, v in program.outputs.items() if name in needed[id(program)]}
            if len(outputs) < len(program.outputs):
                program.outputs, unread = outputs, True
                _clean(program)
        if not unread:
            return
        schedule.instructions = [_named_anew(each) for each in schedule.instructions]
