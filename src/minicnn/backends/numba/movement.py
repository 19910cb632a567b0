"""Packing into the blocked form and unpacking, copies of boxes, gathers."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.short import SHORT, SHORT_BYTES, bytes_of, load_of, store_of
from minicnn.program.graph import ITEMSIZE

_LOAD = {
    "uint8": "float32(uload(x + {}))", "bool": "float32(uload(x + {}))", "float32": "fload(x + 4 * ({}))",
    SHORT: "hload(x + 2 * ({}))",
}  # fmt: skip


def pack(*, samples: int, elements: int, dtype: str, gathered: bool, scale: float = 1.0, pieces: int = 1) -> KernelCode:
    """x (N, elements) or rows of it, as float32 times a scale into (B, elements, 16); one item a piece of a block.

    Lanes beyond the last sample are 0. A bfloat16 stays one.
    """
    out = Lines()
    width, store, zero = (bytes_of(dtype), "hstore", "uint16(0)") if dtype == SHORT else (BYTES, "fstore", "float32(0)")
    count, size = out.all_numbers(samples=samples, elements=elements)
    factor = "" if scale == 1.0 else f" * float32({scale!r})"
    # Sample by sample: rows are then read in order, and writes spread over few lines of the cache.
    with out.pieces(pieces), out.block(f"for lane in range({LANES}):"):
        out(f"n = block * {LANES} + lane", f"yi = y + block * {size} * {width} + lane * {width // LANES}")
        with out.block(f"if n < {count}:"):
            out(f"row = {'int64(iload(index + n * 4))' if gathered else 'n'} * {size}")
            with out.block(f"for e in {out.rounds(size)}:"):
                out(f"{store}(yi + e * {width}, {_LOAD[dtype].format('row + e')}{factor})")
        with out.block("else:"), out.block(f"for e in {out.rounds(size)}:"):
            out(f"{store}(yi + e * {width}, {zero})")
    name = "gather" if gathered else "block"
    return out.source(name, *(("x", "index", "y") if gathered else ("x", "y")))


def unpack(*, samples: int, elements: int, dtype: str, pieces: int = 1) -> KernelCode:
    """x (B, elements, 16) back to (N, elements) of its type, float32 or bool; one item a piece of a block."""
    out, width = Lines(), bytes_of(dtype)
    count, size = out.all_numbers(samples=samples, elements=elements)
    with out.pieces(pieces):
        out(f"xb = x + block * {size} * {width}")
        with out.block(f"for lane in range(min({LANES}, {count} - block * {LANES})):"):
            out(f"row = (block * {LANES} + lane) * {size}")
            with out.block(f"for e in {out.rounds(size)}:"):
                out(f"v = {'h' if dtype == SHORT else 'f'}load(xb + e * {width} + lane * {width // LANES})")
                stores = {"bool": "ustore(y + row + e, uint8(v != 0))", SHORT: "hstore(y + (row + e) * 2, v)"}
                out(stores.get(dtype, "fstore(y + (row + e) * 4, v)"))
    return out.source("unblock", "x", "y")


def clear(*, samples: int, elements: int, dtype: str) -> KernelCode:
    """Set lanes beyond the last sample to 0, in place; one item."""
    out = Lines()
    count, size = out.all_numbers(samples=samples, elements=elements)
    with out.block("for item in range(start, stop):"):
        out(f"last = {count} // {LANES}", f"live = msome({count} - last * {LANES})", "zero = splat(float32(0))")
        with out.block(f"for e in range({size}):"):
            out(f"at = x + (last * {size} + e) * {bytes_of(dtype)}")
            out(f"{store_of(dtype)}(at, vselect(live, {load_of(dtype)}(at), zero))")
    return out.source("clear", "x")


def gather_rows(*, nbytes: int, rows: int | None) -> KernelCode:
    """Rows of a plain array by index, `nbytes` each; one item a row.

    Given how many rows there are, an index outside takes the nearest; else it is checked before the step.
    """
    out = Lines()
    size = out.number("nbytes", nbytes)
    # Four bytes at a time, of whatever type, where rows consist of such.
    step, load, store = (4, "iload", "istore") if nbytes % 4 == 0 else (1, "uload", "ustore")
    with out.block("for n in range(start, stop):"):
        out("at = int64(iload(index + n * 4))")
        if rows is not None:
            out(f"at = max(min(at, {out.number('rows', rows)} - 1), 0)")
        out(f"row = x + at * {size}")
        with out.block(f"for e in range(0, {size}, {step}):"):
            out(f"{store}(y + n * {size} + e, {load}(row + e))")
    return out.source("gather", "x", "index", "y")


def add_rows(*, count: int, rows: int, elements: int, width: int) -> KernelCode:
    """Row i of y is the sum of the rows of x, `count` of them, whose index is i; one item `width` columns."""
    out = Lines()
    count_, rows_, size, step = out.all_numbers(count=count, rows=rows, size=elements, step=width)
    with out.block("for item in range(start, stop):"):
        out(f"first, last = item * {step}, min((item + 1) * {step}, {size})")
        with out.nest(f"for row in range({rows_}):", "for e in range(first, last):"):
            out(f"fstore(y + (row * {size} + e) * 4, float32(0))")
        # One thread has all rows of its columns, so that equal indices add up in their order, the same every time.
        with out.block(f"for n in range({count_}):"):
            out("row = int64(iload(index + n * 4))")
            with out.nest(f"if 0 <= row < {rows_}:", "for e in range(first, last):"):
                out(f"at = y + (row * {size} + e) * 4")
                out(f"fstore(at, fload(at) + fload(x + (n * {size} + e) * 4))")
    return out.source("add_rows", "x", "index", "y")


def copy(shape: Sequence[int], source: Sequence[int], target: Sequence[int], first: tuple[int, int] = (0, 0), *,
         nbytes: int = BYTES) -> KernelCode:  # fmt: skip
    """A box of an array into another of the same form; one item an index of its first axis.

    Args:
        shape: Lengths of the box.
        source: Elements between neighbours along each axis where they come from; 0 repeats them.
        target: The same where they go.
        first: Elements before the box in each.
        nbytes: Size of an element: that of a vector in blocked arrays, 1, 2 or 4 in plain ones.
    """
    out = Lines()
    missing = max(0, 4 - len(shape))  # boxes of few axes share a function
    lengths = (*(1,) * missing, *shape[1:])
    steps = [(s[0], *(0,) * missing, *s[1:]) for s in (source, target)]
    # Neighbours that stay neighbours move 16 at a time.
    runs = nbytes == 4 and steps[0][-1] == steps[1][-1] == 1 and lengths[-1] > 1
    letter = {BYTES: "v", SHORT_BYTES: "short_", 4: "i", 2: "h", 1: "u"}[nbytes]
    load, store = f"{letter}load", f"{letter}store"
    with out.block("for item in range(start, stop):"):
        for name, base, step, start in zip("pq", "xy", steps, first, strict=True):
            numbers = (out.number(f"{name}0", step[0] * nbytes), out.number(f"{name}_first", start * nbytes))
            out(f"{name} = {base} + item * {numbers[0]} + {numbers[1]}")
        for axis, n in enumerate(lengths, 1):
            every = f", {LANES}" if runs and axis == len(lengths) else ""
            out(f"for i{axis} in range({'0, ' if every else ''}{out.number(f'n{axis}', n)}{every}):")
            out.depth += 1
        at = [
            " + ".join(f"i{a} * {out.number(f'{name}{a}', s * nbytes)}" for a, s in enumerate(step[1:], 1))
            for name, step in zip("pq", steps, strict=True)
        ]
        if runs:
            out(f"left = n{len(lengths)} - i{len(lengths)}")
            out(f"vstore_some(q + {at[1]}, vload_some(p + {at[0]}, left), left)")
        else:
            out(f"{store}(q + {at[1]}, {load}(p + {at[0]}))")
    return out.source("copy", "x", "y")


def one_hot(*, classes: int, labels: str, dtype: str) -> KernelCode:
    """1 at each label along K of a plain array (.., K), 0 elsewhere; one item a label."""
    out = Lines()
    k = out.number("classes", classes)
    load = "int64(uload(x + row))" if labels == "uint8" else "int64(iload(x + row * 4))"
    store, kind = {"float32": ("fstore", "float32"), "int32": ("istore", "int32")}.get(dtype, ("ustore", "uint8"))
    with out.block("for row in range(start, stop):"):
        out(f"label = {load}")
        with out.block(f"for c in range({k}):"):
            out(f"{store}(y + (row * {k} + c) * {ITEMSIZE[dtype]}, {kind}(c == label))")
    return out.source("one_hot", "x", "y")


def paired_weights(*, taps: int, channels: int, filters: int, groups: int) -> tuple[KernelCode, int]:
    """w (taps, C, groups * F) to pairs along the channels (taps, groups, ceil(C / 2), F), and the number of items."""
    out = Lines()
    c, f, g, p = out.all_numbers(channels=channels, filters=filters, groups=groups, pairs=-(-channels // 2))
    with out.block("for item in range(start, stop):"):
        out(f"pair = item % {p}", f"tg = item // {p}", f"tap = tg // {g}", f"group = tg % {g}", f"row = {f} * {g} * 4")
        out(f"first = w + (tap * {c} + 2 * pair) * row + group * {f} * 4", f"yi = y + item * {f} * 4")
        out(f"both = 2 * pair + 1 < {c}")
        with out.block(f"for j in range(0, {f}, {LANES}):"):
            out(f"left = {f} - j", "at = first + j * 4")
            # No lanes of a row that is not there are read.
            out("second = vload_some(at + row, left if both else 0)")
            out("vstore_some(yi + j * 4, vpair(vload_some(at, left), second), left)")
    return out.source("paired_weights", "w", "y"), taps * groups * -(-channels // 2)


def paired_filters(*, taps: int, channels: int, filters: int, groups: int) -> tuple[KernelCode, int]:
    """w (taps, C, groups * F) to pairs along the filters (taps, groups, ceil(F / 2), C), and the number of items."""
    out = Lines()
    c, f, g, p = out.all_numbers(channels=channels, filters=filters, groups=groups, pairs=-(-filters // 2))
    chunks = out.number("chunks", -(-channels // LANES))
    out("rows = stack()", f"columns = rows + {LANES * BYTES}")
    with out.block("for item in range(start, stop):"):
        out(f"c0 = item % {chunks} * {LANES}", f"tg = item // {chunks}", f"tap = tg // {g}", f"group = tg % {g}")
        with out.block(f"for j in range(0, {f}, {2 * LANES}):"):
            with out.block(f"for r in range(min({LANES}, {c} - c0)):"):
                out(f"at = w + (((tap * {c} + c0 + r) * {g} + group) * {f} + j) * 4", f"left = {f} - j")
                second = f"vload_some(at + {BYTES}, left - {LANES})"
                out(f"vstore(rows + r * {BYTES}, vneighbours(vload_some(at, left), {second}))")
            out(f"transpose(columns, rows, {BYTES}, {LANES - 1})")
            with out.block(f"for k in range(min({LANES}, {p} - j // 2)):"):
                out(f"at = y + ((tg * {p} + j // 2 + k) * {c} + c0) * 4")
                out(f"vstore_some(at, vload(columns + k * {BYTES}), {c} - c0)")
    return out.source("paired_weights", "w", "y"), taps * groups * -(-channels // LANES)


def transpose_weights(*, channels: int, filters: int, groups: int) -> KernelCode:
    """w (taps, C, groups * F) to (taps, groups, F, C); one item 16 filters of a group at one tap."""
    out = Lines()
    c, f, g = out.all_numbers(channels=channels, filters=filters, groups=groups)
    chunks = out.number("chunks", -(-filters // LANES))
    with out.block("for item in range(start, stop):"):
        out(f"chunk = item % {chunks}", f"tg = item // {chunks}", f"tap = tg // {g}", f"group = tg % {g}")
        if min(channels, filters) >= LANES:
            # The last square overlaps the one before, which writes the same numbers.
            out(f"first = min(chunk * {LANES}, {f} - {LANES})")
            with out.block(f"for q in range(0, {c}, {LANES}):"):
                out(f"k = min(q, {c} - {LANES})", f"row = w + (((tap * {c} + k) * {g} + group) * {f} + first) * 4")
                at = f"y + ((tg * {f} + first) * {c} + k) * 4"
                out(f"transpose_rows({at}, row, {c} * 4, {LANES - 1}, {g} * {f} * 4)")
            return out.source("transpose_weights", "w", "y")
        out(f"first = chunk * {LANES}", f"last = min(first + {LANES}, {f})")
        with out.block(f"for k in range({c}):"):
            out(f"row = w + ((tap * {c} + k) * {g} + group) * {f} * 4")
            with out.block("for j in range(first, last):"):
                out(f"fstore(y + ((tg * {f} + j) * {c} + k) * 4, fload(row + j * 4))")
    return out.source("transpose_weights", "w", "y")


def frame(*, height: int, width: int, pixel: int, rows: tuple[int, int], columns: tuple[int, int]) -> KernelCode:
    """Images (N, H, W, C) with zeros around them; one item a row of the result.

    Args:
        height: H.
        width: W.
        pixel: C.
        rows: Rows before and behind an image.
        columns: Columns before and behind it.
    """
    out = Lines()
    h, whole, n, left, right, top = out.all_numbers(
        height=height, whole=height + sum(rows), row=width * pixel, left=columns[0] * pixel, right=columns[1] * pixel,
        top=rows[0],
    )  # fmt: skip
    with out.block("for item in range(start, stop):"):
        out(f"i = item % {whole} - {top}", f"to = y + item * ({left} + {n} + {right}) * 4", "zero = splat(float32(0))")
        out(f"inside = 0 <= i < {h}", f"at = x + (item // {whole} * {h} + i) * {n} * 4")
        out(f"before = {left} if inside else {left} + {n} + {right}")
        with out.block(f"for k in range(0, before, {LANES}):"):
            out("vstore_some(to + k * 4, zero, before - k)")
        with out.block("if inside:"):
            out(f"to += {left} * 4")
            with out.block(f"for k in range(0, {n}, {LANES}):"):
                out(f"vstore_some(to + k * 4, vload_some(at + k * 4, {n} - k), {n} - k)")
            out(f"to += {n} * 4")
            with out.block(f"for k in range(0, {right}, {LANES}):"):
                out(f"vstore_some(to + k * 4, zero, {right} - k)")
    return out.source("frame", "x", "y")
