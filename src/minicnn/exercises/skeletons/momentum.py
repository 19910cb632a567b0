"""Exercise: gradient descent with momentum.

    plain:     p <- p - rate * g
    momentum:  v <- momentum * v - rate * g;  p <- p + v
    Nesterov:  v <- momentum * v - rate * g;  p <- p + momentum * v - rate * g     (with the new v)

A velocity v adds up gradients: where they agree a step grows to 1 / (1 - momentum) times the plain one, and where they
alternate they cancel. Nesterov's step looks one step ahead.

Functions return new arrays; the old ones stay as they are. Grade this file by: minicnn grade momentum FILE
"""


def sgd(p, g, rate):
    """The plain step: the new p.

    Example:
        >>> sgd(np.array([1.0, 2.0]), np.array([10.0, -10.0]), 0.1)
        array([0., 3.])
    """
    raise NotImplementedError  # the blank


def momentum_step(p, v, g, rate, momentum):
    """The step with momentum: the new p and v.

    Example:
        >>> momentum_step(np.array([1.0]), np.array([2.0]), np.array([10.0]), 0.1, 0.5)
        (array([1.]), array([0.]))
    """
    raise NotImplementedError  # another blank


def nesterov_step(p, v, g, rate, momentum):
    """Nesterov's step: the new p and v.

    Example:
        >>> nesterov_step(np.array([1.0]), np.array([4.0]), np.array([10.0]), 0.1, 0.5)
        (array([0.5]), array([1.]))
    """
    raise NotImplementedError  # another blank
