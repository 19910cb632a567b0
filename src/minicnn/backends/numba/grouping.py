"""Elementwise groups: which nodes can run in one kernel, how their operands are read, and that kernel."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

from minicnn.backends.numba import elementwise, few_samples, rows
from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering
from minicnn.backends.numba.short import SHORT
from minicnn.backends.numba.widening import before_rounding, is_short, stored
from minicnn.kernels.elements import widens
from minicnn.kernels.strides import row_major
from minicnn.ops.checks import normalize_axes
from minicnn.ops.fused import body_specs
from minicnn.program.fusion import fusion_groups, merge
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.passes import scatters
from minicnn.program.readers import Readers

_NAMES = frozenset(elementwise.OPERATIONS) - {"reshape"} | {"cast"}


# Names of merged groups that have a kernel of their own.
PACK, PRODUCT, POOL, SUM, ROUNDED, UPDATE = "pack", "product", "pool", "sum", "rounded", "update"

ACTIVATIONS = ("relu", "relu6")  # what a product does at its end
PRODUCTS = ("conv2d", "matmul", "conv2d_input_gradient")
_ROUNDING = (
    "depthwise_conv2d",
    "depthwise_conv2d_input_gradient",
    "max_pool2d",
    "max_pool2d_gradient",
    "average_pool2d",
)


def group(to: Lowering) -> None:
    """Merge nodes that have one kernel together.

    First a convolution or matrix product with its bias, its activation or the gradient of the one before; pooling and
    relu, forward and backward; sums over the batch with what makes their terms; bytes with what takes them and their
    scale. Then groups of elementwise nodes, on blocked values and on plain ones.
    """
    for node in list(to.program.nodes):
        # Pooling first: it takes a relu that a convolution before it could otherwise claim.
        if node.op.name == "max_pool2d" and to.is_batch(node.outputs[0]):
            _pool_and_relu(to, node)
    readers, joined = Readers(to.program), set[int]()
    for node in list(to.program.nodes):
        if node.op.name in PRODUCTS and to.is_batch(node.outputs[0]):
            # What is added may be made from the product, too, and then is not there in time.
            for ending in (_ending(to, node, readers, joined), _ending(to, node, readers)):
                if ending and merge(to.program, [node, *ending], PRODUCT, readers):
                    joined.update(map(id, ending))
                    break
        elif node.op.name in _ROUNDING and to.is_blocked(node.outputs[0]):
            cast = _rounding(node, node, readers)
            if cast:
                merge(to.program, [node, *cast], ROUNDED, readers)
        elif node.op.name == "cast" and node.inputs[0].dtype == "uint8" and to.is_blocked(node.outputs[0]):
            merge(to.program, _packed(node, readers), PACK, readers)
    _merge_sums(to, readers)
    _updated_at_once(to)
    # Merging has made new values, whose form is not known yet.
    to.mark()
    for blocked in (True, False):
        readers = Readers(to.program)
        for nodes in fusion_groups(to.program, partial(member, to, blocked=blocked)):
            merge(to.program, nodes, "elementwise", readers)


def _updated_at_once(to: Lowering) -> None:
    """Merge weight gradients with the updates that alone read them, as soon as their inputs are there.

    A gradient that is as large as the weights is then never stored.
    """
    for node in [n for n in to.program.nodes if n.op.name.endswith("_update")]:
        readers = Readers(to.program)
        for gradient in [v.node for v in node.inputs if readers.only(v) is node]:
            if gradient is not None and _is_written_once(to, gradient):
                merged = merge(to.program, [gradient, node], UPDATE, readers)
                if merged is not None:
                    _take_early(to.program, merged)


def _is_written_once(to: Lowering, node: Node) -> bool:
    """True if a node is a weight gradient that its kernel writes once, without parts of it to add up."""
    product = node.op.name == "matmul" and bool(node.attrs["transpose_a"])
    if to.channels_in_lanes or not product:
        return to.channels_in_lanes and (product or node.op.name == "conv2d_weight_gradient")
    (samples, length), units = node.inputs[0].shape, node.outputs[0].shape[-1]
    few = few_samples.weight_gradient_worth_it(samples, units, to.threads)
    by_rows = rows.worth_it(length, units)  # a kernel that leaves a part of each thread
    return few and few_samples.update_worth_it(samples, units) and not by_rows


def _take_early(program: Program, node: Node) -> None:
    """Move a node to right behind those that make its inputs."""
    inputs = {id(v) for v in node.inputs}
    others = [n for n in program.nodes if n is not node]
    last = max((i for i, n in enumerate(others) if inputs & {id(v) for v in n.outputs}), default=-1)
    program.nodes[:] = [*others[: last + 1], node, *others[last + 1 :]]


def _ending(to: Lowering, node: Node, readers: Readers, joined: Collection[int] | None = None) -> list[Node]:
    """Epilogue that the kernel of a product can do: a bias, then an activation; or a relu's gradient.

    With channels in the lanes another image may be added after the bias, by a node that none of those `joined` is.
    """
    if node.op.name == "matmul":
        # A product of two activations has no weights in the order that the kernel reads.
        if id(node.inputs[1]) in to.carries:
            return []
    elif to.convolution == "unrolled":
        return []
    product, ending = node.outputs[0], []
    after = readers.only(product)
    if after is not None and node.op.name != "conv2d_input_gradient" and _is_bias(to, product, after):
        ending.append(after)
        after = readers.only(after.outputs[0])
    last = (ending or [node])[-1].outputs[0]
    if joined is not None and after is not None and id(after) not in joined and _adds_image(to, last, after):
        ending.append(after)
        last = after.outputs[0]
        after = readers.only(last)
    activated = after is not None and after.op.name in ACTIVATIONS
    # The gradient of the relu before a layer is a mask on that layer's input gradient.
    masked = after is not None and after.op.name == "relu_gradient" and after.inputs[0] is last
    if after is not None and (activated or masked):
        ending.append(after)
    return [*ending, *_rounding(node, ending[-1] if ending else node, readers)]


def _rounding(node: Node, last: Node, readers: Readers) -> list[Node]:
    """The cast to bfloat16 of what a node makes with its epilogue so far, if its kernel can store it so."""
    cast = readers.only(last.outputs[0])
    # Where windows overlap their gradients are added up in memory.
    stores = node.op.name != "matmul" and (node.op.name != "max_pool2d_gradient" or scatters(node))
    rounds = cast is not None and cast.op.name == "cast" and cast.outputs[0].dtype == SHORT
    return [cast] if cast is not None and stores and rounds else []


def _adds_image(to: Lowering, product: Value, after: Node) -> bool:
    """True if another image of the same shape is added to a product."""
    others = [v for v in after.inputs if v is not product]
    alike = len(others) == 1 and others[0].spec == product.spec and to.is_batch(others[0])
    return to.channels_in_lanes and after.op.name == "add" and alike and product.dtype == "float32"


def _is_bias(to: Lowering, product: Value, after: Node) -> bool:
    if after.op.name != "add" or after.inputs[0] is not product:
        return False
    bias = after.inputs[1]
    return bias.shape == product.shape[-1:] and bias.dtype == "float32" and id(bias) not in to.carries


def _pool_and_relu(to: Lowering, pool: Node) -> None:
    """Merge a pooling with its relu, and the gradients of both.

    Where the relu is positive its result is the pooled value; elsewhere no gradient passes. So the gradient of the
    pooling reads the relu's result, and nobody else needs the pooled value.
    """
    pooled = pool.outputs[0]
    readers = Readers(to.program)
    reading = readers.of(pooled)
    relus = [n for n in reading if n.op.name == "relu"]
    gradients = [n for n in reading if n.op.name == "max_pool2d_gradient" and n.inputs[2] is pooled]
    if len(relus) != 1 or len(reading) != 1 + len(gradients) or readers.is_result(pooled):
        return
    positive = relus[0].outputs[0]
    masks = [n.inputs[0].node for n in gradients]
    for mask, gradient in zip(masks, gradients, strict=True):
        if mask is None or mask.op.name != "relu_gradient" or before_rounding(mask.inputs[1]) is not positive:
            return
        # All gradients or none: one that still reads the pooled value would need it stored.
        if readers.only(mask.outputs[0]) is not gradient:
            return
    # Maxima of an image in bfloat16 are rounded already, so that either will do.
    exact = is_short(pool.inputs[0])
    for mask, gradient in zip(masks, gradients, strict=True):
        if mask is not None:
            gradient.inputs = (*gradient.inputs[:2], mask.inputs[1] if exact else positive)
            merge(to.program, [mask, gradient], POOL)
    merge(to.program, [pool, relus[0], *_rounding(pool, relus[0], Readers(to.program))], POOL)


def sums_batch(to: Lowering, node: Node) -> bool:
    """True if a node adds up images over everything but the channels."""
    x = node.inputs[0]
    if node.op.name not in ("sum", "mean") or x.dtype != "float32" or not to.is_blocked(x):
        return False
    return set(normalize_axes(node.op.name, node.attrs["axes"], x.ndim)) == set(range(x.ndim - 1))


def _merge_sums(to: Lowering, readers: Readers) -> None:
    """Merge sums over the batch with what makes their terms, and with a sum that reads an image that they read."""
    sums = [node for node in to.program.nodes if sums_batch(to, node)]
    images = {id(node): _images_of(to, [node], readers) for node in sums}
    while sums:
        node = sums.pop(0)
        beside = [n for n in sums if _alike(n, node) and images[id(n)] & images[id(node)]]
        for together in ([node, beside[0]], [node]) if beside else ([node],):
            # One sum may need what the other is for, as a variance needs the mean.
            if merge(to.program, [*_terms(to, together, readers), *together], SUM, readers):
                sums = [n for n in sums if n not in together]
                break


def _alike(node: Node, other: Node) -> bool:
    same = node.op is other.op and node.phase == other.phase
    return same and node.inputs[0].shape == other.inputs[0].shape


def _images_of(to: Lowering, sums: list[Node], readers: Readers) -> set[int]:
    """Ids of the images that sums over the batch read, with what makes their terms."""
    nodes = [*_terms(to, sums, readers), *sums]
    terms = {id(n.outputs[0]) for n in nodes}
    return {id(v) for n in nodes for v in n.inputs if v.shape == sums[0].inputs[0].shape} - terms


def _terms(to: Lowering, sums: list[Node], readers: Readers) -> list[Node]:
    """Nodes that only sums read and that these can make, from whole images and a number for each channel; in order."""
    members, terms, results = {id(n) for n in sums}, list[Node](), {id(n.outputs[0]) for n in sums}
    waiting = [v for node in sums for v in node.inputs]
    while waiting:
        value = waiting.pop()
        producer = value.node
        # Its other readers may be found to be members later, and then it is looked at again.
        if producer is None or id(producer) in members or readers.outside(value, members):
            continue
        later = any(id(v) in results for v in producer.inputs)  # as what is centred by the mean
        if not later and member(to, producer, blocked=True) and _of_whole_images(to, producer):
            members.add(id(producer))
            terms.append(producer)
            waiting += producer.inputs
    return sorted(terms, key=to.program.nodes.index)


def _of_whole_images(to: Lowering, node: Node) -> bool:
    """True if a node reads whole images and a number for each channel: anything else would need a loop of its own."""
    value = node.outputs[0]
    read = zip(node.inputs, operands_of(to, node.inputs, value, True) or (), strict=True)
    return all(v.shape == value.shape if o.kind == "lanes" else not any(o.strides[:-1]) for v, o in read)


def _packed(node: Node, readers: Readers) -> list[Node]:
    """The cast of bytes to blocked floats, with what takes the samples before it, and what scales them after it."""
    x, y = node.inputs[0], node.outputs[0]
    before, after = x.node, readers.only(y)
    if before is None or before.op.name != "take" or before.inputs[1].kind != "input" or readers.only(x) is None:
        before = None
    if after is not None and (
        after.op.name != "multiply" or after.inputs[0] is not y or not _is_number(after.inputs[1])
    ):
        after = None
    return [n for n in (before, node, after) if n is not None]


def _is_number(value: Value) -> bool:
    return value.kind == "constant" and value.size == 1


def member(to: Lowering, node: Node, blocked: bool) -> bool:
    """True if a node can be in a group of elementwise ones, on blocked values or on plain ones."""
    result = node.outputs[0]
    return (
        node.op.name in _NAMES
        # What is widened is so by whoever reads it, and what is packed for a product is rounded there.
        and not (widens(node, SHORT) or (result.dtype == SHORT and not blocked))
        and to.is_blocked(result) == blocked
        and elementwise.supported(node.op.name, [v.dtype for v in node.inputs], result.dtype)
        and operands_of(to, node.inputs, result, blocked) is not None
    )


def _operand(to: Lowering, value: Value, result: Value | Spec, blocked: bool) -> Operand | None:
    """A value as an operand next to a result; None if it cannot be read so."""
    value = stored(value)
    if _is_number(value) and value.data is not None:
        return Operand("constant", value.dtype, value=value.data.item())
    if not blocked:
        # A single number stays in a register, whatever the shape of the result.
        if value.size == 1 and result.size != 1:
            return Operand("one", value.dtype)
        shape = (*(1,) * (result.ndim - value.ndim), *value.shape)
        return Operand("many", value.dtype, _strides(shape, result.shape))
    axes = result.ndim - 1
    if id(value) in to.carries:
        if value.ndim != result.ndim or not to.is_blocked(value):
            return None
        return Operand("lanes", value.dtype, _strides(value.shape[1:], result.shape[1:]))
    if value.size == 1:
        return Operand("one", value.dtype, (0,) * axes)
    shape = value.shape
    if len(shape) > axes:
        if shape[0] != 1:  # a plain array with a row for each sample
            return (
                Operand("lanes", value.dtype, _strides(shape[1:], result.shape[1:])) if value.dtype != "int32" else None
            )
        shape = shape[1:]
    return Operand("one", value.dtype, _strides((*(1,) * (axes - len(shape)), *shape), result.shape[1:]))


def _strides(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s if n == m else 0 for s, n, m in zip(row_major(shape), shape, result, strict=True))


def group_of(node: Node) -> ElementwiseGroup:
    """The operations of a fused node, or of another one."""
    if node.op.name == "fused":
        body = node.attrs["body"]
        steps = tuple((s.op.name, s.inputs, s.attrs) for s in body.operations)
        specs = body_specs(body, tuple(v.spec for v in node.inputs))
        return ElementwiseGroup(steps, body.outputs, tuple(s.dtype for s in specs))
    count = len(node.inputs)
    dtypes = (*(v.dtype for v in node.inputs), node.outputs[0].dtype)
    return ElementwiseGroup(((node.op.name, tuple(range(count)), node.attrs),), (count,), dtypes)


def elementwise_group(to: Lowering, node: Node) -> None:
    """Lower a group of elementwise nodes, or one of them."""
    group = group_of(node)
    name, *dtypes = node.op.name, *group.dtypes
    if name != "fused" and (name not in _NAMES or not elementwise.supported(name, dtypes[:-1], dtypes[-1])):
        to.refuse(f"no kernel for {name} of {', '.join(dtypes[:-1])}")
    result = node.outputs[0]
    blocked = to.is_blocked(result)
    operands = operands_of(to, node.inputs, result, blocked)
    # The plain form reads anything, at the price of conversions.
    if operands is None:  # one of them cannot be read next to blocked ones
        blocked, operands = False, operands_of(to, node.inputs, result, False)
    run(to, node, group, operands or [], blocked)


def update(to: Lowering, node: Node) -> None:
    """Lower an optimizer's update, which reads and writes every array once."""
    count = len(node.inputs)
    steps = tuple((node.op.name, tuple(range(count)), {**node.attrs, "result": k}) for k in range(len(node.outputs)))
    group = ElementwiseGroup(
        steps, tuple(range(count, count + len(steps))), tuple(v.dtype for v in (*node.inputs, *node.outputs))
    )
    run(to, node, group, operands_of(to, node.inputs, node.outputs[0], False) or [], False)
    to.how[id(node)] = node.op.name


def operands_of(to: Lowering, inputs: Sequence[Value], result: Value | Spec, blocked: bool) -> list[Operand] | None:
    """The inputs as operands next to a result; None if one of them cannot be read so."""
    operands = [_operand(to, v, result, blocked) for v in inputs]
    return None if None in operands else [o for o in operands if o is not None]


def reads_of(to: Lowering, node: Node, operands: list[Operand]) -> list[Key]:
    """Buffers of a node's inputs that are read in those ways."""
    return [
        to.need(stored(v), BLOCKED if o.kind == "lanes" else PLAIN)
        for v, o in zip(node.inputs, operands, strict=True) if o.kind != "constant"
    ]  # fmt: skip


def run(to: Lowering, node: Node, group: ElementwiseGroup, operands: list[Operand], blocked: bool) -> None:
    """Run a group whose operands are the node's inputs and whose results are its outputs."""
    result, reads = node.outputs[0], reads_of(to, node, operands)
    items: int | None = None
    if blocked:
        spans = [math.prod(v.shape[1:]) for v in node.inputs]
        source = elementwise.blocked(group, operands, result.shape[1:], spans, partial(to.pieces, result))
    else:
        source, items = elementwise.plain(group, operands, result.shape)
    to.add(node, source, reads, [to.buffer(v, BLOCKED if blocked else PLAIN) for v in node.outputs], items)
