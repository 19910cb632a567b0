"""Rules for convolution, matrix products and pooling."""

from __future__ import annotations

from minicnn.backends.numba import depthwise, movement, pooling, weights
from minicnn.backends.numba.correlate import Line, Operands, correlate, forward_line, gradient_lines
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule, Task
from minicnn.backends.numba.vector import LANES
from minicnn.ops.fused import Step
from minicnn.ops.windows import Window
from minicnn.program.graph import Node, Value

_POINT = forward_line(1, 1, 1, 1, 0, 1)


def _image(to: Lowering, node: Node, *images: Value) -> str | None:
    if node.attrs["data_format"] != "NHWC":
        return f"kernels take images NHWC, not {node.attrs['data_format']}"
    return None if all(to.is_blocked(x) for x in images) else "the image has no batch axis"


def _lines(node: Node, x: Value, kernel: tuple[int, int]) -> tuple[Line, Line]:
    """Forward geometry along rows and columns of an operation on images x."""
    a = node.attrs
    dilation = a.get("dilation", (1, 1))
    size = Window(kernel, a["strides"], a["padding"], dilation).output_size(node.op.name, x.shape[1], x.shape[2])
    rows, columns = (
        forward_line(x.shape[1 + i], kernel[i], a["strides"][i], dilation[i], a["padding"][i][0], size[i])
        for i in (0, 1)
    )
    return rows, columns


def _gradient_lines(node: Node, w: Value, dy: Value, dx: Value) -> list[list[Line]]:
    a = node.attrs
    return [
        gradient_lines(
            dx.shape[1 + i], w.shape[i], a["strides"][i], a["dilation"][i], a["padding"][i][0], dy.shape[1 + i]
        )
        for i in (0, 1)
    ]


def _conv2d(to: Lowering, node: Node, bias: Value | None = None) -> str | None:
    x, w = node.inputs
    y, groups = node.outputs[0], node.attrs["groups"]
    reason = _image(to, node, x)
    if reason:
        return reason
    row, column = _lines(node, x, (w.shape[0], w.shape[1]))
    operands = Operands(
        x.shape[2], y.shape[1], y.shape[2], w.shape[2], w.shape[3] // groups, w.shape[1], groups, bias is not None
    )  # fmt: skip
    source = correlate("conv2d", [row], [column], operands)
    to.add(node, source, [to.need(x, BLOCKED), to.need(w, PLAIN), *_plain(to, bias)], [to.buffer(y, BLOCKED)])
    return None


def _plain(to: Lowering, bias: Value | None) -> list[Key]:
    return [] if bias is None else [to.need(bias, PLAIN)]


def product(to: Lowering, node: Node, step: Step, inputs: tuple[Value, Value], bias: Value) -> str | None:
    """Lower a convolution or matrix product whose accumulators start from a bias."""
    inner = Node(step.op, inputs, node.outputs, step.attrs, node.scope, node.phase)
    reason = (_conv2d if step.op.name == "conv2d" else _matmul)(to, inner, bias)
    to.how[id(node)] = f"{step.op.name}+bias"
    return reason


def _transposed(to: Lowering, node: Node, w: Value, taps: int, channels: int, filters: int, groups: int) -> Key:
    """The weights (taps, C, groups * F) as (taps, groups, F, C)."""
    key = to.scratch(node, "weights", w.nbytes)
    source = movement.transpose_weights(taps=taps, channels=channels, filters=filters, groups=groups)
    to.tasks.append(Task(node, [to.need(w, PLAIN)], [key], source, taps * groups * -(-filters // LANES)))
    return key


def _conv2d_input_gradient(to: Lowering, node: Node) -> str | None:
    dy, w = node.inputs
    dx, groups = node.outputs[0], node.attrs["groups"]
    reason = _image(to, node, dy, dx)
    if reason:
        return reason
    rows, columns = _gradient_lines(node, w, dy, dx)
    kh, kw, channels, filters = w.shape
    operands = Operands(
        dy.shape[2], dx.shape[1], dx.shape[2], filters // groups, channels, kw, groups, flipped=True
    )  # fmt: skip
    source = correlate("conv2d_input_gradient", rows, columns, operands)
    weights_key = _transposed(to, node, w, kh * kw, channels, filters // groups, groups)
    to.add(node, source, [to.need(dy, BLOCKED), weights_key], [to.buffer(dx, BLOCKED)])
    return None


def _conv2d_weight_gradient(to: Lowering, node: Node) -> str | None:
    dy, x = node.inputs
    reason = _image(to, node, dy, x)
    if reason:
        return reason
    groups = node.attrs["groups"]
    row, column = _lines(node, x, node.attrs["kernel"])
    _weight_sum(to, node, dy, x, row, column, x.shape[3] // groups, dy.shape[3], groups)
    return None


def _weight_sum(
    to: Lowering, node: Node, dy: Value, x: Value, row: Line, column: Line, channels: int, filters: int, groups: int = 1
) -> None:
    dw = node.outputs[0]
    parts = to.parts(node, "parts", dw.size)
    source = weights.weight_gradient(
        row, column, channels=channels, filters=filters, groups=groups, parts=to.threads, blocks=to.blocks
    )
    to.add(node, source, [to.clean(dy), to.clean(x)], [parts], to.threads)
    to.join(node, to.buffer(dw, PLAIN), dw.size, parts)


def _matmul(to: Lowering, node: Node, bias: Value | None = None) -> str | None:
    a, b = node.inputs
    y = node.outputs[0]
    if node.attrs["transpose_a"]:
        if node.attrs["transpose_b"] or not (to.is_blocked(a) and to.is_blocked(b)) or to.is_blocked(y):
            return "no kernel for these operands"
        _weight_sum(to, node, b, a, _POINT, _POINT, a.shape[1], b.shape[1])
        return None
    if not to.is_blocked(a) or id(b) in to.carries:
        return "no kernel for these operands"
    flipped = bool(node.attrs["transpose_b"])
    operands = Operands(1, 1, 1, a.shape[1], y.shape[1], 1, bias=bias is not None, flipped=flipped)
    source = correlate("matmul", [_POINT], [_POINT], operands)
    key = _transposed(to, node, b, 1, b.shape[0], b.shape[1], 1) if flipped else to.need(b, PLAIN)
    to.add(node, source, [to.need(a, BLOCKED), key, *_plain(to, bias)], [to.buffer(y, BLOCKED)])
    return None


def _depthwise(to: Lowering, node: Node) -> str | None:
    x, w = node.inputs
    y = node.outputs[0]
    reason = _image(to, node, x, y)
    if reason:
        return reason
    gradient = node.op.name.endswith("gradient")
    rows, columns = (
        _gradient_lines(node, w, x, y) if gradient else [[line] for line in _lines(node, x, (w.shape[0], w.shape[1]))]
    )
    source = depthwise.depthwise(
        node.op.name, rows, columns, channels=w.shape[2], multiplier=w.shape[3], kernel_width=w.shape[1],
        out_size=(y.shape[1], y.shape[2]), gradient=gradient,
    )  # fmt: skip
    to.add(node, source, [to.need(x, BLOCKED), to.need(w, PLAIN)], [to.buffer(y, BLOCKED)])
    return None


def _depthwise_weight_gradient(to: Lowering, node: Node) -> str | None:
    dy, x = node.inputs
    dw = node.outputs[0]
    reason = _image(to, node, dy, x)
    if reason:
        return reason
    row, column = _lines(node, x, node.attrs["kernel"])
    parts = to.parts(node, "parts", dw.size)
    source = depthwise.weight_gradient(
        row, column, channels=dw.shape[2], multiplier=dw.shape[3], parts=to.threads, blocks=to.blocks
    )
    to.add(node, source, [to.clean(dy), to.clean(x)], [parts], to.threads)
    to.join(node, to.buffer(dw, PLAIN), dw.size, parts)
    return None


def _pool(to: Lowering, node: Node) -> str | None:
    gradient = node.op.name.endswith("gradient")
    image = node.outputs[0] if gradient else node.inputs[0]
    reason = _image(to, node, image, *node.inputs)
    if reason:
        return reason
    row, column = _lines(node, image, node.attrs["kernel"])
    if node.op.name.startswith("max"):
        make = pooling.max_pool_gradient if gradient else pooling.max_pool
        source = make(row, column, channels=image.shape[3])
    else:
        average = pooling.average_pool_gradient if gradient else pooling.average_pool
        source = average(row, column, channels=image.shape[3], count_padding=node.attrs["count_padding"])
    to.add(node, source, [to.need(v, BLOCKED) for v in node.inputs], [to.buffer(node.outputs[0], BLOCKED)])
    return None


IMAGE_RULES: dict[str, Rule] = {
    "conv2d": _conv2d,
    "conv2d_input_gradient": _conv2d_input_gradient,
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
