"""Exercise: a reduction as a CUDA kernel.

Each block adds up THREADS elements: its threads bring one element each into shared memory, then half of them add the
element that lies half the length away to their own, then a quarter, and so on, until the first thread has the sum:

    length 8:  s[0..3] += s[4..7];   s[0..1] += s[2..3];   s[0] += s[1]

Between two rounds all threads wait (cuda.syncthreads), as each reads what others have written. All threads of a block
have to come to each barrier, also those that add nothing. The number of elements need not be a multiple of THREADS.

It is graded without a GPU: the grader runs each thread, counts reads, and sees races and accesses beyond an array. On a
GPU the same text is compiled by Numba. Grade this file by: minicnn grade reduction_kernel FILE
"""

from numba import cuda, float32

THREADS = 8  # of a block, a power of two; on a GPU it would be 256. Leave it as it is.


@cuda.jit
def block_sums(x, sums):
    """Write the sum of each block's elements of x to sums, for example [1, 2, ..., 9] to [36, 9].

    Args:
        x: float32 (N,).
        sums: float32 (ceil(N / THREADS),). The block cuda.blockIdx.x adds x[blockIdx.x * THREADS + i] for i from 0 to
            THREADS - 1, as far as there are such.
    """
    part = cuda.shared.array(THREADS, float32)  # noqa: F841 - an element of each thread
    raise NotImplementedError  # the blank
