"""Array creation on the device of another array, in pure Array API."""

from __future__ import annotations

from typing import Any

from minicnn.ops.primitive import Array, Namespace


def place(like: Array) -> dict[str, Any]:
    """Keyword arguments that create an array on the device of `like`."""
    # Arrays under a JAX trace have no concrete device, and the trace places what it creates.
    try:
        return {"device": like.device}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return {}


def zeros(shape: tuple[int, ...], like: Array, xp: Namespace) -> Array:
    """Zeros with the dtype and device of `like`."""
    return xp.zeros(shape, dtype=like.dtype, **place(like))


def full(shape: tuple[int, ...], value: float, like: Array, xp: Namespace) -> Array:
    """One value everywhere, with the dtype and device of `like`."""
    return xp.full(shape, value, dtype=like.dtype, **place(like))


def arange(n: int, like: Array, xp: Namespace, *, dtype: Any = None) -> Array:
    """0, 1 ... n - 1 with the dtype (unless given) and device of `like`."""
    return xp.arange(n, dtype=like.dtype if dtype is None else dtype, **place(like))


def copy_of(y: Array, xp: Namespace) -> Array:
    """The array y, which may be a view, in memory of its own."""
    return xp.asarray(y, copy=True)


def extend(x: Array, axis: int, before: int, after: int, xp: Namespace, value: float = 0.0) -> Array:
    """Array x with constant elements before and after it along one axis; x itself if there are none."""
    shape = list(x.shape)
    parts = [x]
    if before:
        shape[axis] = before
        parts.insert(0, full(tuple(shape), value, x, xp))
    if after:
        shape[axis] = after
        parts.append(full(tuple(shape), value, x, xp))
    return xp.concat(parts, axis=axis) if len(parts) > 1 else x


def add_at(y: Array, index: tuple[slice, ...], part: Array, xp: Namespace) -> Array:
    """Array y with `part` added to a box of it; y is the caller's own and may be overwritten."""
    if hasattr(y, "at"):  # JAX arrays cannot be overwritten
        return y.at[index].add(part)
    if _writes_through_indices(y, xp):
        # In place where the library allows it: a new array for each tap would move all of it again.
        box = y[index]
        box += part
        return y
    # Without writing, the part is spread to the size of the whole and added.
    for axis, (where, n) in enumerate(zip(index, y.shape, strict=True)):
        start, _, step = where.indices(n)
        part = spread(part, axis, step, xp)
        part = extend(part, axis, start, n - start - part.shape[axis], xp)
    return y + part


_VIEWS: dict[type, bool] = {}  # by the type of an array


def _writes_through_indices(like: Array, xp: Namespace) -> bool:
    """True if an index of such an array is a view, through which it can be changed: the standard leaves it open."""
    kind = type(like)
    if kind not in _VIEWS:
        # Tried out once for each type, as no flag says it.
        whole = zeros((2,), like, xp)
        box = whole[:1]
        try:
            box += 1
            _VIEWS[kind] = bool(xp.any(whole != 0))
        except (TypeError, ValueError, RuntimeError, NotImplementedError):  # whatever a library has for "read-only"
            _VIEWS[kind] = False
    return _VIEWS[kind]


def spread(x: Array, axis: int, step: int, xp: Namespace) -> Array:
    """Array x with zeros between its elements along one axis, `step` from one to the next."""
    shape = list(x.shape)
    if step == 1 or shape[axis] < 2:
        return x
    gaps = zeros((*shape[: axis + 1], step - 1, *shape[axis + 1 :]), x, xp)
    x = xp.concat([xp.expand_dims(x, axis=axis + 1), gaps], axis=axis + 1)
    shape[axis] *= step
    x = xp.reshape(x, tuple(shape))
    return x[(*(slice(None),) * axis, slice(0, shape[axis] - step + 1), ...)]


def rounded(product: Array, xp: Namespace) -> Array:
    """Products no larger than 2^100, which no compiler adds to something in the same instruction.

    A fused multiply-add does not round the product. One compiled for one reader of a sum and none for another give two
    sums, which lie on both sides of a whole number where the sum is close to it.
    """
    return xp.minimum(product, full((), 2.0**100, product, xp))


def materialized(x: Array, xp: Namespace) -> Array:
    """The array x, less than infinity, computed once for all of its readers: small arrays only, as they are sorted.

    Compilers may compute an array anew for each of its readers, and its bits then depend on the reader. XLA does so
    even behind an optimization barrier on a CPU, and never with the result of a sort. It is the lesser of x and
    infinity; a product with the identity, which is not computed anew either, could round x to TF32.
    """
    beyond = xp.broadcast_to(full((1,) * x.ndim, float("inf"), x, xp), x.shape)
    return xp.sort(xp.stack([x, beyond], axis=-1), axis=-1)[..., 0]


def masked(dy: Array, mask: Array, xp: Namespace) -> Array:
    """Finite dy where the bool mask holds, 0 elsewhere.

    A product rather than a choice: on irregular masks NumPy's where mispredicts a branch every other
    element and takes twenty times as long.
    """
    return xp.multiply(dy, xp.astype(mask, dy.dtype))
