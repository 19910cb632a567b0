// Products with rows of float32, on tensor cores.
//
// The rows lie in shared memory as they are and serve twice: for the product with a matrix, which the threads keep in registers, and
// for that of their transpose with the gradient. Each operand becomes the sum of two TF32 numbers where it is used, and three products
// of these are taken (mma.cuh names the source). What is left out is below 2^-20 of the whole; no number needs to be scaled.
#pragma once
#include "rows.cuh"

// A number as two of TF32, which are the upper 19 bits of what tensor cores are given.
DEVICE void split_tf32(uint32& large, uint32& small, float x) {
  large = uint32(__float_as_int(x));
  small = uint32(__float_as_int(x - __int_as_float(int(large & 0xffffe000u))));
}

// Lets the compiler make anew, rather than keep in registers, what is made of a number that stays the same.
DEVICE void make_anew(float& x) {
#ifndef MINICNN_EMULATED
  asm volatile("" : "+f"(x));
#endif
}

// Tile of a product of N rows of K numbers with a matrix of K x M: a block takes ROWS rows at a time, and sends for those of the
// next turn before it is done, if STAGES is 2. PARTS warps share the terms of the product of some rows. `back`: whether the product
// with the gradient is taken as well.
template <class A> struct FloatRows;
template <class Sizes> struct FloatRowTile {
  using Rows = FloatRows<FloatRowTile>;
  static constexpr int N = Sizes::batch, K = Sizes::terms, M = Sizes::columns, ROWS = Sizes::rows, THREADS = Sizes::threads;
  static constexpr int STAGES = Sizes::stages, PARTS = Sizes::slices;
  static constexpr bool BACK = Sizes::back;
  static constexpr int WARPS = THREADS / 32, OWN_ROWS = quotient(ROWS, WARPS);  // for which a warp sends
  static constexpr int STEPS = quotient(K, 8), TILES = ROWS / 16, COLUMNS = quotient(K, 16);
  // Columns by eight, a fragment for the larger and one for the smaller parts; up to four that are left share one for both.
  static constexpr int GROUPS = quotient(M, 8);
  static constexpr bool JOINED = M % 8 > 0 && M % 8 <= 4;
  static constexpr int FLOATS = 8 * odd(2 * COLUMNS), PITCH = 4 * FLOATS;  // four neighbouring rows start in different banks
  static constexpr int CHUNK = K % 4 == 0 ? 16 : K % 2 == 0 ? 8 : 4;
  static constexpr int OWN_TILES = quotient(TILES, WARPS / PARTS), OWN_STEPS = quotient(STEPS, PARTS);  // of a warp
  static constexpr int OWN = BACK ? quotient(COLUMNS, WARPS) : 1;
  static constexpr int PADDING = STEPS * 8 - K;  // zeros behind a row
  // Places in shared memory. What the product leaves and the gradient share one.
  static constexpr int BUFFER = ROWS * PITCH, SHARED_SUMS = STAGES * BUFFER, GRADIENT_FLOATS = 8 * odd(GROUPS);
  static constexpr int LEFT = quotient(PARTS * ROWS * M, 4) * 16, GRADIENT = BACK ? ROWS * GRADIENT_FLOATS * 4 : 0;
  static constexpr int SHARED_GRADIENT = 0, SHARED_WEIGHTS = SHARED_SUMS - BUFFER, MATRIX = quotient(K * M, 4) * 16;  // to begin with
  static constexpr int BESIDE = BUFFER + (LEFT > GRADIENT ? LEFT : GRADIENT);
  static constexpr int SHARED_FOUND = SHARED_WEIGHTS + (MATRIX > BESIDE ? MATRIX : BESIDE);
  static constexpr int BYTES = SHARED_FOUND + STAGES * 4 * ROWS;
};

// What a block knows between tiles.
template <class A> struct FloatRows : RowStream<A, float> {
  using Stream = RowStream<A, float>;
  using Stream::load, Stream::memory;
  float weights[A::OWN_STEPS][A::GROUPS][2], total[A::OWN][A::GROUPS][4] = {};

  DEVICE FloatRows(unsigned char* shared, const float* x) : Stream(shared, x) {}

  DEVICE const float* row(int turn, int r) { return reinterpret_cast<const float*>(Stream::rows(turn) + r * A::PITCH); }
  DEVICE float* gradient() { return reinterpret_cast<float*>(memory + A::SHARED_SUMS); }

  // Whether both parts of group s share a fragment, and the column of an operand that a lane has there.
  static DEVICE constexpr bool joined(int s) { return A::JOINED && s == A::GROUPS - 1; }
  static DEVICE int column(int s) { return s * 8 + threadIdx.x % 32 / 4 % (joined(s) ? 4 : 8); }
  // A lane's number of an operand, in a fragment of group s: both parts, or the one that has a place where they share it.
  static DEVICE void split_right(uint32 (&b)[2][2], int s, int r, float x) {
    split_tf32(b[0][r], b[1][r], x);
    if (joined(s) && threadIdx.x % 32 >= 16) b[0][r] = b[1][r];
  }
  // A sum with what the smaller part gave, which is four columns further, beyond the last.
  static DEVICE float whole(float sum, int s) { return joined(s) ? sum + __shfl_xor_sync(0xffffffffu, sum, 2) : sum; }

  // Behind a barrier takes each thread's part of the copied weights, and ends with a barrier.
  DEVICE void begin() {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % A::PARTS, t = lane % 4;
    const float* raw = reinterpret_cast<const float*>(memory + A::SHARED_WEIGHTS);
#pragma unroll
    for (int own = 0; own < A::OWN_STEPS; own++)
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int k = (part + own * A::PARTS) * 8 + 2 * t + r, c = column(s);  // two neighbours take the places of t and t + 4
          weights[own][s][r] = k < A::K && c < A::M ? raw[k * A::M + c] : 0.0f;
        }
    __syncthreads();
    if constexpr (A::PADDING > 0) {
      for (int i = threadIdx.x; i < A::STAGES * A::ROWS * A::PADDING; i += A::THREADS)
        reinterpret_cast<float*>(memory)[i / A::PADDING * A::FLOATS + A::K + i % A::PADDING] = 0.0f;
    }
  }

  // Adds the products of fragments, the smaller ones first, to sums of M x N fragments.
  template <int M, int N>
  static DEVICE void add(float (&sums)[M][N][4], const uint32 (&a)[M][2][4], const uint32 (&b)[N][2][2]) {
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
          if (!joined(n) || k != 1) mma_tf32(sums[m][n], a[m][k == 0], b[n][k == 1 && !joined(n)]);
  }

  // The product of the tile of a turn with the weights; each warp leaves its part. A barrier lies before and behind. Where nothing is
  // multiplied behind it, sends for the rows of the next turn first, if there is one.
  DEVICE void multiply(int turn, bool more) {
    if (A::STAGES > 1 && !A::BACK && more) load(turn + 1);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first = warp / A::PARTS * A::OWN_TILES, part = warp % A::PARTS;
    if (first >= A::TILES) return;
    float sums[A::OWN_TILES][A::GROUPS][4] = {}, alone[A::OWN_TILES][A::GROUPS][4] = {};  // 32 terms: see multiply_fragments
#pragma unroll
    for (int own = 0; own < A::OWN_STEPS; own++) {
      const int step = part + own * A::PARTS;
      if (A::STEPS % A::PARTS && own == A::OWN_STEPS - 1 && step >= A::STEPS) break;
      uint32 a[A::OWN_TILES][2][4], b[A::GROUPS][2][2];
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          make_anew(weights[own][s][r]);
          split_right(b[s], s, r, weights[own][s][r]);
        }
#pragma unroll
      for (int m = 0; m < A::OWN_TILES; m++) {
        // Beyond the last rows those of another tile, of which nothing is kept.
        const float* from = row(turn, min(first + m, A::TILES - 1) * 16 + g) + step * 8 + 2 * t;
        const Pack<float, 2> upper = *reinterpret_cast<const Pack<float, 2>*>(from);
        const Pack<float, 2> lower = *reinterpret_cast<const Pack<float, 2>*>(from + 8 * A::FLOATS);
#pragma unroll
        for (int k = 0; k < 2; k++) {
          split_tf32(a[m][0][2 * k], a[m][1][2 * k], upper.v[k]);
          split_tf32(a[m][0][2 * k + 1], a[m][1][2 * k + 1], lower.v[k]);
        }
      }
      add(alone, a, b);
      if (own % 4 == 3) {
        add_fragments(sums, alone);
#pragma unroll
        for (int i = 0; i < A::OWN_TILES * A::GROUPS * 4; i++) (&alone[0][0][0])[i] = 0.0f;
      }
    }
    add_fragments(sums, alone);
    float* out = reinterpret_cast<float*>(memory + A::SHARED_SUMS) + part * A::ROWS * A::M;
#pragma unroll
    for (int m = 0; m < A::OWN_TILES; m++) {
      if (A::TILES % A::OWN_TILES && first + m >= A::TILES) break;
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int c = s * 8 + 2 * t + r % 2;
          const float sum = whole(sums[m][s][r], s);
          if (c < A::M) out[((first + m) * 16 + g + r / 2 * 8) * A::M + c] = sum;
        }
    }
  }

  // Behind that barrier, where few warps have something to do: otherwise sends for them here.
  DEVICE void ahead(int turn, bool more) {
    if (A::STAGES > 1 && A::BACK && more) load(turn + 1);
  }

  // Of a number of the gradient nothing needs to be known before.
  DEVICE void note(int, float) {}
  DEVICE void forget() {}
  // Writes the gradient dy(row, c), padded with zeros; rows are counted within the tile.
  template <class F> DEVICE void split(int rows, F dy) {
    constexpr int WIDTH = 8 * A::GROUPS;
#pragma unroll
    for (int first = 0; first < A::ROWS * WIDTH; first += A::THREADS) {
      const int i = first + threadIdx.x, r = i / WIDTH, c = i % WIDTH;
      if (A::ROWS * WIDTH % A::THREADS && i >= A::ROWS * WIDTH) break;
      gradient()[r * A::GRADIENT_FLOATS + c] = r < rows && c < A::M ? dy(r, c) : 0.0f;
    }
  }
  // Adds the product of the tile's transpose with the gradient, the products of 16 rows at a time.
  DEVICE void accumulate(int turn, bool) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int r0 = 0; r0 < A::ROWS; r0 += 16) {
      uint32 b[2][A::GROUPS][2][2];
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
          for (int r = 0; r < 2; r++)
            split_right(b[k][s], s, r, gradient()[(r0 + k * 8 + t + 4 * r) * A::GRADIENT_FLOATS + column(s)]);
#pragma unroll
      for (int own = 0; own < A::OWN; own++) {
        const int tile = warp + own * A::WARPS;
        if (A::COLUMNS % A::WARPS && own == A::OWN - 1 && tile >= A::COLUMNS) break;
        float sums[1][A::GROUPS][4] = {};
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const float* from = row(turn, r0 + k * 8 + t) + tile * 16 + 2 * g;  // two neighbours take the places of g and g + 8
          uint32 a[1][2][4];
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const Pack<float, 2> both = *reinterpret_cast<const Pack<float, 2>*>(from + half * 4 * A::FLOATS);
#pragma unroll
            for (int c = 0; c < 2; c++) split_tf32(a[0][0][2 * half + c], a[0][1][2 * half + c], both.v[c]);
          }
          add(sums, a, b[k]);
        }
#pragma unroll
        for (int i = 0; i < A::GROUPS * 4; i++) (&total[own][0][0])[i] += (&sums[0][0][0])[i];
      }
    }
  }
  // Leaves the sums of products with the gradient in shared memory, where rows were.
  DEVICE void leave() {
    float* out = reinterpret_cast<float*>(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int own = 0; own < A::OWN; own++)
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int k = (warp + own * A::WARPS) * 16 + 2 * g + r / 2, c = s * 8 + 2 * t + r % 2;
          const float sum = whole(total[own][s][r], s);
          if (k < A::K && c < A::M) out[k * A::M + c] = sum;
        }
  }
};
