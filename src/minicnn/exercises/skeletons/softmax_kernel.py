"""Exercise: softmax as a CUDA kernel.

    y[n, k] = exp(x[n, k] - m) / sum over k of exp(x[n, k] - m)        m = the largest of x[n, ...]

One block makes one row; its THREADS threads go through the row in steps of THREADS, and find the largest element and
the sum together, by a reduction in shared memory. Logits may be as large as 1,000, so the largest has to be subtracted.

Read each element of x once: three passes over memory would be one for the maximum, one for the sum and one for the
result. A row has at most WIDTH elements, which fit into shared memory.

It is graded without a GPU: the grader runs each thread, counts reads, and sees races and accesses beyond an array. On a
GPU the same text is compiled by Numba. Grade this file by: minicnn grade softmax_kernel FILE
"""

import math  # noqa: F401 - math.exp

from numba import cuda, float32

THREADS = 4  # of a block, a power of two; on a GPU it would be 128. Leave it as it is.
WIDTH = 16  # elements of a row at most. Leave it as it is.


@cuda.jit
def softmax(x, y):
    """Write the softmax of each row of x to y, for example [[0, 0]] to [[0.5, 0.5]].

    Args:
        x: float32 (N, K), K at most WIDTH.
        y: float32 (N, K). The block cuda.blockIdx.x makes row blockIdx.x.
    """
    row = cuda.shared.array(WIDTH, float32)  # noqa: F841 - the row, or its exponentials
    part = cuda.shared.array(THREADS, float32)  # noqa: F841 - an element of each thread, for reductions
    raise NotImplementedError  # the blank
