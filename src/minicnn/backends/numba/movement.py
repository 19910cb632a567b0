"""Into and out of the blocked form, copies of boxes, gathers."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends.numba.kernel import Lines, Source
from minicnn.backends.numba.vector import BYTES, LANES

_LOAD = {"uint8": "float32(uload(x + {}))", "bool": "float32(uload(x + {}))", "float32": "fload(x + 4 * ({}))"}


def enter(*, samples: int, elements: int, dtype: str, gathered: bool, scale: float = 1.0) -> Source:
    """x (N, elements) or rows of it, as float32 times a scale into (B, elements, 16); one item a block.

    Lanes beyond the last sample are 0.
    """
    out = Lines()
    count, size = out.all_numbers(samples=samples, elements=elements)
    factor = "" if scale == 1.0 else f" * float32({scale!r})"
    with out.block("for block in range(start, stop):"), out.block(f"for lane in range({LANES}):"):
        out(f"n = block * {LANES} + lane", f"yi = y + block * {size} * {BYTES} + lane * 4")
        with out.block(f"if n < {count}:"):
            out(f"row = {'int64(iload(index + n * 4))' if gathered else 'n'} * {size}")
            with out.block(f"for e in range({size}):"):
                out(f"fstore(yi + e * {BYTES}, {_LOAD[dtype].format('row + e')}{factor})")
        with out.block("else:"), out.block(f"for e in range({size}):"):
            out(f"fstore(yi + e * {BYTES}, float32(0))")
    name = "gather" if gathered else "block"
    return out.source(name, *(("x", "index", "y") if gathered else ("x", "y")))


def leave(*, samples: int, elements: int, dtype: str) -> Source:
    """x (B, elements, 16) back to (N, elements) float32 or bool; one item a block."""
    out = Lines()
    count, size = out.all_numbers(samples=samples, elements=elements)
    with out.block("for block in range(start, stop):"):
        out(f"xb = x + block * {size} * {BYTES}")
        with out.block(f"for lane in range(min({LANES}, {count} - block * {LANES})):"):
            out(f"row = (block * {LANES} + lane) * {size}")
            with out.block(f"for e in range({size}):"):
                out(f"v = fload(xb + e * {BYTES} + lane * 4)")
                out("ustore(y + row + e, uint8(v != 0))" if dtype == "bool" else "fstore(y + (row + e) * 4, v)")
    return out.source("unblock", "x", "y")


def clear(*, samples: int, elements: int) -> Source:
    """Set lanes beyond the last sample to 0, in place; one item."""
    out = Lines()
    count, size = out.all_numbers(samples=samples, elements=elements)
    with out.block("for item in range(start, stop):"):
        out(f"last = {count} // {LANES}", f"live = msome({count} - last * {LANES})", "zero = splat(float32(0))")
        with out.block(f"for e in range({size}):"):
            out(f"at = x + (last * {size} + e) * {BYTES}", "vstore(at, vselect(live, vload(at), zero))")
    return out.source("clear", "x")


def gather_rows(*, nbytes: int) -> Source:
    """Rows of a plain array by index, `nbytes` each; one item a row."""
    out = Lines()
    size = out.number("nbytes", nbytes)
    step, load, store = (4, "iload", "istore") if nbytes % 4 == 0 else (1, "uload", "ustore")
    with out.block("for n in range(start, stop):"):
        out(f"row = x + int64(iload(index + n * 4)) * {size}")
        with out.block(f"for e in range(0, {size}, {step}):"):
            out(f"{store}(y + n * {size} + e, {load}(row + e))")
    return out.source("gather", "x", "index", "y")


def copy(shape: Sequence[int], source: Sequence[int], target: Sequence[int], *, first: tuple[int, int],
         spans: tuple[int, int]) -> Source:  # fmt: skip
    """A box of a blocked array into another; one item a block.

    Args:
        shape: Lengths of the box, at most three axes.
        source: Vectors between neighbours along each axis where they come from.
        target: The same where they go.
        first: Vectors before the box in each.
        spans: Vectors of one block of each.
    """
    out = Lines()
    lengths = (*(1,) * (3 - len(shape)), *shape)
    steps = [(*(0,) * (3 - len(s)), *s) for s in (source, target)]
    with out.block("for block in range(start, stop):"):
        for name, base, start, span in zip("pq", "xy", first, spans, strict=True):
            every, here = out.all_numbers(**{f"{name}_span": span, f"{name}_first": start})
            out(f"{name} = {base} + (block * {every} + {here}) * {BYTES}")
        depth = out.depth
        for axis, n in enumerate(lengths):
            out(f"for i{axis} in range({out.number(f'n{axis}', n)}):")
            out.depth += 1
        p, q = (
            " + ".join(f"i{a} * {out.number(f'{name}{a}', s * BYTES)}" for a, s in enumerate(step))
            for name, step in zip(("s", "t"), steps, strict=True)
        )
        out(f"vstore(q + {q}, vload(p + {p}))")
        out.depth = depth
    return out.source("copy", "x", "y")


def fill(*, elements: int, value: float) -> Source:
    """One value everywhere in a blocked array; one item a block."""
    out = Lines()
    size = out.number("elements", elements)
    with out.block("for block in range(start, stop):"), out.block(f"for e in range({size}):"):
        out(f"vstore(y + (block * {size} + e) * {BYTES}, splat(float32({value!r})))")
    return out.source("fill", "y")


def transpose_weights(*, taps: int, channels: int, filters: int, groups: int) -> Source:
    """w (taps, C, groups * F) to (taps, groups, F, C); one item 16 filters of a group at one tap."""
    out = Lines()
    c, f, g = out.all_numbers(channels=channels, filters=filters, groups=groups)
    chunks = out.number("chunks", -(-filters // LANES))
    with out.block("for item in range(start, stop):"):
        out(f"chunk = item % {chunks}", f"tg = item // {chunks}", f"tap = tg // {g}", f"group = tg % {g}")
        out(f"f0 = chunk * {LANES}", f"f1 = min(f0 + {LANES}, {f})")
        with out.block(f"for k in range({c}):"):
            out(f"row = w + ((tap * {c} + k) * {g} + group) * {f} * 4")
            with out.block("for j in range(f0, f1):"):
                out(f"fstore(y + ((tg * {f} + j) * {c} + k) * 4, fload(row + j * 4))")
    return out.source("transpose_weights", "w", "y")
