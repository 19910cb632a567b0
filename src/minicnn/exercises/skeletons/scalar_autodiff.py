"""Exercise: a scalar autodiff engine.

A `Value` is a number that remembers how it was computed: its parents, and the slope of the result with regard to each.
For y = a * b these slopes are b and a. `backward` goes through all values from the last to the first and hands on to
each parent

    parent.gradient += slope * value.gradient

starting with a gradient of 1 at the end. A value that is used twice gets two contributions: add them.

Addition is there as an example. Fill in the others and `backward`; leave `run` as it is: the grader calls it.
Grade this file by: minicnn grade scalar_autodiff FILE
"""


class Value:
    """A number in a computation.

    Args:
        data: The number.
        parents: Pairs (value, slope of this number with regard to it).
    """

    def __init__(self, data, parents=()):
        self.data, self.parents, self.gradient = data, parents, 0.0

    def __add__(self, other):
        return Value(self.data + other.data, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        raise NotImplementedError  # a blank

    def relu(self):
        """max(x, 0), with the slope 0 at 0."""
        raise NotImplementedError  # a blank

    def exp(self):
        """e to the power of x (math.exp)."""
        raise NotImplementedError  # a blank


def backward(values):
    """Set the gradients of all values, given in the order in which they were computed; the last is the result."""
    raise NotImplementedError  # a blank


def run(recipe, inputs):
    """Compute a recipe, and the gradients of its result.

    Args:
        recipe: Steps (operation, places of its arguments among all values so far); operations are "add", "mul", "relu"
            and "exp".
        inputs: The first values, as numbers.

    Returns:
        The result, and the gradient with regard to each input.

    Example:
        >>> run([("mul", 0, 1), ("add", 2, 3)], [3.0, 4.0, 5.0])  # a * b + c
        (17.0, [4.0, 3.0, 1.0])
    """
    values = [Value(x) for x in inputs]
    for operation, *places in recipe:
        arguments = [values[p] for p in places]
        if operation == "add":
            values.append(arguments[0] + arguments[1])
        elif operation == "mul":
            values.append(arguments[0] * arguments[1])
        else:
            values.append(getattr(arguments[0], operation)())
    backward(values)
    return values[-1].data, [v.gradient for v in values[: len(inputs)]]
