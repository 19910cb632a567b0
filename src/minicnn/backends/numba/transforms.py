"""Images read at the places of an affine map: the rule, and the gradient, on blocked images (B, H, W, C, 16)."""

from __future__ import annotations

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.lowering import BLOCKED, Lowering
from minicnn.backends.numba.operations import BYTES
from minicnn.backends.numba.resampling import FOLDS, read, text
from minicnn.program.graph import Node

_MOST_ELEMENTS = 2**30 // BYTES  # places are 32 bits wide: in bytes, in a block of 16 images or in one with its border


def _corners(out: Lines, mode: str, count: int) -> None:
    """Names pN, wN and, for "constant", inN of each corner: where it is, its weight, whether it exists."""
    nearest = count == 1
    for name, n in (("row", "h"), ("column", "w")):
        if mode in FOLDS:
            out(f"{name} = {text(FOLDS[mode], name, f'n_{n}')}")
        out(f"{name}0 = vfloor(vadd({name}, half))" if nearest else f"{name}0 = vfloor({name})")
        if not nearest:
            out(f"{name}_w1 = vsub({name}, {name}0)", f"{name}_w0 = vsub(one, {name}_w1)")
            out(f"{name}1 = vadd({name}0, one)")
        for k in range(1 if nearest else 2):
            if mode == "wrap":
                out(f"{name}{k} = {text('wrapped_once', f'{name}{k}', f'n_{n}')}")
            out(f"{name}_c{k} = {text('clipped', f'{name}{k}', f'last_{n}')}")
            out(f"{name}_p{k} = imul(float_to_int({name}_c{k}), step_{n})")
    for k in range(count):
        u, v = divmod(k, 2)
        out(f"p{k} = iadd(iadd(row_p{u}, own), column_p{v})")
        if not nearest:
            out(f"w{k} = vmul(row_w{u}, column_w{v})")
        if mode == "constant":
            out(f"in{k} = mand(veq(row_c{u}, row{u}), veq(column_c{v}, column{v}))")


def _backward(node: Node) -> KernelCode:
    """One item a block: what is added to a pixel comes in the order of the pixels made of it."""
    (_, h, w, c), (_, oh, ow, _) = node.outputs[0].shape, node.inputs[0].shape
    mode, corners = node.attrs["fill_mode"], 1 if node.attrs["interpolation"] == "nearest" else 4
    out = Lines()
    out.all_numbers(h=h, w=w, c=c, oh=oh, ow=ow)
    with out.block("for block in range(start, stop):"):
        out("zero, one, half = splat(float32(0)), splat(float32(1)), splat(float32(0.5))")
        out(f"xb, own = x + block * h * w * c * {BYTES}, lanes()")
        with out.nest("for e in range(h * w * c):"):
            out(f"vstore(xb + e * {BYTES}, zero)")
        out(*(f"m{k} = vload(matrix + (block * 6 + {k}) * {BYTES})" for k in range(6)))
        out(*(f"n_{n}, last_{n} = splat(float32({n})), splat(float32({n} - 1))" for n in "hw"))
        out(f"step_w = isplat(int32(c * {BYTES}))", "step_h = imul(isplat(int32(w)), step_w)")
        with out.nest("for i in range(oh):"):
            out("at = splat(float32(i))", "row_i, column_i = vadd(vmul(m4, at), m5), vadd(vmul(m1, at), m2)")
            with out.nest("for j in range(ow):"):
                out("at = splat(float32(j))", "row, column = vadd(vmul(m3, at), row_i), vadd(vmul(m0, at), column_i)")
                _corners(out, mode, corners)
                with out.nest("for c_ in range(c):"):
                    out(f"dy = vload(y + (((block * oh + i) * ow + j) * c + c_) * {BYTES})")
                    for k in range(corners):  # which may be one pixel
                        part = f"vselect(in{k}, dy, zero)" if mode == "constant" else "dy"
                        part = part if corners == 1 else f"vmul({part}, w{k})"
                        out(f"total = vadd(vgather(xb + c_ * {BYTES}, p{k}), {part})")
                        out(f"vscatter(xb + c_ * {BYTES}, p{k}, total)")
    return out.source(node.op.name, "y", "matrix", "x")


def transform(to: Lowering, node: Node) -> None:
    """Lower `affine_transform` or its gradient."""
    y = node.outputs[0]
    if y.dtype != "float32" or node.inputs[1].dtype != "float32":
        to.refuse(f"kernels transform float32, not {y.dtype}")
    if max(v.size // v.shape[0] for v in (y, node.inputs[0])) > _MOST_ELEMENTS:
        to.refuse(f"kernels transform images of at most {_MOST_ELEMENTS:,} elements")
    if node.op.name == "affine_transform":
        read(to, node)
    else:
        to.add(node, _backward(node), [to.need(v, BLOCKED) for v in node.inputs], [to.buffer(y, BLOCKED)])
