def normalize_gradient(dy, x, scale, mean, variance, *, axes, epsilon, xp):
    inverse = 1 / xp.sqrt(variance + epsilon)
    u = (x - mean) * inverse
    g = dy * scale
    dx = (g - xp.mean(g, axis=axes, keepdims=True) - u * xp.mean(g * u, axis=axes, keepdims=True)) * inverse
    return dx, xp.sum(dy * u, axis=axes), xp.sum(dy, axis=axes)


def normalize(x, scale, offset, *, axes, epsilon, xp):
    mean = xp.mean(x, axis=axes, keepdims=True)
    variance = xp.mean((x - mean) ** 2, axis=axes, keepdims=True)
    return (x - mean) / xp.sqrt(variance + epsilon) * scale + offset, mean, variance
