"""The kernel of a launch as data, which people read and the interpreter runs; what has a template is a node of it."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.plain import plain_tile
from minicnn.backends._gpu.regions import region_statements
from minicnn.backends._gpu.writer import Writer
from minicnn.kernels.expressions import Expr, I, Name
from minicnn.kernels.statements import Function, Kernel, Part, Statement, Store, Template
from minicnn.program.graph import Value


def lowered(
    plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int = 256
) -> tuple[Kernel, list[Value]]:
    """The kernel of one launch, and the values whose memory are its arrays.

    Args:
        plan: The plan that the launch is of.
        launch: Groups that run side by side.
        queued: Ids of inputs of which there is one row a step.
        threads: Threads of a block, unless a tile says otherwise.
    """
    lowering = _Lowering(plan, launch, queued)
    threads = max((group.tile.threads for group in launch if group.tile is not None), default=threads)
    parts = [lowering.part(group, threads) for group in launch]
    arrays = list(map(lowering.array, lowering.values))
    return Kernel(named(launch), threads, arrays, parts, lowering.reads_queue), lowering.values


def group_statements(writer: Writer, group: FusionGroup, threads: int) -> Sequence[Statement]:
    """Statements of the blocks of a group that has no template."""
    if group.anchor.op.name == "row_region":
        return region_statements(writer, group.anchor)
    if group.tile is not None or group.slices > 1:
        return plain_tile(writer, group, threads)
    return writer.elements(group, threads)


class _Lowering(Writer):
    """Functions and statements of the groups of a kernel."""

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self._defined: list[Function] = []

    def define_function(self, parameters: tuple[Name, ...], result: Expr, value: Value, title: str = "") -> str:
        """See `Writer.define_function`."""
        node = self.inlined(value)
        title = title or (f"{value.spec}, {node.op.name}" if node is not None else f"{value.spec}")
        self._defined.append(Function(self.new(), parameters, result, value.dtype, title))
        return self._defined[-1].name

    def at(self, value: Value, place: Expr) -> Expr:
        """See `Writer.at`; what is in memory needs no function."""
        root = self.plan.root(value)
        # A load is shown where it happens: a function around it would only hide which array is read.
        if id(root) in {*self.locals, *self.kept} or self.number(root) is not None or self.inlined(root) is not None:
            return super().at(value, place)
        return self.load(root, place)

    def part(self, group: FusionGroup, threads: int) -> Part:
        """Statements of the blocks of a group."""
        self.functions, self.locals, self._defined = {}, {}, []
        if group.tile is not None and group.has_template:
            statements: Sequence[Statement] = [self._template(group, group.tile)]
        else:
            statements = group_statements(self, group, threads)
        return Part(named([group]), self.blocks(group, threads), functions=self._defined, statements=statements)

    def _template(self, group: FusionGroup, tile: Tile) -> Template:
        """The template of a group's sums, and what follows each of them."""
        node, total = group.anchor, Name("sum")
        if node.op.name.endswith("_partial_sums") and node.outputs[0].shape[0] > 1:
            finish: list[Statement] = [Store(self.array(node.outputs[0]), I, total)]
        elif group.pool is None:
            finish = self.follow(group.nodes, group, total)
        else:
            finish = self.follow(group.before, group, total)
            pooled = self.locals[id(self.plan.root(group.pool.inputs[0]))]
            after = tuple(self.follow(group.nodes, group, Name("top"), Name("tap")))
            kernel = (("kernel", group.pool.attrs["kernel"]),)
            finish.append(Template("max_pool2d", "", kernel, (pooled.name,), Name("top"), after))
        for one in group.sums:
            term = self.locals[id(self.plan.root(one.inputs[0]))].name
            finish.append(Template(one.op.name, "", (("axes", one.attrs["axes"]),), (term,), Name("sum"), ()))
        operands = tuple(self.function(v) if self.inlined(v) is not None else self.parameter(v) for v in node.inputs)
        return Template(node.op.name, type(tile).__name__, tile.chosen, operands, total, tuple(finish))
