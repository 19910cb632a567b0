"""Sums, means, maxima and their places: over axes of each sample, over the batch, over plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicnn.backends.numba.kernel import Lines, Source, even_tile
from minicnn.backends.numba.vector import BYTES, LANES
from minicnn.backends.numba.weights import lanes_apart, part_bytes

_START = {"sum": "0.0", "mean": "0.0", "max": "-inf"}
_STEP = {"sum": "vadd", "mean": "vadd", "max": "vmax"}
CHANNELS = 8  # accumulators of a sum over the batch


def of_samples(kind: str, sizes: Sequence[int], reduced: Sequence[bool], *, samples: int, vector: bool) -> Source:
    """Reduction over axes of each sample of x (B, sizes, 16); one item a block.

    Args:
        kind: "sum", "mean" or "max".
        sizes: Lengths of the axes of a sample.
        reduced: Which of them are reduced.
        samples: N.
        vector: Whether the result is a plain array (N,) rather than blocked.
    """
    out = Lines()
    total, made, count = 1, 1, 1
    strides = []
    for n, gone in zip(reversed(sizes), reversed(reduced), strict=True):
        strides.append((total, made))
        total *= n
        made, count = (made, count * n) if gone else (made * n, count)
    strides.reverse()
    places = list(range(len(sizes)))
    with out.block("for block in range(start, stop):"):
        out(f"xb = x + block * {out.number('total', total * BYTES)}")
        out(f"yb = y + block * {out.number('made', made * BYTES)}")
        kept, along = ([i for i in places if reduced[i] == which] for which in (False, True))
        with out.nest(*(f"for i{i} in range({out.number(f'n{i}', sizes[i])}):" for i in kept)):
            out(f"a = splat(float32({_START[kind]}))")
            with out.nest(*(f"for i{i} in range({out.number(f'n{i}', sizes[i])}):" for i in along)):
                at = "".join(f" + i{i} * {out.number(f's{i}', strides[i][0] * BYTES)}" for i in places)
                out(f"a = {_STEP[kind]}(a, vload(xb{at}))")
            if kind == "mean":
                out(f"a = vdiv(a, splat(float32({out.number('count', count)})))")
            at = "".join(f" + i{i} * {out.number(f't{i}', strides[i][1] * BYTES)}" for i in kept)
            if vector:
                out(f"vstore_some(yb, a, {out.number('samples', samples)} - block * {LANES})")
            else:
                out(f"vstore(yb{at}, a)")
    return out.source(kind, "x", "y")


def max_gradient(sizes: Sequence[int], reduced: Sequence[bool], *, samples: int, vector: bool) -> Source:
    """dx of maxima y over axes of each sample of x (B, sizes, 16); one item a block.

    dy goes to the first element that equals y; where none does (NaN), to the last one.

    Args:
        sizes: Lengths of the axes of a sample.
        reduced: Which of them are reduced.
        samples: N.
        vector: Whether dy and y are plain arrays (N,) rather than blocked.
    """
    out = Lines()
    sizes, reduced = [*sizes, *[1] * reduced[-1]], [*reduced, *[False] * reduced[-1]]
    last, width = len(sizes) - 1, even_tile(sizes[-1], CHANNELS)
    n = [out.number(f"n{i}", size) for i, size in enumerate(sizes)]

    def address(places: Sequence[int]) -> str:
        at = "0"
        for i in places:
            at = f"({at} * {n[i]} + i{i})"
        return f"{at} * {BYTES}"

    kept = [i for i in range(last) if not reduced[i]]
    with out.block("for block in range(start, stop):"):
        out(f"xb = x + block * {' * '.join(n)} * {BYTES}")
        out(f"yb = y + block * {' * '.join([n[i] for i in (*kept, last)])} * {BYTES}")
        heads = [f"for i{i} in range({n[i]}):" for i in range(last)]
        with out.nest(*(heads[i] for i in kept), f"for tile in range(0, {n[last]}, {width}):"):
            out(f"i{last} = min(tile, {n[last]} - {width})")
            if vector:
                out(f"yi = y + block * {BYTES}", f"left = {out.number('samples', samples)} - block * {LANES}")
                out("top0 = vload_some(yi, left)", "g0 = vload_some(dy + yi - y, left)")
            else:
                out(f"yi = yb + {address([*kept, last])}")
                out(*(f"top{k} = vload(yi + {k * BYTES})" for k in range(width)))
                out(*(f"g{k} = vload(dy + yi - y + {k * BYTES})" for k in range(width)))
            out("zero = splat(float32(0))")
            each = list(enumerate(range(0, width * BYTES, BYTES)))
            with out.nest(*(heads[i] for i in range(last) if reduced[i])):
                out(f"xi = xb + {address(range(last + 1))}", "di = dx + xi - x")
                for k, at in each:
                    out(f"hit = veq(vload(xi + {at}), top{k})", f"vstore(di + {at}, vselect(hit, g{k}, zero))")
                    out(f"g{k} = vselect(hit, zero, g{k})")
            out(*(f"vstore(di + {at}, vadd(vload(di + {at}), g{k}))" for k, at in each))
    return out.source("max_gradient", "dy", "x", "y", "dx")


def max_gradient_plain(sizes: Sequence[int], reduced: Sequence[bool]) -> tuple[Source, int]:
    """The same for plain arrays, one element of y an item, and the number of items."""
    out = Lines()
    places, n = range(len(sizes)), [out.number(f"n{i}", size) for i, size in enumerate(sizes)]
    at = "0"
    for i in places:
        at = f"({at} * {n[i]} + i{i})"
    with out.block("for item in range(start, stop):"):
        out("rest = item", "top = fload(y + item * 4)", "g = fload(dy + item * 4)", "p = dx")
        for i in (i for i in reversed(places) if not reduced[i]):
            out(f"i{i} = rest % {n[i]}", f"rest = rest // {n[i]}")
        with out.nest(*(f"for i{i} in range({n[i]}):" for i in places if reduced[i])):
            out(f"p = dx + {at} * 4", "hit = fload(p + x - dx) == top", "fstore(p, g if hit else float32(0))")
            out("g = float32(0) if hit else g")
        out("fstore(p, fload(p) + g)")
    count = math.prod(size for size, gone in zip(sizes, reduced, strict=True) if not gone)
    return out.source("max_gradient", "dy", "x", "y", "dx"), count


def argmax(*, samples: int, classes: int) -> Source:
    """Index of the first maximum (or NaN) of x (B, K, 16) as int32 (N,); one item a block."""
    out = Lines()
    n, k = out.all_numbers(samples=samples, classes=classes)
    with out.block("for block in range(start, stop):"):
        out(f"xb = x + block * {k} * {BYTES}", "top = vload(xb)", "at = splat(float32(0))")
        with out.block(f"for i in range(1, {k}):"):
            out(f"v = vload(xb + i * {BYTES})", "better = mor(vgt(v, top), mand(mnan(v), mnot(mnan(top))))")
            out("top = vselect(better, v, top)", "at = vselect(better, splat(float32(i)), at)")
        out(f"vstore_some(y + block * {BYTES}, float_to_int(at), {n} - block * {LANES})")
    return out.source("argmax", "x", "y")


def argmax_plain(*, classes: int, inner: int, dtype: str) -> Source:
    """Index of the first maximum (or NaN) along K of a plain array (.., K, inner) as int32; one item a row."""
    out = Lines()
    k, m = out.all_numbers(classes=classes, inner=inner)
    small = dtype in ("bool", "uint8")
    load, size = ("uload", 1) if small else ("iload" if dtype == "int32" else "fload", 4)
    with out.block("for row in range(start, stop):"), out.block(f"for i in range({m}):"):
        out(f"p = x + (row * {k} * {m} + i) * {size}", f"top = {load}(p)", "at = 0")
        with out.block(f"for c in range(1, {k}):"):
            out(f"v = {load}(p + c * {m} * {size})")
            with out.block("if v > top or (v != v and top == top):"):
                out("top = v", "at = c")
        out(f"istore(y + (row * {m} + i) * 4, int32(at))")
    return out.source("argmax", "x", "y")


def of_plain(kind: str, sizes: Sequence[int], reduced: Sequence[bool]) -> tuple[Source, int]:
    """Sum, mean or maximum over any axes of a plain array, and the number of items.

    An item is one element of the result where the last axis is reduced, else up to 16 neighbours.

    Args:
        kind: "sum", "mean" or "max".
        sizes: Lengths of the axes.
        reduced: Which of them are reduced; neighbours differ.
    """
    out = Lines()
    sizes, reduced = list(sizes) or [1], list(reduced) or [False]
    last, along = len(sizes) - 1, reduced[-1]
    n = [out.number(f"n{i}", size) for i, size in enumerate(sizes)]
    places = range(last + 1)
    steps = {i: " * ".join(n[i + 1 :]) or "1" for i in places}  # elements between neighbours
    kept = [i for i in places if not reduced[i] and i != last]
    count = 1 if along else -(-sizes[-1] // LANES)
    chunks = out.number("chunks", count)
    with out.block("for item in range(start, stop):"):
        out(f"rest = item // {chunks}", "p = x")
        for i in reversed(kept):
            out(f"p += rest % {n[i]} * {steps[i]} * 4", f"rest = rest // {n[i]}")
        if not along:
            out(f"column = item % {chunks} * {LANES}", f"left = {n[last]} - column", "p += column * 4")
        out(f"a = splat(float32({_START[kind]}))")
        gone = [i for i in places if reduced[i] and i != last]
        heads, at = [f"for i{i} in range({n[i]}):" for i in gone], "".join(f" + i{i} * {steps[i]} * 4" for i in gone)
        with out.nest(*heads, *([f"for k in range(0, {n[last]}, {LANES}):"] if along else [])):
            if along:
                out(f"left = {n[last]} - k")
                at += " + k * 4"
            out(f"v = vload_some(p{at}, left)")
            whole = not along or kind != "max"
            out(f"a = {_STEP[kind]}(a, {'v' if whole else 'vselect(msome(left), v, a)'})")
        terms = math.prod(size for size, gone in zip(sizes, reduced, strict=True) if gone)
        divisor = out.number("count", terms) if kind == "mean" else ""
        if not along:
            if divisor:
                out(f"a = vdiv(a, splat(float32({divisor})))")
            out(f"vstore_some(y + (item // {chunks} * {n[last]} + column) * 4, a, left)")
        elif kind == "max":
            out("fstore(y + item * 4, vmax_lanes(a))")
        else:
            out(f"fstore(y + item * 4, vsum(a){f' / float32({divisor})' if divisor else ''})")
    return out.source(kind, "x", "y"), math.prod(sizes[i] for i in kept) * count


def of_batch(kind: str, *, samples: int, positions: int, channels: int, parts: int, blocks: int) -> Source:
    """Part of sums over batch and positions of x (B, positions, C, 16); one item a part.

    Lanes beyond the last sample must be 0 in what is summed.

    Args:
        kind: "sum" of x; "square" of (x - mean); "gradient" for sums of dy and of dy * (x - mean).
        samples: N.
        positions: Elements of a sample without the channels.
        channels: C.
        parts: Number of parts.
        blocks: B.
    """
    out = Lines()
    n, p, c, count, b = out.all_numbers(
        samples=samples, positions=positions, channels=channels, parts_=parts, blocks=blocks
    )
    width, apart = even_tile(channels, CHANNELS), lanes_apart(channels)
    size = out.number("part_bytes", part_bytes(channels))
    results = ("parts", "parts2") if kind == "gradient" else ("parts",)
    with out.block("for part in range(start, stop):"), out.block(f"for cq in range(0, {c}, {width}):"):
        out(f"c = min(cq, {c} - {width})")
        out(*(f"a{k}_{i} = splat(float32(0))" for k in range(len(results)) for i in range(width)))
        if kind != "sum":
            out(*(f"m{i} = bload(mean + (c + {i}) * 4)" for i in range(width)))
        # Positions of all blocks are numbered through, and a part is some of them.
        out(f"u0 = {b} * {p} * part // {count}", f"u1 = {b} * {p} * (part + 1) // {count}")
        with out.block(f"for block in range(u0 // {p}, (u1 + {p} - 1) // {p}):"):
            out(f"pa = max(0, u0 - block * {p})", f"pz = min({p}, u1 - block * {p})")
            out(f"at = ((block * {p} + pa) * {c} + c) * {BYTES}")
            if kind == "square":
                out(f"live = msome({n} - block * {LANES})", "zero = splat(float32(0))")
            with out.block("for position in range(pa, pz):"):
                for i in range(width):
                    if kind == "sum":
                        out(f"a0_{i} = vadd(a0_{i}, vload(x + at + {i * BYTES}))")
                    elif kind == "square":
                        out(f"d = vselect(live, vsub(vload(x + at + {i * BYTES}), m{i}), zero)")
                        out(f"a0_{i} = vfma(d, d, a0_{i})")
                    else:
                        out(f"g = vload(dy + at + {i * BYTES})", f"a0_{i} = vadd(a0_{i}, g)")
                        out(f"a1_{i} = vfma(g, vsub(vload(x + at + {i * BYTES}), m{i}), a1_{i})")
                out(f"at += {c} * {BYTES}")
        for k, name in enumerate(results):
            for i in range(width):
                at = f"{name} + part * {size} + (c + {i}) * {BYTES if apart else 4}"
                out(f"vstore({at}, a{k}_{i})" if apart else f"fstore({at}, vsum(a{k}_{i}))")
    reads = {"sum": ("x",), "square": ("x", "mean"), "gradient": ("dy", "x", "mean")}[kind]
    return out.source({"sum": "sum", "square": "variance", "gradient": "normalize_gradient"}[kind], *reads, *results)
