"""Pooling and its gradients on blocked images (B, H, W, C, 16), or plain ones (N, H, W, C).

A vector is one channel of 16 samples, or 16 channels of one; a block is a block of samples, or one sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from minicnn.backends.numba.correlate import Line
from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import LANES
from minicnn.backends.numba.short import bytes_of, load_of, store_of


class _PooledImage(Lines):
    """Code with the geometry of the windows.

    Args:
        row: Geometry along the rows.
        column: The same along the columns.
        channels: C.
        pieces: Into how many pieces a block is cut.
        dtypes: Types of the arrays by their names in the code.
        plain: Whether images are plain arrays of float32.
    """

    def __init__(
        self, row: Line, column: Line, channels: int, pieces: int, dtypes: Mapping[str, str], *, plain: bool
    ) -> None:
        # Small windows are written with their numbers, so that LLVM unrolls them; for large ones that is not worth a
        # kernel for each size.
        super().__init__(bake=row.taps * column.taps <= 9)
        self.padded = [row.inside != (0, row.count), column.inside != (0, column.count)]
        self._some = plain and channels % LANES != 0  # whether the last vector is not full
        numbers = {"channels": channels, "pixels": row.size * column.size}
        numbers |= {"vectors": -(-channels // LANES) if plain else channels}
        for name, line in (("h", row), ("w", column)):
            numbers |= {
                f"{name}_count": line.count, f"{name}_size": line.size, f"{name}_taps": line.taps,
                f"{name}_step": line.in_step, f"{name}_offset": line.offset,
            }  # fmt: skip
        self.n = {name: self.number(name, value) for name, value in numbers.items()}
        self._pieces = pieces
        self.dtypes, self.width = dtypes, {name: bytes_of(dtype) for name, dtype in dtypes.items()}
        # Bytes between pixels.
        self.pitch = {name: f"{self.n['channels']} * {4 if plain else width}" for name, width in self.width.items()}

    @contextmanager
    def blocks(self) -> Iterator[None]:
        """Loop over pieces of blocks, each some vectors, from c0 to c1."""
        with self.pieces(self._pieces):
            first, last = self.share(self.n["vectors"])
            self(f"c0 = {first}", f"c1 = {last}")
            yield

    @contextmanager
    def vectors(self) -> Iterator[None]:
        """Loop over the vectors of a pixel."""
        with self.block("for c in range(c0, c1):"):
            if self._some:
                self(f"left = {self.n['channels']} - c * {LANES}")
            yield

    @contextmanager
    def positions(self) -> Iterator[None]:
        """Loops over output positions; xb is the image's address in x, yi the position's channel c0 in y."""
        n = self.n
        self(f"xb = x + block * {n['pixels']} * {self.pitch['x']}")
        with self.nest(f"for r in range({n['h_count']}):", f"for t in range({n['w_count']}):"):
            position = f"(block * {n['h_count']} + r) * {n['w_count']} + t"
            self(f"yi = y + ({position}) * {self.pitch['y']} + c0 * {self.width['y']}")
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
        self(f"xi = xb + (i * {n['w_size']} + j) * {self.pitch['x']} + c * {self.width['x']}")
        yield
        self.depth = depth

    def load(self, name: str, at: str) -> str:
        """A vector of an array."""
        return f"vload_some({at}, left)" if self._some else f"{load_of(self.dtypes[name])}({at})"

    def store(self, name: str, at: str, value: str) -> str:
        """Statement that stores one."""
        return f"vstore_some({at}, {value}, left)" if self._some else f"{store_of(self.dtypes[name])}({at}, {value})"

    def beside(self, name: str, at: str, other: str) -> str:
        """Offset of the place in an array that corresponds to an offset in another."""
        return f"({at}) * {self.width[name]} // {self.width[other]}"

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

    def image(self) -> None:
        """Set db to the address of the block's image in dx."""
        self(f"db = dx + block * {self.n['pixels']} * {self.pitch['dx']}")

    def zero(self) -> None:
        """Set the channels of the block's image at db in dx to 0."""
        self.image()
        with self.block(f"for k in range({self.n['pixels']}):"), self.vectors():
            self(self.store("dx", f"db + k * {self.pitch['dx']} + c * {self.width['dx']}", "splat(float32(0))"))


def max_pool(row: Line, column: Line, *, channels: int, pieces: int, dtypes: Mapping[str, str], plain: bool,
             rectified: bool = False) -> KernelCode:  # fmt: skip
    """y = largest element of each window, or 0 if that is larger and the result is rectified.

    An item, here and below, is a piece of a block.
    """
    out = _PooledImage(row, column, channels, pieces, dtypes, plain=plain)
    with out.blocks(), out.positions(), out.vectors():
        out("a = splat(float32(0))" if rectified else "a = splat(float32(-inf))")
        with out.window():
            out(f"a = vmax(a, {out.load('x', 'xi')})")
        out(out.store("y", "yi", "a"), f"yi += {out.width['y']}")
    return out.source("max_pool2d", "x", "y")


def max_pool_gradient(row: Line, column: Line, *, channels: int, pieces: int, dtypes: Mapping[str, str], plain: bool,
                      rectified: bool = False) -> KernelCode:  # fmt: skip
    """dx: dy goes to the first maximum of each window, to its last element if none equals y (NaN).

    If y is rectified, dy counts as 0 where y is not positive.
    """
    out = _PooledImage(row, column, channels, pieces, dtypes, plain=plain)
    # Windows that do not overlap are written once; then only what no window covers is set to 0 before.
    apart = all(line.in_step >= line.taps for line in (row, column)) and not any(out.padded)
    covered = all(line.in_step == line.taps and line.count * line.taps == line.size for line in (row, column))
    with out.blocks():
        if apart and covered:
            out.image()
        else:
            out.zero()
        with out.positions(), out.vectors():
            out(f"g = {out.load('dy', 'dy + ' + out.beside('dy', 'yi - y', 'y'))}", f"top = {out.load('y', 'yi')}")
            out("zero = splat(float32(0))", "di = db")
            if rectified:
                out("g = vselect(vgt(top, zero), g, zero)")
            with out.window():
                out(f"hit = veq({out.load('x', 'xi')}, top)", f"di = db + {out.beside('dx', 'xi - xb', 'x')}")
                here = "vselect(hit, g, zero)"
                out(out.store("dx", "di", here if apart else f"vadd({out.load('dx', 'di')}, {here})"))
                out("g = vselect(hit, zero, g)")
            # g is zero by now unless no element was equal, as with a not-a-number, and adding zero is cheaper than a
            # branch for each lane.
            out(out.store("dx", "di", f"vadd({out.load('dx', 'di')}, g)"), f"yi += {out.width['y']}")
    return out.source("max_pool2d_gradient", "dy", "x", "y", "dx")


def average_pool(row: Line, column: Line, *, channels: int, pieces: int, dtypes: Mapping[str, str], plain: bool,
                 count_padding: bool) -> KernelCode:  # fmt: skip
    """y = mean of each window."""
    out = _PooledImage(row, column, channels, pieces, dtypes, plain=plain)
    with out.blocks(), out.positions():
        out.count(padding=count_padding)
        with out.vectors():
            out("a = splat(float32(0))")
            with out.window():
                out(f"a = vadd(a, {out.load('x', 'xi')})")
            out(out.store("y", "yi", "vmul(a, share)"), f"yi += {out.width['y']}")
    return out.source("average_pool2d", "x", "y")


def average_pool_gradient(row: Line, column: Line, *, channels: int, pieces: int, dtypes: Mapping[str, str],
                          plain: bool, count_padding: bool) -> KernelCode:  # fmt: skip
    """dx: each element of a window gets its share of dy."""
    out = _PooledImage(row, column, channels, pieces, {**dtypes, "x": dtypes["dx"], "y": dtypes["dy"]}, plain=plain)
    with out.blocks():
        out("x = dx", "y = dy")
        out.zero()
        with out.positions():
            out.count(padding=count_padding)
            with out.vectors():
                out(f"g = vmul({out.load('y', 'yi')}, share)")
                with out.window():
                    out(out.store("x", "xi", f"vadd({out.load('x', 'xi')}, g)"))
                out(f"yi += {out.width['y']}")
    return out.source("average_pool2d_gradient", "dy", "dx")
