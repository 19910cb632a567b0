"""Exercise: Adam.

    m <- beta_1 * m + (1 - beta_1) * g
    v <- beta_2 * v + (1 - beta_2) * g^2
    p <- p - rate * m_hat / (sqrt(v_hat) + epsilon)      m_hat = m / (1 - beta_1^t),  v_hat = v / (1 - beta_2^t)

m and v are running means of the gradient and of its square, which begin at zero; dividing by 1 - beta^t makes up for
that, where t = 1 is the first step. So each number moves by about `rate`, whatever the size of its gradient.

AdamW also shrinks each number by rate * decay of itself, beside the step and not through the gradient:
p <- p - rate * decay * p - (the step above). Functions return new arrays. Grade this file by: minicnn grade adam FILE
"""


def adam(p, m, v, g, rate, t, beta_1, beta_2, epsilon):
    """One step: the new p, m and v.

    Example:
        >>> adam(np.array([1.0]), np.array([0.0]), np.array([0.0]), np.array([-4.0]), 0.5, 1, 0.5, 0.75, 0.0)
        (array([1.5]), array([-2.]), array([4.]))
    """
    raise NotImplementedError  # the blank


def adamw(p, m, v, g, rate, t, beta_1, beta_2, epsilon, decay):
    """One step with decay of the weights: the new p, m and v.

    Example:
        >>> adamw(np.array([1.0]), np.array([0.0]), np.array([0.0]), np.array([-4.0]), 0.5, 1, 0.5, 0.75, 0.0, 0.1)
        (array([1.45]), array([-2.]), array([4.]))
    """
    raise NotImplementedError  # another blank
