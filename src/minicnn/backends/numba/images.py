"""Rules for convolution, matrix products and pooling."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from minicnn.backends.numba import (
    channel_rules,
    depthwise,
    few_samples,
    filter_lanes,
    pooling,
    tile_rules,
    weights,
    winograd,
    winograd_gradients,
)
from minicnn.backends.numba import rows as row_products
from minicnn.backends.numba.correlate import Line, Operands, correlate
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule, StoredRows, Task, blocks_of
from minicnn.backends.numba.operations import LANES
from minicnn.backends.numba.products import NOTHING, POINT, Ending, all_lines, ends_of, lines_of, paired, transposed
from minicnn.backends.numba.short import SHORT, product_name
from minicnn.backends.numba.widening import is_short, stored
from minicnn.backends.numba.winograd import WinogradShape
from minicnn.program.graph import Node, Value


def _conv2d(to: Lowering, node: Node, ending: Ending = NOTHING) -> None:
    """A convolution, or its input gradient: that of dy with the weights flipped."""
    if to.channels_in_lanes:
        channel_rules.conv2d(to, node, ending)
        return
    (x, w), y, groups = node.inputs, node.outputs[0], node.attrs["groups"]
    kh, kw, channels, filters = w.shape
    rows, columns = all_lines(node)
    back, lines = node.op.name.endswith("gradient"), (rows[0], columns[0])
    sizes = (filters, channels) if back else (channels, filters)
    # The chooser of the CPU: Winograd where its fewer products outweigh its transforms, else the direct kernel, which
    # can do every geometry.
    floats = SHORT not in _types(x, w, y, ending).values()
    geometry = (*lines, *sizes, groups, blocks_of(x), to.threads)
    exact = node.phase == "forward" and ending.mask is None  # what a relu's gradient masks is a gradient
    tiling = winograd.chosen(to.convolution, *geometry, exact=exact) if floats else None
    if tiling is not None:
        key = transposed(to, node, w, kh * kw, channels, filters, 1) if back else to.need(w, PLAIN)
        _winograd(to, node, x, key, tiling, ending)
        return
    operands = Operands(
        x.shape[2], y.shape[1], y.shape[2], sizes[0] // groups if back else channels,
        channels if back else filters // groups, kw, groups, flipped=back, **_types(x, w, y, ending),
    )  # fmt: skip
    if tile_rules.correlated(to, node, rows, columns, operands, ending):
        return
    source = correlate(
        product_name(node.op.name, paired=operands.paired), rows, columns, operands, partial(to.pieces, y)
    )
    shape = (kh * kw, channels, filters // groups, groups)
    key = _weights(to, node, w, shape, operands)
    x = stored(x) if operands.paired else x
    to.add(node, source, [to.need(x, BLOCKED), key, *ends_of(to, ending)], [to.buffer(y, BLOCKED)])


def _types(x: Value, w: Value, y: Value, ending: Ending) -> dict[str, Any]:
    """Numbers of `Operands` about an ending, and about what is stored in bfloat16."""
    mask = "float32" if ending.mask is None else stored(ending.mask).dtype
    return {
        "bias": ending.bias is not None, "finish": ending.finish, "dtype": SHORT if is_short(x, w) else "float32",
        "result": y.dtype, "mask": mask,
    }  # fmt: skip


def _weights(to: Lowering, node: Node, w: Value, shape: tuple[int, int, int, int], o: Operands) -> Key:
    """The weights (taps, C, groups * F) in the order that a correlation reads."""
    taps, channels, filters, groups = shape
    if not o.paired:
        return transposed(to, node, w, taps, channels, filters, groups) if o.flipped else to.need(w, PLAIN)
    return paired(to, node, w, shape, o)


def _winograd(to: Lowering, node: Node, x: Value, w: Key, shape: WinogradShape, ending: Ending) -> None:
    y = node.outputs[0]
    transformed = to.scratch(node, "winograd", shape.weight_bytes)
    to.tasks.append(Task(node, [w], [transformed], winograd.transformed_weights(shape), shape.panels))
    parts = to.scratch(node, "parts", shape.part_bytes * to.threads)
    source = winograd.winograd(
        node.op.name, shape, to.threads, bias=ending.bias is not None, finish=ending.finish
    )  # fmt: skip
    reads = [to.need(x, BLOCKED), transformed, *ends_of(to, ending)]
    to.add(node, source, reads, [parts, to.buffer(y, BLOCKED)], shape.tiles)


def product(to: Lowering, node: Node) -> None:
    """Lower a product with what follows it; see `grouping`."""
    steps = node.attrs["body"].operations
    first, ending, names = steps[0], Ending(), []
    for step in steps[1:]:
        value = next((node.inputs[i] for i in step.inputs[::-1] if i < len(node.inputs)), None)
        names.append("bias" if step.op.name == "add" and value is not None and value.ndim == 1 else step.op.name)
        if names[-1] == "bias":
            ending = replace(ending, bias=value)
        elif step.op.name == "add":
            ending = replace(ending, addend=value)
        elif step.op.name == "relu_gradient":
            ending = replace(ending, finish="mask", mask=value)
        elif step.op.name != "cast":  # the sums are stored so
            ending = replace(ending, finish=step.op.name)
    inputs = tuple(node.inputs[i] for i in first.inputs)
    inner = Node(first.op, inputs, node.outputs, first.attrs, node.scope, node.phase)
    (_matmul if first.op.name == "matmul" else _conv2d)(to, inner, ending)
    to.how[id(node)] = " + ".join([to.how.pop(id(inner)), *names])


def _conv2d_weight_gradient(to: Lowering, node: Node) -> None:
    if to.channels_in_lanes:
        channel_rules.weight_gradient(to, node)
        return
    dy, x = node.inputs
    groups = node.attrs["groups"]
    row, column = lines_of(node, x, node.attrs["kernel"])
    _weight_sum(to, node, dy, x, row, column, x.shape[3] // groups, dy.shape[3], groups)


def _weight_sum(
    to: Lowering, node: Node, dy: Value, x: Value, row: Line, column: Line, channels: int, filters: int, groups: int = 1
) -> None:
    dw = node.outputs[0]
    dtype = "float32"
    if is_short(dy, x):
        dy, x, dtype = stored(dy), stored(x), SHORT
    shape = filter_lanes.LaneShape(row, column, channels, filters // groups, groups, x.shape[0], dtype)
    if tile_rules.summed(to, node, dy, x, shape):
        return
    tiling = winograd_gradients.chosen(to.convolution, shape, to.threads)
    if tiling is not None:
        count = min(to.threads, tiling.tiles)
        memory = to.scratch(node, "memory", tiling.work_bytes * count)
        sums = to.scratch(node, "parts", tiling.sum_bytes * count)
        source = winograd_gradients.weight_gradient(tiling, count)
        to.add(node, source, [to.clean(dy), to.clean(x)], [memory, sums], tiling.tiles)
        join = winograd_gradients.joined(tiling, count)
        to.tasks.append(Task(node, [sums], [to.buffer(dw, PLAIN)], join, channels))
        return
    # Two ways to a weight gradient: samples in the lanes, whose sums are added up at the end, or filters in the lanes.
    if not filter_lanes.worth_it(shape):
        source = weights.weight_gradient(shape, to.threads)
        to.sums(node, source, [to.clean(dy), to.clean(x)], [to.buffer(dw, PLAIN)], dw.size, shape.blocks)
        return
    # Pairs of samples are read whole.
    read = to.clean if shape.paired and shape.samples % 2 else partial(to.need, form=BLOCKED)
    reads = [read(dy), read(x)]
    # Shared filters need no parts to add up, but each thread reads all images.
    if filter_lanes.divided(shape, to.threads):
        to.add(node, filter_lanes.weight_gradient(shape, 0), reads, [to.buffer(dw, PLAIN)], shape.panels)
        return
    count, pieces = filter_lanes.parts_of(shape, to.threads)
    parts = to.scratch(node, "parts", dw.nbytes * count)
    to.add(node, filter_lanes.weight_gradient(shape, count, pieces), reads, [parts], count)
    to.join(node, to.buffer(dw, PLAIN), dw.size, parts, count)


def _matmul(to: Lowering, node: Node, ending: Ending = NOTHING) -> None:
    if to.channels_in_lanes:
        channel_rules.matmul(to, node, ending)
        return
    a, b = node.inputs
    y = node.outputs[0]
    rows = to.rows(a)
    if (
        # A layer right behind the data reads its rows where they are: blocking them would cost more than the product.
        rows is not None
        and not node.attrs["transpose_b"]
        and ending.mask is None
        and row_products.worth_it(a.shape[1], y.shape[-1])
    ):
        (_row_gradient if node.attrs["transpose_a"] else _row_product)(to, node, rows, ending)
        return
    if node.attrs["transpose_a"]:
        if few_samples.weight_gradient_worth_it(b.shape[0], b.shape[1], to.threads):
            channel_rules.few_weight_gradient(to, node)
        else:
            _weight_sum(to, node, b, a, POINT, POINT, a.shape[1], b.shape[1])
        return
    plain = ending.bias is None and ending.finish in ("", "mask")
    sizes = y.shape[0], y.shape[1], a.shape[1]
    if node.attrs["transpose_b"] and plain and few_samples.input_gradient_worth_it(*sizes):
        source = few_samples.input_gradient(*sizes, masked=ending.mask is not None)
        reads = [to.need(a, PLAIN), to.need(b, PLAIN)]
        reads += [] if ending.mask is None else [to.need(ending.mask, BLOCKED)]
        to.add(node, source, reads, [to.buffer(y, BLOCKED)], few_samples.items(y.shape[1]))
        return
    flipped = bool(node.attrs["transpose_b"])
    operands = Operands(1, 1, 1, a.shape[1], y.shape[1], 1, flipped=flipped, **_types(a, b, y, ending))
    if tile_rules.correlated(to, node, [POINT], [POINT], operands, ending):
        return
    source = correlate(
        product_name("matmul", paired=operands.paired), [POINT], [POINT], operands, partial(to.pieces, y)
    )
    # The kernel reads filters side by side: turning the weights around once costs less than strided loads.
    key = _weights(to, node, b, (1, b.shape[0], b.shape[1], 1), operands)
    a = stored(a) if operands.paired else a
    to.add(node, source, [to.need(a, BLOCKED), key, *ends_of(to, ending)], [to.buffer(y, BLOCKED)])


def _row_reads(to: Lowering, rows: StoredRows) -> list[Key]:
    return [to.need(v, PLAIN) for v in (rows.x, rows.index) if v is not None]


def _row_shape(rows: StoredRows, a: Value, units: int) -> row_products.RowShape:
    return row_products.RowShape(a.shape[0], a.shape[1], units, rows.x.dtype, rows.index is not None, rows.scale)


def _row_product(to: Lowering, node: Node, rows: StoredRows, ending: Ending) -> None:
    a, b = node.inputs
    shape = _row_shape(rows, a, b.shape[1])
    key = to.scratch(node, "weights", shape.size * 4)
    to.tasks.append(Task(node, [to.need(b, PLAIN)], [key], row_products.transposed_weights(shape), shape.units))
    source = row_products.forward(shape, bias=ending.bias is not None, finish=ending.finish)
    to.add(node, source, [*_row_reads(to, rows), key, *ends_of(to, ending)], [to.buffer(node.outputs[0], BLOCKED)])


def _row_gradient(to: Lowering, node: Node, rows: StoredRows, _: Ending) -> None:
    a, dy = node.inputs
    dw = node.outputs[0]
    shape = _row_shape(rows, a, dy.shape[1])
    count = min(to.threads, shape.blocks)
    parts = to.scratch(node, "parts", shape.size * 4 * count)
    source = row_products.weight_gradient(shape, count)
    to.add(node, source, [*_row_reads(to, rows), to.need(dy, BLOCKED)], [parts], count)
    join = row_products.join(shape, count)
    to.tasks.append(Task(node, [parts], [to.buffer(dw, PLAIN)], join, shape.padded // LANES))


def _depthwise(to: Lowering, node: Node) -> None:
    x, w = node.inputs
    y, (rows, columns) = node.outputs[0], all_lines(node)
    source = depthwise.depthwise(
        node.op.name, rows, columns, channels=w.shape[2], multiplier=w.shape[3], kernel_width=w.shape[1],
        out_size=(y.shape[1], y.shape[2]), gradient=node.op.name.endswith("gradient"),
        pieces=to.pieces(y, max(row.count for row in rows)), dtype=stored(x).dtype, result=y.dtype,
    )  # fmt: skip
    to.add(node, source, [to.need(stored(x), BLOCKED), to.need(w, PLAIN)], [to.buffer(y, BLOCKED)])


def _depthwise_weight_gradient(to: Lowering, node: Node) -> None:
    dy, x = node.inputs
    dw = node.outputs[0]
    row, column = lines_of(node, x, node.attrs["kernel"])
    if is_short(dy, x):
        dy, x = stored(dy), stored(x)
    source = depthwise.weight_gradient(
        row, column, channels=dw.shape[2], multiplier=dw.shape[3], parts=to.threads, blocks=blocks_of(x), dtype=x.dtype
    )
    to.sums(node, source, [to.clean(dy), to.clean(x)], [to.buffer(dw, PLAIN)], dw.size, blocks_of(x))


def _pool(to: Lowering, node: Node, *, rectified: bool = False) -> None:
    gradient = node.op.name.endswith("gradient")
    image = node.outputs[0] if gradient else node.inputs[0]
    row, column = lines_of(node, image, node.attrs["kernel"])
    images = [*map(stored, node.inputs), node.outputs[0]]
    names = ("dy", "x", "y", "dx") if len(images) == 4 else ("dy", "dx") if gradient else ("x", "y")
    dtypes = {name: value.dtype for name, value in zip(names, images, strict=True)}
    vectors = -(-image.shape[3] // LANES) if to.channels_in_lanes else image.shape[3]
    sizes: dict[str, Any] = {"channels": image.shape[3], "pieces": to.pieces(image, vectors), "dtypes": dtypes}
    sizes["plain"] = to.channels_in_lanes
    if node.op.name.startswith("max"):
        make = pooling.max_pool_gradient if gradient else pooling.max_pool
        source = make(row, column, **sizes, rectified=rectified)
    else:
        average = pooling.average_pool_gradient if gradient else pooling.average_pool
        source = average(row, column, **sizes, count_padding=node.attrs["count_padding"])
    form, items = to.form_of_batch, image.shape[0] * source.pieces if to.channels_in_lanes else None
    to.add(node, source, [to.need(v, form) for v in images[:-1]], [to.buffer(node.outputs[0], form)], items)


def rounded(to: Lowering, node: Node) -> None:
    """Lower a node with the cast to bfloat16 that follows: it stores what it makes so."""
    first = node.attrs["body"].operations[0]
    inputs = tuple(node.inputs[i] for i in first.inputs)
    inner = Node(first.op, inputs, node.outputs, first.attrs, node.scope, node.phase)
    IMAGE_RULES[first.op.name](to, inner)
    to.how[id(node)] = f"{to.how.pop(id(inner))} + cast"


def pool_and_relu(to: Lowering, node: Node) -> None:
    """Lower max-pooling and the relu that follows, or the gradients of both: dx from dy, relu's result and x."""
    steps = node.attrs["body"].operations
    step = next(s for s in steps if s.op.name not in ("relu", "relu_gradient", "cast"))
    if step.op.name == "max_pool2d":
        inputs = node.inputs
    else:
        inputs = (node.inputs[steps[0].inputs[0]], *(node.inputs[i] for i in step.inputs[1:]))
    inner = Node(step.op, inputs, node.outputs, step.attrs, node.scope, node.phase)
    _pool(to, inner, rectified=True)
    to.how[id(node)] = " + ".join(s.op.name for s in steps)


IMAGE_RULES: dict[str, Rule] = {
    "conv2d": _conv2d,
    "conv2d_input_gradient": _conv2d,
    "conv2d_weight_gradient": _conv2d_weight_gradient,
    "matmul": _matmul,
    "depthwise_conv2d": _depthwise,
    "depthwise_conv2d_input_gradient": _depthwise,
    "depthwise_conv2d_weight_gradient": _depthwise_weight_gradient,
    "max_pool2d": _pool,
    "max_pool2d_gradient": _pool,
    "average_pool2d": _pool,
    "average_pool2d_gradient": _pool,
}
