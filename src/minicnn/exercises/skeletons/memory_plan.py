"""Exercise: a memory plan.

A program is a list of steps; each makes one value from others. A value needs memory from the step that makes it to the
last step that reads it; a value that is a result of the program needs it to the end. Values that never live at the same
time may share memory: a plan says at which byte of one block each value begins.

A good plan places large values first, each at the lowest place where it overlaps with no value that is already placed
and lives at the same time. Grade this file by: minicnn grade memory_plan FILE
"""


def lifetimes(program, results):
    """First and last step of each value.

    Args:
        program: Steps (value, values that it reads); each value is made once.
        results: Values that live to the last step.

    Returns:
        A dict from each value to (step that makes it, last step that needs it); steps count from 0.

    Example:
        >>> lifetimes([("a", []), ("b", ["a"]), ("c", ["a", "b"]), ("d", ["c"])], ["d"])
        {'a': (0, 2), 'b': (1, 2), 'c': (2, 3), 'd': (3, 3)}
    """
    raise NotImplementedError  # the blank


def peak(lives, sizes):
    """The most bytes that live at one step: no plan needs less.

    Args:
        lives: As `lifetimes` returns them.
        sizes: Bytes of each value.

    Example:
        >>> peak({"a": (0, 2), "b": (1, 2), "c": (2, 3)}, {"a": 4, "b": 8, "c": 1})
        13
    """
    raise NotImplementedError  # another blank


def plan(lives, sizes):
    """The byte at which each value begins.

    Args:
        lives: As `lifetimes` returns them.
        sizes: Bytes of each value.

    Returns:
        A dict from each value to the byte at which it begins.
    """
    raise NotImplementedError  # another blank
