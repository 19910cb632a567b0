def normalize_gradient(dy, x, scale, mean, variance, *, axes, epsilon, xp):
    inverse = 1 / xp.sqrt(variance + epsilon)
    u = (x - mean) * inverse
    g = dy * scale
    dx = (g - xp.mean(g, axis=axes, keepdims=True) - u * xp.mean(g * u, axis=axes, keepdims=True)) * inverse
    return dx, xp.sum(dy * u, axis=axes), xp.sum(dy, axis=axes)
