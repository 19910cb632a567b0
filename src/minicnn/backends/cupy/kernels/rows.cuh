// Rows of a matrix in memory on their way through shared memory, some at a time: they are multiplied by weights there, and
// their transpose by the gradient.
#pragma once
#include "mma.cuh"
#include "sums.cuh"

// Copies N bytes, 4, 8 or 16, to shared memory, of which the thread need not wait until copies_wait.
template <int N> DEVICE void copy_async(void* to, const void* from) {
#if !defined(MINICNN_EMULATED) && __CUDA_ARCH__ >= 800
  if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(N) : "memory");
#else
  if (N == 16) *reinterpret_cast<Pack<uint32, 4>*>(to) = *reinterpret_cast<const Pack<uint32, 4>*>(from);
  else if (N == 8) *reinterpret_cast<Pack<uint32, 2>*>(to) = *reinterpret_cast<const Pack<uint32, 2>*>(from);
  else *reinterpret_cast<uint32*>(to) = *reinterpret_cast<const uint32*>(from);
#endif
}
// Waits until all copies of this thread have arrived.
DEVICE void copies_wait() {
#if !defined(MINICNN_EMULATED) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What a block knows of rows of T between tiles. A: what `ByteRowTile` and `FloatRowTile` have in common. PITCH bytes lie between the
// beginnings of rows in shared memory, of which CHUNK are copied at a time, and BUFFER between the tiles of two turns.
template <class A, class T> struct RowStream {
  unsigned char* memory;
  const T* x;
  uint32 next;  // row in memory of the thread's row of the tile after the next

  DEVICE RowStream(unsigned char* shared, const T* x) : memory(shared), x(x) {}

  DEVICE uint32* found(int turn) { return reinterpret_cast<uint32*>(memory + A::SHARED_FOUND) + turn % A::STAGES * A::ROWS; }
  DEVICE unsigned char* rows(int turn) { return memory + turn % A::STAGES * A::BUFFER; }

  // Finds a tile's rows in memory, row r being where(r); keep() puts that where send() looks, behind a barrier.
  template <class Where> DEVICE void find(int row0, Where where) {
    if (threadIdx.x < A::ROWS) next = where(uint32(min(row0 + int(threadIdx.x), A::N - 1)));
  }
  DEVICE void keep(int turn) {
    if (threadIdx.x < A::ROWS) found(turn)[threadIdx.x] = next;
  }
  // Sends for rows `first` to `last` of those of a warp in a turn, if `real`; CHUNK is 4 at least.
  DEVICE void send(int turn, int first, int last, bool real = true) {
    constexpr int EACH = A::K * sizeof(T) / A::CHUNK;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int u = first; u < last; u++) {
      const int row = A::ROWS % A::WARPS ? min(warp + u * A::WARPS, A::ROWS - 1) : warp + u * A::WARPS;
      unsigned char* to = rows(turn) + row * A::PITCH;
      const unsigned char* from = reinterpret_cast<const unsigned char*>(x + (unsigned long long)(found(turn)[row]) * A::K);
#pragma unroll
      for (int k = 0; k < EACH; k += 32)
        if (real && k + lane < EACH) copy_async<A::CHUNK>(to + (k + lane) * A::CHUNK, from + (k + lane) * A::CHUNK);
    }
  }
  // All rows of a turn: sends for them, or copies single bytes of rows that begin anywhere.
  DEVICE void load(int turn) {
    if constexpr (A::CHUNK >= 4) {
      send(turn, 0, A::OWN_ROWS);
    } else {
#pragma unroll 1
      for (int row = threadIdx.x / 32; row < A::ROWS; row += A::WARPS) {
        const T* from = x + (unsigned long long)(found(turn)[row]) * A::K;
        T* to = reinterpret_cast<T*>(rows(turn) + row * A::PITCH);
#pragma unroll 4
        for (int k = threadIdx.x % 32; k < A::K; k += 32) to[k] = from[k];
      }
    }
  }

  // Copies the weights w(k * M + c) into shared memory as they are, where no rows are on their way to yet.
  template <class W> DEVICE void copy_weights(W w) {
    float* raw = reinterpret_cast<float*>(memory + A::SHARED_WEIGHTS);
    fill<float, A::K * A::M, A::THREADS>(w, [&](int i, float x) { raw[i] = x; });
  }
  // Calls out(k * M + c, sum) for each sum of products with the gradient, once all threads have left theirs.
  template <class Out> DEVICE void finish(Out out) {
    const float* sums = reinterpret_cast<const float*>(memory + A::SHARED_GRADIENT);
#pragma unroll 4
    for (int i = threadIdx.x; i < A::K * A::M; i += A::THREADS) out(uint32(i), sums[i]);
  }

  // Element of the product, counted within the tile.
  DEVICE float product(uint32 e) {
    const float* parts = reinterpret_cast<const float*>(memory + A::SHARED_SUMS) + e;
    float sum = parts[0];
#pragma unroll
    for (int s = 1; s < A::PARTS; s++) sum += parts[s * A::ROWS * A::M];
    return sum;
  }
};
