"""Exercise: a convolution as a CUDA kernel, with a tile of the image in shared memory.

    y[i, j] = sum over p, q of x[i + p, j + q] * w[p, q]        for one image of one channel, w of 3 x 3

A block of SIDE x SIDE threads makes a tile of SIDE x SIDE elements of y. These need SIDE + 2 rows and columns of x: the
tile and its halo. A naive thread reads nine elements of x from memory; here the threads bring the tile and its halo
into shared memory, some of them more than one element, wait, and read the nine from there.

It is graded without a GPU: the grader runs each thread, counts reads, and sees races and accesses beyond an array. On a
GPU the same text is compiled by Numba. Grade this file by: minicnn grade convolution_kernel FILE
"""

from numba import cuda, float32

SIDE = 4  # of a block; on a GPU it would be 16. Leave it as it is.
TILE = 6  # SIDE + 2, with the halo


@cuda.jit
def convolve(x, w, y):
    """Write the convolution of x with w to y; if w is 1 in the middle and 0 elsewhere, y is x without its edges.

    Args:
        x: float32 (H, W).
        w: float32 (3, 3).
        y: float32 (H - 2, W - 2). The block (cuda.blockIdx.x, cuda.blockIdx.y) makes columns from blockIdx.x * SIDE
            and rows from blockIdx.y * SIDE, its thread (threadIdx.x, threadIdx.y) one element of these.
    """
    tile = cuda.shared.array((TILE, TILE), float32)  # noqa: F841 - of x
    raise NotImplementedError  # the blank
