def sum_to(dy, shape):
    extra = dy.ndim - len(shape)
    stretched = tuple(i + extra for i, n in enumerate(shape) if n == 1)
    return dy.sum(axis=tuple(range(extra)) + stretched, keepdims=True).reshape(shape).copy()


def add_gradient(dy, a, b):
    return sum_to(dy, a.shape), sum_to(dy, b.shape)


def multiply_gradient(dy, a, b):
    return sum_to(dy * b, a.shape), sum_to(dy * a, b.shape)
