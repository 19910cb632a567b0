"""Exercise: a matrix product as a CUDA kernel with tiles in shared memory.

A block of SIDE x SIDE threads makes SIDE x SIDE elements of c, each thread one; the grid has as many blocks as cover c.
A naive thread reads a row of a and a column of b from the GPU's memory. Here the threads of a block bring one tile of
each into shared memory, wait for each other (cuda.syncthreads), add up SIDE products each, wait again, and go on to the
next tiles. So every number is read once a block instead of SIDE times.

It is graded without a GPU: the grader runs each thread, counts reads, and sees races and accesses beyond an array. On a
GPU the same text is compiled by Numba.

The sides of the matrices need not be multiples of SIDE: neither read nor write beyond their ends, but let all threads
of a block come to every barrier.

Grade this file by: minicnn grade matmul_kernel FILE
"""

from numba import cuda, float32

SIDE = 4  # of a block and of a tile; on a GPU it would be 16 or 32. Leave it as it is.


@cuda.jit
def matmul(a, b, c):
    """Write a @ b to c.

    Args:
        a: float32 (N, K).
        b: float32 (K, M).
        c: float32 (N, M). The block (cuda.blockIdx.x, cuda.blockIdx.y) makes columns from blockIdx.x * SIDE and
            rows from blockIdx.y * SIDE, its thread (threadIdx.x, threadIdx.y) one element of these.
    """
    left = cuda.shared.array((SIDE, SIDE), float32)  # noqa: F841 - a tile of a
    right = cuda.shared.array((SIDE, SIDE), float32)  # noqa: F841 - a tile of b
    raise NotImplementedError  # the blank
