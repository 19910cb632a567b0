"""Softmax along one axis of blocked values, and its cross-entropy with labels, and the gradient of that."""

from __future__ import annotations

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import BYTES, LANES


def _softmax(out: Lines, classes: str, step: str) -> None:
    """Shifted exponentials' sum `total` and the largest logit `top` of those at xb, `step` bytes apart."""
    out("top = vload(xb)")
    with out.block(f"for k in range(1, {classes}):"):
        out(f"top = vmax(top, vload(xb + k * {step}))")
    out("total = splat(float32(0))")
    with out.block(f"for k in range({classes}):"):
        out(f"total = vadd(total, vexp(vsub(vload(xb + k * {step}), top)))")


def softmax(*, classes: int, outer: int, inner: int, log: bool) -> KernelCode:
    """Softmax of x (B, outer, K, inner, 16) along K, or its logarithm; one item a block."""
    out = Lines()
    k, many, step = out.all_numbers(classes=classes, outer=outer, step=inner * BYTES)
    with (
        out.block("for block in range(start, stop):"),
        out.block(f"for o in range(block * {many}, (block + 1) * {many}):"),
        out.block(f"for i in range(0, {step}, {BYTES}):"),
    ):
        out(f"xb = x + o * {k} * {step} + i", f"yb = y + o * {k} * {step} + i")
        _softmax(out, k, step)
        out("base = vlog(total)" if log else "base = total")
        with out.block(f"for k in range({k}):"):
            out(f"v = vsub(vload(xb + k * {step}), top)")
            out(f"vstore(yb + k * {step}, {'vsub(v, base)' if log else 'vdiv(vexp(v), base)'})")
    return out.source("log_softmax" if log else "softmax", "x", "y")


class _Losses(Lines):
    """Code with a loss for each of the places of each sample, from logits (B, places, K, 16)."""

    def __init__(self, samples: int, places: int, classes: int, labels: str, vector: bool) -> None:
        super().__init__()
        self.n, self.p, self.k = self.all_numbers(samples=samples, places=places, classes=classes)
        self.vector = vector
        at = f"((block * {LANES} + lane) * {self.p} + place)"
        self.label = f"int64(uload(labels + {at}))" if labels == "uint8" else f"int64(iload(labels + {at} * 4))"

    def begin(self) -> None:
        """Set the addresses of the logits and of the losses of block and place, and how many lanes have a sample."""
        self(f"at = block * {self.p} + place", f"left = {self.n} - block * {LANES}")
        self(f"xb = x + at * {self.k} * {BYTES}")
        _softmax(self, self.k, str(BYTES))


def cross_entropy(*, samples: int, places: int, classes: int, labels: str, vector: bool) -> KernelCode:
    """Losses (N,) as a plain vector, or (N, places) blocked; one item a block."""
    out = _Losses(samples, places, classes, labels, vector)
    with out.block("for block in range(start, stop):"), out.block(f"for place in range({out.p}):"):
        out.begin()
        # log(total) is added to what the label's logit is below the largest: both are small where logits are large.
        out("base = vlog(total)", f"yb = y + at * {BYTES}")
        out("vstore_some(yb, base, left)" if vector else "vstore(yb, base)")
        with out.block(f"for lane in range(min({LANES}, left)):"):
            out(f"k = {out.label}")
            with out.block(f"if 0 <= k < {out.k}:"):
                below = f"vlane(top, lane) - fload(xb + k * {BYTES} + lane * 4)"
                out(f"fstore(yb + lane * 4, fload(yb + lane * 4) + ({below}))")
            with out.block("else:"):
                out("fstore(yb + lane * 4, float32(0))")
    return out.source("softmax_cross_entropy", "x", "labels", "y")


def cross_entropy_gradient(*, samples: int, places: int, classes: int, labels: str, vector: bool) -> KernelCode:
    """Gradients (B, places, K, 16), 0 in lanes beyond the last sample; one item a block."""
    out = _Losses(samples, places, classes, labels, vector)
    with out.block("for block in range(start, stop):"), out.block(f"for place in range({out.p}):"):
        out.begin()
        out(f"gb = dy + at * {BYTES}", "g = vload_some(gb, left)")
        out("share = vdiv(g, total)", f"db = dx + at * {out.k} * {BYTES}")
        with out.block(f"for k in range({out.k}):"):
            out(f"vstore(db + k * {BYTES}, vmul(share, vexp(vsub(vload(xb + k * {BYTES}), top))))")
        with out.block(f"for lane in range(min({LANES}, left)):"):
            out(f"k = {out.label}", "dl = db + lane * 4")
            with out.block(f"if 0 <= k < {out.k}:"):
                out(f"dl += k * {BYTES}", "fstore(dl, fload(dl) - fload(gb + lane * 4))")
            with out.block("else:"), out.block(f"for m in range({out.k}):"):
                out(f"fstore(dl + m * {BYTES}, float32(0))")
    return out.source("softmax_cross_entropy_gradient", "dy", "x", "labels", "dx")
