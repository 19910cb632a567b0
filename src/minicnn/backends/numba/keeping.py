"""Values that weights alone determine: made once, for as long as the weights stay the same.

Where no weight is updated, as in predictions and evaluations, kernels that read nothing but weights run when these have
become others: scales of normalisations folded into weights, weights in the order that kernels read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from minicnn.backends.numba.lowering import Key, Task
from minicnn.ops.shapes import reshape
from minicnn.program.graph import Node, Program, Value
from minicnn.program.passes import remove_dead_nodes
from minicnn.program.readers import Readers

_PRODUCTS = ("conv2d", "depthwise_conv2d", "matmul")


def fixed_values(program: Program) -> set[int]:
    """Ids of the values that weights alone determine; none if weights are updated."""
    weights = [v for v in program.inputs if v.kind in ("parameter", "statistic")]
    if {v.name for v in weights} & set(program.updates):
        return set()
    fixed = {id(v) for v in (*weights, *program.constants)}
    for node in program.nodes:
        if node.inputs and all(id(v) in fixed for v in node.inputs):
            fixed.update(id(v) for v in node.outputs)
    return fixed


def fold(program: Program) -> None:
    """Rewrite a Program in place: fixed scales of the channels of a product go into its weights.

    What is added after the product is scaled, too: (x * w + b) * a = x * (w * a) + b * a.
    """
    fixed, readers = fixed_values(program), Readers(program)

    def folded(node: Node) -> Sequence[Value] | None:
        if node.op.name != "multiply":
            return None
        for image, scale in (node.inputs, node.inputs[::-1]):
            if id(scale) in fixed and _of_channels(scale, image):
                return _scaled(image, scale, lambda v: id(v) in fixed, readers)
        return None

    if program.replace(folded):
        remove_dead_nodes(program)


def _scaled(image: Value, scale: Value, fixed: Callable[[Value], bool], readers: Readers) -> list[Value] | None:
    """An image that is a product, or one with numbers added, times a scale; None if that takes another product."""
    producer = image.node
    if producer is None or readers.only(image) is None:
        return None
    if producer.op.name == "add":
        for product, offset in (producer.inputs, producer.inputs[::-1]):
            if fixed(offset) and _of_channels(offset, product):
                results = _scaled(product, scale, fixed, readers)
                return None if results is None else [results[0] + offset * scale]
        return None
    if producer.op.name not in _PRODUCTS or producer.attrs.get("transpose_a") or producer.attrs.get("transpose_b"):
        return None
    x, w = producer.inputs
    if not fixed(w) or fixed(x) or w.dtype != "float32":
        return None
    shape = w.shape[2:] if producer.op.name == "depthwise_conv2d" else w.shape[-1:]
    return [producer.op(x, w * reshape(scale, shape=shape), **producer.attrs)]


def _of_channels(numbers: Value, image: Value) -> bool:
    """True if there is a number for each channel of an image, in the image's type."""
    alike = numbers.dtype == image.dtype == "float32" and image.ndim > 1
    return alike and numbers.shape[-1:] == image.shape[-1:] and numbers.size == image.shape[-1]


def parted(tasks: Sequence[Task], fixed: Collection[Key], results: Collection[Key]) -> tuple[list[Task], list[Task]]:
    """Tasks that run when weights have become others, and those that run each time.

    Args:
        tasks: All, in order.
        fixed: Buffers of weights and constants.
        results: Buffers that are new each time.
    """
    writers = Counter([*results, *(key for task in tasks for key in task.writes)])
    known, once, always = set(fixed), [], []
    for task in tasks:
        # What others write, too, is no longer there at the next call.
        if task.source and known.issuperset(task.reads) and all(writers[key] == 1 for key in task.writes):
            known.update(task.writes)
            once.append(task)
        else:
            always.append(task)
    return once, always
