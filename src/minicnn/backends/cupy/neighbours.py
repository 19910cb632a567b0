"""C++ of threads that make several neighbouring elements, which come from memory and go there together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.neighbours import runs
from minicnn.backends._gpu.writer import NodeOperands, Writer, resolve
from minicnn.backends.cupy.cpp import Cpp, c_type, of_lanes
from minicnn.kernels.elements import element
from minicnn.kernels.expressions import Apply, Expr, I, Name
from minicnn.kernels.statements import Statement
from minicnn.kernels.windows import Windows, images
from minicnn.program.graph import ITEMSIZE, Node, Value

_SLIDING = frozenset(
    f"{name}{more}"
    for name, some in {
        "depthwise_conv2d": ("", "_input_gradient"), "max_pool2d": ("", "_index", "_scatter"),
        "average_pool2d": ("", "_gradient"),
    }.items()
    for more in some
)  # fmt: skip
_TOTAL = Name("total.v[e]")
_T = TypeVar("_T")


class NeighbourWriter(Writer):
    """Text of groups of elements; where a thread makes neighbours, that of element e of each."""

    printer, DEPTH = Cpp, 3

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self.read_late: set[int] = set()  # ids of values that are read when sums are finished
        self._size, self._width = 0, 1  # of the values whose elements are written; how many of them a thread makes
        self._before: list[Statement] = []  # statements that the next one needs
        self._loads = self._rows = ""  # statements that load runs of such values, and of one row for all of them
        self._beside: dict[int, str] = {}  # what holds element e of such a run, or of a value that nobody stores
        self._fetched: dict[str, int] = {}  # parameters from which such runs are loaded, and bytes of their elements
        self.totals: dict[str, list[str]] = {}  # terms of sums over positions, and parameters to which these go
        self._channels = 0  # of the image whose runs a function gives; rows of channels are the same for all of them

    def late(self, write: Callable[[], _T]) -> _T:
        """Call `write`; the values that it is the first to ask for are read when sums are finished."""
        known = len(self.values)
        result = write()
        self.read_late |= {id(v) for v in self.values[known:]}
        return result

    def function(self, value: Value) -> str:
        """See `Writer.function`; its places are its own."""
        # A function gives single elements, whatever the width of the loop that asks for it.
        width, self._width = self._width, 1
        try:
            return super().function(value)
        finally:
            self._width = width

    def at(self, value: Value, place: Expr) -> Expr:
        """See `Writer.at`; of neighbours, those that lie at their own place in memory have been loaded together."""
        root = self.plan.root(value)
        if self._width == 1 or id(root) in self.locals or self.number(root) is not None:
            return super().at(value, place)
        node, aligned = self.inlined(root), place == I and root.size == self._size
        # A bias, or a scale of each channel: its run is the same in every row, and is loaded once.
        row = place == I % root.size and root.size % self._width == 0 and self._channels in (0, root.size)
        if not aligned and not row:
            return super().at(value, place)
        if id(root) not in self._beside:
            if node is None and id(root) not in self.queued:
                run = self.new("n")
                start = "first" if aligned else f"first % {root.size}u"
                load = f"      const auto {run} = load_run<{self._width}>({self.parameter(root)} + {start});\n"
                if aligned:
                    self._fetched[self.parameter(root)] = ITEMSIZE[root.dtype]
                self._loads, self._rows = self._loads + load * aligned, self._rows + load * (not aligned)
                self._beside[id(root)] = f"{run}.v[e]"
            elif node is not None and aligned and (node.op.elementwise or self._slides(node)):
                lines, name = self.let(root, self.expression(node))
                self._before, self._beside[id(root)] = [*self._before, *lines], name.name
            else:
                return super().at(value, place)
        return Name(self._beside[id(root)], root.dtype)

    def expression(self, node: Node, result: int = 0, operands: NodeOperands | None = None) -> Expr:
        """See `Writer.expression`; windows slide over neighbouring channels together."""
        if self._width == 1 or operands is not None or not self._slides(node):
            return super().expression(node, result, operands)
        runs = _Runs(self, node, {})
        text = runs.text(element(node, result).replaced({I: Name("first")}), self._width)
        run = self.new("n")
        self._loads += f"      const auto {run} = {text};\n"
        return Name(f"{run}.v[e]", node.outputs[result].dtype)

    def _slides(self, node: Node) -> bool:
        """True if a node's windows see each channel by itself, and channels are neighbours in memory."""
        if node.op.name not in _SLIDING or node.attrs["data_format"] != "NHWC":
            return False
        x, y = images(node)
        return x.c == y.c and y.c % self._width == 0

    def runs(self, value: Value, channels: int) -> str:
        """Name of a new function that gives runs of a value from `first` on."""
        root, name = self.plan.root(value), self.new()
        outer = self._loads, self._before, self._beside, self._size, self._channels
        self._loads, self._before, self._size, self._channels = "", [], root.size, channels
        self._beside = {key: one for key, one in self._beside.items() if f"{one.split('.')[0]} =" in self._rows}
        if self.inlined(root) is None and id(root) not in self.queued:
            run = f"load_run<{self._width}>({self.parameter(root)} + first)"
            body = f"        return Lanes<{c_type(root)}, {self._width}>({run});\n"
        else:
            last = self.text(self.at(root, I))
            body = (
                f"{self._loads}        return Lanes<{c_type(root)}, {self._width}>::of([&](int e) {{\n"
                f"        const uint32 i = first + e;\n{self.lines(self._before)}        return {last};\n        }});\n"
            )
        self._loads, self._before, self._beside, self._size, self._channels = outer
        self._loads += f"      const auto {name} = [&](uint32 first) {{\n{body}      }};\n"
        return name

    def lane_terms(self, node: Node, width: int) -> tuple[str, str]:
        """Terms r of so many results from o on of a reduction as `Lanes`, and what comes before."""
        channels = node.inputs[0].shape[-1]
        names, functions = self.run_functions(node.inputs, width)
        before = f"\n      const uint32 first = o;\n{functions}      "
        if node.op.name == "reduce_partial_sums":
            return f"{names[0]}(o + r * {channels}u)", before
        term = Windows(node).depthwise_conv2d_weight_gradient_term().replaced({I: Name("o")})
        return _Runs(self, node, dict(enumerate(names))).text(term, width), before

    def run_functions(self, values: Sequence[Value], width: int) -> tuple[list[str], str]:
        """Names of new functions that give runs of images, and statements, which see the channel `first`."""
        self._width, self._loads, self._rows, self._beside = width, "", "", {}
        names = [self.runs(value, value.shape[-1]) for value in values]
        self._width = 1
        return names, self._rows + self._loads

    def run_ends(self, group: FusionGroup, width: int) -> str:
        """The function `ends` for runs of a group's results: of the first channel, then of the place, then of the sums.

        Each gives the next one, which keeps what it has loaded; `added` are sums over positions.
        """
        node = group.anchor
        self._size, self._width, self._loads, self._rows, self._beside = group.size, width, "", "", {}
        self._fetched, self.totals = {}, {}
        if node.op.name.endswith("_partial_sums") and node.outputs[0].shape[0] > 1:
            self._width, body = 1, f"      store_run({self.parameter(node.outputs[0])} + first, total);\n"
        else:
            self._channels = node.outputs[0].shape[-1]
            results, text = self._computed(group, _TOTAL)
            self._channels = 0
            for n in group.sums:
                terms = self.locals[id(self.plan.root(n.inputs[0]))].name
                self.totals.setdefault(terms, []).append(self.parameter(n.outputs[0]))
            added = "".join(f"      added[{s}].v[e] += {terms};\n" for s, terms in enumerate(self.totals))
            body = self._each(text, results, width, added)
        sums_type = f"Pack<{c_type(node.outputs[0])}, {width}>"
        return (
            f"    const auto ends = [&](uint32 first) {{\n{self._rows}      return [=](uint32 first) {{\n{self._loads}"
            f"      return [=](const {sums_type}& total, auto& added) {{\n{body}      }};\n"
            "      };\n    };\n"
        )

    def run_fetches(self, results: int) -> tuple[str, int]:
        """The function `ahead`, which fetches what follows results from a place on, for the last `run_ends`.

        The number is that of the elements which it fetches, 128 bytes of the widest; 0 if it is of no use.

        Args:
            results: Number of results before which it is called at a time.
        """
        count = 128 // max(self._fetched.values(), default=2)
        fetches = " ".join(f"fetch({name} + first);" for name in self._fetched)
        # What the cache cannot keep until it is read is fetched twice; and of little, blocks hide each other's waiting.
        gpu = self.plan.tiles.gpu
        limits = costs_on(gpu).limits
        kept = results * sum(self._fetched.values()) <= limits.fetched * gpu.l2
        useful = kept and len(self._fetched) >= limits.arrays
        return f"    const auto ahead = [&](uint32 first) {{ {fetches} }};\n", count if useful else 0

    @property
    def fetched_runs(self) -> int:
        """Runs that `ends` loads for each run of results, as it was written last."""
        return self._loads.count("load_run<")

    def _each(self, text: str, results: Sequence[tuple[str, Value, str]], width: int, beside: str = "") -> str:
        """Statements that compute element e of some runs, `results` of values of names, and store these."""
        return (
            "".join(f"      Pack<{c_type(value)}, {width}> {run};\n" for run, value, _ in results)
            + f"#pragma unroll\n      for (int e = 0; e < {width}; e++) {{\n      const uint32 i = first + e;\n{text}"
            + "".join(f"      {run}.v[e] = {name};\n" for run, _, name in results)
            + f"{beside}      }}\n"
            + "".join(f"      store_run({self.parameter(value)} + first, {run});\n" for run, value, _ in results)
        )

    def let(self, value: Value, x: Expr) -> tuple[list[Statement], Name]:
        """See `Writer.let`."""
        lines, name = super().let(value, x)
        # Statements of inlined operands come first, once, by whoever needs them first.
        before, self._before = self._before, []
        return [*before, *lines], name

    def _computed(self, group: FusionGroup, start: Expr | None) -> tuple[list[tuple[str, Value, str]], str]:
        """Runs, with their values and variables, that are stored of a group's nodes; statements that compute these."""
        statements, stored = self.compute(group.nodes, group, start)
        self._width = 1
        return [(self.new("n"), value, name.name) for value, name in stored], self.lines(statements)

    def neighbours(self, group: FusionGroup, threads: int) -> str:
        """Statements for neighbours, which come from memory and go there together."""
        width = group.width
        self._size, self._width, self._loads, self._rows, self._beside = group.size, width, "", "", {}
        total, head = group.anchor, ""
        rows = total.op.name == "sum" and total.attrs["axes"] in (0, (0,))
        source = self.plan.root(total.inputs[0]) if rows else None
        if source is not None and self.inlined(source) is None and id(source) not in self.queued:
            count = source.size // group.size
            place = f"{self.parameter(source)} + first, {group.size}u"
            head = f"      const auto total = sum_of_runs<{count}, {width}>({place});\n"
        results, text = self._computed(group, _TOTAL if head else None)
        each, count = self._each(text, results, width), runs(self.plan, group, threads)
        if count == 1:
            return (
                f"    const uint32 first = (block * {threads}u + threadIdx.x) * {width}u;\n"
                f"    if (first < {group.size}u) {{\n{self._rows}{self._loads}{head}{each}    }}\n"
            )
        return (
            f"    const uint32 first = (block * {threads * count}u + threadIdx.x) * {width}u;\n{self._rows}"
            f"    make_runs<{count}, {threads * width}, {group.size}>(first, [&](uint32 first) {{\n{self._loads}{head}"
            f"      return [=] {{\n{each}      }};\n    }});\n"
        )

    def blocks(self, group: FusionGroup, threads: int) -> int:
        """See `Writer.blocks`; a thread may make several runs of neighbours."""
        return -(-super().blocks(group, threads) // runs(self.plan, group, threads))


class _Runs(NodeOperands):
    """Operands of a node whose windows slide over several neighbouring channels: functions of the first of them.

    Args:
        writer: The writer.
        node: The node.
        names: Functions for its inputs that there are already, by number.
    """

    def __init__(self, writer: NeighbourWriter, node: Node, names: dict[int, str]) -> None:
        super().__init__(writer, node)
        self.writer: NeighbourWriter = writer
        self._names = names

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        if k not in self._names:
            self._names[k] = self.writer.runs(self.node.inputs[k], images(self.node)[1].c)
        return Apply(self._names[k], (place,))

    def text(self, x: Expr, width: int) -> str:
        """Text of an expression."""
        return of_lanes(width)().text(resolve(x, self), self.writer.DEPTH)
