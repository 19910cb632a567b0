def adam(p, m, v, g, rate, t, beta_1, beta_2, epsilon):
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g**2
    m_hat, v_hat = m / (1 - beta_1**t), v / (1 - beta_2**t)
    return p - rate * m_hat / (v_hat**0.5 + epsilon), m, v


def adamw(p, m, v, g, rate, t, beta_1, beta_2, epsilon, decay):
    new, m, v = adam(p, m, v, g, rate, t, beta_1, beta_2, epsilon)
    return new - rate * decay * p, m, v
