// Products with rows of bytes (images as they are stored), on tensor cores for integers.
//
// The bytes lie in shared memory as they are and serve twice: for the product with a float32 matrix, and for that of their
// transpose with the gradient. Each column of the float32 operand becomes numbers of 24 bits, a power of two apart from it,
// and each of these three signed bytes. Sums of products of bytes are exact; float32 rounds what they add up to.
#pragma once
#include "rows.cuh"

DEVICE float from_bits(uint32 bits) { return __int_as_float(int(bits)); }

// What takes numbers, the largest of which has these bits, to integers of 24 bits, and what takes those back: powers of two.
// Where that largest is no number, nothing comes back as one.
struct FixedPoint {
  float scale, inverse;
  DEVICE explicit FixedPoint(uint32 top) {
    const int e = max(int(top + 0x10200u >> 23) - 127, -100);  // three signed bytes reach a little less than 2^23
    scale = from_bits(uint32(127 + 22 - e) << 23);
    inverse = from_bits(top < 0x7f800000u ? uint32(127 - 22 + e) << 23 : 0x7fffffffu);
  }
};

// The bytes of four numbers, the least first, those of the same rank in one register.
DEVICE void split_bytes(uint32 (&bytes)[3], const float (&x)[4], float scale) {
  uint32 v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = uint32(__float2int_rn(x[i] * scale)) + 0x808080u ^ 0x808080u;
  const uint32 a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
  bytes[0] = __byte_perm(a, b, 0x5410), bytes[1] = __byte_perm(a, b, 0x7632);
  bytes[2] = __byte_perm(__byte_perm(v[0], v[1], 0x0062), __byte_perm(v[2], v[3], 0x0062), 0x5410);
}

// Calls f with the numbers 0 .. N - 1, each known to the compiler.
template <int N> struct Number { static constexpr int value = N; };
template <int N, int FROM = 0, class F> DEVICE void repeat(F f) {
  if constexpr (FROM < N) {
    f(Number<FROM>());
    repeat<N, FROM + 1>(f);
  }
}

// Tile of a product of N rows of K bytes with a matrix of K x M: a block takes ROWS rows at a time, and sends for those of the
// next turn before it is done, if STAGES is 2. PARTS warps share the terms of the product of some rows. `back`: whether the
// product with the gradient is taken as well.
template <class A> struct ByteRows;
template <class Sizes> struct ByteRowTile {
  using Rows = ByteRows<ByteRowTile>;
  static constexpr int N = Sizes::batch, K = Sizes::terms, M = Sizes::columns, ROWS = Sizes::rows, THREADS = Sizes::threads;
  static constexpr int STAGES = Sizes::stages, PARTS = Sizes::slices;
  static constexpr int WARPS = THREADS / 32, OWN_ROWS = quotient(ROWS, WARPS);  // for which a warp sends
  static constexpr int EARLY_ROWS = Sizes::back ? OWN_ROWS / 2 : OWN_ROWS;  // of these, while it multiplies by the weights
  static constexpr bool BACK = Sizes::back;
  static constexpr int STEPS = quotient(K, 32), TILES = ROWS / 16, ROW_STEPS = quotient(ROWS, 32);
  static constexpr int PITCH = 16 * odd(quotient(K, 16));  // rows start in different banks
  static constexpr int CHUNK = K % 16 == 0 ? 16 : K % 8 == 0 ? 8 : K % 4 == 0 ? 4 : 1;
  // Columns by eight, one fragment for each byte; all bytes of one or two that are left share a fragment.
  static constexpr int PAIR = M % 8 == 1 || M % 8 == 2, GROUPS = quotient(M, 8) - PAIR, SUMS = GROUPS + PAIR;
  static constexpr int FRAGMENTS = 3 * GROUPS + PAIR;
  static constexpr int OWN_TILES = quotient(TILES, WARPS / PARTS);  // of 16 rows, of a warp
  static constexpr int OWN_STEPS = quotient(STEPS, WARPS);
  static constexpr int COLUMNS = quotient(K, 16), OWN = BACK ? quotient(COLUMNS, WARPS) : 1;
  // Places in shared memory. What the product leaves and the bytes of the gradient share one.
  static constexpr int BUFFER = ROWS * PITCH + 16, WEIGHTS = STEPS * FRAGMENTS * 256;
  static constexpr int LEFT = quotient(PARTS * ROWS * M, 4) * 16, GRADIENT = BACK ? ROW_STEPS * FRAGMENTS * 256 : 0;
  static constexpr int MATRIX = quotient(K * M, 4) * 16, BESIDE = WEIGHTS + (LEFT > GRADIENT ? LEFT : GRADIENT);
  static constexpr int SHARED_WEIGHTS = STAGES * BUFFER, SHARED_SUMS = SHARED_WEIGHTS + WEIGHTS, SHARED_GRADIENT = SHARED_WEIGHTS;
  static constexpr int SHARED_TOPS = SHARED_WEIGHTS + (MATRIX > BESIDE ? MATRIX : BESIDE);
  static constexpr int SHARED_FACTORS = SHARED_TOPS + 4 * M, SHARED_UNDO = SHARED_FACTORS + 4 * M;
  static constexpr int SHARED_FOUND = SHARED_UNDO + 4 * M, BYTES = SHARED_FOUND + STAGES * 4 * ROWS;
};

// What a block knows between tiles.
template <class A> struct ByteRows : RowStream<A, uint8> {
  using Stream = RowStream<A, uint8>;
  using Stream::load, Stream::memory, Stream::rows, Stream::send;
  static constexpr bool SENDS = A::STAGES > 1 && A::CHUNK >= 4;  // for rows of the next turn, in between
  float total[A::OWN][A::SUMS][4];

  DEVICE ByteRows(unsigned char* shared, const uint8* x) : Stream(shared, x) {
    if (threadIdx.x < A::M) tops()[threadIdx.x] = 0;
  }

  DEVICE uint32* tops() { return reinterpret_cast<uint32*>(memory + A::SHARED_TOPS); }
  DEVICE float* factors() { return reinterpret_cast<float*>(memory + A::SHARED_FACTORS); }
  DEVICE float* undo() { return reinterpret_cast<float*>(memory + A::SHARED_UNDO); }
  DEVICE Pack<uint32, 2>* weights(int step, int fragment) {
    return reinterpret_cast<Pack<uint32, 2>*>(memory + A::SHARED_WEIGHTS) + (step * A::FRAGMENTS + fragment) * 32 + threadIdx.x % 32;
  }
  DEVICE Pack<uint32, 2>* gradient(int step, int fragment) {
    return reinterpret_cast<Pack<uint32, 2>*>(memory + A::SHARED_SUMS) + (step * A::FRAGMENTS + fragment) * 32 + threadIdx.x % 32;
  }
  // Column of an operand whose bytes a lane has in a fragment of sum s.
  static DEVICE int column(int s) {
    const int g = threadIdx.x % 32 / 4;
    return s * 8 + (s < A::GROUPS ? g : g % 2);
  }
  // Column of the product that a lane has in the two registers of a row of sum s; the last one instead of those beyond.
  static DEVICE int out_column(int s, int r) { return min(s * 8 + r + (s < A::GROUPS ? int(threadIdx.x) % 4 * 2 : 0), A::M - 1); }
  // Writes a lane's bytes of sum s to their fragments, at(fragment) being where they are.
  template <class F> static DEVICE void store_bytes(const uint32 (&bytes)[3], int s, F at) {
    const int rank = threadIdx.x % 32 / 8;
    if (s < A::GROUPS) {
#pragma unroll
      for (int j = 0; j < 3; j++) *at(3 * s + j) = bytes[j];
    } else {
      *at(3 * s) = rank == 0 ? bytes[0] : rank == 1 ? bytes[1] : rank == 2 ? bytes[2] : 0u;
    }
  }
  // Sums of products with the bytes of sum s as one number each; of columns that share a fragment, the lane's byte alone.
  static DEVICE float joined(const int (&sums)[A::FRAGMENTS][4], int s, int r) {
    if (s >= A::GROUPS) return float(sums[3 * s][r]) * from_bits(127 + 8 * (threadIdx.x % 4) << 23);
    return float(sums[3 * s + 2][r]) * 65536.0f + (float(sums[3 * s + 1][r]) * 256.0f + float(sums[3 * s][r]));
  }
  // Of columns that share a fragment, each of the four lanes of a row gets one of the four sums of the bytes that they have.
  static DEVICE float one_of_four(const float (&sums)[4]) {
    float x[4];
#pragma unroll
    for (int r = 0; r < 4; r++) x[r] = sums[r] + __shfl_xor_sync(0xffffffffu, sums[r], 1);
#pragma unroll
    for (int r = 0; r < 4; r++) x[r] += __shfl_xor_sync(0xffffffffu, x[r], 2);
    const int t = threadIdx.x % 4;
    return t == 0 ? x[0] : t == 1 ? x[1] : t == 2 ? x[2] : x[3];
  }

  // Notes a number of a column: atomically, but the largest is the same in any order.
  DEVICE void note(int c, float x) { atomicMax(tops() + c, uint32(__float_as_int(x)) & 0x7fffffffu); }

  // Behind a barrier writes the copied weights as bytes, and ends with a barrier.
  DEVICE void begin() {
    const int thread = threadIdx.x, warp = thread / 32, t = thread % 4;
    const float* raw = reinterpret_cast<const float*>(memory + A::SHARED_WEIGHTS);
    float x[A::OWN_STEPS][A::SUMS][2][4];
#pragma unroll
    for (int s = 0; s < A::SUMS; s++) {
      const int c = column(s);
      uint32 top = 0;
#pragma unroll
      for (int own = 0; own < A::OWN_STEPS; own++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const int k = (warp + own * A::WARPS) * 32 + i / 4 * 16 + 4 * t + i % 4;
          const float value = k < A::K && c < A::M ? raw[k * A::M + c] : 0.0f;
          x[own][s][i / 4][i % 4] = value, top = max(top, uint32(__float_as_int(value)) & 0x7fffffffu);
        }
      top = max(top, __shfl_xor_sync(0xffffffffu, top, 1)), top = max(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (t == 0 && c < A::M) atomicMax(tops() + c, top);
    }
    __syncthreads();
#pragma unroll
    for (int own = 0; own < A::OWN_STEPS; own++) {
      const int step = warp + own * A::WARPS;
      if (own == A::OWN_STEPS - 1 && step >= A::STEPS) break;
#pragma unroll
      for (int s = 0; s < A::SUMS; s++) {
        const FixedPoint fixed(column(s) < A::M ? tops()[column(s)] : 0u);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          uint32 bytes[3];
          split_bytes(bytes, x[own][s][r], fixed.scale);
          store_bytes(bytes, s, [&](int f) { return &weights(step, f)->v[r]; });
        }
      }
    }
    if (thread < A::M) factors()[thread] = FixedPoint(tops()[thread]).inverse;
#pragma unroll
    for (int i = 0; i < A::OWN * A::SUMS * 4; i++) (&total[0][0][0])[i] = 0.0f;
    __syncthreads();
    if (thread < A::M) tops()[thread] = 0;
  }

  // The product of the tile of a turn with the weights; each warp leaves its part. A barrier lies before and behind. Meanwhile
  // sends for some rows of the next turn, if there is one.
  DEVICE void multiply(int turn, bool more) {
    constexpr int OWN = quotient(A::STEPS, A::PARTS);
    if (A::STAGES > 1 && !SENDS && !A::BACK && more) load(turn + 1);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first = warp / A::PARTS * A::OWN_TILES, part = warp % A::PARTS;
    if (first >= A::TILES) {
      if constexpr (SENDS) {
        if (more) send(turn + 1, 0, A::EARLY_ROWS);
      }
      return;
    }
    const unsigned char* from = rows(turn) + (first * 16 + lane % 16) * A::PITCH + lane / 16 * 16;
    int sums[A::OWN_TILES][A::FRAGMENTS][4] = {};
    float factor[A::SUMS][2];
#pragma unroll
    for (int s = 0; s < A::SUMS; s++) factor[s][0] = factors()[out_column(s, 0)], factor[s][1] = factors()[out_column(s, 1)];
    uint32 a[A::OWN_TILES][4], b[A::FRAGMENTS][2];
    const auto fetch = [&](int step) {
#pragma unroll
      for (int f = 0; f < A::FRAGMENTS; f++) {
        const Pack<uint32, 2> both = *weights(step, f);
        b[f][0] = both.v[0], b[f][1] = both.v[1];
      }
#pragma unroll
      for (int m = 0; m < A::OWN_TILES; m++)  // beyond the last rows those of another tile, of which nothing is kept
        load_matrices(a[m], shared_address(from + min(m, A::TILES - 1 - first) * 16 * A::PITCH + step * 32));
    };
    fetch(part);
#pragma unroll 2
    for (int own = 0; own < OWN; own++) {
      const int step = part + own * A::PARTS;
      if constexpr (SENDS) {
        if (more) send(turn + 1, A::EARLY_ROWS * own / OWN, A::EARLY_ROWS * (own + 1) / OWN);
      }
      if (A::STEPS % A::PARTS && step >= A::STEPS) break;
      uint32 left[A::OWN_TILES][4], right[A::FRAGMENTS][2];
#pragma unroll
      for (int i = 0; i < A::OWN_TILES * 4; i++) (&left[0][0])[i] = (&a[0][0])[i];
#pragma unroll
      for (int i = 0; i < A::FRAGMENTS * 2; i++) (&right[0][0])[i] = (&b[0][0])[i];
      fetch(min(step + A::PARTS, A::STEPS - 1));  // for the next turn
#pragma unroll
      for (int m = 0; m < A::OWN_TILES; m++)
#pragma unroll
        for (int f = 0; f < A::FRAGMENTS; f++) mma_bytes(sums[m][f], left[m], right[f]);
    }
    float* out = reinterpret_cast<float*>(memory + A::SHARED_SUMS) + part * A::ROWS * A::M;
#pragma unroll
    for (int m = 0; m < A::OWN_TILES; m++) {
      if (A::TILES % A::OWN_TILES && first + m >= A::TILES) break;
      const int row = (first + m) * 16 + g;
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int c = s * 8 + 2 * t + r % 2;
          if (c < A::M) out[(row + r / 2 * 8) * A::M + c] = joined(sums[m], s, r) * factor[s][r % 2];
        }
      if (A::PAIR) {
        float x[4];
#pragma unroll
        for (int r = 0; r < 4; r++) x[r] = joined(sums[m], A::SUMS - 1, r) * factor[A::SUMS - 1][r % 2];
        const float sum = one_of_four(x);
        if (A::GROUPS * 8 + t % 2 < A::M) out[(row + t / 2 * 8) * A::M + A::GROUPS * 8 + t % 2] = sum;
      }
    }
  }
  DEVICE void ahead(int, bool) {}  // while it multiplies warps have time to send

  // Writes the gradient dy(row, c), of whose columns the largest are noted, as bytes; rows are counted within the tile.
  template <class F> DEVICE void split(int rows, F dy) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < A::ROW_STEPS * 2; k += A::WARPS) {
      const int u = k + threadIdx.x / 32, r = u % 2, step = u / 2;
      if (A::ROW_STEPS * 2 % A::WARPS && u >= A::ROW_STEPS * 2) break;
#pragma unroll
      for (int s = 0; s < A::SUMS; s++) {
        const int c = column(s);
        const FixedPoint fixed(c < A::M ? tops()[c] : 0u);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = step * 32 + r * 16 + i / 2 * 8 + 2 * t + i % 2;  // as accumulate() transposes
          x[i] = row < rows && c < A::M ? dy(row, c) : 0.0f;
        }
        uint32 bytes[3];
        split_bytes(bytes, x, fixed.scale);
        store_bytes(bytes, s, [&](int f) { return &gradient(step, f)->v[r]; });
      }
    }
    if (threadIdx.x < A::M) undo()[threadIdx.x] = FixedPoint(tops()[threadIdx.x]).inverse;
  }
  // Adds the product of the tile's transpose with the gradient; meanwhile sends for the other rows of the next turn.
  DEVICE void accumulate(int turn, bool more) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (A::STAGES > 1 && !SENDS && more) load(turn + 1);
    float back[A::SUMS][2];
#pragma unroll
    for (int s = 0; s < A::SUMS; s++) back[s][0] = undo()[out_column(s, 0)], back[s][1] = undo()[out_column(s, 1)];
    uint32 b[A::ROW_STEPS][A::FRAGMENTS][2], x[A::ROW_STEPS][4];
#pragma unroll
    for (int k = 0; k < A::ROW_STEPS; k++)
#pragma unroll
      for (int f = 0; f < A::FRAGMENTS; f++) {
        const Pack<uint32, 2> both = *gradient(k, f);
        b[k][f][0] = both.v[0], b[k][f][1] = both.v[1];
      }
    const auto fetch = [&](int own) {
      const int columns = min(warp + own * A::WARPS, A::COLUMNS - 1);
#pragma unroll
      for (int k = 0; k < A::ROW_STEPS; k++) {
        const int row = A::ROWS % 32 ? min(k * 32 + lane, A::ROWS - 1) : k * 32 + lane;  // beyond lie zeros in the gradient
        load_transposed(x[k], shared_address(rows(turn) + row * A::PITCH + columns * 16));
      }
    };
    fetch(0);
    repeat<A::OWN>([&](auto number) {
      constexpr int own = decltype(number)::value;
      uint32 a[A::ROW_STEPS][4];
#pragma unroll
      for (int k = 0; k < A::ROW_STEPS; k++) {
        // Of two columns, rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9; and 16 further down.
        a[k][0] = __byte_perm(x[k][0], x[k][1], 0x6420), a[k][1] = __byte_perm(x[k][0], x[k][1], 0x7531);
        a[k][2] = __byte_perm(x[k][2], x[k][3], 0x6420), a[k][3] = __byte_perm(x[k][2], x[k][3], 0x7531);
      }
      if (own + 1 < A::OWN) fetch(own + 1);
      constexpr int LATE = A::OWN_ROWS - A::EARLY_ROWS;
      if constexpr (SENDS)
        send(turn + 1, A::EARLY_ROWS + LATE * own / A::OWN, A::EARLY_ROWS + LATE * (own + 1) / A::OWN, more);
      if (own == A::OWN - 1 && warp + own * A::WARPS >= A::COLUMNS) return;
      int sums[A::FRAGMENTS][4] = {};
#pragma unroll
      for (int k = 0; k < A::ROW_STEPS; k++)
#pragma unroll
        for (int f = 0; f < A::FRAGMENTS; f++) mma_bytes(sums[f], a[k], b[k][f]);
#pragma unroll
      for (int s = 0; s < A::SUMS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) total[own][s][r] += joined(sums, s, r) * back[s][r % 2];
    });
  }
  // Between tiles, behind a barrier.
  DEVICE void forget() {
    if (threadIdx.x < A::M) tops()[threadIdx.x] = 0;
  }
  // Leaves the sums of products with the gradient in shared memory, where the weights were.
  DEVICE void leave() {
    float* out = reinterpret_cast<float*>(memory + A::SHARED_GRADIENT);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int own = 0; own < A::OWN; own++) {
      const int k = (warp + own * A::WARPS) * 16 + 2 * g;
#pragma unroll
      for (int s = 0; s < A::GROUPS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++)
          if (k + r / 2 < A::K && s * 8 + 2 * t + r % 2 < A::M) out[(k + r / 2) * A::M + s * 8 + 2 * t + r % 2] = total[own][s][r];
      if (A::PAIR) {
        const float sum = one_of_four(total[own][A::SUMS - 1]);
        if (k + t / 2 < A::K && A::GROUPS * 8 + t % 2 < A::M) out[(k + t / 2) * A::M + A::GROUPS * 8 + t % 2] = sum;
      }
    }
  }
};
