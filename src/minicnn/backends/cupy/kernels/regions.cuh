// Row-wise regions: a block takes some rows of a batch through everything that concerns a row alone, in shared memory.
#pragma once
#include "bytes.cuh"
#include "floats.cuh"

// Sums over rows ------------------------------------------------------------------------------------------------

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// O sums over the rows of all tiles of a block: of many, each is one thread's; of few, many threads share each.
template <class T, int O, int THREADS> struct RowSums {
  static constexpr int COLUMNS = O >= THREADS ? THREADS : power_of_two(O), SLICES = THREADS / COLUMNS, EACH = quotient(O, COLUMNS);
  static constexpr int LEFT = COLUMNS < 32 ? THREADS / 32 : SLICES;  // terms that are left for the last step
  static constexpr int SCRATCH = SLICES > 1 ? LEFT * COLUMNS : 0;
  T total[EACH] = {};
  // Adds f(r, o) for each of so many rows r, MOST of them, to sum o.
  template <int MOST, class F> DEVICE void add(int rows, F f) {
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
    if (THREADS % COLUMNS && slice >= SLICES) return;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int o = column + e * COLUMNS;
      if (o >= O) break;
      if (rows == MOST) {
#pragma unroll 8
        for (int u = 0; u < MOST / SLICES; u++) total[e] += f(slice + u * SLICES, o);
        if (MOST % SLICES && slice < MOST % SLICES) total[e] += f(slice + MOST / SLICES * SLICES, o);
      } else {
#pragma unroll 1
        for (int r = slice; r < rows; r += SLICES) total[e] += f(r, o);
      }
    }
  }
  DEVICE void leave(T* scratch) {
    if (SLICES == 1) return;
    T sum = total[0];
    if (COLUMNS >= 32) {
      if (THREADS % COLUMNS == 0 || threadIdx.x < SLICES * COLUMNS) scratch[threadIdx.x] = sum;
      return;
    }
#pragma unroll
    for (int m = COLUMNS; m < 32; m *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (threadIdx.x % 32 < COLUMNS) scratch[threadIdx.x / 32 * COLUMNS + threadIdx.x % 32] = sum;
  }
  // Calls out(o, sum) for each sum, once all threads have left theirs.
  template <class Out> DEVICE void finish(const T* scratch, Out out) {
    if (SLICES == 1) {
#pragma unroll
      for (int e = 0; e < EACH; e++)
        if (int(threadIdx.x) + e * COLUMNS < O) out(uint32(threadIdx.x + e * COLUMNS), total[e]);
    } else if (threadIdx.x < O) {
      T sum = T(0);
#pragma unroll
      for (int s = 0; s < LEFT; s++) sum += scratch[s * COLUMNS + threadIdx.x];
      out(uint32(threadIdx.x), sum);
    }
  }
};

// O sums over the rows of all tiles of a block, where a thread has a row of each tile to itself.
template <class T, int O, int THREADS> struct OwnSums {
  T total[O] = {};
  DEVICE void leave(T* scratch) {
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
#pragma unroll
      for (int o = 0; o < O; o++) total[o] += __shfl_xor_sync(0xffffffffu, total[o], m);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int o = 0; o < O; o++) scratch[threadIdx.x / 32 * O + o] = total[o];
    }
  }
  template <class Out> DEVICE void finish(const T* scratch, Out out) {
    if (threadIdx.x >= O) return;
    T sum = T(0);
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += scratch[w * O + threadIdx.x];
    out(uint32(threadIdx.x), sum);
  }
};

constexpr int divisor(int n, int most) { return most == 1 || n % most == 0 ? most : divisor(n, most - 1); }

// The product of A x ROWS and ROWS x B matrices, added over the tiles of a block: a thread has a row of up to 16 sums, which many
// threads share.
template <class T, int A, int B, int THREADS> struct RowProducts {
  static constexpr int RUN = divisor(B, 16), RUNS = A * B / RUN;
  static constexpr int EACH = quotient(RUNS, THREADS), SLICES = RUNS < THREADS ? THREADS / RUNS : 1;
  T total[EACH][RUN] = {};
  // Adds a(r, i) * b(r, j) for each of so many rows r.
  template <class FA, class FB> DEVICE void add(int rows, FA a, FB b) {
    const int slice = threadIdx.x / RUNS;
    if (SLICES > 1 && slice >= SLICES) return;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int run = threadIdx.x % RUNS + e * THREADS, i = run * RUN / B, j = run * RUN % B;
      if (EACH > 1 && run >= RUNS) break;
#pragma unroll 4
      for (int r = SLICES > 1 ? slice : 0; r < rows; r += SLICES) {
        const T x = a(r, i);
#pragma unroll
        for (int k = 0; k < RUN; k++) total[e][k] += x * b(r, j + k);
      }
    }
  }
  DEVICE void leave(T* scratch) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int at = int(threadIdx.x) + e * THREADS;
      if (at >= RUNS * SLICES) break;
#pragma unroll
      for (int k = 0; k < RUN; k++) scratch[at * RUN + k] = total[e][k];
    }
  }
  // Calls out(i * B + j, sum) for each sum, once all threads have left theirs.
  template <class Out> DEVICE void finish(const T* scratch, Out out) {
    for (int o = threadIdx.x; o < A * B; o += THREADS) {
      T sum = T(0);
#pragma unroll
      for (int s = 0; s < SLICES; s++) sum += scratch[s * A * B + o];
      out(uint32(o), sum);
    }
  }
};

// Sum of f(0) .. f(n - 1) by S neighbouring threads, all of which get it.
template <class T, uint32 n, int S, class F> DEVICE T shared_sum(int lane, F f) {
  T total = T(0);
#pragma unroll 16
  for (uint32 u = 0; u < n / S; u++) total += f(u * S + lane);
  if (n % S && lane < int(n % S)) total += f(n / S * S + lane);
#pragma unroll
  for (int m = 1; m < S; m *= 2) total += __shfl_xor_sync(0xffffffffu, total, m);
  return total;
}

// Maximum of a row and the sum of the exponentials of what lies below it, by S neighbouring threads.
template <class T, uint32 n, int S, class F> DEVICE void row_statistics(int lane, F f, T& top, T& total) {
  top = -Limits<T>::infinity();
#pragma unroll 16
  for (uint32 u = 0; u < n / S; u++) top = maximum(top, T(f(u * S + lane)));
  if (n % S && lane < int(n % S)) top = maximum(top, T(f(n / S * S + lane)));
#pragma unroll
  for (int m = 1; m < S; m *= 2) top = maximum(top, __shfl_xor_sync(0xffffffffu, top, m));
  total = shared_sum<T, n, S>(lane, [&](uint32 r) { return exp(T(f(r)) - top); });
}
