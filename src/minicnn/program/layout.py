"""The layout passes: all images of a Program in one order of their axes.

`batch_last`: in the order (H, W, C, N) every loop of a convolution, a pooling or an elementwise operation runs over a
long stretch of memory, whatever the number of channels. `channels_last`: a backend whose kernels take (N, H, W, C) runs
networks with the channels first too; `channels_first` is for ONNX, which has no other order. Nodes that take images are
rewritten to that order, those in between follow, and images are put back where an operation fixes the order of their
elements (a reshape, an output).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minicnn.ops.checks import normalize_axes
from minicnn.ops.manipulation import permute
from minicnn.ops.shapes import reshape_to
from minicnn.program.graph import Node, Program, Value

Order = tuple[int, ...]

# Operations on images that know these layouts, with the place of the input that is a kernel and stays as it is.
IMAGE_OPERATIONS: dict[str, int | None] = {
    "conv2d": 1,
    "conv2d_input_gradient": 1,
    "conv2d_weight_gradient": None,
    "depthwise_conv2d": 1,
    "depthwise_conv2d_input_gradient": 1,
    "depthwise_conv2d_weight_gradient": None,
    "max_pool2d": None,
    "max_pool2d_gradient": None,
    "average_pool2d": None,
    "average_pool2d_gradient": None,
}

# Below this batch size the innermost loop would be too short to be worth the change.
LEAST_BATCH = 32


def batch_last(program: Program, least_batch: int = LEAST_BATCH) -> Program:
    """Rewrite a Program in place so that images have their batch axis last.

    Args:
        program: Program to rewrite.
        least_batch: Images of smaller batches stay as they are.
    """
    return _Rewriter(program, "HWCN", least_batch).run()


def channels_last(program: Program) -> Program:
    """Rewrite a Program in place so that images are (N, H, W, C).

    Args:
        program: Program to rewrite.
    """
    return _Rewriter(program, "NHWC").run()


def channels_first(program: Program) -> Program:
    """Rewrite a Program in place so that images are (N, C, H, W).

    Args:
        program: Program to rewrite.
    """
    return _Rewriter(program, "NCHW").run()


class _Rewriter:
    """Walks over the nodes and knows for each value of the old Program where its elements are now.

    Attributes:
        target: The layout that images get.
        plain: Values that exist in their own order.
        moved: Images that exist in the target's, with the order that was applied to their axes.
    """

    def __init__(self, program: Program, target: str, least_batch: int = 0) -> None:
        self.program = program
        self.target = target
        self.least_batch = least_batch
        self.plain: dict[int, Value] = {}
        self.moved: dict[int, tuple[Value, Order]] = {}

    def run(self) -> Program:
        program = self.program
        results = {id(v) for node in program.nodes for v in node.outputs}
        for node in program.rebuild():
            self._rewrite(node)
        program.outputs = {k: self.as_plain(v) if id(v) in results else v for k, v in program.outputs.items()}
        program.updates = {k: self.as_plain(v) if id(v) in results else v for k, v in program.updates.items()}
        return program

    def _rewrite(self, node: Node) -> None:
        order = self._order(node)
        rule = _RULES.get(node.op.name) or (_elementwise if node.op.elementwise else None)
        # A node without a rule reads its inputs as they were; their permutation is kept for the next such node.
        if order is None or rule is None or not rule(self, node, order):
            node.inputs = tuple(self.as_plain(v) for v in node.inputs)
            self.program.nodes.append(node)

    def _order(self, node: Node) -> Order | None:
        """The order that a node's images should have: none if it has no images, or small batches."""
        if node.op.name in IMAGE_OPERATIONS:
            layout = node.attrs["data_format"]
            # Small batches would make the innermost loop short, which is what the pass is to avoid.
            if layout == self.target or node.inputs[0].shape[layout.index("N")] < self.least_batch:
                return None
            return tuple(layout.index(a) for a in self.target)  # which axis stands at each place of the target
        return next((self.moved[id(v)][1] for v in node.inputs if id(v) in self.moved), None)

    def as_plain(self, value: Value) -> Value:
        """A value in its own order."""
        if id(value) in self.plain:
            return self.plain[id(value)]
        if id(value) not in self.moved:
            return value
        image, order = self.moved[id(value)]
        result = _permute(image, _inverse(order))
        self.plain[id(value)] = result
        return result

    def as_image(self, value: Value, order: Order) -> Value:
        """A value with four axes in the given order."""
        if id(value) in self.moved and self.moved[id(value)][1] == order:
            return self.moved[id(value)][0]
        result = _permute(self.as_plain(value), order)
        self.moved[id(value)] = (result, order)
        self.plain.setdefault(id(value), value)
        return result

    def as_broadcast(self, value: Value, order: Order) -> Value:
        """A value of any rank so that it broadcasts against images in the given order."""
        if value.ndim == 0:
            return self.as_plain(value)
        if value.ndim == 4:
            return self.as_image(value, order)
        # As NumPy broadcasts: missing axes are in front.
        full = (*(1,) * (4 - value.ndim), *value.shape)
        return _transpose(self.as_plain(value), full, order)

    def emit(self, node: Node, inputs: Sequence[Value], **changes: Any) -> tuple[Value, ...]:
        """The node's operation on other inputs, with some attributes changed."""
        return self.program.emit(node.op, inputs, {**node.attrs, **changes}).outputs


Rule = Callable[[_Rewriter, Node, Order], bool]


def _permute(value: Value, axes: Order) -> Value:
    return permute(value, axes=axes)


def _transpose(value: Value, shape: tuple[int, ...], axes: Order) -> Value:
    """The value reshaped, then permuted; one reshape where no axis but those of length 1 changes its place."""
    # Axes of length 1 may go anywhere without an element being moved.
    moving = [a for a in axes if shape[a] != 1]
    if moving == sorted(moving):
        return reshape_to(value, tuple(shape[a] for a in axes))
    return _permute(reshape_to(value, shape), axes)


def _inverse(order: Order) -> Order:
    return tuple(order.index(a) for a in range(len(order)))


def _image_operation(to: _Rewriter, node: Node, order: Order) -> bool:
    """Operations with a data_format: their kernels keep their shape."""
    kernel = IMAGE_OPERATIONS[node.op.name]
    inputs = [to.as_plain(v) if i == kernel else to.as_image(v, order) for i, v in enumerate(node.inputs)]
    (image,) = to.emit(node, inputs, data_format=to.target)
    if node.op.name.endswith("weight_gradient"):
        to.plain[id(node.outputs[0])] = image
    else:
        to.moved[id(node.outputs[0])] = (image, order)
    return True


def _elementwise(to: _Rewriter, node: Node, order: Order) -> bool:
    if node.outputs[0].ndim != 4:
        return False
    inputs = [to.as_broadcast(v, order) for v in node.inputs]
    for value, result in zip(node.outputs, to.emit(node, inputs), strict=True):
        to.moved[id(value)] = (result, order)
    return True


def _reduction(to: _Rewriter, node: Node, order: Order) -> bool:
    axes = node.attrs["axes"]
    axes = tuple(range(4)) if axes is None else tuple(a % 4 for a in ((axes,) if isinstance(axes, int) else axes))
    (reduced,) = to.emit(node, [to.as_image(node.inputs[0], order)], axes=tuple(order.index(a) for a in axes))
    if node.attrs["keepdims"]:
        to.moved[id(node.outputs[0])] = (reduced, order)
        return True
    # Axes that are left, in the order that they have now and in the one that they should have.
    left = [a for a in order if a not in axes]
    if left != sorted(left):
        reduced = _permute(reduced, tuple(left.index(a) for a in sorted(left)))
    to.plain[id(node.outputs[0])] = reduced
    return True


def _max_gradient(to: _Rewriter, node: Node, order: Order) -> bool:
    axes = tuple(order.index(a) for a in normalize_axes("max_gradient", node.attrs["axes"], 4))
    if not node.attrs["keepdims"] or axes != tuple(sorted(axes)):  # the first of equal maxima would be another one
        return False
    (gradient,) = to.emit(node, [to.as_image(v, order) for v in node.inputs], axes=axes)
    to.moved[id(node.outputs[0])] = (gradient, order)
    return True


def _normalize(to: _Rewriter, node: Node, order: Order) -> bool:
    if node.inputs[0].ndim != 4:
        return False
    inputs = [to.as_broadcast(v, order) for v in node.inputs]
    axes = tuple(sorted(order.index(a % 4) for a in node.attrs["axes"]))
    for value, result in zip(node.outputs, to.emit(node, inputs, axes=axes), strict=True):
        if value.ndim == 4:
            to.moved[id(value)] = (result, order)
        elif value.ndim == 0:
            to.plain[id(value)] = result
        else:  # the gradient of a scale or an offset, which was given four axes
            to.plain[id(value)] = reshape_to(_transpose(result, result.shape, _inverse(order)), value.shape)
    return True


def _along_axis(to: _Rewriter, node: Node, order: Order) -> bool:
    """Operations along one axis that they keep."""
    inputs = [to.as_image(v, order) for v in node.inputs]
    (result,) = to.emit(node, inputs, axis=order.index(node.attrs["axis"] % 4))
    to.moved[id(node.outputs[0])] = (result, order)
    return True


def _broadcast(to: _Rewriter, node: Node, order: Order) -> bool:
    shape = node.attrs["shape"]
    if len(shape) != 4:
        return False
    (image,) = to.emit(node, [to.as_broadcast(node.inputs[0], order)], shape=tuple(shape[a] for a in order))
    to.moved[id(node.outputs[0])] = (image, order)
    return True


def _permutation(to: _Rewriter, node: Node, order: Order) -> bool:
    """Both permutations as one, none if they undo each other."""
    image = to.as_image(node.inputs[0], order)
    axes = tuple(order.index(a) for a in node.attrs["axes"])
    to.plain[id(node.outputs[0])] = image if axes == (0, 1, 2, 3) else _permute(image, axes)
    return True


def _per_axis(attribute: str) -> Rule:
    """Operations with one entry of an attribute for each axis."""

    def rule(to: _Rewriter, node: Node, order: Order) -> bool:
        entries = node.attrs[attribute]
        (result,) = to.emit(node, [to.as_image(node.inputs[0], order)], **{attribute: tuple(entries[a] for a in order)})
        to.moved[id(node.outputs[0])] = (result, order)
        return True

    return rule


_RULES: dict[str, Rule] = {
    **dict.fromkeys(IMAGE_OPERATIONS, _image_operation),
    "sum": _reduction,
    "mean": _reduction,
    "max": _reduction,
    "max_gradient": _max_gradient,
    "normalize": _normalize,
    "normalize_gradient": _normalize,
    "broadcast_to": _broadcast,
    "permute": _permutation,
    **dict.fromkeys(("concat", "repeat", "softmax", "log_softmax"), _along_axis),
    "pad": _per_axis("widths"),
    "slice_": _per_axis("bounds"),
}
