// Sums and maxima of neighbouring results, in a fixed order.
#pragma once
#include "tiles.cuh"

// Shared memory of a constant size, 8 numbers for each lane of a warp and some. All functions get the same: a launch may have hundreds
// of units, of which a block runs one.
DEVICE void* unit_shared() {
  alignas(16) __shared__ unsigned char memory[8 * 33 * 8];
  return memory;
}

struct Plus {
  template <class T> static DEVICE T start() { return T(0); }
  template <class T> static DEVICE T join(T a, T b) { return a + b; }
};
struct Largest {
  template <class T> static DEVICE T start() { return -Limits<T>::infinity(); }
  template <class T> static DEVICE T join(T a, T b) { return maximum(a, b); }
};

// A number joined with those of the lanes whose numbers differ in bits that are worth NEAR to less than FAR.
template <int NEAR, int FAR, class Join, class T> DEVICE T join_lanes(T x) {
#pragma unroll
  for (int apart = NEAR; apart < FAR; apart *= 2) x = Join::join(x, __shfl_xor_sync(0xffffffffu, x, apart));
  return x;
}

// Calls out(i, value) for each of O results, those of part p p * O later, each over R terms that are cut into PARTS: f(o, r) gives those
// of N neighbouring results as `Lanes`, o being a multiple of N as O is. A block makes OX results with RX threads each.
template <class T, class Join, class Sizes, int N, class F, class Out> DEVICE void reduce_lanes(int block, F f, Out out) {
  constexpr int O = Sizes::results, R = Sizes::terms, PARTS = Sizes::splits, OX = Sizes::columns, RX = Sizes::rows;
  constexpr int GROUPS = OX / N, THREADS = OX * RX, ROWS = THREADS / GROUPS, RUN = quotient(R, PARTS);
  static_assert(OX % N == 0 && O % N == 0 && 32 % GROUPS == 0 && THREADS % 32 == 0 && THREADS <= 256, "lanes of a warp share results");
  T* const shared = static_cast<T*>(unit_shared());
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, part = block % PARTS, first_result = block / PARTS * OX;
  const int o = first_result + thread % GROUPS * N, first = part * RUN, last = min(first + RUN, R);
  Lanes<T, N> total = Join::template start<T>();
  if (O % OX == 0 || o < O) {
#pragma unroll 4
    for (int r = first + thread / GROUPS; r < last; r += ROWS) total = Join::join(total, f(o, r));
  }
#pragma unroll
  for (int e = 0; e < N; e++)
#pragma unroll
    for (int apart = GROUPS; apart < 32; apart *= 2) total.v[e] = Join::join(total.v[e], __shfl_xor_sync(0xffffffffu, total.v[e], apart));
  __syncthreads();
  if (lane < GROUPS)
#pragma unroll
    for (int e = 0; e < N; e++) shared[warp * OX + lane * N + e] = total.v[e];
  __syncthreads();
  for (int k = thread; k < OX; k += THREADS) {
    if (O % OX && first_result + k >= O) continue;
    T sum = shared[k];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) sum = Join::join(sum, shared[w * OX + k]);
    out(uint32(part) * O + first_result + k, sum);
  }
}
