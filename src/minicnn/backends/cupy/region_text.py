"""CUDA C++ of a row-wise region: a loop over tiles of rows, in it a loop over elements for each level of the region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minicnn.backends._gpu.region_layout import SOFTMAX, ElementLoop, Layout, adds_product_sums, logits
from minicnn.backends._gpu.region_schedule import (
    C,
    OfRows,
    Schedule,
    SharedSum,
    Statistic,
    row_element,
    softmax_element,
)
from minicnn.backends.cupy.cpp import Cpp, c_type
from minicnn.backends.cupy.tile_types import rows_tile_type, rows_type, sums_type
from minicnn.kernels.elements import element
from minicnn.kernels.expressions import Expr, I, Name
from minicnn.kernels.printing import Printer
from minicnn.program.graph import Node, Value

if TYPE_CHECKING:
    from minicnn.backends.cupy.generation import CppWriter


def region_text(writer: CppWriter, node: Node) -> str:
    """Statements of a region, which see `block`."""
    return _Text(writer, node).text()


def _sums(loop: ElementLoop) -> bool:
    """True if a loop has products or adds partial sums."""
    return any(n.op.name == "matmul" or adds_product_sums(n) for n in loop.nodes)


class _Cpp(Cpp):
    """C++ of what a region adds to expressions."""

    def _ofrows(self, x: OfRows) -> tuple[str, int]:
        return f"stream.product({self.text(x.e)})", 9

    def _statistic(self, x: Statistic) -> tuple[str, int]:
        return f"{x.name}s{x.at}[q]", 9

    def _sharedsum(self, x: SharedSum) -> tuple[str, int]:
        lane = "lane" if x.lanes > 1 else "0"
        term = f"[&](uint32 r) {{ return {self.text(x.term)}; }}"
        return f"shared_sum<{self.types[x.dtype]}, {x.count}, {x.lanes}>({lane}, {term})", 9


class _Text(Schedule):
    writer: CppWriter

    def __init__(self, writer: CppWriter, node: Node) -> None:
        super().__init__(writer, node, Layout(node.attrs["region"]))
        self.tops: dict[int, int] = {}  # numbers of the maxima that a thread has of its row
        self.slots: dict[int, str] = {}  # function objects of values in shared memory, whose memory is s and the name

    def text(self) -> str:
        """The whole."""
        region, product = self.region, self.region.product
        rows = (
            str(region.rows) if region.batch % region.rows == 0 else f"min({region.rows}, {region.batch} - int(row0))"
        )
        text = "    unsigned char* const memory = dynamic_shared();\n    uint32 row0 = 0;\n"
        text += self._begin()
        head, tail, wait = "", "", "      __syncthreads();\n"
        if product is not None:
            ahead, step = region.stages - 1, region.blocks
            first, tail = self._early()
            weights = self.writer.function(product.node.inputs[1])
            text += f"    stream.find(block * {region.rows}, where);\n    stream.copy_weights({weights});\n"
            text += f"    stream.keep(0);\n{wait}"
            text += f"    stream.load(0);\n    stream.find((block + {step}) * {region.rows}, where);\n" if ahead else ""
            # What waits for nothing is read a tile ahead, so that its latency passes while the product is computed.
            text += "      const int early_tile = block;\n" + first + tail + "    stream.begin();\n"
            text += f"    stream.keep(1);\n{wait}" if ahead else ""
            head = (
                f"      const bool more = tile + {step} < {region.tiles};\n"
                + ("" if ahead else "      stream.load(turn);\n")
                + f"      stream.find((tile + {(ahead + 1) * step}) * {region.rows}, where);\n"
                + f"      const int early_tile = min(tile + {step}, {region.tiles - 1});\n{first}"
                + f"      copies_wait();\n{wait}      stream.multiply(turn, more);\n{wait}"
            )
            tail += "      stream.keep(turn);\n" + ("      stream.forget();\n" if product.gradient is not None else "")
            tail += "" if ahead else wait
        sums = [n for n in region.nodes if id(n) in region.sums]
        if self.layout.thread_per_row:
            back = product is not None and product.gradient is not None
            levels = f"{self._rows()}      stream.ahead(turn, more);\n{wait}{self._split()}{wait if back else ''}"
            levels += self._all_sums(sums)
            if any(self.layout.early(n) and self.layout.summed(n.outputs[0]) for n in region.nodes if n not in sums):
                levels += wait  # otherwise the next turn has a barrier soon enough
        else:
            levels = "".join(self._level(k) + wait for k in range(len(self.layout.levels)))
        text += (
            f"    int turn = 0;\n#pragma unroll 1\n"
            f"    for (int tile = block; tile < {region.tiles}; tile += {region.blocks}, turn++) {{\n"
            f"      row0 = tile * {region.rows};\n      const int rows = {rows};\n{head}{levels}{tail}    }}\n"
        )
        return text + self._end()

    # Before and after the tiles -----------------------------------------------------------------

    def _begin(self) -> str:
        region, layout, text = self.region, self.layout, ""
        product = region.product
        for value, at in layout.staged:
            source, name, kind = self.writer.function(value), self.writer.new(), c_type(value)
            text += f"    {kind}* const s{name} = reinterpret_cast<{kind}*>(memory + {at});\n"
            text += f"    fill<{kind}, {value.size}, {region.threads}>({source}, "
            text += f"[&](int k, {kind} value) {{ s{name}[k] = value; }});\n"
            text += f"    auto {name} = [&](uint32 i) {{ return s{name}[i]; }};\n"
            self.writer.functions[id(self.writer.plan.root(value))] = name
        first = [
            n for loop in layout.levels[0].loops.values() for n in loop.nodes if product is None or layout.early(n)
        ]
        # Staged matrices must be there before the first level reads them.
        if any(v is value for n in first for v in n.inputs for value, _ in layout.staged):
            text += "    __syncthreads();\n"  # otherwise a barrier lies in between
        for value in (v for n in region.nodes for v in n.outputs if id(v) in layout.slots):
            name, kind, columns = self.writer.new(), c_type(value), value.size // region.batch
            text += f"    {kind}* const s{name} = reinterpret_cast<{kind}*>(memory + {layout.slots[id(value)]});\n"
            text += f"    auto {name} = [&](uint32 i) {{ return s{name}[i - row0 * {columns}u]; }};\n"
            self.slots[id(value)] = self.writer.functions[id(value)] = name
        for at in layout.statistics.values():
            text += f"    float* const tops{at} = reinterpret_cast<float*>(memory + {at});\n"
            text += f"    float* const totals{at} = tops{at} + {region.rows};\n"
        for k, node in enumerate(region.nodes):
            if id(node) in region.sums and (product is None or node is not product.gradient):
                text += f"    {sums_type(layout, node)} sum{k};\n"
        if product is not None:
            rows = self.writer.plan.root(product.stored)
            offset = ""
            if id(rows) in self.writer.queued:
                self.writer.reads_queue = True
                offset = f" + (unsigned long long)(row) * {rows.size}u"
            text += f"    using A = {rows_tile_type(region)};\n"
            text += f"    {rows_type(region, 'Rows')}<A> stream(memory, {self.writer.parameter(rows)}{offset});\n"
            place = f"uint32({self.writer.function(product.index)}(r))" if product.index is not None else "r"
            text += f"    auto where = [&](uint32 r) {{ return {place}; }};\n"
        return text

    def _end(self) -> str:
        region, text, leave = self.region, "", ""
        for k, node in enumerate(region.nodes):
            if id(node) not in region.sums:
                continue
            part = self.partial_sums[id(node)]
            place = f"{self.writer.parameter(part)}[block * {node.outputs[0].size}u + o]"
            if region.product is not None and node is region.product.gradient:
                scale = Cpp.literal(region.product.scale, "float32")
                leave += "    stream.leave();\n"
                text += f"    stream.finish([&](uint32 o, float sum) {{ {place} = sum * {scale}; }});\n"
            else:
                scratch = f"reinterpret_cast<float*>(memory + {self.layout.scratch[id(node)]})"
                leave += f"    sum{k}.leave({scratch});\n"
                text += f"    sum{k}.finish({scratch}, [&](uint32 o, float sum) {{ {place} = sum; }});\n"
        wait = "    __syncthreads();\n"
        return ((wait if region.product is not None else "") + leave + wait if leave else "") + text

    # Levels -------------------------------------------------------------------------------------

    def _level(self, at: int) -> str:
        level, self.start = self.layout.levels[at], 0
        if at == 0 and self.region.product is not None:
            return self._level_zero()
        few = [lp for lp in level.loops.values() if at == 0 and lp.lanes == 1 and lp.columns == 1 and not _sums(lp)]
        text, stores = self._apart(few)
        text = (f"      const int early_tile = tile;\n{text}" if few else "") + "".join(
            self._loop(lp) for lp in level.loops.values() if lp not in few
        )
        text += stores
        text += "".join(self._statistics(value) for value in level.statistics)
        if level.splits:
            text += self._split()
        return text + self._all_sums(level.sums)

    def _thread(self, items: int) -> str:
        """Number of a thread in a loop over so many items."""
        first = self._first_thread(items)
        return f"(int(threadIdx.x) + {first}) % {self.region.threads}" if first else "int(threadIdx.x)"

    @property
    def shown(self) -> Printer:
        return _Cpp()

    def _slot(self, value: Value, k: str) -> str:
        return f"s{self.slots[id(value)]}[{k}]"

    def _multiplies(self, loop: ElementLoop) -> bool:
        return self.region.product is not None and self.region.product.node in loop.nodes

    def _early(self) -> tuple[str, str]:
        """Text that reads for `early_tile` what waits for nothing in the region; then text that stores it."""
        self.start = 0
        return self._apart([loop for loop in self.layout.levels[0].loops.values() if not self._multiplies(loop)])

    def _apart(self, loops: Sequence[ElementLoop]) -> tuple[str, str]:
        """Loops over `early_tile` whose results are stored later, so that nothing behind them waits for their reads."""
        text, stores = "", ""
        for loop in loops:
            total = self.region.rows * loop.columns
            for first in range(0, total, self.region.threads):
                thread, name = self._thread(min(self.region.threads, total - first)), self.writer.new()
                text += f"      const int k{name} = {first} + {thread};\n"
                last = f"min(uint32(early_tile) * {total}u + k{name}, {self.region.batch * loop.columns - 1}u)"
                text += f"      const uint32 i{name} = {last};\n"
                at: dict[Expr, Expr] = {I: Name(f"i{name}")}
                lines, results = self._compute((node, element(node, 0).replaced(at)) for node in loop.nodes)
                text += lines
                for y, local in results:
                    targets = self._places(y, f"k{name}", f"i{name}")
                    stores += "".join(f"      if (k{name} < {total}) {target} = {local};\n" for target in targets)
        return text, stores

    def _level_zero(self) -> str:
        """The first level of a region that begins with rows in memory, less what is done early."""
        level = self.layout.levels[0]
        text = "".join(self._loop(loop) for loop in level.loops.values() if self._multiplies(loop))
        text += "".join(self._statistics(value) for value in level.statistics)
        return text + "      stream.ahead(turn, more);\n"

    def _loop(self, loop: ElementLoop) -> str:
        region, columns = self.region, loop.columns
        total, step = region.rows * columns, region.threads // loop.lanes
        place = self._thread(total * loop.lanes) + (f" / {loop.lanes}" if loop.lanes > 1 else "")
        text = "#pragma unroll 4\n"
        text += f"      for (int first = 0; first < {total}; first += {step}) {{\n"
        text += f"        const int k = first + {place};\n"
        text += f"        const bool real = k < rows * {columns};\n"
        text += f"        const uint32 e = real ? k : 0, q = e / {columns}u, c = e % {columns}u;\n"
        text += f"        const uint32 i = row0 * {columns}u + e;\n"
        if loop.lanes > 1:
            text += f"        const int lane = threadIdx.x % {loop.lanes};\n"
        lines, results = self._compute(self._trees(loop))
        text, stores = text + lines, ""
        for y, local in results:
            stores += "".join(f" {target} = {local};" for target in self._places(y, "k", "i"))
            stores += f" stream.note(c, {local});" if y is self._gradient() else ""
        # Lanes have the same sum after sharing it; one of them stores.
        guard = "real && lane == 0" if loop.lanes > 1 else "real"
        text += f"        if ({guard}) {{{stores} }}\n      }}\n"
        return text

    def _gradient(self) -> Value | None:
        """The factor of the transposed rows in memory, if they are multiplied."""
        product = self.region.product
        return product.gradient.inputs[1] if product is not None and product.gradient is not None else None

    def _statistics(self, value: Value) -> str:
        region, at, k = self.region, self.layout.statistics[id(value)], value.shape[1]
        # Threads without a row of their own share the rows of others.
        lanes = 1
        while region.rows * lanes * 2 <= region.threads and lanes < min(32, k):
            lanes *= 2
        step = region.threads // lanes
        x, place = self.writer.function(value), self._thread(region.rows * lanes)
        return (
            f"      for (int first = 0; first < {region.rows}; first += {step}) {{\n"
            f"        const int r = first + {place} / {lanes};\n        float top, total;\n"
            f"        const uint32 i = (row0 + (r < rows ? r : 0)) * {k}u;\n"
            f"        row_statistics<float, {k}, {lanes}>(int(threadIdx.x) % {lanes}, "
            f"[&](uint32 c) {{ return {x}(i + c); }}, top, total);\n"
            f"        if (r < rows && threadIdx.x % {lanes} == 0) tops{at}[r] = top, totals{at}[r] = total;\n      }}\n"
        )

    def _rows(self) -> str:
        """All that a thread does to a row by itself, in registers."""
        region, layout = self.region, self.layout
        text = "      if (const int k = threadIdx.x; k < rows) {\n        const uint32 at = row0 + k;\n"
        for node in region.nodes:
            if id(node) in region.sums or layout.early(node):
                continue  # a sum, or done early
            (y,) = node.outputs
            columns, name = y.size // region.batch, self.writer.new()
            if node.op.name in SOFTMAX and id(logits(node)) not in self.tops:
                x, tops = logits(node), len(self.tops)
                self.tops[id(x)] = tops
                terms = f"[&](uint32 c) {{ return {self.writer.function(x)}(at * {x.shape[1]}u + c); }}"
                text += f"        float top{tops}, total{tops};\n"
                text += f"        row_statistics<float, {x.shape[1]}, 1>(0, {terms}, top{tops}, total{tops});\n"
                text += f"        const float share{tops} = 1.0f / total{tops};\n"
            text += f"        {c_type(y)} v{name}[{columns}];\n#pragma unroll\n"
            text += (
                f"        for (uint32 c = 0; c < {columns}; c++) {{\n          const uint32 i = at * {columns}u + c;\n"
            )
            text += f"          v{name}[c] = {self._show(node, self._in_row(node))};\n"
            for place in self._places(y, f"k * {columns} + c", "i"):
                text += f"          {place} = v{name}[c];\n"
            for at, total in enumerate(region.nodes):
                if id(total) in region.sums and layout.own_sum(total) and total.inputs[0] is y:
                    column = "c" if total.outputs[0].size == columns else "0"
                    text += f"          sum{at}.total[{column}] += v{name}[c];\n"
            if y is self._gradient():
                text += f"          stream.note(c, v{name}[c]);\n"
            text += f"        }}\n        auto {name} = [&](uint32 i) {{ return v{name}[i - at * {columns}u]; }};\n"
            self.writer.functions[id(y)] = name
        self.writer.functions |= self.slots  # what sums read
        return text + f"      }}\n{self._no_rows()}"

    def _no_rows(self) -> str:
        """Zeros where sums read what belongs to rows behind the last of the batch."""
        region = self.region
        if region.batch % region.rows == 0:
            return ""
        text = ""
        for node in region.nodes:
            y = node.outputs[0]
            if id(node) not in region.sums and self.layout.summed(y) and not self.layout.early(node):
                columns = y.size // region.batch
                slot = f"s{self.slots[id(y)]}[threadIdx.x * {columns} + c]"
                text += f"        for (int c = 0; c < {columns}; c++) {slot} = 0;\n"
        return f"      if (threadIdx.x >= rows && threadIdx.x < {region.rows}) {{\n{text}      }}\n"

    def _in_row(self, node: Node) -> Expr:
        """Element c of a node's result in row `at`."""
        columns, at = node.outputs[0].size // self.region.batch, Name("at")
        if node.op.name in SOFTMAX:
            names = (Name(f"{name}{self.tops[id(logits(node))]}") for name in ("top", "total", "share"))
            return softmax_element(node, at, *names)
        # Element i is in column c of row `at`.
        places: dict[Expr, Expr] = {I % columns: C, I // columns: at} if columns > 1 else {}
        return row_element(self.region, node, at, OfRows(Name("k") * columns + C), 1).replaced(places)

    def _split(self) -> str:
        dy = self._gradient()
        if dy is None:
            return ""
        term = f"{self.writer.function(dy)}((row0 + r) * {dy.shape[1]}u + c)"
        return f"      stream.split(rows, [&](uint32 r, uint32 c) {{ return {term}; }});\n"

    def _all_sums(self, nodes: Sequence[Node]) -> str:
        """Sums over the rows; half of the warps begin with that of rows in memory, if it is among them."""
        product = self.region.product
        text = "".join(self._sum(n) for n in nodes if product is None or n is not product.gradient)
        if product is None or not any(n is product.gradient for n in nodes):
            return text
        return (
            # Half of the warps multiply while the others add, and then the other way: tensor cores and adders are both
            # busy.
            "#pragma unroll 1\n      for (int half = 0; half < 2; half++) {\n"
            f"        if ((threadIdx.x / 128 + half) % 2) {{\n{text}        }} else {{\n"
            "          stream.accumulate(turn, more);\n        }\n      }\n"
        )

    def _sum(self, node: Node) -> str:
        region, layout = self.region, self.layout
        if layout.own_sum(node):
            return ""
        number, (fold, term) = region.nodes.index(node), self._terms(node)
        early = [n for n in region.nodes if id(n) not in region.sums and layout.early(n)]
        # A constant number of rows is unrolled; rows behind the batch hold zeros, but for what is read early.
        whole = layout.thread_per_row and not any(v is n.outputs[0] for v in node.inputs for n in early)
        rows = str(region.rows) if whole else "rows"  # the rest is zeros
        if layout.thread_per_row and node.op.name == "matmul":
            left, right = (
                f"[&](uint32 r, uint32 {j}) {{ return {self.writer.function(v)}((row0 + r) * {v.shape[1]}u + {j}); }}"
                for v, j in zip(node.inputs, "ij", strict=True)
            )
            return f"      sum{number}.add({rows}, {left}, {right});\n"
        most, count, text = region.rows * fold, f"{rows} * {fold}" if fold > 1 else rows, self._show(node, term)
        return f"      sum{number}.add<{most}>({count}, [&](uint32 r, uint32 o) {{ return {text}; }});\n"
