from numba import njit

BLOCK = 8


@njit
def matmul(a, b, c):
    for i0 in range(0, a.shape[0], BLOCK):
        for j0 in range(0, b.shape[1], BLOCK):
            for k0 in range(0, a.shape[1], BLOCK):
                for i in range(i0, min(i0 + BLOCK, a.shape[0])):
                    for k in range(k0, min(k0 + BLOCK, a.shape[1])):
                        factor = a[i, k]
                        for j in range(j0, min(j0 + BLOCK, b.shape[1])):
                            c[i, j] += factor * b[k, j]
