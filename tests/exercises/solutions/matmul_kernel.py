from numba import cuda, float32

SIDE = 4


@cuda.jit
def matmul(a, b, c):
    left = cuda.shared.array((SIDE, SIDE), float32)
    right = cuda.shared.array((SIDE, SIDE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * SIDE + y, cuda.blockIdx.x * SIDE + x
    total = float32(0)
    for first in range(0, a.shape[1], SIDE):
        left[y, x] = a[row, first + x] if row < a.shape[0] and first + x < a.shape[1] else 0
        right[y, x] = b[first + y, column] if first + y < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()
        for term in range(SIDE):
            total += left[y, term] * right[term, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
