// Chains of rows: a block takes some rows of a batch through everything that concerns a row alone, in shared memory.
//
// The first product of a chain may read rows of bytes (images as they are stored). They stay in shared memory as bytes and
// serve tensor cores twice: for the product, and for that of their transpose with the gradient. A byte b is exact as the
// subnormal float16 b * 2^-24; the float32 operand, scaled by a power of two, is the sum of two float16, which hold 22 of its
// bits and the sign of the rest.
#pragma once
#include "products.cuh"

DEVICE float from_bits(uint32 bits) { return __int_as_float(int(bits)); }

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
DEVICE void copies_commit() {
#if !defined(MINICNN_EMULATED) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all but the last n groups of copies of this thread have arrived.
template <int n> DEVICE void copies_wait() {
#if !defined(MINICNN_EMULATED) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

// The largest of the 32 values of a warp.
DEVICE float warp_largest(float x) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
  return x;
}

// A power of two that takes numbers up to `top` below 2^15, and what undoes it.
struct Power {
  float scale, inverse;
  DEVICE explicit Power(float top) {
    const int e = max((__float_as_int(top) >> 23 & 255) - 127, -100);
    scale = from_bits(uint32(127 + 14 - e) << 23), inverse = from_bits(uint32(127 - 14 + e) << 23);
  }
};

// Sums over rows ------------------------------------------------------------------------------------------------

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// O sums over the rows of all tiles of a block: of many, each is one thread's; of few, many threads share each.
template <class T, int O, int THREADS> struct RowSums {
  static constexpr int COLUMNS = O >= THREADS ? THREADS : power_of_two(O), SLICES = THREADS / COLUMNS, EACH = quotient(O, COLUMNS);
  static constexpr int LEFT = COLUMNS < 32 ? THREADS / 32 : SLICES;  // terms that are left for the last step
  static constexpr int SCRATCH = SLICES > 1 ? LEFT * COLUMNS : 0;
  T total[EACH];
  DEVICE RowSums() {
#pragma unroll
    for (int e = 0; e < EACH; e++) total[e] = T(0);
  }
  // Adds f(r, o) for each of so many rows r, MOST of them, to sum o.
  template <int MOST, class F> DEVICE void add(int rows, F f) {
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
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
      scratch[threadIdx.x] = sum;
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

// f(at), of n values that are all there already.
template <class T, uint32 n, class F> DEVICE T pick(int at, F f) {
  T value = f(0);
#pragma unroll
  for (uint32 r = 1; r < n; r++) value = at == int(r) ? T(f(r)) : value;
  return value;
}

// Maximum of a row and the sum of the exponentials of what lies below it, by S neighbouring threads.
template <class T, uint32 n, int S, class F> DEVICE void row_statistics(int lane, F f, T& top, T& total) {
  top = -Limits<T>::infinity();
#pragma unroll 16
  for (uint32 u = 0; u < n / S; u++) top = maximum(top, T(f(u * S + lane)));
  if (n % S && lane < int(n % S)) top = maximum(top, T(f(n / S * S + lane)));
#pragma unroll
  for (int m = 1; m < S; m *= 2) top = maximum(top, __shfl_xor_sync(0xffffffffu, top, m));
  total = shared_sum<T, n, S>(lane, [&](uint32 r) { return exponential(T(f(r)) - top); });
}

// Rows of bytes -------------------------------------------------------------------------------------------------

// Tile of a product of N rows of K bytes with a matrix of K x M: a block takes ROWS rows at a time, and loads those of the
// next turns while it computes, if STAGES > 1. `back`: whether the product with the gradient is taken as well.
template <int N_, int K_, int M_, int ROWS_, int THREADS_, int STAGES_, bool back_> struct ByteTile {
  static constexpr int N = N_, K = K_, M = M_, ROWS = ROWS_, THREADS = THREADS_, STAGES = STAGES_, WARPS = THREADS / 32;
  static constexpr bool BACK = back_;
  static constexpr int STEPS = quotient(K, 16), TILES = ROWS / 16;
  static constexpr int PITCH = 16 * odd(STEPS);  // rows start in different banks, every other one too
  static constexpr int CHUNK = K % 16 == 0 ? 16 : K % 8 == 0 ? 8 : K % 4 == 0 ? 4 : 1;
  // Columns by eight: one fragment for their upper parts and one for the lower; both in one where four are left.
  static constexpr int GROUPS = M / 8 + (M % 8 > 4), HALF = M % 8 > 0 && M % 8 <= 4, SUMS = GROUPS + HALF;
  static constexpr int FRAGMENTS = 2 * GROUPS + HALF;
  // Warps share the product by rows and by terms, that with the gradient by terms.
  static constexpr int ROW_WARPS = TILES % 4 == 0 && WARPS >= 16 ? 4 : TILES % 2 == 0 && WARPS >= 8 ? 2 : 1;
  static constexpr int TERM_WARPS = WARPS / ROW_WARPS, PARTS = TERM_WARPS < STEPS ? TERM_WARPS : STEPS;
  static constexpr int OWN_STEPS = quotient(STEPS, WARPS);
  static constexpr int TURNS = quotient(ROWS, WARPS);  // in which a warp loads a row
  static constexpr int PAIRS = quotient(K, 32), OWN = BACK ? quotient(PAIRS, WARPS) : 1;
  // Places in shared memory.
  static constexpr int BUFFER = ROWS * PITCH + 16, WEIGHTS = STEPS * FRAGMENTS * 32 * 8;
  static constexpr int SHARED_WEIGHTS = STAGES * BUFFER, SHARED_SUMS = SHARED_WEIGHTS + WEIGHTS;
  static constexpr int SHARED_GRADIENT = SHARED_SUMS + quotient(TERM_WARPS * ROWS * M, 4) * 16;
  static constexpr int SHARED_TOPS = SHARED_GRADIENT + (BACK ? TILES * FRAGMENTS * 32 * 8 : 0), BYTES = SHARED_TOPS + 128;
};

// Upper and lower parts of four rows of a float32 operand, whose element in column c is f(i, c): column s * 8 + g of lane
// 4 * g + t, or one of the last four.
template <class A, class F> DEVICE void split_column(uint32 (&upper)[2], uint32 (&lower)[2], float scale, int s, F f) {
  const int g = threadIdx.x % 32 / 4, c = s * 8 + (s < A::GROUPS ? g : g % 4);
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = (c < A::M ? f(i, c) : 0.0f) * scale;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    upper[r] = pack_float16(x[2 * r], x[2 * r + 1]);
    lower[r] = pack_float16(x[2 * r] - low_float16(upper[r]), x[2 * r + 1] - high_float16(upper[r]));
  }
}

// What a block knows between tiles.
template <class A> struct ByteRows {
  unsigned char* memory;
  float factor, undo;  // of the sums of products with bytes, and of those with the gradient
  uint32 rows[A::TURNS];
  float total[A::OWN][2][A::SUMS][4];

  DEVICE explicit ByteRows(unsigned char* shared) : memory(shared) {}

  // Writes the weights w(k * M + c) into shared memory as fragments, by way of their place as they are. Ends with a barrier.
  template <class W> DEVICE void begin(W w) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, t = lane % 4;
    float* raw = reinterpret_cast<float*>(memory + A::SHARED_WEIGHTS);
    float top = 0.0f;
    fill<float, A::K * A::M, A::THREADS>(w, [&](int i, float x) { raw[i] = x, top = fmaxf(top, fabsf(x)); });
    note(top);
    __syncthreads();
    const Power power(largest_noted());
    factor = power.inverse * 16777216.0f;
    uint32 upper[A::OWN_STEPS][A::SUMS][2], lower[A::OWN_STEPS][A::SUMS][2];
#pragma unroll
    for (int own = 0; own < A::OWN_STEPS; own++)
#pragma unroll
      for (int s = 0; s < A::SUMS; s++)
        split_column<A>(upper[own][s], lower[own][s], power.scale, s, [&](int i, int c) {
          // As the bytes of a word become pairs: 0 and 2, 1 and 3.
          const int k = (warp + own * A::WARPS) * 16 + 4 * t + (i % 2 * 2 + i / 2);
          return k < A::K ? raw[k * A::M + c] : 0.0f;
        });
    __syncthreads();
#pragma unroll
    for (int own = 0; own < A::OWN_STEPS; own++) {
      const int step = warp + own * A::WARPS;
      if (step >= A::STEPS) break;
#pragma unroll
      for (int s = 0; s < A::SUMS; s++) {
        if (s < A::GROUPS) {
          *weights(step, 2 * s) = {upper[own][s][0], upper[own][s][1]};
          *weights(step, 2 * s + 1) = {lower[own][s][0], lower[own][s][1]};
        } else {
          const bool first = lane < 16;
          *weights(step, 2 * A::GROUPS) = {first ? upper[own][s][0] : lower[own][s][0], first ? upper[own][s][1] : lower[own][s][1]};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < A::OWN * 2 * A::SUMS * 4; i++) (&total[0][0][0][0])[i] = 0.0f;
    __syncthreads();
  }

  DEVICE Pack<uint32, 2>* weights(int step, int fragment) {
    return reinterpret_cast<Pack<uint32, 2>*>(memory + A::SHARED_WEIGHTS) + (step * A::FRAGMENTS + fragment) * 32 + threadIdx.x % 32;
  }
  DEVICE const uint32* word(int turn, int row, int at) {
    return reinterpret_cast<const uint32*>(memory + turn % A::STAGES * A::BUFFER + row * A::PITCH + at);
  }

  // The largest number that any thread notes, for all threads behind a barrier.
  DEVICE void note(float x) {
    x = warp_largest(x);
    if (threadIdx.x % 32 == 0) reinterpret_cast<float*>(memory + A::SHARED_TOPS)[threadIdx.x / 32] = x;
  }
  DEVICE float largest_noted() {
    float top = 0.0f;
#pragma unroll
    for (int s = 0; s < A::WARPS; s++) top = fmaxf(top, reinterpret_cast<const float*>(memory + A::SHARED_TOPS)[s]);
    return top;
  }

  // Finds the rows of a tile that begins at row0, row r being where(r): a warp loads a row at a time.
  template <class Where> DEVICE void find(int row0, Where where) {
#pragma unroll
    for (int u = 0; u < A::TURNS; u++) rows[u] = where(uint32(min(row0 + int(threadIdx.x) / 32 + u * A::WARPS, A::N - 1)));
  }
  // Sends for the rows that were found last.
  DEVICE void load(int turn, const uint8* x) {
    unsigned char* to = memory + turn % A::STAGES * A::BUFFER;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int EACH = A::K / A::CHUNK;
    const bool aligned = A::CHUNK > 1 && reinterpret_cast<unsigned long long>(x) % A::CHUNK == 0;
#pragma unroll
    for (int u = 0; u < A::TURNS; u++) {
      const int row = warp + u * A::WARPS;
      if (A::ROWS % A::WARPS && row >= A::ROWS) break;
      const uint8* from = x + (unsigned long long)(rows[u]) * A::K;
      if (aligned) {
#pragma unroll
        for (int k = 0; k < EACH; k += 32)
          if (k + lane < EACH) copy_async<A::CHUNK < 4 ? 4 : A::CHUNK>(to + row * A::PITCH + (k + lane) * A::CHUNK, from + (k + lane) * A::CHUNK);
      } else {
#pragma unroll 1
        for (int k = lane; k < A::K; k += 32) to[row * A::PITCH + k] = from[k];
      }
    }
  }

  // The product of the tile of a turn with the weights; each warp leaves its part. A barrier lies before and behind.
  DEVICE void multiply(int turn) {
    constexpr int OWN = A::TILES / A::ROW_WARPS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int own = warp % A::ROW_WARPS * OWN * 16 + g, part = warp / A::ROW_WARPS;
    float sums[OWN][A::FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < OWN * A::FRAGMENTS * 4; i++) (&sums[0][0][0])[i] = 0.0f;
#pragma unroll 2
    for (int step = part; step < A::STEPS; step += A::TERM_WARPS) {
      uint32 b[A::FRAGMENTS][2];
#pragma unroll
      for (int s = 0; s < A::FRAGMENTS; s++) {
        const Pack<uint32, 2> both = *weights(step, s);
        b[s][0] = both.v[0], b[s][1] = both.v[1];
      }
#pragma unroll
      for (int m = 0; m < OWN; m++) {
        const uint32 first = *word(turn, own + m * 16, step * 16 + 4 * t), second = *word(turn, own + m * 16 + 8, step * 16 + 4 * t);
        const uint32 a[4] = {first & 0x00ff00ffu, second & 0x00ff00ffu, __byte_perm(first, 0, 0x4341), __byte_perm(second, 0, 0x4341)};
#pragma unroll
        for (int s = 0; s < A::FRAGMENTS; s++) mma_float16(sums[m][s], a, b[s]);
      }
    }
    float* out = reinterpret_cast<float*>(memory + A::SHARED_SUMS) + part * A::ROWS * A::M;
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
      for (int s = 0; s < A::SUMS; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int row = own + m * 16 + r / 2 * 8, c = s * 8 + 2 * t + r % 2;
          float sum = sums[m][s < A::GROUPS ? 2 * s : 2 * A::GROUPS][r];
          if (s < A::GROUPS) sum += sums[m][2 * s + 1][r];
          else sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          if (c < A::M && (s < A::GROUPS || t < 2)) out[row * A::M + c] = sum;
        }
  }
  // Element of the product, counted within the tile.
  DEVICE float product(uint32 e) {
    const float* parts = reinterpret_cast<const float*>(memory + A::SHARED_SUMS) + e;
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < A::PARTS; s++) sum += parts[s * A::ROWS * A::M];
    return sum * factor;
  }

  DEVICE Pack<uint32, 2>* gradient(int tile, int fragment) {
    return reinterpret_cast<Pack<uint32, 2>*>(memory + A::SHARED_GRADIENT) + (tile * A::FRAGMENTS + fragment) * 32 + threadIdx.x % 32;
  }
  // Writes the gradient dy(row, c), the largest of which is noted, as fragments; rows are counted within the tile.
  template <class F> DEVICE void split(int rows, F dy) {
    const int t = threadIdx.x % 4;
    const Power power(largest_noted());
    undo = power.inverse;
#pragma unroll 1
    for (int k = threadIdx.x / 32; k < A::TILES * A::SUMS; k += A::WARPS) {
      const int tile = k / A::SUMS, s = k % A::SUMS;
      uint32 upper[2], lower[2];
      split_column<A>(upper, lower, power.scale, s, [&](int i, int c) {
        const int row = tile * 16 + 2 * t + i % 2 + i / 2 * 8;
        return row < rows ? dy(row, c) : 0.0f;
      });
      if (s < A::GROUPS) {
        *gradient(tile, 2 * s) = {upper[0], upper[1]};
        *gradient(tile, 2 * s + 1) = {lower[0], lower[1]};
      } else {
        const bool first = threadIdx.x % 32 / 4 < 4;
        *gradient(tile, 2 * A::GROUPS) = {first ? upper[0] : lower[0], first ? upper[1] : lower[1]};
      }
    }
  }
  // Adds the product of the tile's transpose with the gradient.
  DEVICE void accumulate(int turn) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32 b[A::TILES][A::FRAGMENTS][2];
#pragma unroll
    for (int k = 0; k < A::TILES; k++)
#pragma unroll
      for (int s = 0; s < A::FRAGMENTS; s++) {
        const Pack<uint32, 2> both = *gradient(k, s);
        b[k][s][0] = both.v[0], b[k][s][1] = both.v[1];
      }
#pragma unroll
    for (int own = 0; own < A::OWN; own++) {
      const int pair = warp + own * A::WARPS;
      if (A::PAIRS % A::WARPS && pair >= A::PAIRS) break;
      float sums[2][A::FRAGMENTS][4];
#pragma unroll
      for (int i = 0; i < 2 * A::FRAGMENTS * 4; i++) (&sums[0][0][0])[i] = 0.0f;
#pragma unroll
      for (int k = 0; k < A::TILES; k++) {
        uint32 a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const uint32 x = *word(turn, k * 16 + 2 * t + 8 * i, pair * 32 + 4 * g), y = *word(turn, k * 16 + 2 * t + 8 * i + 1, pair * 32 + 4 * g);
          const uint32 front = __byte_perm(x, y, 0x5410), rear = __byte_perm(x, y, 0x7632);
          a[0][2 * i] = front & 0x00ff00ffu, a[0][2 * i + 1] = __byte_perm(front, 0, 0x4341);
          a[1][2 * i] = rear & 0x00ff00ffu, a[1][2 * i + 1] = __byte_perm(rear, 0, 0x4341);
        }
#pragma unroll
        for (int s = 0; s < A::FRAGMENTS; s++) mma_float16(sums[0][s], a[0], b[k][s]), mma_float16(sums[1][s], a[1], b[k][s]);
      }
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int s = 0; s < A::SUMS; s++)
#pragma unroll
          for (int r = 0; r < 4; r++) {
            const float sum = s < A::GROUPS ? sums[j][2 * s][r] + sums[j][2 * s + 1][r] : sums[j][2 * A::GROUPS][r];
            total[own][j][s][r] += sum * undo;
          }
    }
  }
  // Leaves the sums of products with the gradient in shared memory, where the weights were.
  DEVICE void leave() {
    float* out = reinterpret_cast<float*>(memory + A::SHARED_WEIGHTS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int own = 0; own < A::OWN; own++)
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int s = 0; s < A::SUMS; s++)
#pragma unroll
          for (int r = 0; r < 4; r++) {
            const int k = (warp + own * A::WARPS) * 32 + 4 * g + 2 * j + r / 2, c = s * 8 + 2 * t + r % 2;
            float sum = total[own][j][s][r];
            if (s == A::GROUPS) sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (k < A::K && c < A::M && (s < A::GROUPS || t < 2)) out[k * A::M + c] = sum * 16777216.0f;
          }
  }
  // Calls out(k * M + c, sum) for each of these sums, once all threads have left theirs.
  template <class Out> DEVICE void finish(Out out) {
    const float* sums = reinterpret_cast<const float*>(memory + A::SHARED_WEIGHTS);
#pragma unroll 4
    for (int i = threadIdx.x; i < A::K * A::M; i += A::THREADS) out(uint32(i), sums[i]);
  }
};
