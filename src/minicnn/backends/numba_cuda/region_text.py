"""Python of a Row-wise region: functions for the loops of each level, and the block's loop over its tiles of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicnn.backends._gpu.region_layout import ElementLoop, Level
from minicnn.backends._gpu.region_schedule import FIRST_ROW, OfRows, Schedule, SharedSum, Statistic
from minicnn.backends.numba_cuda.kernels.bytes_product import ByteTile
from minicnn.backends.numba_cuda.printer import CudaPython, type_of
from minicnn.backends.numba_cuda.tiling import NumbaLayout, byte_tile_of
from minicnn.kernels.expressions import Name
from minicnn.kernels.printing import Printer
from minicnn.program.graph import ITEMSIZE, Node, Value

if TYPE_CHECKING:
    from minicnn.backends.numba_cuda.generation import PythonWriter

QUEUE = "QUEUE"  # the row of the queue, known when the whole kernel is written


def region_text(writer: PythonWriter, node: Node) -> str:
    """Name of the function of a block that computes a region."""
    text = _Text(writer, node)
    return text.bytes_text(text.tile) if text.tile is not None else text.plain_text()


@dataclass(frozen=True)
class _Early:
    """Functions of a loop that waits for nothing: what it reads is on its way before its tile begins."""

    load: str
    store: str
    columns: int


class _RegionPython(CudaPython):
    """Python of what a region adds to expressions."""

    def __init__(self, text: _Text) -> None:
        super().__init__(text.writer.define)
        self._text = text

    def _name(self, x: Name) -> tuple[str, int]:
        return super()._name(Name("p[-2]") if x == FIRST_ROW else x)

    def _ofrows(self, x: OfRows) -> tuple[str, int]:
        return f"{self._text.bytes['product']}(p, {self.text(x.e)})", 9

    def _statistic(self, x: Statistic) -> tuple[str, int]:
        at = x.at // 4 + (self._text.region.rows if x.name == "total" else 0)
        return f"p[-3][slot({at} + q)]", 9

    def _sharedsum(self, x: SharedSum) -> tuple[str, int]:
        term = self._text.writer.device("p, q, c, i, r", f"    return {self.text(x.term)}\n")
        numbers = f"{self.types[x.dtype]}, {x.count}, {x.lanes}, {self._text.layout.exchange // 4}"
        return self.define(f"{{name}} = lane_sum({numbers}, {term})\n") + "(p, q, c, i, thread)", 9


class _Text(Schedule):
    writer: PythonWriter
    layout: NumbaLayout

    def __init__(self, writer: PythonWriter, node: Node) -> None:
        super().__init__(writer, node, NumbaLayout(node.attrs["region"]))
        self.tile = byte_tile_of(self.region)
        slots = {v.dtype for n in self.region.nodes for v in n.outputs if id(v) in self.layout.slots} | {"float32"}
        order = sorted(slots, key=lambda dtype: (dtype != "float32", dtype))
        self.views = {dtype: f"p[{-3 - k}]" for k, dtype in enumerate(order)}  # of shared memory, by type
        self.bytes: dict[str, str] = {}  # functions for the rows of bytes, by what they do
        self.head = ""  # statements before the tiles
        self.share, self.finish = "", ""  # behind them; behind a barrier

    def plain_text(self) -> str:
        """The whole of a region that begins with numbers in memory."""
        self._begin()
        levels = "".join(self._level(one, list(one.loops.values())) for one in self.layout.levels)
        return self._block(levels)

    def bytes_text(self, tile: ByteTile) -> str:
        """The whole of a region that begins with rows of bytes: the next tile's are loaded before the last level."""
        self._begin()
        self._begin_bytes(tile)
        first, *others = self.layout.levels
        early = {
            key: self._early(loop) for key, loop in first.loops.items()
            if all(map(self.layout.early, loop.nodes)) and loop.lanes == 1
            and loop.columns * self.region.rows <= self.region.threads
        }  # fmt: skip
        ahead = [f"e{k} = {one.load}(q, {self._early_at(one)})" for k, one in enumerate(early.values())]
        ahead.append(f"{self.bytes['load']}(q, fetched, thread, following)")
        self.head += f"    fetched = cuda.local.array({tile.loads * tile.width}, index)\n    following = number\n"
        self.head += "".join(f"    {line}\n" for line in ahead)
        self.head += f"    {self.bytes['begin']}(q, 0, as_float32, thread)\n"
        text = ""
        for k, one in enumerate(early.values()):
            text += f"        if thread < rows * {one.columns}:\n            {one.store}(q, e{k}, thread)\n"
        text += f"        {self.bytes['store']}(fetched, words, thread)\n        cuda.syncthreads()\n"
        text += f"        {self.bytes['multiply']}(q, words, thread)\n        cuda.syncthreads()\n"
        levels = [self._level(first, [loop for key, loop in first.loops.items() if key not in early])]
        levels += [self._level(one, list(one.loops.values())) for one in others]
        last = max(k for k, level in enumerate(levels) if level)
        ahead.insert(0, f"following = tile + {self.region.blocks}")
        levels[last] = "".join(f"        {line}\n" for line in ahead) + levels[last]
        return self._block(text + "".join(levels))

    def _block(self, tiles: str) -> str:
        """The function of a block, given what it does for each tile."""
        region = self.region
        text = "    thread = cuda.threadIdx.x\n"
        for dtype in self.views:
            kind = "uint8" if dtype == "bool" else dtype
            text += f"    as_{dtype} = cuda.shared.array(0, types.{kind}, ALIGNED)\n"
        if self.tile is not None:
            text += "    words = cuda.shared.array(0, types.uint32, ALIGNED)\n"
        rows = (
            region.rows
            if region.batch % region.rows == 0
            else f"min({region.rows}, {region.batch} - tile * {region.rows})"
        )
        text += f"    q = {self._state('index(0)')}\n{self.head}"
        text += f"    for tile in range(number, {region.tiles}, {region.blocks}):\n        rows = {rows}\n"
        text += f"        q = {self._state(f'index(tile * {region.rows})')}\n{tiles}"
        text += f"    q = {self._state('index(0)')}\n" if self.finish else ""
        text += f"{self.share}    cuda.syncthreads()\n" if self.share else ""
        return self.writer.define(f"@block\ndef {{name}}(p, number):\n{text}{self.finish}")

    def _state(self, row: str) -> str:
        return f"p + ({', '.join([*(f'as_{dtype}' for dtype in [*self.views][::-1]), row, QUEUE])})"

    # Before the tiles ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Matrices into shared memory; functions of all that lies there."""
        region, layout, writer = self.region, self.layout, self.writer
        for value, at in layout.staged:
            if value.dtype != "float32":
                continue
            numbers = f"{value.size}, {region.threads}, {at // 4}, {writer.function(value)}"
            fill = writer.define(f"{{name}} = staged(np.float32, {numbers})\n")
            self.head += f"    {fill}(q, 0, as_float32, thread)\n"
            writer.functions[id(writer.plan.root(value))] = self._function(f"p[-3][slot({at // 4} + i)]")
        self.head += "    cuda.syncthreads()\n" if layout.staged else ""
        for value in (v for n in region.nodes for v in n.outputs if id(v) in layout.slots):
            at = layout.slots[id(value)] // ITEMSIZE[value.dtype]
            place = f"{at} + i - p[-2] * {value.size // region.batch}"
            element = f"{self.views[value.dtype]}[slot(index({place}))]"
            writer.functions[id(value)] = self._function(element + (" != 0" if value.dtype == "bool" else ""))

    def _function(self, element: str) -> str:
        return self.writer.device("p, i", f"    return {element}\n")

    def _begin_bytes(self, tile: ByteTile) -> None:
        """Functions for the product with bytes, and for that with the gradient."""
        product, writer = self.region.product, self.writer
        if product is None:
            return
        rows, m = writer.plan.root(product.stored), tile.M
        first = "index(0)"
        if id(rows) in writer.queued:
            writer.reads_queue = True
            first = f"index(p[-1] * {rows.size})"
        x = writer.device("p", f"    return {writer.parameter(rows)}, {first}\n")
        place = f"index({writer.function(product.index)}(p, r))" if product.index is not None else "r"
        where = writer.device("p, r", f"    return {place}\n")
        weight, scale = writer.function(product.node.inputs[1]), CudaPython.literal(product.scale, "float32")
        dy, out = "None", "None"
        if product.gradient is not None:
            source, part = product.gradient.inputs[1], writer.parameter(self.partial_sums[id(product.gradient)])
            place = f"index((p[-2] + r) * {m} + m)"
            dy = writer.device("p, r, m", f"    return {writer.function(source)}(p, {place})\n")
            place = f"index(number * {tile.K * m} + i)"
            out = writer.device("p, number, i, total", f"    {part}[{place}] = total * {scale}\n")
        numbers = f"{tile.N}, {tile.K}, {m}, {tile.ROWS}, {tile.LANES}, {tile.THREADS}"
        stream = writer.define(f"{{name}} = byte_rows(ByteTile({numbers}), {x}, {where}, {weight}, {dy}, {out})\n")
        parts = ["begin", "load", "store", "multiply", "product"]
        if product.gradient is not None:
            parts += ["clear", "accumulate", "finish"]
            self.head += f"    gradient = cuda.local.array({tile.words_per_thread * 4 * m}, np.float32)\n"
        self.bytes = {name: writer.define(f"{{name}} = {stream}.{name}\n") for name in parts}
        if product.gradient is not None:
            self.head += f"    {self.bytes['clear']}(gradient)\n"
            self.finish += f"    {self.bytes['finish']}(q, gradient, thread, number)\n"

    # Loops over elements ------------------------------------------------------------------------

    def _level(self, level: Level, loops: Sequence[ElementLoop]) -> str:
        """Text of the work between two barriers, and of the second of them."""
        region, text, self.start = self.region, "", 0
        for loop in loops:
            text += self._call(self._loop(loop), region.rows * loop.columns * loop.lanes)
        for value in level.statistics:
            text += self._call(self._statistics(value), region.rows)
        for node in level.sums:
            if region.product is None or node is not region.product.gradient:
                text += self._sum(node)
        if level.splits:  # what follows the gradient
            text += f"        {self.bytes['accumulate']}(q, words, gradient, thread, rows)\n"
        return text + "        cuda.syncthreads()\n" if text else ""

    def _thread(self, items: int) -> str:
        """Number of a thread for so many items."""
        first = self._first_thread(items)
        return f"index((thread + {first}) % {self.region.threads})" if first else "thread"

    def _call(self, name: str, items: int) -> str:
        return f"        {name}(q, {self._thread(items)}, rows)\n"

    def _loop(self, loop: ElementLoop) -> str:
        body, results = self._compute(self._trees(loop))
        stores = "".join(self._store(y, x, "    ") for y, x in results)
        body += f"    if real:\n{stores}" if stores else ""
        name = self.writer.define(f"@block\ndef {{name}}(p, q, c, e, i, real, thread):\n{body}")
        numbers = f"{self.region.rows * loop.columns}, {self.region.threads}, {loop.columns}, {loop.lanes}"
        return self.writer.define(f"{{name}} = elements({numbers}, {name})\n")

    def _early(self, loop: ElementLoop) -> _Early:
        body, results = self._compute(self._trees(loop))
        load = self.writer.device("p, i", f"{body}    return ({', '.join(x for _, x in results)},)\n")
        stores = "".join(self._store(y, f"fetched[{k}]", "") for k, (y, _) in enumerate(results))
        head = f"    i = index(p[-2] * {loop.columns} + e)\n"
        return _Early(load, self.writer.device("p, fetched, e", f"{head}{stores}"), loop.columns)

    def _early_at(self, one: _Early) -> str:
        last = self.region.batch * one.columns - 1
        return f"index(min(following * {self.region.rows * one.columns} + thread, {last}))"

    @property
    def shown(self) -> Printer:
        return _RegionPython(self)

    def _slot(self, value: Value, k: str) -> str:
        return f"{self.views[value.dtype]}[slot({self.layout.slots[id(value)] // ITEMSIZE[value.dtype]} + {k})]"

    def _store(self, value: Value, element_text: str, indent: str) -> str:
        """Statements that put an element where it is read."""
        element = f"np.uint8(1 if {element_text} else 0)" if value.dtype == "bool" else element_text
        return "".join(f"{indent}    {target} = {element}\n" for target in self._places(value, "e", "i"))

    def _statistics(self, value: Value) -> str:
        numbers = (
            f"{value.shape[1]}, {self.region.rows}, {self.region.threads}, {self.layout.statistics[id(value)] // 4}"
        )
        arguments = f"{type_of(value)}, {numbers}, {self.writer.function(value)}"
        return self.writer.define(f"{{name}} = row_statistics({arguments})\n")

    # Sums over rows -----------------------------------------------------------------------------

    def _sum(self, node: Node) -> str:
        """Statement that adds a tile's rows to a sum."""
        region, writer, size = self.region, self.writer, node.outputs[0].size
        fold, term = self._terms(node)
        term_function = writer.device("p, r, o", f"    return {self._show(node, term)}\n")
        place = f"{writer.parameter(self.partial_sums[id(node)])}[index(number * {size} + o)]"
        out = writer.device("p, number, o, total", f"    {place} = total\n")
        terms = region.rows * fold
        numbers = f"{size}, {terms}, {fold}, {region.threads}, {self.layout.scratch[id(node)] // 4}"
        sums = writer.define(f"{{name}} = row_sums(np.float32, {numbers}, {term_function}, {out})\n")
        names = ("count", "clear", "add", "share", "finish")
        count, clear, add, share, finish = (writer.define(f"{{name}} = {sums}.{name}\n") for name in names)
        self.head += f"    {sums}_totals = cuda.local.array({count}, np.float32)\n    {clear}({sums}_totals)\n"
        thread = self._thread(min(size * terms, region.threads))
        self.share += f"    {share}(q, {sums}_totals, {thread})\n"
        self.finish += f"    {finish}(q, {sums}_totals, {thread}, number)\n"
        return f"        {add}(q, {sums}_totals, {thread}, rows)\n"
