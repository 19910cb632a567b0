from numba import cuda, float32

SIDE = 4
TILE = 6


@cuda.jit
def convolve(x, w, y):
    tile = cuda.shared.array((TILE, TILE), float32)
    top, left = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE
    for i in range(cuda.threadIdx.y, TILE, SIDE):
        for j in range(cuda.threadIdx.x, TILE, SIDE):
            if top + i < x.shape[0] and left + j < x.shape[1]:
                tile[i, j] = x[top + i, left + j]
    cuda.syncthreads()
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    if top + i < y.shape[0] and left + j < y.shape[1]:
        total = 0.0
        for p in range(3):
            for q in range(3):
                total += tile[i + p, j + q] * w[p, q]
        y[top + i, left + j] = total
