"""Plan of parts that sums over ranks separate, each planned by itself: its sums have the same bits without the others.

What goes beyond the plans of the parts: kernels give to all ranks what they have just made, whoever waits for a sum
goes on with what is made of it, and groups of several parts share launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import THREADS, FusionGroup
from minicnn.backends._gpu.inlining import Inlining
from minicnn.backends._gpu.peer_nodes import GIVE, RESIDENT, ROUND, SUM, late_waits, places_name
from minicnn.backends._gpu.rank_joining import Joined, SumBetween
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends._gpu.tiling import ReductionTile
from minicnn.distribution.schedule import Piece, Slot, updated
from minicnn.kernels.elements import same_index
from minicnn.program.graph import Node, Program, Spec, Value


class JoinedPlan(Plan):
    """The fusion groups of all parts, and those of the sums between them.

    Args:
        program: The parts; its nodes, outputs and updates become those that the parts have when they are planned.
        plan: Plans a part.
        tiles: Where tiles come from if there is no part.
    """

    def __init__(self, program: Joined, plan: Callable[[Program], Plan], tiles: Tiles) -> None:
        plans = {id(part): plan(part.program) for part in program.pieces if isinstance(part, Piece)}
        # Tiles are chosen already; this is what launches have room for.
        self.tiles = next((each.tiles for each in plans.values() if each.tiles.pipelined), tiles)
        program.nodes = []
        Inlining.__init__(self, program, self.tiles, copies_reshapes=False)
        self.fuse, self.tiled, self.reference_only = True, True, False
        self.groups, self._group_of, self._fills = [], {}, program.fills
        self._values: dict[Slot, Value] = dict(program.given)
        for part in program.pieces:
            if isinstance(part, SumBetween):
                self._add_sum(part)
            else:
                self._add_part(part, plans[id(part)])
        for results in (program.outputs, program.updates):
            results.update({name: self._values[program.slots[name]] for name in results})
        self._results = {id(self.root(v)) for v in program.results}
        self._count_first()
        for group in self.groups:
            if group.waits:
                group.nodes = late_waits(group.nodes, self.leaves)
        self._finish()

    def _add_part(self, part: Piece, plan: Plan) -> None:
        """Take over the groups of a part."""
        for name, slot in zip(part.inputs, part.reads, strict=True):
            value = plan.program.value(name)
            if self._values[slot] is not value:
                self.alias[id(value)] = self.root(self._values[slot])
        self.alias |= {key: self.root(value) for key, value in plan.alias.items()}
        self.virtual |= plan.virtual
        self._leaves.clear()
        self.program.nodes += plan.program.nodes
        for group in plan.groups:
            group.fixed = group.slices
            if not self._follow(group):
                self._add(group)
        results = plan.program.outputs | plan.program.updates
        self._values |= {slot: results[name] for name, slot in zip(part.results, part.writes, strict=True)}

    def _add(self, group: FusionGroup) -> None:
        last = max((u.number for u in self.groups), default=-1)
        super()._add(group)
        group.number = last + 1  # of groups that are taken away the numbers stay theirs
        self._group_of |= {id(v): group for n in group.every for v in n.outputs}

    def most_meeting(self, groups: Sequence[FusionGroup]) -> int:
        """See `Plan.most_meeting`; where something goes on beside, such as other sums, half of the places are its."""
        gpu = self.tiles.gpu
        places = gpu.multiprocessors * (RESIDENT if all(u.is_plain for u in groups) else THREADS)
        return places if self._fills else places // 2

    # Sums ---------------------------------------------------------------------------------------

    def _add_sum(self, one: SumBetween) -> None:
        """Put a sum behind whoever makes what is added, as far as it may wait there."""
        program, x = self.program, self._values[one.source]
        if ROUND in program.updates and self._values[ROUND] is program.value(ROUND):
            self._values[ROUND] = self._values[updated(ROUND)] = program.value(ROUND) + 1
            self._add(counts := FusionGroup([program.nodes[-1]]))
            counts.number = -1  # it waits for nobody
        places = self._values[places_name(one.number)]
        give = program.append(GIVE, [x, places, self._values[ROUND]], [Spec(one.spec.shape, "uint32")], {})
        maker = self._group_of.get(id(self.root(x)))
        if maker is None or not _finishes_once(maker) or not self._append(give):
            self._add(FusionGroup([give]))
        total = program.append(SUM, [give.outputs[0], places], [one.spec], {})
        group = self._group_of[id(give.outputs[0])]
        # Where the same threads give what others wait for, all of them are in place at a time.
        together = replace(group, nodes=[*group.nodes, total])
        goes_on = one.late and any(not u.is_plain for u in self.groups[self.groups.index(group) :])
        if not goes_on and together.meeting <= self.most_meeting([together]):
            group.nodes = [*group.nodes, total]
            self._group_of[id(total.outputs[0])] = group
        else:
            self._add(group := FusionGroup([total]))
        # Other ranks have given it sooner the later it is waited for.
        group.late = one.late
        self._values[one.target] = total.outputs[0]

    def _count_first(self) -> None:
        """Have the group that counts the rounds come before all that give, some of which were there before it."""
        counts = self._group_of.get(id(self._values[ROUND])) if ROUND in self._values else None
        if counts is not None:
            self.groups.remove(counts)
            first = next(k for k, group in enumerate(self.groups) if any(n.op is GIVE for n in group.nodes))
            self.groups.insert(first, counts)

    def _follow(self, group: FusionGroup) -> bool:
        """Have a group's nodes follow, element by element, those that wait for other ranks, if that can be."""
        plain = group.tile is None and group.reference is None and group.slices == group.width == 1
        if not plain or group.before or group.sums:
            return False
        inside = {id(v) for n in group.every for v in n.outputs}
        read = {id(v): v for n in group.nodes for v in self.leaves(n) if id(v) not in inside}
        makers = {id(m): m for m in (self._group_of.get(key) for key in read) if m is not None}
        last = max(makers.values(), key=lambda m: m.number, default=None)
        if last is None or not any(m.waits and m.size == group.size for m in makers.values()):
            return False
        waiting = [v for v in read.values() if v.node is not None and v.node.op is SUM and v.size == group.size]
        simple = last.tile is None and last.width == 1 and all(self._group_of[id(v)] is last for v in waiting)
        if waiting and simple and (nodes := self._following(group, last.nodes)):
            last.nodes = nodes
            self._group_of |= {id(v): last for n in nodes for v in n.outputs}
            return True
        return self._gather(group, [v.node for v in waiting if v.node is not None])

    def _gather(self, group: FusionGroup, totals: Sequence[Node]) -> bool:
        """Have a group wait itself for several sums, which nobody else has looked at yet."""
        ids = {id(n.outputs[0]) for n in totals}
        others = [n for u in self.groups for n in u.every if any(id(v) in ids for v in self.leaves(n))]
        nodes = [] if others or not totals else self._following(group, totals)
        if not nodes:
            return False
        for one in {id(u): u for u in (self._group_of[key] for key in ids)}.values():
            one.nodes = [n for n in one.nodes if n not in totals]
            if not one.nodes:
                self.groups.remove(one)
        self._add(FusionGroup(nodes))
        return True

    def _following(self, group: FusionGroup, before: Sequence[Node]) -> list[Node]:
        """Some nodes, and those of a group behind them; none if one of these needs other elements of what they make."""
        earlier = {id(v) for n in before for v in n.outputs}
        values, nodes = set(earlier), list(before)
        inside = {id(v) for n in group.nodes for v in n.outputs}
        for node in group.nodes:
            products = [v for v in node.inputs if v.node is not None and v.node.op.name in ("multiply", "square")]
            computed = [v for v in products if id(v) in inside or id(v) in self.virtual]
            stored = [v for v in products if id(self.root(v)) in earlier]
            # The compiler makes one instruction of a product and an addition, which rounds once: of two products that
            # are added it does so with one, by what else there is; and with none that another launch has stored.
            if node.op.name in ("add", "subtract") and (len(computed) > 1 or stored):
                return []
            for value in node.inputs:
                terms = self._terms(value, values)
                follows = bool(terms) or id(self.root(value)) in values
                if terms is None or (follows and not same_index(node, value)):
                    return []
                nodes += [n for n in terms if n not in nodes]
                values.update(id(v) for n in terms for v in n.outputs)
            nodes.append(node)
            values.update(id(v) for v in node.outputs)
        return nodes


def _finishes_once(group: FusionGroup) -> bool:
    """True if a thread has each result of a group: those of tiles may have others, too, which they do not store."""
    reduces = isinstance(group.tile, ReductionTile) and group.anchor.op.name == "reduce_partial_sums"
    return group.reference is None and (group.tile is None or reduces) and (reduces or group.width == 1)
