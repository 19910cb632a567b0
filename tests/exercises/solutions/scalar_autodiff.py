import math


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
        return Value(self.data * other.data, ((self, other.data), (other, self.data)))

    def relu(self):
        return Value(max(self.data, 0.0), ((self, float(self.data > 0)),))

    def exp(self):
        y = math.exp(self.data)
        return Value(y, ((self, y),))


def backward(values):
    """Set the gradients of all values, given in the order in which they were computed; the last is the result."""
    values[-1].gradient = 1.0
    for value in reversed(values):
        for parent, slope in value.parents:
            parent.gradient += slope * value.gradient


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
