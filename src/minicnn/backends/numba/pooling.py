"""Pooling and its gradients on blocked images (B, H, W, C, 16), or plain ones (N, H, W, C) whose channels fill vectors.

A vector is one channel of 16 samples, or 16 channels of one; a block is a block of samples, or one sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minicnn.backends.numba.correlate import Line
from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.vector import BYTES, LANES


class _PooledImage(Lines):
    """Code with the geometry of the windows."""

    def __init__(self, row: Line, column: Line, channels: int, pieces: int, *, plain: bool) -> None:
        # Small windows are written with their numbers, so that LLVM unrolls them; for large ones that is not worth a
        # kernel for each size.
        super().__init__(bake=row.taps * column.taps <= 9)
        self.padded = [row.inside != (0, row.count), column.inside != (0, column.count)]
        self.some = plain and channels % LANES != 0  # whether the last vector is not full
        numbers = {
            "channels": channels, "vectors": -(-channels // LANES) if plain else channels,
            "pixel": channels * (4 if plain else BYTES), "pixels": row.size * column.size,
        }  # fmt: skip
        for name, line in (("h", row), ("w", column)):
            numbers |= {
                f"{name}_count": line.count, f"{name}_size": line.size, f"{name}_taps": line.taps,
                f"{name}_step": line.in_step, f"{name}_offset": line.offset,
            }  # fmt: skip
        self.n = {name: self.number(name, value) for name, value in numbers.items()}
        self._pieces = pieces

    @contextmanager
    def blocks(self) -> Iterator[None]:
        """Loop over pieces of blocks, each some vectors, from c0 to c1."""
        with self.pieces(self._pieces):
            first, last = self.share(self.n["vectors"])
            self(f"c0 = {first}", f"c1 = {last}")
            yield

    @contextmanager
    def vectors(self) -> Iterator[None]:
        """Loop over the vectors of a position."""
        with self.block("for c in range(c0, c1):"):
            if self.some:
                self(f"left = {self.n['channels']} - c * {LANES}")
            yield

    def load(self, at: str) -> str:
        """Text of a vector of channels."""
        return f"vload_some({at}, left)" if self.some else f"vload({at})"

    def store(self, at: str, value: str) -> str:
        """Statement that stores one."""
        return f"vstore_some({at}, {value}, left)" if self.some else f"vstore({at}, {value})"

    @contextmanager
    def positions(self) -> Iterator[None]:
        """Loops over output positions; xb is the image's address in x, yi the position's channel c0 in y."""
        n = self.n
        self(f"xb = x + block * {n['pixels']} * {n['pixel']}")
        with self.nest(f"for r in range({n['h_count']}):", f"for t in range({n['w_count']}):"):
            self(f"yi = y + ((block * {n['h_count']} + r) * {n['w_count']} + t) * {n['pixel']} + c0 * {BYTES}")
            yield

    @contextmanager
    def window(self) -> Iterator[None]:
        """Loops over a window's elements inside the image; xi is the address of one in x."""
        depth, n = self.depth, self.n
        # Bounds are looked at only on axes with padding: elsewhere a window cannot leave the image.
        for axis, outer, inner, at, padded in zip("hw", "rt", ("kh", "kw"), "ij", self.padded, strict=True):
            self(f"for {inner} in range({n[f'{axis}_taps']}):")
            self.depth += 1
            self(f"{at} = {outer} * {n[f'{axis}_step']} + {n[f'{axis}_offset']} + {inner}")
            if padded:
                self(f"if 0 <= {at} < {n[f'{axis}_size']}:")
                self.depth += 1
        self(f"xi = xb + (i * {n['w_size']} + j) * {n['pixel']} + c * {BYTES}")
        yield
        self.depth = depth

    def count(self, *, padding: bool) -> None:
        """Set `share` to 1 / number of elements that a window averages."""
        n = self.n
        if padding or not any(self.padded):
            self(f"share = splat(float32(1) / float32({n['h_taps']} * {n['w_taps']}))")
            return
        for axis, outer in zip("hw", "rt", strict=True):
            first = f"{outer} * {n[f'{axis}_step']} + {n[f'{axis}_offset']}"
            self(f"in_{axis} = min({first} + {n[f'{axis}_taps']}, {n[f'{axis}_size']}) - max({first}, 0)")
        self("share = splat(float32(1) / float32(in_h * in_w))")

    def zero(self) -> None:
        """Set the channels of the block's image at db in dx to 0."""
        n = self.n
        self.images()
        with self.block(f"for k in range({n['pixels']}):"), self.vectors():
            self(self.store(f"db + k * {n['pixel']} + c * {BYTES}", "splat(float32(0))"))

    def images(self) -> None:
        """Set the addresses of the block's images, xb in x and db in dx."""
        self(*(f"{at} = {x} + block * {self.n['pixels']} * {self.n['pixel']}" for at, x in (("xb", "x"), ("db", "dx"))))


def max_pool(
    row: Line, column: Line, *, channels: int, pieces: int, plain: bool = False, rectified: bool = False
) -> KernelCode:
    """y = largest element of each window, or 0 if that is larger and the result is rectified.

    An item, here and below, is a piece of a block.
    """
    out = _PooledImage(row, column, channels, pieces, plain=plain)
    with out.blocks(), out.positions(), out.vectors():
        out("a = splat(float32(0))" if rectified else "a = splat(float32(-inf))")
        with out.window():
            out(f"a = vmax(a, {out.load('xi')})")
        out(out.store("yi", "a"), f"yi += {BYTES}")
    return out.source("max_pool2d", "x", "y")


def max_pool_gradient(
    row: Line, column: Line, *, channels: int, pieces: int, plain: bool = False, rectified: bool = False
) -> KernelCode:
    """dx: dy goes to the first maximum of each window, to its last element if none equals y (NaN).

    If y is rectified, dy counts as 0 where y is not positive.
    """
    out = _PooledImage(row, column, channels, pieces, plain=plain)
    # Windows that do not overlap are written once; then only what no window covers is set to 0 before.
    apart = all(line.in_step >= line.taps for line in (row, column)) and not any(out.padded)
    covered = all(line.in_step == line.taps and line.count * line.taps == line.size for line in (row, column))
    with out.blocks():
        if apart and covered:
            out.images()
        else:
            out.zero()
        with out.positions(), out.vectors():
            out(f"g = {out.load('dy + yi - y')}", f"top = {out.load('yi')}", "zero = splat(float32(0))", "di = db")
            if rectified:
                out("g = vselect(vgt(top, zero), g, zero)")
            with out.window():
                out(f"hit = veq({out.load('xi')}, top)", "di = db + xi - xb", "here = vselect(hit, g, zero)")
                total = "here" if apart else f"vadd({out.load('di')}, here)"
                out(out.store("di", total), "g = vselect(hit, zero, g)")
            # g is zero by now unless no element was equal, as with a not-a-number, and adding zero is cheaper than a
            # branch for each lane.
            out(out.store("di", f"vadd({out.load('di')}, g)"), f"yi += {BYTES}")
    return out.source("max_pool2d_gradient", "dy", "x", "y", "dx")


def average_pool(
    row: Line, column: Line, *, channels: int, pieces: int, plain: bool = False, count_padding: bool
) -> KernelCode:
    """y = mean of each window."""
    out = _PooledImage(row, column, channels, pieces, plain=plain)
    with out.blocks(), out.positions():
        out.count(padding=count_padding)
        with out.vectors():
            out("a = splat(float32(0))")
            with out.window():
                out(f"a = vadd(a, {out.load('xi')})")
            out(out.store("yi", "vmul(a, share)"), f"yi += {BYTES}")
    return out.source("average_pool2d", "x", "y")


def average_pool_gradient(
    row: Line, column: Line, *, channels: int, pieces: int, plain: bool = False, count_padding: bool
) -> KernelCode:
    """dx: each element of a window gets its share of dy."""
    out = _PooledImage(row, column, channels, pieces, plain=plain)
    with out.blocks():
        out("x = dx", "y = dy")
        out.zero()
        with out.positions():
            out.count(padding=count_padding)
            with out.vectors():
                out(f"g = vmul({out.load('yi')}, share)")
                with out.window():
                    out(out.store("xi", f"vadd({out.load('xi')}, g)"))
                out(f"yi += {BYTES}")
    return out.source("average_pool2d_gradient", "dy", "dx")
