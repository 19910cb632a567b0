"""Reverse-mode differentiation: the backward nodes, appended to the Program."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn import ops
from minicnn.program.graph import Node, Program, Value


def gradients(program: Program, loss: Value, wrt: Sequence[Value]) -> list[Value]:
    """Append the backward nodes of a scalar and return its gradient with respect to each value.

    Args:
        program: The Program that owns the values.
        loss: A scalar, shape ().
        wrt: Values to differentiate by, usually the trainable parameters. What an optimizer has made of them in the
            same Program is a constant, as is what `ops.stop_gradient` gives.

    Returns:
        One Value each, of the same shape; zeros where the loss does not depend on it.

    Raises:
        ValueError: If the loss is not a floating-point scalar, or a value belongs to another Program.
        TypeError: If a gradient reaches a primitive that has no gradient rule.
    """
    if loss.shape != () or "float" not in loss.dtype:
        raise ValueError(
            "Only a floating-point scalar can be differentiated. "
            f"Received: {loss!r}. Reduce it first, e.g. with ops.mean."
        )
    for value in (loss, *wrt):
        if value.program is not program:
            raise ValueError(
                f"Gradients are taken between values of one Program. Received: {value!r} of "
                f"{value.program.name!r} for {program.name!r}. Trace the loss and its inputs in one Program."
            )
    # Only what lies between the weights and the loss gets a backward node: data and labels need none.
    active = depends_on(program, wrt)
    gradient_of: dict[int, Value] = {id(loss): program.constant(1.0, loss.dtype)}
    # A copy, since the backward nodes are appended to the same list.
    for node in reversed(program.nodes.copy()):
        if node.phase == "update" or not any(id(v) in active for v in node.inputs):
            continue
        incoming = [gradient_of.get(id(v)) for v in node.outputs]
        # The loss does not depend on any of the results.
        if all(g is None for g in incoming):
            continue
        if not node.op.differentiable:
            raise TypeError(
                f"A gradient reaches {node.op.name} in {node.scope or program.name!r}, which has no gradient rule. "
                f"Add one with @{node.op.name}.gradient, or cut the path."
            )
        with program.scope_of(node, "backward"):
            _accumulate(node, incoming, active, gradient_of)
    with program.scope("", "backward"):
        return [_found_or_zero(program, gradient_of, value) for value in wrt]


def depends_on(program: Program, wrt: Sequence[Value]) -> set[int]:
    """Ids of the floating-point Values that gradients with respect to the given ones go through."""
    active = {id(v) for v in wrt}
    for node in program.nodes:
        # An optimizer's step is assigned, as by Keras, and not part of what is differentiated.
        if node.phase != "update" and any(id(v) in active for v in node.inputs):
            active.update(id(v) for v in node.outputs if "float" in v.dtype and id(v) not in program.stopped)
    return active


def _accumulate(node: Node, incoming: Sequence[Value | None], active: set[int], gradient_of: dict[int, Value]) -> None:
    for value, gradient in zip(node.inputs, node.op.emit_gradient(node, incoming), strict=True):
        if gradient is None or id(value) not in active:
            continue
        if gradient.spec != value.spec:
            raise ValueError(
                f"A gradient has the shape and dtype of its value. Received from the gradient rule of "
                f"{node.op.name}: {gradient.spec} for {value.spec}. Use ops.sum_to_shape after broadcasting."
            )
        # A value that is read several times gets the sum of its readers' gradients: the chain rule.
        earlier = gradient_of.get(id(value))
        gradient_of[id(value)] = gradient if earlier is None else earlier + gradient


def _found_or_zero(program: Program, gradient_of: dict[int, Value], value: Value) -> Value:
    gradient = gradient_of.get(id(value))
    if gradient is not None:
        return gradient
    # Explicit zeros, so that optimizers need no case for weights without a gradient.
    return ops.broadcast_to(program.constant(0.0, value.dtype), shape=value.shape)
