"""Exercise: a fusion pass.

Each operation of a program reads its inputs from memory and writes its result there. Elementwise operations that follow
each other can be one kernel: what is handed on stays in a register. The rule here:

    an elementwise operation joins the group of its first input if that input is made by an elementwise operation, is
    read by this operation only, and is no result of the program. Everything else begins a group of its own.

Grade this file by: minicnn grade fusion FILE
"""

ELEMENTWISE = ("add", "multiply", "relu", "exp", "subtract")


def readers(program):
    """Number of steps that read each value which a step computes.

    Args:
        program: Steps (value, operation, values that it reads). What no step makes is an input of the program.

    Example:
        >>> readers([("a", "conv2d", ["x"]), ("b", "relu", ["a"]), ("c", "add", ["a", "b"])])
        {'a': 2, 'b': 1, 'c': 0}
    """
    raise NotImplementedError  # the blank


def fuse(program, results):
    """Groups of values, each made by one kernel.

    Args:
        program: As above.
        results: Values that must be in memory at the end.

    Returns:
        Lists of values, in the order of the program.

    Example:
        >>> fuse([("a", "conv2d", ["x"]), ("b", "add", ["a", "bias"]), ("c", "relu", ["b"])], ["c"])
        [['a'], ['b', 'c']]
    """
    raise NotImplementedError  # another blank


def traffic(program, groups, sizes):
    """Bytes that the kernels of some groups read and write.

    A kernel reads each value once that it needs and does not make. It writes the last value of its group.

    Args:
        program: As above.
        groups: As `fuse` returns them.
        sizes: Bytes of each value, inputs too.

    Example:
        >>> traffic([("b", "add", ["a", "bias"]), ("c", "relu", ["b"])], [["b", "c"]],
        ...         {"a": 8, "bias": 1, "b": 8, "c": 8})
        17
    """
    raise NotImplementedError  # another blank
