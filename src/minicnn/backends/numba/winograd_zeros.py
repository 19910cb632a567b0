"""Windows of zeros under Winograd's larger tiles, whose results are sums of inputs beside them that only nearly cancel.

Where a background of zeros became noise, half of it positive, a relu would pass gradients on, and a maximum would lie
anywhere. So results of windows whose inputs are all zero, which are rare, are written anew. To find them few pixels of
a tile are enough, its cores, since every window has one of these: only where one of them is zero in all channels of a
sample, all pixels of the tile are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minicnn.backends.numba.kernel import Lines
from minicnn.backends.numba.operations import BYTES

if TYPE_CHECKING:
    from minicnn.backends.numba.winograd import WinogradShape


def _cores(outputs: int, taps: int) -> list[int]:
    """Places along an axis of which each window has at least one."""
    # From the window of output i on, the last place that `taps` windows share; beyond the last output there are none.
    return [min(i + taps, outputs) - 1 for i in range(0, outputs, taps)]


def _all_cores(shape: WinogradShape) -> list[tuple[int, int]]:
    rows, columns = _cores(shape.height, shape.row.taps), _cores(shape.width, shape.column.taps)
    return [(i, j) for i in rows for j in columns]


def begin_cores(out: Lines, shape: WinogradShape, table: str) -> None:
    """Text before what `add_cores` and `end_cores` write; `table` has the addresses of the pixels of tile t."""
    shape.origin(out)
    for n, (i, j) in enumerate(_all_cores(shape)):
        # Windows of outputs beyond the border do not count.
        out(f"place = min({i}, oh - 1 - i0) * {shape.elements[1]} + min({j}, ow - 1 - j0)")
        out(f"core{n} = aload({table} + place * 8)", f"size{n} = splat(float32(0))")


def add_cores(out: Lines, shape: WinogradShape, channels: str) -> None:
    """Text that adds the sizes of some channels of the cores."""
    with out.block(f"for k in range({channels}):"):
        for n in range(len(_all_cores(shape))):
            out(f"size{n} = vadd(size{n}, vabs(vload(core{n} + k * {BYTES})))")


def end_cores(out: Lines, shape: WinogradShape, place: str) -> None:
    """Text that stores the smallest size of the cores."""
    smallest = "size0"
    for n in range(1, len(_all_cores(shape))):
        smallest = f"vmin({smallest}, size{n})"
    out(f"vstore({place}, {smallest})")


def mend(out: Lines, shape: WinogradShape, core: str, table: str, pixels: str, *, bias: bool, finish: str) -> None:
    """Text that writes results of zeros of tile t anew.

    Args:
        out: Where to.
        shape: Sizes.
        core: Text of the place where `end_cores` stored.
        table: Text for the addresses of the outputs.
        pixels: Text for where those of the pixels have room.
        bias: Whether there is a bias.
        finish: "", "relu" or "relu6".
    """
    columns = shape.elements[1]
    zero = "splat(float32(0))"
    value = "bload(bias + f * 4)" if bias else zero
    value = value if not finish else f"vmax({value}, {zero})"
    value = value if finish != "relu6" else f"vmin({value}, splat(float32(6)))"
    with out.block(f"if not mall(vgt(vload({core}), {zero})):"):
        shape.origin(out)
        shape.addresses(out, shape.elements, "x h w_ channels", pixels, "offset", "zeros")
        with out.block(f"for k in range({shape.size}):"):
            out(f"pixel = aload({pixels} + k * 8)", f"size = {zero}")
            with out.block("for c in range(channels):"):
                out(f"size = vadd(size, vabs(vload(pixel + c * {BYTES})))")
            out(f"vstore(work + k * {BYTES}, size)")
        with out.block(f"for k in range({shape.height}):"), out.block(f"for l in range({shape.width}):"):
            out(f"size = {zero}")
            with out.nest(f"for i in range(k, k + {shape.row.taps}):", f"for j in range(l, l + {shape.column.taps}):"):
                out(f"size = vadd(size, vload(work + (i * {columns} + j) * {BYTES}))")
            out(f"blank = veq(size, {zero})", f"end = aload({table} + (k * {shape.width} + l) * 8)")
            with out.block("if not mall(mnot(blank)):"), out.block("for f in range(filters):"):
                # Weights that are no numbers make results of zeros none, too.
                out(f"at = end + f * {BYTES}", "a = vload(at)")
                out(f"vstore(at, vselect(blank, vfma(a, {zero}, {value}), a))")
