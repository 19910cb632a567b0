"""Images read at the places of an affine map, and the gradient, on blocked images (B, H, W, C, 16)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minicnn.backends._gpu.trees import Call, Name
from minicnn.backends.numba.kernel import Lines, Source
from minicnn.backends.numba.lowering import BLOCKED, Lowering
from minicnn.backends.numba.printer import Vectors
from minicnn.backends.numba.vector import BYTES
from minicnn.program.graph import Node

_MOST_ELEMENTS = 2**31 // BYTES - 1  # places in a block of 16 images, in bytes, are 32 bits wide


class _Places(Lines):
    """Code that finds, for each pixel (i, j) of a transformed image, the pixels that it is made of."""

    def __init__(self, node: Node, image: tuple[int, ...], made: tuple[int, ...]) -> None:
        super().__init__()
        self.how = node.attrs
        (_, h, w, c), (_, oh, ow, _) = image, made
        self.h, self.w, self.c, self.oh, self.ow = self.all_numbers(h=h, w=w, c=c, oh=oh, ow=ow)

    @contextmanager
    def pixels(self, rounds: str) -> Iterator[None]:
        """Loops over pixels; xb is the image's address in x, yi the pixel's in y."""
        self(
            f"xb = x + block * {self.h} * {self.w} * {self.c} * {BYTES}",
            "one, half = splat(float32(1)), splat(float32(0.5))",
        )
        self(*(f"m{k} = vload(matrix + (block * 6 + {k}) * {BYTES})" for k in range(6)))
        self(*(f"n_{n}, last_{n} = splat(float32({n})), splat(float32({n} - 1))" for n in "hw"))
        self(f"step_w = isplat(int32({self.c} * {BYTES}))", f"step_h = imul(isplat(int32({self.w})), step_w)")
        self("own = lanes()")
        with self.nest(f"for i in {rounds}:"):
            self("at = splat(float32(i))", "row_i, column_i = vadd(vmul(m4, at), m5), vadd(vmul(m1, at), m2)")
            with self.nest(f"for j in range({self.ow}):"):
                self("at = splat(float32(j))", "row, column = vadd(vmul(m3, at), row_i), vadd(vmul(m0, at), column_i)")
                self(f"yi = y + ((block * {self.oh} + i) * {self.ow} + j) * {self.c} * {BYTES}")
                self._corners()
                yield

    def _corners(self) -> None:
        """Names pN, wN and, for "constant", inN of each corner: where it is, its weight, whether it exists."""
        mode, nearest = self.how["fill_mode"], self.corners == 1
        fold = {"wrap": "wrapped", "reflect": "reflected"}.get(mode)
        for name, n in (("row", "h"), ("column", "w")):
            if fold:
                self(f"{name} = {_text(fold, name, f'n_{n}')}")
            self(f"{name}0 = vfloor(vadd({name}, half))" if nearest else f"{name}0 = vfloor({name})")
            if not nearest:
                self(f"{name}_w1 = vsub({name}, {name}0)", f"{name}_w0 = vsub(one, {name}_w1)")
                self(f"{name}1 = vadd({name}0, one)")
            for k in range(1 if nearest else 2):
                if mode == "wrap":
                    self(f"{name}{k} = {_text('again', f'{name}{k}', f'n_{n}')}")
                self(f"{name}_c{k} = {_text('clipped', f'{name}{k}', f'last_{n}')}")
                self(f"{name}_p{k} = imul(float_to_int({name}_c{k}), step_{n})")
        if not nearest:
            self("row_p1 = iadd(row_p1, own)")
        self("row_p0 = iadd(row_p0, own)")
        for k in range(self.corners):
            u, v = divmod(k, 2)
            self(f"p{k} = iadd(row_p{u}, column_p{v})")
            if not nearest:
                self(f"w{k} = vmul(row_w{u}, column_w{v})")
            if mode == "constant":
                self(f"in{k} = mand(veq(row_c{u}, row{u}), veq(column_c{v}, column{v}))")

    @property
    def corners(self) -> int:
        """How many pixels each is made of."""
        return 1 if self.how["interpolation"] == "nearest" else 4

    def weighted(self, k: int, value: str, beyond: str) -> str:
        """A corner's part of a pixel."""
        if self.how["fill_mode"] == "constant":
            value = f"vselect(in{k}, {value}, {beyond})"
        return value if self.corners == 1 else f"vmul({value}, w{k})"


def _text(function: str, *arguments: str) -> str:
    return Vectors((), ()).text(Call(function, tuple(map(Name, arguments)), "float32"))


def _forward(node: Node, pieces: int) -> Source:
    out = _Places(node, node.inputs[0].shape, node.outputs[0].shape)
    with out.pieces(pieces):
        out(f"fill = splat({out.constant('beyond', node.attrs['fill_value'])})")
        with out.pixels(out.rounds(out.oh)), out.nest(f"for c_ in range({out.c}):"):
            parts = [out.weighted(k, f"vgather(xb + c_ * {BYTES}, p{k})", "fill") for k in range(out.corners)]
            out(f"v = {parts[0]}", *(f"v = vadd(v, {part})" for part in parts[1:]), f"vstore(yi + c_ * {BYTES}, v)")
    return out.source(node.op.name, "x", "matrix", "y")


def _backward(node: Node) -> Source:
    """One item a block: what is added to a pixel comes in the order of the pixels made of it."""
    out = _Places(node, node.outputs[0].shape, node.inputs[0].shape)
    with out.block("for block in range(start, stop):"):
        out("zero = splat(float32(0))")
        with out.nest(f"for e in range({out.h} * {out.w} * {out.c}):"):
            out(f"vstore(x + (block * {out.h} * {out.w} * {out.c} + e) * {BYTES}, zero)")
        with out.pixels(f"range({out.oh})"), out.nest(f"for c_ in range({out.c}):"):
            out(f"dy = vload(yi + c_ * {BYTES})")
            for k in range(out.corners):  # which may be one pixel
                out(f"total = vadd(vgather(xb + c_ * {BYTES}, p{k}), {out.weighted(k, 'dy', 'zero')})")
                out(f"vscatter(xb + c_ * {BYTES}, p{k}, total)")
    return out.source(node.op.name, "y", "matrix", "x")


def transform(to: Lowering, node: Node) -> None:
    """Lower `affine_transform` or its gradient."""
    y = node.outputs[0]
    if y.dtype != "float32" or node.inputs[1].dtype != "float32":
        to.refuse(f"kernels transform float32, not {y.dtype}")
    if max(v.size // v.shape[0] for v in (y, node.inputs[0])) > _MOST_ELEMENTS:
        to.refuse(f"kernels transform images of at most {_MOST_ELEMENTS:,} elements")
    pieces = to.pieces(y, y.shape[1])
    source = _forward(node, pieces) if node.op.name == "affine_transform" else _backward(node)
    to.add(node, source, [to.need(v, BLOCKED) for v in node.inputs], [to.buffer(y, BLOCKED)])
