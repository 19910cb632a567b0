"""Matrix products."""

from __future__ import annotations

from minicnn.ops.checks import require_float, same_dtype
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.program.graph import Node, Spec, Value


@primitive
def matmul(a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False, xp: Namespace) -> Array:
    """Matrix product of a (M, K) and b (K, N), either one given transposed.

    Args:
        a: Shape (M, K), or (K, M) with `transpose_a`.
        b: Shape (K, N), or (N, K) with `transpose_b`.
        transpose_a: Use the transpose of a.
        transpose_b: Use the transpose of b.

    Returns:
        Shape (M, N).
    """
    return xp.matmul(xp.permute_dims(a, (1, 0)) if transpose_a else a, xp.permute_dims(b, (1, 0)) if transpose_b else b)


@matmul.shape
def _(a: Spec, b: Spec, *, transpose_a: bool, transpose_b: bool) -> Spec:
    require_float("matmul", a)
    if a.ndim == 2 and b.ndim == 2:
        m, ka = reversed(a.shape) if transpose_a else a.shape
        kb, n = reversed(b.shape) if transpose_b else b.shape
        if ka == kb:
            return Spec((m, n), same_dtype("matmul", a, b))
    raise ValueError(
        "matmul takes matrices (M, K) and (K, N). Received: "
        f"{a}{' transposed' if transpose_a else ''} and {b}{' transposed' if transpose_b else ''}."
    )


@matmul.cost
def _(node: Node) -> int:
    inner = node.inputs[0].shape[0 if node.attrs["transpose_a"] else 1]
    return 2 * node.outputs[0].size * inner


@matmul.gradient
def _(node: Node, dy: Value) -> list[Value]:
    a, b = node.inputs
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    # Y = op(A) op(B): dA = dY op(B)^T and dB = op(A)^T dY, each transposed back where its factor was.
    da = (
        matmul(b, dy, transpose_a=tb, transpose_b=True) if ta
        else matmul(dy, b, transpose_b=not tb)
    )  # fmt: skip
    db = (
        matmul(dy, a, transpose_a=True, transpose_b=ta) if tb
        else matmul(a, dy, transpose_a=not ta)
    )  # fmt: skip
    return [da, db]
