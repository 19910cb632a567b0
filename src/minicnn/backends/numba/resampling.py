"""Images read at the places of an affine map, 16 pixels of one image at a time.

In blocked images (B, H, W, C, 16) neighbours are far apart, and a vector of 16 images, each read elsewhere, takes 16
accesses for each of the four neighbours of a place. So a block's images are laid out one by one, with a border of what
is beyond them: there two neighbours are one access, and 16 pixels are where an image is only shifted or mirrored.
"""

from __future__ import annotations

from minicnn.backends.numba.kernel import Lines
from minicnn.backends.numba.lowering import BLOCKED, Lowering, blocks_of
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.printer import Vectors
from minicnn.kernels.expressions import Call, Name
from minicnn.program.graph import Node

_BORDER = 4  # pixels: places up to there are read without being folded
FOLDS = {"wrap": "wrapped", "reflect": "reflected"}  # places that stand for others
# Which of n pixels in a row number `at` is, also beyond them; -1 if none.
_PIXELS = {
    "reflect": "min(at % (2 * {n}), 2 * {n} - 1 - at % (2 * {n}))", "wrap": "at % {n}",
    "nearest": "max(min(at, {n} - 1), 0)", "constant": "at if 0 <= at < {n} else -1",
}  # fmt: skip


def text(function: str, *arguments: str) -> str:
    """Code of a function that is there for all engines, on registers."""
    return Vectors((), ()).text(Call(function, tuple(map(Name, arguments)), "float32"))


def read(to: Lowering, node: Node) -> None:
    """Lower `affine_transform` of float32; each item has memory of its own to lay images out."""
    x, y, mode = node.inputs[0], node.outputs[0], node.attrs["fill_mode"]
    (_, h, w, c), (_, oh, ow, _) = x.shape, y.shape
    wide = -(-(w + 2 * _BORDER) // LANES) * LANES
    # A line more: images a multiple of 4 KiB apart would drive each other out of the cache.
    plane = (h + 2 * _BORDER) * wide * 4 + BYTES
    size = LANES * plane + wide * 4
    out = Lines()
    out.all_numbers(h=h, w=w, c=c, oh=oh, ow=ow, wide=wide, plane=plane, size=size)
    out.cut = to.pieces(y, oh)
    for name, value in {"pieces_": out.cut, "units": blocks_of(y) * out.cut, "items": to.threads}.items():
        out.varying(name, value)
    out("panel, one, zero = stack(), splat(float32(1)), splat(float32(0))", f"turned = panel + {LANES * BYTES}")
    out(f"fill = splat({out.constant('beyond', node.attrs['fill_value'])})")
    out("beside, step_h, step_w = lanes(), isplat(int32(wide * 4)), isplat(int32(4))")
    out(
        f"half, first = splat(float32(0.5)), splat(float32({-_BORDER}))",
        "own = vmul(int_to_float(beside), splat(float32(0.25)))",
    )
    for n in "hw":
        out(f"n_{n}, last_{n} = splat(float32({n})), splat(float32({n} + {_BORDER - 2}))")
    with out.block("for item in range(start, stop):"):
        out("planes = scratch + item * size", f"columns = planes + {LANES} * plane")
        with out.block("for k in range(wide):"):
            out(f"at = k - {_BORDER}", f"istore(columns + 4 * k, int32({_PIXELS[mode].format(n='w')}))")
        with out.nest("for unit in range(units * item // items, units * (item + 1) // items):", "for c_ in range(c):"):
            out("block, piece = unit // pieces_, unit % pieces_")
            _lay_out(out, mode)
            with out.nest(f"for i in {out.rounds('oh')}:", f"for j in range(0, ow, {LANES}):"):
                out(f"begin = max(min(j, ow - {LANES}), 0)")
                out("at_i, at_j = splat(float32(i)), vadd(own, splat(float32(begin)))")
                with out.block(f"for lane in range({LANES}):"):
                    out(*(f"m{k} = bload(matrix + (block * 6 + {k}) * {BYTES} + lane * 4)" for k in range(6)))
                    out("from_h, from_w = vadd(vmul(m4, at_i), m5), vadd(vmul(m1, at_i), m2)")
                    _find(out, mode, nearest=node.attrs["interpolation"] == "nearest")
                out(f"transpose(turned, panel, {BYTES}, {LANES - 1})")
                out(f"yi = y + (((block * oh + i) * ow + begin) * c + c_) * {BYTES}")
                with out.block(f"for s in range(min({LANES}, ow)):"):
                    out(f"vstore(yi + s * c * {BYTES}, vload(turned + s * {BYTES}))")
    reads = [to.need(v, BLOCKED) for v in node.inputs]
    writes = [to.scratch(node, "planes", size * to.threads), to.buffer(y, BLOCKED)]
    to.add(node, out.source(node.op.name, "x", "matrix", "scratch", "y"), reads, writes, to.threads)


def _lay_out(out: Lines, mode: str) -> None:
    """Channel c_ of the images of a block, with their borders."""
    with out.block(f"for k in range(h + {2 * _BORDER}):"):
        out(f"at = k - {_BORDER}", f"row = {_PIXELS[mode].format(n='h')}")
        with out.block(f"for j in range(0, wide, {LANES}):"):
            with out.block(f"for s in range({LANES}):"):
                out("column = int64(iload(columns + 4 * (j + s)))")
                value = f"vload(x + (((block * h + row) * w + column) * c + c_) * {BYTES})"
                if mode == "constant":
                    value = f"{value} if row >= 0 and column >= 0 else fill"
                out(f"vstore(panel + s * {BYTES}, {value})")
            out(f"transpose(planes + (k * wide + j) * 4, panel, plane, {LANES - 1})")


def _find(out: Lines, mode: str, *, nearest: bool) -> None:
    """16 pixels (i, begin + ..) of an image's result, to its row of the panel."""
    for n, a in (("h", 3), ("w", 0)):
        out(f"at_{n} = vadd(vmul(m{a}, at_j), from_{n})")
    if mode == "constant":
        places = [f"vmax(vmin(at_{n}, n_{n}), vsub(zero, one))" for n in "hw"]
    elif mode == "nearest":
        places = [f"vmax(vmin(at_{n}, vsub(n_{n}, one)), zero)" for n in "hw"]
    else:
        places = [text(FOLDS[mode], f"at_{n}", f"n_{n}") for n in "hw"]
    fold = [f"at_{n} = {place}" for n, place in zip("hw", places, strict=True)]
    whole = [f"whole_{n} = vfloor({f'vadd(at_{n}, half)' if nearest else f'at_{n}'})" for n in "hw"]
    # Pixels of the image or its border, whatever the map is; no number, too.
    whole += [f"low_{n} = vselect(vgt(whole_{n}, first), whole_{n}, first)" for n in "hw"]
    whole += [f"low_{n} = vselect(vlt(low_{n}, last_{n}), low_{n}, last_{n})" for n in "hw"]
    if nearest:  # where a half is rounded to depends on the side from which it is seen
        out(*(fold if mode in FOLDS else ()), *whole)
    else:
        out(*whole)
        with out.block("if not mall(mand(veq(whole_h, low_h), veq(whole_w, low_w))):"):
            out(*fold, *whole)
    out("offset = iadd(imul(float_to_int(low_h), step_h), imul(float_to_int(low_w), step_w))")
    out(f"p, begins = planes + lane * plane + {_BORDER} * (wide + 1) * 4, ilane(offset, 0)")
    if not nearest:
        out("q, right, down = p + wide * 4, vsub(at_w, low_w), vsub(at_h, low_h)")
    together = "{} mall(ieq(offset, i{}(isplat(int32(begins)), beside))):"
    with out.block(together.format("if", "add")):
        rows = (f"vweighted(vload({r} + begins), vload({r} + begins + 4), right)" for r in "pq")
        out("v = vload(p + begins)" if nearest else f"v = vweighted({', '.join(rows)}, down)")
    if nearest:
        with out.block(together.format("elif", "sub")):
            out(f"v = vreversed(vload(p + begins - {BYTES - 4}))")
    with out.block("else:"):
        out("v = vgather(p, offset)" if nearest else "v = vbetween(p, q, offset, right, down)")
    out(f"vstore(panel + lane * {BYTES}, v)")
