"""Exercise: gradients of broadcasting.

NumPy adds arrays of different shapes as if the smaller one were repeated: axes of length 1 are stretched, and missing
axes come first. An element that is used many times gets the sum of all gradients that come back:

    the gradient of repeating is adding up.

Grade this file by: minicnn grade broadcasting FILE
"""


def sum_to(dy, shape):
    """Add a gradient up to the shape of what was broadcast.

    Args:
        dy: Gradient with regard to the broadcast array.
        shape: Shape before broadcasting.

    Returns:
        An array of that shape.

    Example:
        >>> sum_to(np.array([[1.0, 2.0], [10.0, 20.0]]), (2,))
        array([11., 22.])
        >>> sum_to(np.array([[1.0, 2.0], [10.0, 20.0]]), (2, 1))
        array([[ 3.],
               [30.]])
    """
    raise NotImplementedError  # the blank


def add_gradient(dy, a, b):
    """Gradients of a + b with regard to a and b, of the shape of each.

    Example:
        >>> add_gradient(np.ones((2, 3)), np.zeros((2, 3)), np.zeros(3))
        (array([[1., 1., 1.],
               [1., 1., 1.]]), array([2., 2., 2.]))
    """
    raise NotImplementedError  # another blank


def multiply_gradient(dy, a, b):
    """Gradients of a * b with regard to a and b, of the shape of each.

    Example:
        >>> multiply_gradient(np.ones((2, 2)), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 20.0]))
        (array([[10., 20.],
               [10., 20.]]), array([4., 6.]))
    """
    raise NotImplementedError  # another blank
