import math

from numba import cuda, float32

THREADS = 4
WIDTH = 16


@cuda.jit
def softmax(x, y):
    row = cuda.shared.array(WIDTH, float32)
    part = cuda.shared.array(THREADS, float32)
    n, t = cuda.blockIdx.x, cuda.threadIdx.x
    largest = -math.inf
    for k in range(t, x.shape[1], THREADS):
        row[k] = x[n, k]
        largest = max(largest, row[k])
    part[t] = largest
    cuda.syncthreads()
    for i in range(THREADS):
        largest = max(largest, part[i])
    cuda.syncthreads()
    total = 0.0
    for k in range(t, x.shape[1], THREADS):
        row[k] = math.exp(row[k] - largest)
        total += row[k]
    part[t] = total
    cuda.syncthreads()
    total = 0.0
    for i in range(THREADS):
        total += part[i]
    for k in range(t, x.shape[1], THREADS):
        y[n, k] = row[k] / total
