"""Exercise: a blocked matrix product for the CPU, compiled by Numba.

    c[i, j] = sum over k of a[i, k] * b[k, j]

Three plain loops read a column of b for each element of c, and a row of memory lies far from the next: the cache loses
each line before its other elements are used. Compute c in blocks instead: a block of c is the sum of products of blocks
of a and b, and three small blocks stay in the cache while they are used.

The grader counts with a cache of 32 lines of 8 elements, in which the line goes that was not used for longest. Rows
begin at a line. With blocks of BLOCK x BLOCK = 8 x 8 a block is 8 lines. The sides need not be multiples of BLOCK.
Then it measures the product of larger matrices, compiled, beside the plain loops.

The grader reads the kernel as text and compiles it itself: it may hold loops, conditions, numbers, elements of arrays,
min, max, abs and functions of `math`, and no calls of NumPy. Grade this file by: minicnn grade blocked_matmul FILE
"""

from numba import njit

BLOCK = 8  # a constant that you may change


@njit
def matmul(a, b, c):
    """Write a @ b to c, for example [[1, 2]] @ [[3], [4]] = [[11]].

    Args:
        a: float32 (N, K); only read.
        b: float32 (K, M); only read.
        c: float32 (N, M); holds zeros before.
    """
    raise NotImplementedError  # the blank
