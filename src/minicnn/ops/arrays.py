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
    """X with constant elements before and after it along one axis; x itself if there are none."""
    shape = list(x.shape)
    parts = [x]
    if before:
        shape[axis] = before
        parts.insert(0, full(tuple(shape), value, x, xp))
    if after:
        shape[axis] = after
        parts.append(full(tuple(shape), value, x, xp))
    return xp.concat(parts, axis=axis) if len(parts) > 1 else x


def add_at(y: Array, index: tuple[slice, ...], part: Array) -> Array:
    """Y with `part` added to a box of it; y is the caller's own and may be overwritten."""
    if hasattr(y, "at"):  # JAX arrays cannot be overwritten
        return y.at[index].add(part)
    box = y[index]
    box += part
    return y


def masked(dy: Array, mask: Array, xp: Namespace) -> Array:
    """Finite dy where the bool mask holds, 0 elsewhere.

    A product rather than a choice: on irregular masks NumPy's where mispredicts a branch every other
    element and takes twenty times as long.
    """
    return xp.multiply(dy, xp.astype(mask, dy.dtype))
