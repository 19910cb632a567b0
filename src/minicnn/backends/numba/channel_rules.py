"""Rules for convolution and matrix products with channels in the lanes, and the choice of that order of axes."""

from __future__ import annotations

import math
from dataclasses import replace

from minicnn.backends.numba import channel_lanes, channel_winograd, cpus, few_samples, movement, winograd
from minicnn.backends.numba.channel_lanes import GRADIENT, End, Update
from minicnn.backends.numba.channel_shapes import ChannelShape, Frame, margins
from minicnn.backends.numba.channel_winograd import ChannelTiling
from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Task
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.products import NOTHING, POINT, Ending, all_lines, ends_of, lines_of, transposed
from minicnn.backends.numba.short import SHORT
from minicnn.program.graph import Node, Value

_NO_KERNEL = ("reshape", "add", "relu", "relu6")  # what joins others mostly
_NO_FRAME: Frame = ((0, 0), (0, 0))


def _framed(to: Lowering, node: Node, x: Value, frame: Frame, *, spare: int = 0) -> Key:
    """Images with zeros around them, and so many bytes behind."""
    height, width, channels = x.shape[1:]
    if frame == _NO_FRAME and not spare:
        return to.need(x, PLAIN)
    padded = height + sum(frame[0]), width + sum(frame[1])
    key = to.scratch(node, "frame", x.shape[0] * padded[0] * padded[1] * channels * 4 + spare)
    source = movement.frame(height=height, width=width, pixel=channels, rows=frame[0], columns=frame[1])
    to.tasks.append(Task(node, [to.need(x, PLAIN)], [key], source, x.shape[0] * padded[0]))
    return key


def conv2d(to: Lowering, node: Node, ending: Ending = NOTHING) -> None:
    """A convolution, or its input gradient."""
    (x, w), y, groups = node.inputs, node.outputs[0], node.attrs["groups"]
    kh, kw, channels, filters = w.shape
    sizes = (channels, filters // groups)
    if node.op.name.endswith("gradient"):
        sizes = sizes[::-1]
    rows, columns = all_lines(node)
    tiling = _tiling(to, node)
    if tiling is not None:
        _by_winograd(to, node, tiling, ending)
        return
    frame = margins(rows), margins(columns)
    key = _framed(to, node, x, frame)
    shapes = [
        ChannelShape(r, c, x.shape[0], *sizes, groups, kh, kw, (y.shape[1], y.shape[2]), frame, to.threads)
        for r in rows for c in columns
    ]  # fmt: skip
    _correlated(to, node, key, w, shapes, ending)


def _correlated(to: Lowering, node: Node, x: Key, w: Value, shapes: list[ChannelShape], ending: Ending) -> None:
    """A correlation whose outputs are those of some geometries together; back to the inputs if there is no kernel."""
    y, first = node.outputs[0], shapes[0]
    back = node.op.name.endswith("input_gradient") or bool(node.attrs.get("transpose_b"))
    name = f"{node.op.name.removesuffix('_')} of channels"
    end = End(ending.bias is not None, ending.addend is not None, ending.finish)
    reads, make = [to.need(w, PLAIN)], channel_lanes.forward
    if back and not end.bias and all(channel_lanes.contraction_worth_it(s) for s in shapes):
        make = channel_lanes.contraction
    elif back:
        reads = [transposed(to, node, w, first.taps, first.filters, first.channels, first.groups)]
    elif id(w) in to.fixed and id(node.inputs[0]) not in to.fixed:
        shapes = [first := replace(first, packed=True)]
        reads = _prepared(to, node, reads, first)
    for shape in shapes:
        source, items = make(name, replace(shape, flipped=back), end)
        to.add(node, source, [x, *reads, *ends_of(to, ending)], [to.buffer(y, PLAIN)], items)


def _tiling(to: Lowering, node: Node) -> ChannelTiling | None:
    """Tiles of a convolution with weights that stay the same, if they are worth it."""
    x, w = node.inputs[:2]
    if node.op.name != "conv2d" or id(w) not in to.fixed or id(x) in to.fixed:
        return None
    (row, *_), (column, *_) = all_lines(node)
    sizes = x.shape[0], w.shape[2], w.shape[3], node.attrs["groups"], to.threads
    return channel_winograd.chosen(row, column, *sizes)


def _by_winograd(to: Lowering, node: Node, shape: ChannelTiling, ending: Ending) -> None:
    (x, w), y = node.inputs, node.outputs[0]
    # The last vector of an image's last pixel may go beyond it.
    image = _framed(to, node, x, shape.frame, spare=BYTES if shape.channels % LANES else 0)
    transformed = to.scratch(node, "weights", shape.weight_bytes)
    source = channel_winograd.transformed_weights(shape)
    to.tasks.append(Task(node, [to.need(w, PLAIN)], [transformed], source, shape.panels))
    items = math.prod(shape.shares)
    parts = to.scratch(node, "parts", shape.part_bytes * items)
    end = End(ending.bias is not None, ending.addend is not None, ending.finish)
    source = channel_winograd.forward(f"{node.op.name} of channels", shape, end)
    reads = [image, transformed, *ends_of(to, ending)]
    to.add(node, source, reads, [parts, to.buffer(y, PLAIN)], items)


def _prepared(to: Lowering, node: Node, w: list[Key], shape: ChannelShape) -> list[Key]:
    """Packed weights and places."""
    weights = to.scratch(node, "weights", shape.packed_bytes)
    table = to.scratch(node, "places", 16 * shape.positions)
    source, items = channel_lanes.packed(shape)
    to.tasks.append(Task(node, w, [weights], source, items))
    to.tasks.append(Task(node, [], [table], channel_lanes.places(shape)))
    return [weights, table]


def weight_gradient(to: Lowering, node: Node, update: Update | None = None) -> None:
    """The weight gradient of a convolution, with the update of the weights if there is one."""
    dy, x = node.inputs
    groups, kernel = node.attrs["groups"], node.attrs["kernel"]
    row, column = lines_of(node, x, kernel)
    frame = margins([row]), margins([column])
    key = _framed(to, node, x, frame)
    sizes = (x.shape[3] // groups, dy.shape[3] // groups, groups, kernel[0], kernel[1], (dy.shape[1], dy.shape[2]))
    _gradient(to, node, dy, key, ChannelShape(row, column, x.shape[0], *sizes, frame, to.threads), update)


def _gradient(to: Lowering, node: Node, dy: Value, x: Key, shape: ChannelShape, update: Update | None) -> None:
    name = f"{node.op.name} of channels"
    source, items = channel_lanes.weight_gradient(name, shape, update)
    reads = [to.need(dy, PLAIN), x, *([] if update is None else update.reads)]
    to.add(node, source, reads, [to.buffer(v, PLAIN) for v in node.outputs], items)


def matmul(to: Lowering, node: Node, ending: Ending = NOTHING, update: Update | None = None) -> None:
    """A matrix product: a convolution of one position."""
    (a, b), y = node.inputs, node.outputs[0]
    sizes = (1, 1, 1, (1, 1), _NO_FRAME, to.threads)
    if node.attrs["transpose_a"] and few_samples.update_worth_it(*b.shape):
        few_weight_gradient(to, node, update or GRADIENT)
        return
    if node.attrs["transpose_a"]:
        shape = ChannelShape(POINT, POINT, a.shape[0], a.shape[1], b.shape[1], *sizes)
        _gradient(to, node, b, to.need(a, PLAIN), shape, update)
        return
    shape = ChannelShape(POINT, POINT, a.shape[0], a.shape[1], y.shape[1], *sizes)
    _correlated(to, node, to.need(a, PLAIN), b, [shape], ending)


def few_weight_gradient(to: Lowering, node: Node, update: Update = GRADIENT) -> None:
    """The weight gradient of a dense layer on few samples, with the update of the weights if there is one."""
    x, dy = node.inputs
    form = to.form_of_batch
    source = few_samples.weight_gradient(x.shape[0], x.shape[1], dy.shape[1], update, blocked=form == BLOCKED)
    reads = [to.need(x, form), to.need(dy, PLAIN), *update.reads]
    to.add(node, source, reads, [to.buffer(v, PLAIN) for v in node.outputs], few_samples.items(x.shape[1]))


def updated(to: Lowering, node: Node) -> None:
    """Lower a weight gradient with the update that reads it; see `grouping`."""
    body = node.attrs["body"]
    gradient, step = body.operations
    result = len(node.inputs)  # the place of the gradient, behind the inputs
    place = step.inputs.index(result)
    operands, reads = [], []
    for i in step.inputs:
        if i == result:
            operands.append(Operand("lanes"))
            continue
        value = node.inputs[i]
        one = value.size == 1 and node.outputs[0].size != 1
        operands.append(Operand("one" if one else "many", value.dtype))
        reads.append(to.need(value, PLAIN))
    n = len(operands)
    steps = [(step.op.name, tuple(range(n)), {**step.attrs, "result": k - result - 1}) for k in body.outputs]
    dtypes = (*("float32" if i == result else node.inputs[i].dtype for i in step.inputs), *["float32"] * len(steps))
    group = ElementwiseGroup(tuple(steps), tuple(range(n, n + len(steps))), dtypes)
    inner = Node(gradient.op, tuple(node.inputs[i] for i in gradient.inputs), node.outputs, gradient.attrs, node.scope,
                 node.phase)  # fmt: skip
    product = matmul if to.channels_in_lanes else few_weight_gradient
    (product if gradient.op.name == "matmul" else weight_gradient)(
        to, inner, update=Update(group, tuple(operands), place, tuple(reads))
    )
    to.how[id(node)] = f"{to.how.pop(id(inner))} + {step.op.name}"


def chosen(to: Lowering) -> bool:
    """True if a Program's images stay plain arrays with channels in the lanes.

    Counted in multiply-adds of vectors of the convolutions and products. With samples in the lanes, 16 of them take as
    long as one; with channels, the last vector of a layer may not be full.
    """
    if any(v.dtype == SHORT for node in to.program.nodes for v in node.outputs):
        return False  # pairs of bfloat16 are multiplied with samples in the lanes
    if to.convolution is not None or to.samples > LANES:
        return to.convolution == "channels"
    work = [_work(to, node) for node in to.program.nodes]
    return sum(channels for channels, _ in work) < sum(samples for _, samples in work)


def threads_of(to: Lowering) -> int:
    """One thread for a Program that takes longer to share than it saves; else all."""
    if to.threads == 1 or to.convolution is not None:
        return to.threads
    order = 0 if to.channels_in_lanes else 1
    work = sum(_work(to, node)[order] + _passed(to, node) for node in to.program.nodes)
    kernels = sum(node.op.name not in _NO_KERNEL for node in to.program.nodes if id(node.outputs[0]) in to.carries)
    return to.threads if work * (1 - 1 / to.threads) > kernels * cpus.host().costs.handoff else 1


def _passed(to: Lowering, node: Node) -> float:
    """Vectors that a node reads and writes, at least; each takes as long as a multiply-add."""
    if node.op.name == "reshape":
        return 0
    filled = 1.0 if to.channels_in_lanes or not to.samples else -(-to.samples // LANES) * LANES / to.samples
    return 2 * sum(v.size * (filled if to.is_batch(v) else 1) for v in node.outputs) / LANES


def _work(to: Lowering, node: Node) -> tuple[float, float]:
    """Multiply-adds of vectors of a node with channels in the lanes, and with samples."""
    if not node.inputs or node.inputs[0].shape[:1] != (to.samples,):
        return 0, 0
    name, first, result, costs = node.op.name, node.inputs[0], node.outputs[0], cpus.host().costs
    if name.startswith("depthwise"):
        # Its kernels have samples in the lanes, so images are packed and unpacked.
        return (first.size + result.size) * costs.packing, 0
    if name not in ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "matmul"):
        return 0, 0
    summed = name.endswith("weight_gradient") or node.attrs.get("transpose_a")
    weights = result if summed else node.inputs[1]
    image = first if name.endswith("gradient") else result
    products = weights.size * (math.prod(image.shape[1:-1]) if name.startswith("conv2d") else 1)
    lanes = result.shape[-1] // node.attrs.get("groups", 1)  # what fills them: filters, or channels of dx
    channels = products / lanes * -(-lanes // LANES) * to.samples * costs.channels
    tiling = _tiling(to, node)
    return channels if tiling is None else tiling.cost, _with_samples(to, node, products)


def _with_samples(to: Lowering, node: Node, products: int) -> float:
    """Vectors of multiply-adds of a node with samples in the lanes, given those of a sample."""
    blocks = -(-to.samples // LANES)
    if node.op.name in ("conv2d", "conv2d_input_gradient"):
        (row, *_), (column, *_) = all_lines(node)
        sizes = node.inputs[0].shape[3], node.outputs[0].shape[3]
        geometry = (row, column, *sizes, node.attrs["groups"], blocks, to.threads)
        shape = winograd.chosen(None, *geometry, exact=node.phase == "forward")
        if shape is not None:
            return shape.cost
    return products * blocks
