"""Kernels: loops for the CPU that Numba compiles, and CUDA kernels that the grader runs thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn.exercises.exercise import Array, Example, Exercise, Item, Rng, Speed, WrongError, call
from minicnn.exercises.language import RUN

Judge = Callable[[Example, Any], None]

CPU, GPU = "Kernels for the CPU", "Kernels for the GPU"
SIDE = 4  # of a tile of the matrix product
MISSES = 1_800  # lines that a blocked product of 32 x 32 x 32 brings into the cache, at most


def drawn(rng: Rng, *shape: int) -> Array:
    """An array of small integers in float32, whose sums are exact."""
    return rng.integers(-4, 5, shape).astype("float32")


def sides(rng: Rng, most: int, count: int) -> list[int]:
    """Lengths of axes, below a number."""
    return [int(n) for n in rng.integers(1, most, count)]


def _empty(*shape: int) -> Array:
    return np.full(shape, np.nan, "float32")


def launch(name: str, grid: tuple[int, int], block: tuple[int, int], *arrays: Any) -> Example:
    """Arguments by which a CUDA kernel is launched."""
    return call(name, grid, block, list(arrays))


def right_arrays(answer: Callable[..., Any]) -> Callable[[Example, Any], None]:
    """Judge of a launch: the arrays are those that a function makes of them."""

    def judge(case: Example, result: Any) -> None:
        name, *_, arrays = case.arguments
        for number, (ours, right) in enumerate(zip(result["arrays"], answer(*arrays), strict=True)):
            if isinstance(right, np.ndarray) and not np.allclose(ours, right, rtol=1e-5, atol=1e-5):
                place = tuple(int(i) for i in np.argwhere(~np.isclose(ours, right, rtol=1e-5, atol=1e-5))[0])
                shapes = ", ".join("x".join(map(str, a.shape)) for a in arrays if isinstance(a, np.ndarray))
                raise WrongError(
                    f"element {place} of argument {number + 1} of {name} is {ours[place]:.6g} and should be "
                    f"{right[place]:.6g} (arrays {shapes})"
                )

    return judge


def counted(
    judge: Callable[[Example, Any], None], most: Callable[[Example], int], remedy: str
) -> Callable[[Example, Any], None]:
    """Judge that also counts the elements read from memory."""

    def both(case: Example, result: Any) -> None:
        judge(case, result)
        if result["reads"] > most(case):
            raise WrongError(f"{result['reads']:,} elements are read from memory, of at most {most(case):,}: {remedy}")

    return both


# Bias and ReLU on the CPU ----------------------------------------------------------------------------


def _bias_relu(rng: Rng, n: int, c: int) -> Example:
    return call("bias_relu", [drawn(rng, n, c), drawn(rng, c), _empty(n, c)])


_right_bias_relu = right_arrays(lambda x, bias, out: (x, bias, np.maximum(x + bias, np.float32(0))))


# A blocked matrix product on the CPU ------------------------------------------------------------------


def _blocked(rng: Rng, n: int, k: int, m: int) -> Example:
    return call("matmul", [drawn(rng, n, k), drawn(rng, k, m), np.zeros((n, m), "float32")])


def _few_misses(case: Example, result: Any) -> None:
    _right_product(case, result)
    if result["misses"] > MISSES:
        raise WrongError(
            f"{result['misses']:,} lines are brought into the cache, of at most {MISSES:,}: by plain loops it is "
            "33,920, and 1,152 if a block of each matrix stays in it"
        )


PLAIN_LOOPS = """
from numba import njit

@njit
def matmul(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total
"""

# A matrix product on the GPU --------------------------------------------------------------------------


def _product(rng: Rng, n: int, k: int, m: int) -> Example:
    return launch(
        "matmul", (-(-m // SIDE), -(-n // SIDE)), (SIDE, SIDE), drawn(rng, n, k), drawn(rng, k, m), _empty(n, m)
    )


def _whole(rng: Rng) -> Example:
    n, k, m = (SIDE * int(i) for i in rng.integers(1, 4, 3))
    return _product(rng, n, k, m)


def _any(rng: Rng) -> Example:
    return _product(rng, *sides(rng, 3 * SIDE, 3))


_right_product = right_arrays(lambda a, b, c: (a, b, a @ b))


def _tiles(case: Example) -> int:
    a, b, _ = case.arguments[3]
    return int(1.2 * 2 * a.shape[0] * a.shape[1] * b.shape[1] / SIDE)


# A reduction, a softmax and a convolution on the GPU ------------------------------------------------------

THREADS, WIDTH = 4, 16  # of the softmax: threads of a block, and the longest row


def _reduction(rng: Rng, n: int) -> Example:
    blocks = -(-n // 8)
    return launch("block_sums", (blocks, 1), (8, 1), drawn(rng, n), _empty(blocks))


def _block_sums(x: Array, sums: Array) -> tuple[Array, Array]:
    return x, np.add.reduceat(x, range(0, len(x), 8))


_right_reduction = right_arrays(_block_sums)


def _tree(case: Example, result: Any) -> None:
    _right_reduction(case, result)
    blocks, most = case.arguments[1][0], 5  # one barrier after loading, and one after each round of 8, 4, 2, 1
    if result["barriers"] > most * blocks:
        raise WrongError(
            f"{result['barriers'] // blocks} barriers a block, of at most {most}: halve the length each round"
        )
    if result["shared"] > 40 * blocks:
        raise WrongError(
            f"a block accesses shared memory {result['shared'] // blocks} times, of at most 40: half of the threads add"
        )


def _rows(rng: Rng, n: int, k: int, size: float = 1.0) -> Example:
    x = (size * rng.standard_normal((n, k))).astype("float32")
    return launch("softmax", (n, 1), (THREADS, 1), x, _empty(n, k))


def _softmax(x: Array, y: Array) -> tuple[Array, Array]:
    e = np.exp(x.astype("float64") - x.max(axis=1, keepdims=True))
    return x, e / e.sum(axis=1, keepdims=True)


_right_softmax = right_arrays(_softmax)


def _image(rng: Rng, h: int, w: int) -> Example:
    grid = (-(-(w - 2) // SIDE), -(-(h - 2) // SIDE))
    return launch("convolve", grid, (SIDE, SIDE), drawn(rng, h, w), drawn(rng, 3, 3), _empty(h - 2, w - 2))


def _convolve(x: Array, w: Array, y: Array) -> tuple[Array, Array, Array]:
    taps = [x[p : p + y.shape[0], q : q + y.shape[1]] * w[p, q] for p in range(3) for q in range(3)]
    return x, w, np.sum(taps, axis=0)


_right_image = right_arrays(_convolve)


EXERCISES = {
    "bias_relu": Exercise(
        "a loop that fuses two operations", CPU,
        (
            Item("values", 3, RUN, lambda rng: _bias_relu(rng, 5, 3), _right_bias_relu),
            Item("any shape", 3, RUN, lambda rng: _bias_relu(rng, *sides(rng, 40, 2)), _right_bias_relu),
            Item("one pass", 4, RUN, lambda rng: _bias_relu(rng, 24, 16), counted(
                _right_bias_relu, lambda case: 2 * 24 * 16, "each element of x once, and of the bias once a row",
            )),
        ),
        {},
        hints=(
            "Two loops, over the rows and over the columns of x.",
            "Keep the sum in a variable: it need not go to memory between the two operations.",
            "out[n, c] = max(x[n, c] + bias[c], 0)",
        ),
        kernels="cpu",
    ),
    "blocked_matmul": Exercise(
        "a matrix product whose blocks stay in the cache", CPU,
        (
            Item("values", 3, RUN, lambda rng: _blocked(rng, *sides(rng, 18, 3)), _right_product),
            Item("cache", 4, RUN, lambda rng: _blocked(rng, 32, 32, 32), _few_misses, rounds=1),
        ),
        {RUN: lambda name, arrays: {"arrays": [arrays[0], arrays[1], arrays[0] @ arrays[1]]}},
        hints=(
            "Three loops over blocks, with steps of BLOCK, around three loops within them.",
            "Let the innermost loop run along a row of b and of c: neighbours in memory are in the same line.",
            "for i in range(i0, min(i0 + BLOCK, N)) ends where the matrix ends. Add each product to c[i, j].",
        ),
        speed=Speed(
            3, RUN, lambda rng: _blocked(rng, 256, 256, 256), PLAIN_LOOPS, "plain loops", bar=1.2, flops=2 * 256**3
        ),
        needs="numba", kernels="cpu",
    ),
    "reduction_kernel": Exercise(
        "a reduction in shared memory", GPU,
        (
            Item("whole blocks", 3, RUN, lambda rng: _reduction(rng, 8 * int(rng.integers(1, 5))), _right_reduction),
            Item("any length", 3, RUN, lambda rng: _reduction(rng, int(rng.integers(1, 40))), _right_reduction),
            Item("tree", 4, RUN, lambda rng: _reduction(rng, 32), _tree),
        ),
        {},
        hints=(
            "part[t] = x[i] where there is such an element, else 0; i = cuda.grid(1), t = cuda.threadIdx.x.",
            "A loop with half = THREADS // 2, then half //= 2: where t < half, part[t] += part[t + half].",
            "cuda.syncthreads() stands in the loop, but not under `if t < half`: all threads come to it.",
        ),
        kernels="cuda",
    ),
    "softmax_kernel": Exercise(
        "a softmax of rows", GPU,
        (
            Item("values", 3, RUN, lambda rng: _rows(rng, 2, THREADS * int(rng.integers(1, 5))), _right_softmax),
            Item("any width", 2, RUN, lambda rng: _rows(rng, 3, int(rng.integers(1, WIDTH + 1))), _right_softmax),
            Item("large logits", 2, RUN, lambda rng: _rows(rng, 2, 9, 300.0), _right_softmax),
            Item("reads", 3, RUN, lambda rng: _rows(rng, 3, WIDTH), counted(
                _right_softmax, lambda case: 3 * WIDTH, "keep the row in shared memory",
            )),
        ),
        {},
        hints=(
            "for k in range(t, x.shape[1], THREADS) gives each thread its elements of the row.",
            "Each thread writes its own maximum to part[t]; after a barrier each reads all of part, a short loop.",
            "Before part is written again, for the sum, there has to be another barrier.",
        ),
        kernels="cuda",
    ),
    "convolution_kernel": Exercise(
        "a convolution with a tile in shared memory", GPU,
        (
            Item("whole tiles", 3, RUN, lambda rng: _image(rng, 10, 6), _right_image),
            Item("edges", 3, RUN, lambda rng: _image(rng, *(n + 2 for n in sides(rng, 10, 2))), _right_image),
            Item("reads", 4, RUN, lambda rng: _image(rng, 10, 10), counted(
                _right_image, lambda case: 4 * 36 + 64 * 9, "the tile and its halo once a block, 36 elements, and w",
            )),
        ),
        {},
        hints=(
            "for i in range(threadIdx.y, TILE, SIDE), and the same for columns: some threads load up to four elements.",
            "Beyond the end of x nothing is loaded; what is not there is not needed either.",
            "After the barrier: total += tile[i + p, j + q] * w[p, q], with i and j the thread's place in the block.",
        ),
        kernels="cuda",
    ),
    "matmul_kernel": Exercise(
        "a matrix product with tiles in shared memory", GPU,
        (
            Item("whole tiles", 3, RUN, _whole, _right_product),
            Item("edges", 3, RUN, _any, _right_product),
            Item("reads", 4, RUN, lambda rng: _product(rng, *[3 * SIDE] * 3), counted(
                _right_product, _tiles, f"with tiles each is read once a block, 1/{SIDE} of what a naive thread reads"
            )),
        ),
        {},
        hints=(
            "A loop over the tiles along K: each thread brings one element of a and one of b into shared memory.",
            "Two barriers a tile: one after loading, one before the next tile is loaded.",
            "Beyond the ends write zeros into the tiles; they add nothing. Only the last write to c is conditional.",
        ),
        kernels="cuda",
    ),
}  # fmt: skip
