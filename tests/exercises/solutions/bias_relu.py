from numba import njit


@njit
def bias_relu(x, bias, out):
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[n, c] = max(x[n, c] + bias[c], 0)
