"""Exercise: predict times by the roofline.

A machine does at most `peak` operations a second and moves at most `bandwidth` bytes a second; both go on at the same
time. So an operation takes at least the longer of flops / peak and bytes / bandwidth. The intensity flops / bytes says
which: below peak / bandwidth memory is the bound, from there on the arithmetic.

Grade this file by: minicnn grade roofline FILE
"""


def attainable(intensity, peak, bandwidth):
    """The most FLOP/s at an intensity: the roof.

    Example:
        >>> attainable(2.0, 100.0, 10.0)
        20.0
    """
    raise NotImplementedError  # the blank


def bound(flops, size, peak, bandwidth):
    """The slower of both: "memory" for `size` bytes or "arithmetic"; "arithmetic" if both take the same time.

    Example:
        >>> bound(20.0, 10.0, 100.0, 10.0)
        'memory'
    """
    raise NotImplementedError  # another blank


def step_time(operations, peak, bandwidth, launch):
    """Least time of operations one after the other, each of which also takes some time to be launched.

    Args:
        operations: Pairs (FLOPs, bytes).
        peak: FLOP/s.
        bandwidth: Bytes a second.
        launch: Seconds.

    Example:
        >>> step_time([(100.0, 5.0), (10.0, 20.0)], 100.0, 10.0, 0.5)
        4.0
    """
    raise NotImplementedError  # another blank


def speedup(operations, peak, bandwidth, launch, saved):
    """Speed-up of the operations as one kernel, which need not move some bytes.

    Args:
        operations: Pairs (FLOPs, bytes).
        peak: FLOP/s.
        bandwidth: Bytes a second.
        launch: Seconds.
        saved: Bytes that stay in registers.

    Example:
        >>> speedup([(10.0, 20.0), (10.0, 20.0)], 100.0, 10.0, 0.5, 20.0)
        2.0
    """
    raise NotImplementedError  # another blank
