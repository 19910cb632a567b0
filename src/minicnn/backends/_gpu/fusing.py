"""Fusion: groups of a tiled operation and elementwise ones that run in one kernel; light nodes are inlined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from minicnn.backends._gpu.depthwise_tiling import DEPTHWISE, MOST_TOTALS, DepthwiseTile
from minicnn.backends._gpu.fusion_groups import PARTIAL_SUMS, FusionGroup, adds_partial_sums
from minicnn.backends._gpu.inlining import TILED, Inlining
from minicnn.backends._gpu.launches import launches
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile
from minicnn.backends._gpu.second_stream import put_aside, set_aside
from minicnn.backends._gpu.tiles import Tiles
from minicnn.kernels.elements import same_index, widens
from minicnn.program.graph import Node, Program, Spec, Value


class Plan(Inlining):
    """The fusion groups of a Program, and what they read and write.

    Attributes:
        groups: Groups in order.
        launches: Groups that run side by side, in order.
        beside: By the number of a launch that goes on beside those behind it, the first of these that waits for it.
        written_in: Number of the launch that writes a value, by its id.
        replaced_by: Ids of the inputs that a value in memory replaces at the end of a step, by its id.
    """

    def __init__(
        self,
        program: Program,
        *,
        tiles: Tiles,
        fuse: bool,
        tiled: bool,
        reference_only: bool = False,
    ) -> None:
        super().__init__(program, tiles, copies_reshapes=reference_only)
        self.fuse, self.tiled, self.reference_only = fuse, tiled, reference_only
        self.groups: list[FusionGroup] = []
        self._group_of: dict[int, FusionGroup] = {}  # by root value, the group that makes it
        for node in program.nodes:
            if id(node.outputs[0]) not in self.alias:
                self._place(node)
        # Pooling first: the tiles that it changes decide who can take sums.
        if fuse and tiled:
            self._fuse_pooling()
            self._fuse_sums()
            if tiles.pipelined:
                self._join_sums()
        self._finish()

    def _finish(self) -> None:
        """Settle where values are and what is launched: groups do not change any more."""
        self._reads: dict[int, list[Value]] = {}  # by group
        self._store()
        second_stream = self.fuse and self.tiles.second_stream
        if second_stream:
            set_aside(self)
        self._carried = self._in_place()
        self.launches, waited_for = launches(self)
        self.beside: dict[int, int] = {}
        if second_stream:
            self.launches, self.beside = put_aside(self.launches, waited_for)
        self.replaced_by: dict[int, set[int]] = {}
        for name, value in self.program.updates.items():
            self.replaced_by.setdefault(id(self.root(value)), set()).add(id(self.program.value(name)))
        self.written_in = {
            id(v): k
            for k, launch in enumerate(self.launches)
            for group in launch
            for v in (*group.stored, *map(self.program.value, self.carried(group)))
        }

    # Fusion groups --------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        reason = "reference_only is set" if self.reference_only else None
        # Rewriting makes partial sums only where there is a kernel.
        if reason is None and node.op.name not in PARTIAL_SUMS:
            reason = self.tiles.unsupported(node)
        if reason is not None:
            if any(v.dtype == "bfloat16" for v in (*node.inputs, *node.outputs)):
                raise NotImplementedError(
                    "References compute on arrays, which do not know bfloat16: each operation in it has a kernel. "
                    f"Received: {node.op.name} of {', '.join(str(v.spec) for v in node.inputs)}: {reason}. "
                    "Take a smaller batch where an array is too large, else precision='mixed_float16' or 'float32'."
                )
            self._add(FusionGroup([node], reference=reason))
            return
        # What is stored in 16 bits is widened by whoever reads it, and terms of a sum are made where they are added.
        late = widens(node) or self.is_only_summed(node)
        # A group that makes the input has the element in a register: joining it is better than reading memory, and
        # inlining comes next, since it saves the launch and the store.
        if self.fuse and not late and self._append(node):
            return
        if self.fuse and self.is_virtual(node):
            self.inline(node)
            return
        if self.fuse and late and self._append(node):
            return
        group = FusionGroup([node])
        if self.tiled and node.op.name in TILED:
            group.tile = self.tiles.product(node) if node.op.name == "matmul" else self.tiles.convolution(node)
        elif self.tiled and node.op.name in DEPTHWISE:
            group.tile = self.tiles.depthwise(node)
        elif node.op.name in PARTIAL_SUMS:
            group.tile = node.attrs["tile"]
        self._add(group)

    def _add(self, group: FusionGroup) -> None:
        group.number = len(self.groups)
        self.groups.append(group)
        self._group_of |= {id(v): group for n in group.nodes for v in n.outputs}

    def _last_maker(self, values: Iterable[Value]) -> FusionGroup | None:
        """The last of the groups that make some values in memory, if any does."""
        makers = (self._group_of[id(v)] for v in values if id(v) in self._group_of)
        return max(makers, key=lambda group: group.number, default=None)

    def _append(self, node: Node) -> bool:
        """Add a node to the group that makes its last input, if it follows it element by element."""
        group = self._last_maker(self.leaves(node))
        if group is None or group.reference or node.outputs[0].size != group.nodes[-1].outputs[0].size:
            return False
        # These need many elements of their input at once, of other blocks, too.
        if node.op.name in TILED or node.op.name in PARTIAL_SUMS:
            return False
        # A region is closed; and of split sums no block has the whole result to go on with.
        if group.anchor.op.name == "row_region" or (group.tile is not None and group.tile.splits > 1):
            return False
        group_values = {id(v) for n in group.nodes for v in n.outputs}
        direct = {id(self.root(v)) for v in node.inputs if same_index(node, v)}
        # What this group makes in 16 bits, and the node reads at its own element, is widened on the spot.
        inputs = {id(r): r for r in map(self.root, node.inputs)}
        casts = [r.node for key, r in inputs.items() if key in self.virtual & direct and r.node is not None]
        widened = [n for n in casts if widens(n) and id(n.inputs[0]) in group_values]
        if not self._reads_here(node, group_values, {id(n.outputs[0]) for n in widened}):
            return False
        group.nodes += [n for n in widened if n not in group.nodes]
        group.nodes.append(node)
        self._group_of |= {id(v): group for v in node.outputs}
        return True

    def _reads_here(self, node: Node, values: Set[int], beside: Set[int] = frozenset()) -> bool:
        """True if a node reads, of some values, the element at its own place alone; `beside`: virtual ones that do."""
        for value in node.inputs:
            root = self.root(value)
            follows = node.op.name == "max_pool2d_index" and value is node.inputs[1]  # and reads x as its pooling does
            if id(root) in values and not (follows or same_index(node, value)):
                return False
            # A virtual input is computed on the spot from its leaves, at whatever places it needs.
            producer = root.node if id(root) in self.virtual and id(root) not in beside else None
            if producer is not None and any(id(v) in values for v in self.leaves(producer)):
                return False
        return True

    def _fuse_pooling(self) -> None:
        """Let a convolution's tile do the max-pooling that alone reads its result."""
        for group in list(self.groups):
            pool = group.nodes[0]
            if pool.op.name != "max_pool2d" or group.tile is not None:
                continue
            source = self.root(pool.inputs[0])
            maker = self._group_of.get(id(source))
            if maker is None or maker.anchor.op.name != "conv2d" or maker.tile is None or maker.pool is not None:
                continue
            maker_values = {id(v) for n in maker.nodes for v in n.outputs}
            inside = {id(n) for n in (*maker.nodes, *group.nodes)}
            others = [
                n
                for n in self.program.nodes
                if id(n) not in inside and any(id(self.root(v)) in maker_values for v in n.inputs)
            ]
            attrs = pool.attrs
            # A thread pools the results that it has in registers: windows that overlap would need those of others.
            overlap = attrs["kernel"] != attrs["strides"] or attrs["padding"] != ((0, 0), (0, 0))
            if (
                others
                or maker_values & self._results
                or overlap
                or attrs["data_format"] != maker.anchor.attrs["data_format"]
            ):
                continue
            rest = [n for n in group.nodes if not n.op.name.startswith("max_pool2d")]  # know the maximum alone
            if any(id(v) in maker_values for n in rest for v in self.leaves(n)):
                continue
            read = [v for n in group.nodes for v in self.leaves(n) if id(v) not in maker_values]
            # The epilogue runs when the convolution does: what it reads must be there by then.
            if any(maker.number < self._made_in(v) != group.number for v in read):
                continue
            # A tile whose pieces consist of whole windows, which may be a slower one than that of the convolution
            # alone.
            tile = self.tiles.pooled(maker.anchor, pool)
            if tile is None:
                continue
            maker.before, maker.nodes, maker.pool, maker.tile = maker.nodes, group.nodes, pool, tile
            self._remove(group, maker)

    def _fuse_sums(self) -> None:
        """Let a convolution's tile take sums over all positions of what it makes: `pipelined.cuh`."""
        for group in list(self.groups):
            node = group.anchor
            if node.op.name != "reduce_partial_sums" or node.attrs["join"] != "sum" or node.outputs[0].shape[0] == 1:
                continue
            maker = self._last_maker(self.leaves(node))
            if maker is None or not isinstance(maker.tile, PipelinedTile | DepthwiseTile):
                continue
            full = isinstance(maker.tile, DepthwiseTile) and len(maker.sums) == MOST_TOTALS
            if maker.anchor.op.name not in TILED | DEPTHWISE or full:
                continue
            y, maker_values = maker.anchor.outputs[0], {id(v) for n in maker.nodes for v in n.outputs}
            terms = self._terms(node.inputs[0], maker_values)
            if (
                node.attrs["axes"] != (0, 1, 2)
                or node.inputs[0].shape != y.shape
                or terms is None
                or group.nodes != [node]
            ):
                continue
            maker.nodes += [n for n in terms if n not in maker.nodes]
            maker.sums.append(node)
            # Each block leaves one sum, so their number is now that of the tile's blocks rather than of the sum's own.
            parts = maker.tile.row_blocks(y.shape[3], maker.anchor.attrs.get("groups", 1))
            node.outputs[0].spec = Spec((parts, y.shape[3]), node.outputs[0].dtype)
            self._remove(group, maker)

    def _join_sums(self) -> None:
        """Let one group add up partial sums of the same tile, or of sums of which one waits for the other."""
        adders = list(filter(_only_adds, self.groups))
        numbers = {group.number for group in adders}  # groups that join others begin with an addition, too
        for second in adders:
            second_values = {id(v) for n in second.nodes for v in n.outputs}
            needed = [v for n in second.nodes for v in self.leaves(n) if id(v) not in second_values]
            before = self.groups[: self.groups.index(second)]
            for at, first in enumerate(before):
                if first.number not in numbers or first.anchor.inputs[0].shape != second.anchor.inputs[0].shape:
                    continue
                first_values = {id(v) for n in first.nodes for v in n.outputs}
                if not all(self._reads_here(n, first_values) for n in second.nodes):
                    continue
                # Sums of one tile come in one array: a thread that adds the mean's parts may add the variance's, too.
                alike = self._made_in(first.anchor.inputs[0]) == self._made_in(second.anchor.inputs[0])
                if alike and all(self._made_in(v) < first.number or id(v) in first_values for v in needed):
                    first.nodes += second.nodes
                    self._remove(second, first)
                    break
                # Where the second waits for the first, it can do both as long as nobody in between needs the first.
                between = (v for u in before[at + 1 :] for n in u.every for v in self.leaves(n))
                if any(id(v) in first_values for v in needed) and not any(id(v) in first_values for v in between):
                    second.nodes = first.nodes + second.nodes
                    self._remove(first, second)
                    break

    def _made_in(self, value: Value) -> int:
        """Number of the group that makes a value; -1 if none does."""
        maker = self._group_of.get(id(self.root(value)))
        return -1 if maker is None else maker.number

    def _remove(self, group: FusionGroup, other: FusionGroup) -> None:
        """Take away a group whose nodes are now another's."""
        self.groups.remove(group)
        self._group_of |= {id(v): other for n in other.every for v in n.outputs}

    def _terms(self, value: Value, maker_values: set[int]) -> list[Node] | None:
        """Virtual nodes that make element i of a value of element i of what a group makes; None if it needs others."""
        root = self.root(value)
        node = root.node
        if id(root) in maker_values or id(root) not in self.virtual or node is None:
            return []
        if all(id(v) not in maker_values for v in self.leaves(node)):
            return []  # made where it is read
        terms: list[Node] = []
        for v in node.inputs:
            operand_terms = self._terms(v, maker_values)
            if operand_terms is None or (
                not same_index(node, v) and (operand_terms or id(self.root(v)) in maker_values)
            ):
                return None
            terms += [n for n in operand_terms if n not in terms]
        return [*terms, node] if node.op.elementwise else None

    # Memory and order ---------------------------------------------------------------------------

    def reads(self, group: FusionGroup) -> list[Value]:
        """Values in memory that a group reads."""
        if id(group) not in self._reads:
            group_values = {id(v) for n in group.every for v in n.outputs}
            values = {id(v): v for n in group.every for v in self.leaves(n) if id(v) not in group_values}
            self._reads[id(group)] = list(values.values())
        return self._reads[id(group)]

    def _store(self) -> None:
        needed = set(self._results)
        for group in self.groups:
            needed.update(id(v) for v in self.reads(group))
        for group in self.groups:
            # All else stays in registers: that is what fusion saves.
            group.stored = [v for n in group.every for v in n.outputs if id(v) in needed]
        self.groups = [u for u in self.groups if u.stored]
        read = {id(v) for u in self.groups for v in self.reads(u)}
        # What nothing waits for comes last: the updates of all parameters, side by side.
        self.groups.sort(key=lambda u: u.is_plain and not any(id(v) in read for v in u.stored))

    def carried(self, group: FusionGroup) -> dict[str, Value]:
        """Results of a group that may overwrite the input they replace, by that input's name."""
        return self._carried.get(id(group), {})

    def _in_place(self) -> dict[int, dict[str, Value]]:
        """Inputs whose memory each group's results take over, by the group's id."""
        maker = {id(v): (k, group) for k, group in enumerate(self.groups) for v in group.stored}
        last_read = {id(v): k for k, group in enumerate(self.groups) for v in self.reads(group)}
        replaced: dict[int, dict[str, Value]] = {}
        for name, value in self.program.updates.items():
            old = self.program.value(name)
            if id(value) in maker and old.spec == value.spec:
                at, group = maker[id(value)]
                # The weights of before must not be needed later, or by another thread, when the update overwrites them.
                if last_read.get(id(old), -1) <= at and self._at_its_place(group, old):
                    replaced.setdefault(id(group), {})[name] = value
        return replaced

    def _at_its_place(self, group: FusionGroup, old: Value) -> bool:
        """True if a group reads an element of an input where it makes the element that replaces it, if at all."""
        if group.pool is not None or group.reference or id(old) in self._results:
            return False
        return all(self._reads_at_its_place(node, old) for node in group.every)

    def _reads_at_its_place(self, node: Node, old: Value) -> bool:
        """True if a node reads only the element of an input that has its own place, itself or through virtual nodes."""
        for value in node.inputs:
            root = self.root(value)
            producer = root.node if id(root) in self.virtual else None
            reads = root is old if producer is None else any(v is old for v in self.leaves(producer))
            if reads and not same_index(node, value):
                return False
            if reads and producer is not None and not self._reads_at_its_place(producer, old):
                return False
        return True

    @property
    def outputs(self) -> set[int]:
        """Ids of the values that hold outputs."""
        return {id(self.root(v)) for v in self.program.outputs.values()}

    @property
    def waits(self) -> bool:
        """True if kernels wait for other ranks."""
        return any(group.waits for group in self.groups)

    def most_meeting(self, groups: Sequence[FusionGroup]) -> int:
        """Threads of a launch that may wait for what the same launch of others gives, as all of them are in place."""
        return 0

    def ahead_of(self, launch: int) -> int:
        """Number of the launch that is ahead of one in the order of all that do not go on beside others; -1 if none."""
        return next((k for k in reversed(range(launch)) if k not in self.beside), -1)

    def overlaps(self, launch: int) -> bool:
        """True if a launch may be in place before the one ahead of it has ended: where that is all it waits for."""
        return launch not in self.beside and launch not in self.beside.values()

    def lets_begin(self, launch: int) -> int | None:
        """Number of the launch that may be in place before one has ended, of the next step behind the last; or None."""
        count = len(self.launches)
        after = next(k % count for k in range(launch + 1, launch + 1 + count) if k % count not in self.beside)
        return after if launch not in self.beside and self.overlaps(after) else None

    def follows_kernel(self, launch: int) -> bool:
        """True if a kernel of the same step is ahead of a launch, all of whose blocks have waited for what came before.

        A reference of empty arrays, or a collective of one rank, may do nothing that would be waited for.
        """
        ahead = self.ahead_of(launch)
        return ahead >= 0 and self.launches[ahead][0].reference is None

    def is_early(self, value: Value, launch: int) -> bool:
        """True if a value is there before the launch ahead of one has ended.

        What comes from outside or from the step before is, where a kernel of the same step is ahead.
        """
        root = self.root(value)
        if id(root) in self.virtual and root.node is not None:
            return all(self.is_early(v, launch) for v in root.node.inputs)
        written, ahead = self.written_in.get(id(root)), self.ahead_of(launch)
        if not self.follows_kernel(launch):
            return False
        if root.node is not None:
            return written is not None and written < ahead
        return written is None or not ahead <= written < launch


def _only_adds(group: FusionGroup) -> bool:
    """True if a group adds up partial sums, and does nothing before that."""
    return not (group.tile or group.reference) and adds_partial_sums(group.anchor, 1)
