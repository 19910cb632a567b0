"""Exercise: learning rates that change.

A large rate is fast at first, a small one is accurate at last, and the very first steps, when gradients are largest,
need a small one again. Steps count from 0. Grade this file by: minicnn grade schedule FILE
"""


def staircase(step, rate, factor, every):
    """rate * factor^k, where k is how many times `every` steps are over.

    Example:
        >>> staircase(7, 8.0, 0.5, 3)
        2.0
    """
    raise NotImplementedError  # the blank


def cosine(step, peak, total):
    """Half a period of a cosine from `peak` at step 0 to 0 at step `total`; 0 afterwards.

    peak * (1 + cos(pi * step / total)) / 2

    Example:
        >>> cosine(5, 4.0, 10)
        2.0
    """
    raise NotImplementedError  # another blank


def warmup_cosine(step, peak, warmup, total):
    """A line from 0 at step 0 to `peak` at step `warmup`, then the cosine to 0 at step `total`; 0 afterwards.

    Example:
        >>> warmup_cosine(1, 4.0, 4, 12)
        1.0
        >>> warmup_cosine(8, 4.0, 4, 12)
        2.0
    """
    raise NotImplementedError  # another blank
