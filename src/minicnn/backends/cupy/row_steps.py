"""C++ of the steps of the product with rows in memory: those of `ByteRows` and `FloatRows` in `kernels/`."""

from __future__ import annotations

from minicnn.backends._gpu.row_steps import ROWS, RowSteps
from minicnn.backends.cupy.cpp import Cpp, sizes_type
from minicnn.kernels.expressions import Apply, Array, Expr
from minicnn.kernels.statements import Statement, Step


class CppRowSteps(RowSteps):
    """Steps of an object named `stream`. See `RowSteps`."""

    def text(self, name: str, arguments: int, beside: str) -> str:
        """See `RowSteps.text`."""
        if name in ("declare", "wait"):
            return beside or "copies_wait();"
        places = [f"{{{k}}}" for k in range(arguments)]
        return f"stream.{name}({', '.join([*places, *[beside] * bool(beside)])});"

    def declare(self) -> list[Statement]:
        """See `RowSteps.declare`."""
        writer, product = self.writer, self.product
        rows, offset = writer.plan.root(product.stored), ""
        if id(rows) in writer.queued:
            writer.reads_queue = True
            offset = f" + (unsigned long long)(row) * {rows.size}u"
        index = f"uint32({writer.function(product.index)}(r))" if product.index is not None else "r"
        where = f"auto where = [&](uint32 r) {{{{ return {index}; }}}};"
        tile, stream = self.region.tile, f"A::Rows stream(dynamic_shared(), {writer.parameter(rows)}{offset});"
        sizes = sizes_type(tile.sizes).replace("{", "{{").replace("}", "}}")  # a step's text is a format
        lines = [sizes, f"using A = {type(tile).__name__}<Sizes>;", stream, where]
        return [self.step("declare", beside=line) for line in lines]

    def find(self, row: Expr) -> Step:
        """See `RowSteps.find`."""
        return self.step("find", row, beside="where")

    def copy_weights(self) -> Step:
        """See `RowSteps.copy_weights`."""
        return self.step("copy_weights", beside=self.writer.function(self.product.node.inputs[1]))

    def split(self, gradient: Array) -> list[Statement]:
        """See `RowSteps.split`."""
        columns = gradient.size // self.region.tile.rows
        term = f"[&](uint32 r, uint32 c) {{{{ return {gradient.name}[r * {columns}u + c]; }}}}"
        return [self.step("split", ROWS, beside=term)]

    def store(self) -> list[Statement]:
        """See `RowSteps.store`."""
        if self.partial is None:
            return []
        size, scale = self.partial.size // self.partial.shape[0], Cpp.literal(self.product.scale, "float32")
        place = f"{self.writer.parameter(self.partial)}[block * {size}u + o]"
        return [self.step("finish", beside=f"[&](uint32 o, float sum) {{{{ {place} = sum * {scale}; }}}}")]

    def element(self, e: Expr) -> Expr:
        """See `RowSteps.element`."""
        return Apply("stream.product", (e,))
