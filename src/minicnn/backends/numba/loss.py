"""Softmax cross-entropy on blocked logits (B, K, 16), and its gradient."""

from __future__ import annotations

from minicnn.backends.numba.kernel import Lines, Source
from minicnn.backends.numba.vector import BYTES, LANES


def _softmax(out: Lines, classes: str) -> None:
    """Shifted exponentials' sum `total` and the largest logit `top`."""
    out(f"xb = x + block * {classes} * {BYTES}", "top = vload(xb)")
    with out.block(f"for k in range(1, {classes}):"):
        out(f"top = vmax(top, vload(xb + k * {BYTES}))")
    out("total = splat(float32(0))")
    with out.block(f"for k in range({classes}):"):
        out(f"total = vadd(total, vexp(vsub(vload(xb + k * {BYTES}), top)))")


def softmax(*, classes: int, log: bool) -> Source:
    """Softmax of x (B, K, 16) along K, or its logarithm; one item a block."""
    out = Lines()
    k = out.number("classes", classes)
    with out.block("for block in range(start, stop):"):
        _softmax(out, k)
        out(f"yb = y + block * {k} * {BYTES}", "base = vlog(total)" if log else "base = total")
        with out.block(f"for k in range({k}):"):
            out(f"v = vsub(vload(xb + k * {BYTES}), top)")
            out(f"vstore(yb + k * {BYTES}, {'vsub(v, base)' if log else 'vdiv(vexp(v), base)'})")
    return out.source("log_softmax" if log else "softmax", "x", "y")


def cross_entropy(*, samples: int, classes: int) -> Source:
    """Losses (N,); one item a block."""
    out = Lines()
    n, classes_ = out.all_numbers(samples=samples, classes=classes)
    with out.block("for block in range(start, stop):"):
        _softmax(out, classes_)
        out("base = vadd(vlog(total), top)", f"left = {n} - block * {LANES}", f"yb = y + block * {BYTES}")
        out("vstore_some(yb, base, left)")
        with out.block(f"for lane in range(min({LANES}, left)):"):
            out(f"k = int64(iload(labels + (block * {LANES} + lane) * 4))")
            with out.block(f"if 0 <= k < {classes_}:"):
                out(f"fstore(yb + lane * 4, fload(yb + lane * 4) - fload(xb + k * {BYTES} + lane * 4))")
            with out.block("else:"):
                out("fstore(yb + lane * 4, float32(0))")
    return out.source("softmax_cross_entropy", "x", "labels", "y")


def cross_entropy_gradient(*, samples: int, classes: int) -> Source:
    """Gradients (B, K, 16), 0 in lanes beyond the last sample; one item a block."""
    out = Lines()
    n, classes_ = out.all_numbers(samples=samples, classes=classes)
    with out.block("for block in range(start, stop):"):
        _softmax(out, classes_)
        out(f"left = {n} - block * {LANES}", f"g = vload_some(dy + block * {BYTES}, left)")
        out("share = vdiv(g, total)", f"db = dx + block * {classes_} * {BYTES}")
        with out.block(f"for k in range({classes_}):"):
            out(f"vstore(db + k * {BYTES}, vmul(share, vexp(vsub(vload(xb + k * {BYTES}), top))))")
        with out.block(f"for lane in range(min({LANES}, left)):"):
            out(f"at_n = block * {LANES} + lane", "k = int64(iload(labels + at_n * 4))", "at = db + lane * 4")
            with out.block(f"if 0 <= k < {classes_}:"):
                out(f"at += k * {BYTES}", "fstore(at, fload(at) - fload(dy + at_n * 4))")
            with out.block("else:"), out.block(f"for m in range({classes_}):"):
                out(f"fstore(at + m * {BYTES}, float32(0))")
    return out.source("softmax_cross_entropy_gradient", "dy", "x", "labels", "dx")
