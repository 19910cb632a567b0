"""Passes that rewrite a Program in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicnn import ops
from minicnn.program.graph import Node, Program, Value
from minicnn.program.readers import Readers

# A folded result is kept for the life of the Program: beyond this size computing it again is cheaper.
FOLD_LIMIT_BYTES = 1 << 20


def optimize(program: Program) -> Program:
    """The passes that help every backend: constant folding, then removal of dead nodes."""
    # Folding first: it leaves nodes behind that nobody reads any more.
    fold_constants(program)
    remove_dead_nodes(program)
    return program


def remove_dead_nodes(program: Program) -> int:
    """Drop nodes whose results nothing uses; returns how many. What is sent another rank uses."""
    needed = {id(v) for v in program.results}
    kept = []
    for node in reversed(program.nodes):
        if node.op.name == "send" or any(id(v) in needed for v in node.outputs):
            needed.update(id(v) for v in node.inputs)
            kept.append(node)
    removed = len(program.nodes) - len(kept)
    program.nodes = kept[::-1]
    return removed


def fold_constants(program: Program) -> int:
    """Compute nodes that read constants only, where the result is small; returns how many."""
    import array_api_compat.numpy as xp

    def rule(node: Node) -> list[Value] | None:
        known = [v.data for v in node.inputs if v.kind == "constant" and v.data is not None]
        size = 0
        for value in node.outputs:
            size += value.nbytes
        # NumPy does the folding, whatever the backend, so that all backends see the same constants.
        in_numpy = all(v.dtype != "bfloat16" for v in (*node.inputs, *node.outputs))
        in_numpy &= "group" not in node.attrs  # what ranks compute together
        if len(known) < len(node.inputs) or size > FOLD_LIMIT_BYTES or not in_numpy:
            return None
        results = node.op.reference(*known, xp=xp, **node.attrs)
        arrays = results if len(node.outputs) > 1 else (results,)
        return [program.constant(array, value.dtype) for value, array in zip(node.outputs, arrays, strict=True)]

    return program.replace(rule)


def pool_before_relu(program: Program, results: Sequence[Value], first: int = 0) -> int:
    """Swap a relu with the max-pooling that alone reads it; returns how often.

    The maximum of max(x, 0) is max(maximum of x, 0), so the order makes no difference to the result nor, bit
    for bit, to the gradient; but on the pooled image relu and its gradient have a fraction of the elements.

    Args:
        program: Program with its forward nodes only.
        results: Values that are needed as they are.
        first: Number of the first node that is looked at.
    """
    readers = Readers(program)
    needed = {id(v) for v in results}
    swapped = 0
    for i, pool in enumerate(program.nodes):
        if i < first or not pool.inputs:
            continue
        active = pool.inputs[0]
        relu = active.node
        if pool.op.name != "max_pool2d" or relu is None or relu.op.name != "relu":
            continue
        # Whoever else reads the image needs relu's result in full size.
        if len(readers.of(active)) > 1 or id(active) in needed:
            continue
        # x -> relu -> active -> pool -> y becomes x -> pool -> active -> relu -> y, active now being small.
        (y,) = pool.outputs
        pool.inputs, pool.outputs = relu.inputs, (active,)
        relu.inputs, relu.outputs = (active,), (y,)
        active.spec, active.node, y.node = y.spec, pool, relu
        program.nodes.remove(relu)
        program.nodes.insert(i, relu)
        swapped += 1
    return swapped


# Operations that are mostly multiply-adds: they profit from a shorter format, and sum in a longer one.
PRODUCTS = frozenset({"matmul", "conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"})


# Operations whose results are no images: sums, which keep their precision, and gradients of weights.
_SUMS = frozenset({"sum", "mean", "conv2d_weight_gradient", "depthwise_conv2d_weight_gradient"})


def shorten_images(program: Program, dtype: str) -> int:
    """Store images and their gradients in a shorter format: what has four axes and depends on the data, but no sums.

    They are rounded where they would be stored anyway: not if all that reads them is one elementwise operation, which
    computes on what it is given, a max-pooling whose windows do not overlap, of which the result is rounded, or what
    flattens them for a dense layer, or a sum, whose terms may be squares beyond the range of float16.

    Args:
        program: Program in float32, with its backward nodes.
        dtype: "bfloat16" or "float16".

    Returns:
        Number of images.
    """
    readers, needed = Readers(program), {id(v) for v in program.results}
    # What depends on the data is an image; weights have four axes, too, and stay in float32.
    images = {id(v) for v in program.inputs if v.kind == "input"}
    chosen: set[int] = set()
    for node in program.nodes:
        y = node.outputs[0]
        if node.phase == "update" or node.op.name in _SUMS or not any(id(v) in images for v in node.inputs):
            continue
        images.add(id(y))
        # Its elements are those of a gradient that is rounded already.
        if scatters(node):
            continue
        read = [n for n in readers.of(y) if n.op.name != "max_pool2d_gradient"]
        passed_on = len(read) == 1 and _passes_on(read[0], y)
        if y.ndim == 4 and y.dtype == "float32" and read and not passed_on and id(y) not in needed:
            chosen |= {id(y)} if all(n.phase != "update" for n in read) else set()

    def rule(node: Node) -> list[Value] | None:
        if id(node.outputs[0]) not in chosen:
            return None
        first, *others = program.emit(node.op, node.inputs, node.attrs).outputs
        # Down and up again: the Program stays one of float32, and a backend that stores the middle saves half of the
        # memory.
        return [ops.cast(ops.cast(first, dtype=dtype), dtype=first.dtype), *others]

    return program.replace(rule)


def _passes_on(node: Node, x: Value) -> bool:
    """True if the only reader of an image takes it as it is computed."""
    elementwise = node.op.elementwise and node.outputs[0].shape == x.shape
    flattens = node.op.name == "reshape" and node.outputs[0].ndim != 4
    return elementwise or flattens or node.op.name in ("sum", "mean") or _pools_apart(node)


def _pools_apart(node: Node) -> bool:
    return node.op.name == "max_pool2d" and _are_apart(node)


def scatters(node: Node) -> bool:
    """True if all elements of a gradient are such of dy, which are rounded already, or zeros."""
    return node.op.name in ("max_pool2d_gradient", "max_pool2d_scatter") and _are_apart(node)


def _are_apart(node: Node) -> bool:
    return bool(node.attrs["kernel"] == node.attrs["strides"] and node.attrs["padding"] == ((0, 0), (0, 0)))


def lower_precision(program: Program, dtype: str, *, keep: str | None = None) -> int:
    """Compute products in a shorter format: their inputs are rounded to it, their results widened again.

    Args:
        program: Program in float32.
        dtype: "bfloat16" or "float16".
        keep: Scope of the nodes that stay as they are.

    Returns:
        Number of nodes changed.
    """
    rounded: dict[int, Value] = {}

    def rule(node: Node) -> list[Value] | None:
        if node.op.name not in PRODUCTS or node.outputs[0].dtype != "float32" or node.scope == keep:
            return None
        for value in node.inputs:
            if id(value) not in rounded:
                # What was stored short is taken as it is: widening and rounding it again would cost two passes over it.
                stored = value.node.inputs[0] if value.node is not None and value.node.op.name == "cast" else None
                is_short = stored is not None and stored.dtype == dtype
                rounded[id(value)] = stored if stored is not None and is_short else ops.cast(value, dtype=dtype)
        (product,) = program.emit(node.op, [rounded[id(v)] for v in node.inputs], node.attrs).outputs
        return [ops.cast(product, dtype="float32")]

    return program.replace(rule)


def makers_of(program: Program, values: Sequence[Value]) -> set[int]:
    """Ids of the Values that some are computed from, with their own."""
    makers = set(map(id, values))
    for node in reversed(program.nodes):
        if any(id(v) in makers for v in node.outputs):
            makers.update(map(id, node.inputs))
    return makers


def replace_in_place(program: Program, rule: Callable[[Node], Sequence[Value] | None]) -> None:
    """As `Program.replace`, but Values stay what they are, for whoever holds them: new nodes make them."""
    for node in program.rebuild():
        first = len(program.nodes)
        replacements = rule(node)
        if replacements is None:
            program.nodes.append(node)
            continue
        for old, new in zip(node.outputs, replacements, strict=True):
            maker = new.node
            if maker is None:
                continue
            maker.outputs = tuple(old if v is new else v for v in maker.outputs)
            old.node = maker
            for later in program.nodes[first:]:
                later.inputs = tuple(old if v is new else v for v in later.inputs)
