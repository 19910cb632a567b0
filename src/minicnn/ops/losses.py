"""Softmax cross-entropy from integer labels, with its gradient as one operation."""

from __future__ import annotations

from minicnn.ops.activations import log_softmax, softmax
from minicnn.ops.checks import require_float, same_dtype
from minicnn.ops.manipulation import one_hot
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.ops.reduction import broadcast_to
from minicnn.ops.reduction import sum as sum_
from minicnn.ops.shapes import reshape
from minicnn.program.graph import Node, Spec, Value


def _hits(logits: Array, labels: Array, xp: Namespace) -> Array:
    return one_hot.reference(labels, classes=logits.shape[-1], dtype="bool", xp=xp)


@primitive
def softmax_cross_entropy(logits: Array, labels: Array, *, xp: Namespace) -> Array:
    """Negative log-likelihood of each label: -log(softmax(logits)[label]).

    Args:
        logits: Shape (..., K).
        labels: Integers from 0 to K - 1, shape (...). A label outside counts for nothing: its loss is 0.

    Returns:
        Losses in nats, shape (...).
    """
    log_p = log_softmax.reference(logits, xp=xp)
    # A choice, not a product: log_p may be -inf beside the label.
    return -xp.sum(xp.where(_hits(logits, labels, xp), log_p, xp.zeros_like(log_p)), axis=-1)


@softmax_cross_entropy.shape
def _(logits: Spec, labels: Spec) -> Spec:
    require_float("softmax_cross_entropy", logits)
    if logits.shape[:-1] != labels.shape or "int" not in labels.dtype:
        raise ValueError(
            "softmax_cross_entropy takes logits (..., K) and integer labels (...). "
            f"Received: {logits} and {labels}. One-hot labels belong to the dense categorical cross-entropy."
        )
    return Spec(labels.shape, logits.dtype)


@softmax_cross_entropy.cost
def _(node: Node) -> int:
    return 14 * node.inputs[0].size


@softmax_cross_entropy.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    logits, labels = node.inputs
    return [softmax_cross_entropy_gradient(dy, logits, labels), None]


@primitive(flops=16)
def softmax_cross_entropy_gradient(dy: Array, logits: Array, labels: Array, *, xp: Namespace) -> Array:
    """Gradient with respect to the logits: dy * (softmax(logits) - one_hot(labels)).

    Args:
        dy: Gradient of the losses, shape (...).
        logits: Shape (..., K).
        labels: Integers, shape (...).

    Returns:
        Shape (..., K).
    """
    hits = xp.astype(_hits(logits, labels, xp), logits.dtype)
    # A label outside 0 .. K - 1 has no hit, no loss and no gradient.
    inside = xp.sum(hits, axis=-1, keepdims=True)
    return (softmax.reference(logits, xp=xp) * inside - hits) * xp.expand_dims(dy, axis=-1)


@softmax_cross_entropy_gradient.shape
def _(dy: Spec, logits: Spec, labels: Spec) -> Spec:
    same_dtype("softmax_cross_entropy_gradient", dy, logits)
    if not dy.shape == labels.shape == logits.shape[:-1]:
        raise ValueError(
            "softmax_cross_entropy_gradient takes dy (...), logits (..., K) and labels (...). "
            f"Received: {dy}, {logits} and {labels}."
        )
    return logits


@softmax_cross_entropy_gradient.gradient
def _(node: Node, gradient: Value) -> list[Value | None]:
    dy, logits, labels = node.inputs
    ones = broadcast_to(dy.program.constant(1.0, dy.dtype), shape=dy.shape)
    alone = softmax_cross_entropy_gradient(ones, logits, labels)
    # softmax(logits), but 0 where the label is outside.
    p = alone + one_hot(labels, classes=logits.shape[-1], dtype=logits.dtype)
    spread = p * (gradient - sum_(gradient * p, axes=-1, keepdims=True))
    return [sum_(gradient * alone, axes=-1), spread * reshape(dy, shape=(*dy.shape, 1)), None]
