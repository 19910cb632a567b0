"""Gradients of dense layers on few samples: dw = x^T dy with units in the lanes, and dx = dy w^T by sums along them.

With samples in the lanes most of these would be empty, and each thread would need sums of its own. Here the weights'
gradient is written once, and the weights are read once, in the order in which they lie in memory.
"""

from __future__ import annotations

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import BYTES, LANES

ROWS, VECTORS = 4, 4  # of weights, of a tile


def weight_gradient_worth_it(samples: int, units: int, threads: int) -> bool:
    """True if this is faster than sums over blocks of samples: where not every thread has several of its own."""
    return samples <= LANES * threads and units >= LANES


def input_gradient_worth_it(samples: int, units: int) -> bool:
    """True if this is faster than turning the weights around, which costs the same for any number of samples.

    Each sum along the units ends with adding up its lanes, which long sums hide; many samples read the weights often.
    """
    return samples <= max(8, min(units // 2, 128))


def items(length: int) -> int:
    """Items of either kernel for weights (K, F): tiles of rows, the last of which overlaps the one before."""
    return -(-length // min(ROWS, length))


def _sizes(out: Lines, samples: int, length: int, units: int) -> int:
    """Numbers of both kernels; the rows of a tile."""
    out.all_numbers(samples=samples, length=length, units=units, whole=units // LANES * LANES)
    return min(ROWS, length)


def weight_gradient(samples: int, length: int, units: int) -> KernelCode:
    """dw (K, F) from x (B, K, 16) and dy (N, F), both with all samples."""
    out = Lines()
    rows = _sizes(out, samples, length, units)
    run = out.number("run", units // (VECTORS * LANES) * VECTORS * LANES)
    with out.block("for item in range(start, stop):"):
        out(f"k = min(item * {rows}, length - {rows})")
        with out.block(f"for f in range(0, {run}, {VECTORS * LANES}):"):
            _outer(out, rows, VECTORS, "")
        with out.block(f"for f in range(run, whole, {LANES}):"):
            _outer(out, rows, 1, "")
        if units % LANES:
            out("f = whole")
            _outer(out, rows, 1, "_some")
    return out.source("matmul of few samples", "x", "dy", "y")


def _outer(out: Lines, rows: int, vectors: int, some: str) -> None:
    live = ", units - f" if some else ""
    tile = [(r, v) for r in range(rows) for v in range(vectors)]
    out(*(f"a{r}_{v} = splat(float32(0))" for r, v in tile))
    with out.block("for n in range(samples):"):
        out(f"xi = x + ((n // {LANES} * length + k) * {LANES} + n % {LANES}) * 4", "yi = dy + (n * units + f) * 4")
        out(*(f"d{v} = vload{some}(yi + {v * BYTES}{live})" for v in range(vectors)))
        for r in range(rows):
            out(f"b = bload(xi + {r * BYTES})", *(f"a{r}_{v} = vfma(b, d{v}, a{r}_{v})" for v in range(vectors)))
    out(*(f"vstore{some}(y + ((k + {r}) * units + f + {v * LANES}) * 4, a{r}_{v}{live})" for r, v in tile))


def input_gradient(samples: int, length: int, units: int, *, masked: bool) -> KernelCode:
    """dx (B, K, 16) from dy (N, F) and w (K, F), 0 where a mask of dx's shape is not positive, if there is one."""
    out = Lines()
    rows = _sizes(out, samples, length, units)
    with out.block("for item in range(start, stop):"):
        out(f"k = min(item * {rows}, length - {rows})")
        with out.block("for n in range(samples):"):
            out(*(f"a{r} = splat(float32(0))" for r in range(rows)))
            with out.block(f"for f in range(0, whole, {LANES}):"):
                out("d = vload(dy + (n * units + f) * 4)")
                out(*(f"a{r} = vfma(d, vload(w + ((k + {r}) * units + f) * 4), a{r})" for r in range(rows)))
            if units % LANES:
                out("d = vload_some(dy + (n * units + whole) * 4, units - whole)")
                last = "vload_some(w + ((k + {}) * units + whole) * 4, units - whole)"
                out(*(f"a{r} = vfma(d, {last.format(r)}, a{r})" for r in range(rows)))
            out(f"at = ((n // {LANES} * length + k) * {LANES} + n % {LANES}) * 4")
            for r in range(rows):
                out(f"s = vsum(a{r})")
                if masked:
                    out(f"s = s if fload(mask + at + {r * BYTES}) > float32(0) else float32(0)")
                out(f"fstore(y + at + {r * BYTES}, s)")
    return out.source("matmul of few samples", "dy", "w", *(["mask"] if masked else []), "y")
