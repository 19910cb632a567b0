"""Exercise: dropout by a counter.

Dropout sets each element to zero with a probability `rate` and divides the others by 1 - rate, so that their mean
stays. A mask from a generator with a state would have to be kept for the backward pass, and would differ between
machines.
Here each random number is a function of counters: the seed, the step, and the place of the element. The backward pass
computes the same mask again, and any number of processes agree.

`mix` turns counters into 32 random bits; it is complete. The bits of the element at a place (0, 1, 2 ... in C order):

    mix(place ^ mix(step ^ mix(seed)))

and an element is kept if bits / 2^32 >= rate. Grade this file by: minicnn grade dropout FILE
"""

import numpy as np


def mix(counters):
    """32 random bits for each counter below 2^32, as uint64 (complete)."""
    x = np.asarray(counters, "uint64") & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = x ^ (x >> np.uint64(shift))
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def mask(shape, rate, seed, step):
    """Mask of the elements that are kept: booleans of a shape.

    Example:
        >>> mask((2, 3), 0.5, 1, 0)
        array([[False,  True,  True],
               [False, False,  True]])
    """
    raise NotImplementedError  # the blank


def dropout(x, rate, seed, step):
    """Elements of x that are kept, divided by 1 - rate, and zeros.

    Example:
        >>> dropout(np.array([1.0, 2.0, 3.0]), 0.5, 1, 0)
        array([0., 4., 6.])
    """
    raise NotImplementedError  # another blank


def dropout_gradient(dy, rate, seed, step):
    """Gradient with regard to x, without x and without a mask that was kept.

    Example:
        >>> dropout_gradient(np.array([1.0, 1.0, 1.0]), 0.5, 1, 0)
        array([0., 2., 2.])
    """
    raise NotImplementedError  # another blank
