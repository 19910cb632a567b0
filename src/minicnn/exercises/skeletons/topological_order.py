"""Exercise: the order of a backward pass.

A graph says for each value from which values it is computed. A backward pass starts at the result and hands gradients
on to the inputs of each value; it may hand on the gradient of a value only when all who use it have added their part.
So it needs an order in which each value stands after all values that it is computed from, and goes through it from the
end. Values that the result does not depend on are left out.

Graphs of deep networks are deep: a function that calls itself for each value ends at Python's limit of 1,000 calls.
Use a list as a stack. Grade this file by: minicnn grade topological_order FILE
"""


def order(graph, result):
    """All values on which a result depends, each after those that it is computed from; the result is the last.

    Args:
        graph: The names of the values from which each value is computed, by its name.
        result: Name of a value.

    Returns:
        A list of names, each once.

    Example:
        >>> order({"x": [], "y": ["x"], "z": ["y", "x"], "other": ["x"]}, "z")
        ['x', 'y', 'z']
    """
    raise NotImplementedError  # the blank


def gradients(graph, slopes, result):
    """Gradient of the result with regard to each value on which it depends.

    Args:
        graph: As above.
        slopes: For each value a list: the slope with regard to each value from which it is computed, in their order.
        result: Name of a value.

    Returns:
        A dict from names to gradients; that of the result is 1.

    Example:
        >>> gradients({"x": [], "y": ["x"], "z": ["y", "x"]}, {"x": [], "y": [3.0], "z": [2.0, 10.0]}, "z")
        {'z': 1.0, 'y': 2.0, 'x': 16.0}
    """
    raise NotImplementedError  # another blank
