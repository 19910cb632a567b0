def sgd(p, g, rate):
    return p - rate * g


def momentum_step(p, v, g, rate, momentum):
    v = momentum * v - rate * g
    return p + v, v


def nesterov_step(p, v, g, rate, momentum):
    v = momentum * v - rate * g
    return p + momentum * v - rate * g, v
