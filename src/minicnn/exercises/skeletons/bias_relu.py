"""Exercise: a kernel for the CPU that fuses two operations.

NumPy computes max(x + bias, 0) in two passes: it writes x + bias to memory, and reads it again. Write a loop that
Numba compiles (https://numba.readthedocs.io), which reads each element once and writes each result once.

The grader reads the kernel as text and compiles it itself: it may hold loops, conditions, numbers, elements of arrays,
min, max, abs and functions of `math`, and no calls of NumPy. Grade this file by: minicnn grade bias_relu FILE
"""

from numba import njit


@njit
def bias_relu(x, bias, out):
    """Write max(x[n, c] + bias[c], 0) to out[n, c].

    Args:
        x: float32 (N, C); only read.
        bias: float32 (C,); only read.
        out: float32 (N, C); may hold anything before.
    """
    raise NotImplementedError  # the blank
