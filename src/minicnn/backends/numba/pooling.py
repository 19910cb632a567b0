"""Pooling and its gradients on blocked images (B, H, W, C, 16)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minicnn.backends.numba.correlate import Line
from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import BYTES


class _PooledImage(Lines):
    """Code with the geometry of the windows."""

    def __init__(self, row: Line, column: Line, channels: int, pieces: int) -> None:
        # Small windows are written with their numbers, so that LLVM unrolls them; for large ones that is not worth a
        # kernel for each size.
        super().__init__(bake=row.taps * column.taps <= 9)
        self.padded = [row.inside != (0, row.count), column.inside != (0, column.count)]
        numbers = {"channels": channels, "image": row.size * column.size * channels}
        for name, line in (("h", row), ("w", column)):
            numbers |= {
                f"{name}_count": line.count, f"{name}_size": line.size, f"{name}_taps": line.taps,
                f"{name}_step": line.in_step, f"{name}_offset": line.offset,
            }  # fmt: skip
        self.n = {name: self.number(name, value) for name, value in numbers.items()}
        self._pieces = pieces

    @contextmanager
    def blocks(self) -> Iterator[None]:
        """Loop over pieces of blocks, each some channels, from c0 to c1."""
        with self.pieces(self._pieces):
            first, last = self.share(self.n["channels"])
            self(f"c0 = {first}", f"c1 = {last}")
            yield

    @contextmanager
    def positions(self) -> Iterator[None]:
        """Loops over output positions; xb is the image's address in x, yi the position's channel c0 in y."""
        n = self.n
        self(f"xb = x + block * {n['image']} * {BYTES}")
        with self.nest(f"for r in range({n['h_count']}):", f"for t in range({n['w_count']}):"):
            self(f"yi = y + (((block * {n['h_count']} + r) * {n['w_count']} + t) * {n['channels']} + c0) * {BYTES}")
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
        self(f"xi = xb + ((i * {n['w_size']} + j) * {n['channels']} + c) * {BYTES}")
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
        self(f"xb = x + block * {n['image']} * {BYTES}", f"db = dx + block * {n['image']} * {BYTES}")
        with self.block(f"for k in range(0, {n['image']}, {n['channels']}):"), self.block("for c in range(c0, c1):"):
            self(f"vstore(db + (k + c) * {BYTES}, splat(float32(0)))")


def max_pool(row: Line, column: Line, *, channels: int, pieces: int, rectified: bool = False) -> KernelCode:
    """y = largest element of each window, or 0 if that is larger and the result is rectified.

    An item, here and below, is a piece of a block.
    """
    out = _PooledImage(row, column, channels, pieces)
    with out.blocks(), out.positions(), out.block("for c in range(c0, c1):"):
        out("a = splat(float32(0))" if rectified else "a = splat(float32(-inf))")
        with out.window():
            out("a = vmax(a, vload(xi))")
        out("vstore(yi, a)", f"yi += {BYTES}")
    return out.source("max_pool2d", "x", "y")


def max_pool_gradient(row: Line, column: Line, *, channels: int, pieces: int, rectified: bool = False) -> KernelCode:
    """dx: dy goes to the first maximum of each window, to its last element if none equals y (NaN).

    If y is rectified, dy counts as 0 where y is not positive.
    """
    out = _PooledImage(row, column, channels, pieces)
    # Windows that do not overlap are written once; then only what no window covers is set to 0 before.
    apart = all(line.in_step >= line.taps for line in (row, column)) and not any(out.padded)
    covered = all(line.in_step == line.taps and line.count * line.taps == line.size for line in (row, column))
    with out.blocks():
        if apart and covered:
            out(f"xb = x + block * {out.n['image']} * {BYTES}", f"db = dx + block * {out.n['image']} * {BYTES}")
        else:
            out.zero()
        with out.positions(), out.block("for c in range(c0, c1):"):
            out("g = vload(dy + yi - y)", "top = vload(yi)", "zero = splat(float32(0))", "di = db")
            if rectified:
                out("g = vselect(vgt(top, zero), g, zero)")
            with out.window():
                out("hit = veq(vload(xi), top)", "di = db + xi - xb", "here = vselect(hit, g, zero)")
                out("vstore(di, here)" if apart else "vstore(di, vadd(vload(di), here))", "g = vselect(hit, zero, g)")
            # g is zero by now unless no element was equal, as with a not-a-number, and adding zero is cheaper than a
            # branch for each lane.
            out("vstore(di, vadd(vload(di), g))", f"yi += {BYTES}")
    return out.source("max_pool2d_gradient", "dy", "x", "y", "dx")


def average_pool(row: Line, column: Line, *, channels: int, pieces: int, count_padding: bool) -> KernelCode:
    """y = mean of each window."""
    out = _PooledImage(row, column, channels, pieces)
    with out.blocks(), out.positions():
        out.count(padding=count_padding)
        with out.block("for c in range(c0, c1):"):
            out("a = splat(float32(0))")
            with out.window():
                out("a = vadd(a, vload(xi))")
            out("vstore(yi, vmul(a, share))", f"yi += {BYTES}")
    return out.source("average_pool2d", "x", "y")


def average_pool_gradient(row: Line, column: Line, *, channels: int, pieces: int, count_padding: bool) -> KernelCode:
    """dx: each element of a window gets its share of dy."""
    out = _PooledImage(row, column, channels, pieces)
    with out.blocks():
        out("x = dx", "y = dy")
        out.zero()
        with out.positions():
            out.count(padding=count_padding)
            with out.block("for c in range(c0, c1):"):
                out("g = vmul(vload(yi), share)")
                with out.window():
                    out("vstore(xi, vadd(vload(xi), g))")
                out(f"yi += {BYTES}")
    return out.source("average_pool2d_gradient", "dy", "dx")
