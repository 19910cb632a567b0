"""Exercise: a dense layer, ReLU, and their gradients.

    y = x @ w + b,    relu(x) = max(x, 0)

Given dy, the gradient of the loss with regard to y, the gradient with regard to an input collects dy times what that
input is multiplied by. The bias is added to each row, so it gets the sum of all rows. ReLU lets a gradient through
where x > 0.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest). Grade this file by: minicnn grade dense FILE
"""


def dense(x, w, b, *, xp):
    """x @ w + b.

    Args:
        x: Inputs (N, D).
        w: Weights (D, F).
        b: Bias (F,).
        xp: Namespace of the arrays.

    Returns:
        (N, F)

    Example:
        >>> dense(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([0.5]), xp=np)
        array([[11.5]])
    """
    raise NotImplementedError  # the blank


def dense_gradient(dy, x, w, *, xp):
    """Gradients with regard to x, w and b.

    Args:
        dy: Gradient with regard to y (N, F).
        x: Inputs (N, D).
        w: Weights (D, F).
        xp: Namespace of the arrays.

    Returns:
        dx (N, D), dw (D, F) and db (F,).

    Example:
        >>> dense_gradient(np.array([[1.0], [10.0]]), np.array([[2.0], [3.0]]), np.array([[5.0]]), xp=np)
        (array([[ 5.],
               [50.]]), array([[32.]]), array([11.]))
    """
    raise NotImplementedError  # another blank


def relu(x, *, xp):
    """max(x, 0), element by element.

    Example:
        >>> relu(np.array([-1.0, 0.0, 2.0]), xp=np)
        array([0., 0., 2.])
    """
    raise NotImplementedError  # another blank


def relu_gradient(dy, x, *, xp):
    """Gradient with regard to x: dy where x > 0, else 0.

    Example:
        >>> relu_gradient(np.array([5.0, 6.0, 7.0]), np.array([-1.0, 0.0, 2.0]), xp=np)
        array([0., 0., 7.])
    """
    raise NotImplementedError  # another blank
