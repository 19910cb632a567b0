"""Gradients of dense layers on few samples: dw = x^T dy with units in the lanes, and dx = dy w^T by sums along them.

With samples in the lanes most of these would be empty, and each thread would need sums of its own. Here the weights'
gradient is written once, and the weights are read once, in the order in which they lie in memory.
"""

from __future__ import annotations

from minicnn.backends.numba import cpus
from minicnn.backends.numba.channel_lanes import GRADIENT, Update
from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.machine import second_level_cache

ROWS, VECTORS = 4, 4  # of weights, of a tile
TOGETHER = LANES // ROWS  # samples whose sums are ready at the same time


def weight_gradient_worth_it(samples: int, units: int, threads: int) -> bool:
    """True if this is faster than sums over blocks of samples: where not every thread has several of its own."""
    return samples <= LANES * threads and units >= LANES


def input_gradient_worth_it(samples: int, length: int, units: int) -> bool:
    """True if this is faster than turning the weights around, which costs the same for any number of samples.

    Each sum along the units ends with adding up its lanes, which takes as long as turning some weights; many samples
    read the weights often.
    """
    costs = cpus.host().costs.few_samples
    weights = costs.transposed if 4 * length * units <= second_level_cache() else costs.transposed_afar
    return samples <= max(costs.least, min(units // weights, costs.most))


def items(length: int) -> int:
    """Items of either kernel for weights (K, F): tiles of rows, the last of which overlaps the one before."""
    return -(-length // min(ROWS, length))


def _sizes(out: Lines, samples: int, length: int, units: int) -> int:
    """Numbers of both kernels; the rows of a tile."""
    out.all_numbers(samples=samples, length=length, units=units, whole=units // LANES * LANES)
    return min(ROWS, length)


def update_worth_it(samples: int, units: int) -> bool:
    """True if weights are best updated where their gradient is made: dy stays in the cache while they pass."""
    return units >= LANES and 4 * samples * units <= second_level_cache() // cpus.host().costs.few_samples.share


def weight_gradient(
    samples: int, length: int, units: int, update: Update = GRADIENT, *, blocked: bool = True
) -> KernelCode:
    """dw (K, F), or the weights that are updated by it, from x (B, K, 16), or (N, K) if not blocked, and dy (N, F)."""
    out = Lines()
    rows = _sizes(out, samples, length, units)
    x = (f"(n // {LANES} * length + k) * {LANES} + n % {LANES}", BYTES) if blocked else ("n * length + k", 4)
    vectors = min(VECTORS, max(1, cpus.host().accumulators // rows))
    run = out.number("run", units // (vectors * LANES) * vectors * LANES)
    with out.block("for item in range(start, stop):"):
        # The last tile overlaps the one before, whose weights it makes again from those before the step.
        out(f"k = min(item * {rows}, length - {rows})")
        with out.block(f"for f in range(0, {run}, {vectors * LANES}):"):
            _outer(out, rows, vectors, update, x)
        with out.block(f"for f in range(run, whole, {LANES}):"):
            _outer(out, rows, 1, update, x)
        if units % LANES:
            out("f = whole")
            _outer(out, rows, 1, update, x, "_some")
    buffers = (*(f"b{i}" for i in update.read), *(f"y{k}" for k in range(len(update.group.outputs))))
    return out.source(f"matmul of {'few samples' if blocked else 'channels'}", "x", "dy", *buffers)


def _outer(out: Lines, rows: int, vectors: int, update: Update, x: tuple[str, int], some: str = "") -> None:
    live = ", units - f" if some else ""
    tile = [(r, v) for r in range(rows) for v in range(vectors)]
    out(*(f"a{r}_{v} = splat(float32(0))" for r, v in tile))
    ahead = cpus.host().costs.few_samples.ahead
    for buffer in update.passed if not some else ():
        out(*(f"prefetch_second({buffer} + ((k + {r}) * units + f + {ahead + v * LANES}) * 4)" for r, v in tile))
    with out.block("for n in range(samples):"):
        out(f"xi = x + ({x[0]}) * 4", "yi = dy + (n * units + f) * 4")
        out(*(f"d{v} = vload{some}(yi + {v * BYTES}{live})" for v in range(vectors)))
        for r in range(rows):
            out(f"b = bload(xi + {r * x[1]})", *(f"a{r}_{v} = vfma(b, d{v}, a{r}_{v})" for v in range(vectors)))
    # All loads come before all stores: a store delays loads whose addresses have the same last 12 bits, as those of the
    # next row often have.
    places = {(r, v): f"((k + {r}) * units + f + {v * LANES}) * 4" for r, v in tile}
    for (r, v), at in places.items():
        out(f"at = {at}", f"v{update.gradient} = a{r}_{v}")
        for k, result in enumerate(update.write(out, "at", some, live)):
            out(f"r{r}_{v}_{k} = {result}")
    for (r, v), at in places.items():
        out(*(f"vstore{some}(y{k} + {at}, r{r}_{v}_{k}{live})" for k in range(len(update.group.outputs))))


def input_gradient(samples: int, length: int, units: int, *, masked: bool) -> KernelCode:
    """dx (B, K, 16) from dy (N, F) and w (K, F), 0 where a mask of dx's shape is not positive, if there is one.

    Tiles are rows of weights x samples. The lanes of 16 sums are added up together.
    """
    out = Lines()
    rows = _sizes(out, samples, length, units)
    side = max(n for n in (1, 2, TOGETHER) if rows * n <= max(rows, cpus.host().accumulators))
    out("panel = stack()", "zero = splat(float32(0))")
    with out.block("for item in range(start, stop):"):
        out(f"k = min(item * {rows}, length - {rows})")
        with out.block(f"for n in range(0, samples, {TOGETHER}):"):
            for first in range(0, TOGETHER, side):
                _sums_along_units(out, rows, range(first, first + side), units)
            out(
                f"vstore(panel, sums(panel, {BYTES}))",
                f"at = ((n // {LANES} * length + k) * {LANES} + n % {LANES}) * 4",
            )
            for r in range(rows):
                out(f"v = vload_some(panel + {r * TOGETHER * 4}, {TOGETHER})")
                if masked:
                    out(f"m = vload_some(mask + at + {r * BYTES}, {TOGETHER})")
                    out("v = vselect(vgt(m, zero), v, zero)")
                out(f"vstore_some(y + at + {r * BYTES}, v, {TOGETHER})")
    return out.source("matmul of few samples", "dy", "w", *(["mask"] if masked else []), "y")


def _sums_along_units(out: Lines, rows: int, samples: range, units: int) -> None:
    """Put sums of a tile on the stack, whose lanes are not added up yet; samples behind the last are like it."""
    tile = [(r, s) for r in range(rows) for s in samples]
    out(*(f"d{s}_ = dy + min(n + {s}, samples - 1) * units * 4" for s in samples))
    out(*(f"a{r}_{s} = splat(float32(0))" for r, s in tile))

    def add(at: str, some: str = "", live: str = "") -> None:
        out(*(f"d{s} = vload{some}(d{s}_ + {at} * 4{live})" for s in samples))
        for r in range(rows):
            out(f"b = vload{some}(w + ((k + {r}) * units + {at}) * 4{live})")
            out(*(f"a{r}_{s} = vfma(d{s}, b, a{r}_{s})" for s in samples))

    with out.block(f"for f in range(0, whole, {LANES}):"):
        add("f")
    if units % LANES:
        add("whole", "_some", ", units - whole")
    out(*(f"vstore(panel + {(r * TOGETHER + s) * BYTES}, a{r}_{s})" for r, s in tile))
