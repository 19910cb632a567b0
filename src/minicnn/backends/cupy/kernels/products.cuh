// Matrix product and reduction by tiles in shared memory, with sums in a fixed order as in tiles.cuh.
#pragma once
#include "tiles.cuh"

// Matrix product ---------------------------------------------------------------------------------------------

// Tile of a product (M, K) x (K, N): a block makes BM x BN elements, BK terms at a time, a thread TM x TN; the terms are
// cut into PARTS.
template <int M_, int N_, int K_, bool TA_, bool TB_, int BM_, int BN_, int BK_, int TM_, int TN_, int PARTS_> struct ProductTile {
  static constexpr int M = M_, N = N_, K = K_, BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, PARTS = PARTS_;
  static constexpr bool TA = TA_, TB = TB_;
  static constexpr int GN = BN / TN, GM = BM / TM, THREADS = GN * GM;
  static constexpr int COLUMNS = quotient(N, BN), ROWS = quotient(M, BM), BLOCKS = ROWS * COLUMNS * PARTS;
  static constexpr int RUN = quotient(quotient(K, PARTS), BK) * BK;  // terms of a part
};

// How a block brings its piece of a matrix f(row, column), SIZE of LIMIT results x BK terms, into shared memory; `along`: results,
// rather than terms, are neighbours in memory.
template <class T, int LIMIT, int SIZE, int BK, bool along, int THREADS, class F> struct Side {
  static constexpr int LOADS = BK * SIZE, EACH = quotient(LOADS, THREADS);
  F f;
  T next[EACH];
  // Load e is that of a result, and of a term.
  static DEVICE int result(int e) { return along ? e % SIZE : e / BK; }
  static DEVICE int term(int e) { return along ? e / SIZE : e % BK; }
  DEVICE void load(int first, int k0, int last) {
#pragma unroll
    for (int u = 0; u < EACH; u++) {
      const int e = int(threadIdx.x) + u * THREADS, m = first + result(e), k = k0 + term(e);
      const bool real = (LIMIT % SIZE == 0 || m < LIMIT) && k < last && (LOADS % THREADS == 0 || e < LOADS);
      const int row = real ? (along ? k : m) : 0, column = real ? (along ? m : k) : 0;
      const T value = f(row, column);
      next[u] = real ? value : T(0);
    }
  }
  DEVICE void store(T (&shared)[BK][SIZE + 4]) const {
#pragma unroll
    for (int u = 0; u < EACH; u++) {
      const int e = int(threadIdx.x) + u * THREADS;
      if (LOADS % THREADS == 0 || e < LOADS) shared[term(e)][result(e)] = next[u];
    }
  }
};

// finish and store get each element of the product of matrices a(row, column) and b(row, column), as they are stored; those of part p
// come p * M * N later.
template <class T, class A, class FA, class FB, class Finish, class Store>
DEVICE void multiply(int block, FA a, FB b, Finish finish, Store store) {
  auto& as = *reinterpret_cast<T(*)[A::BK][A::BM + 4]>(dynamic_shared());
  auto& bs = *reinterpret_cast<T(*)[A::BK][A::BN + 4]>(dynamic_shared() + sizeof(as));
  const int thread = threadIdx.x, part = block % A::PARTS;
  block /= A::PARTS;
  const int n0 = block % A::COLUMNS * A::BN, m0 = block / A::COLUMNS * A::BM;
  const int gn = thread % A::GN, gm = thread / A::GN;
  T sums[A::TM][A::TN] = {};

  // The next terms are on their way from memory while those in shared memory are multiplied.
  Side<T, A::M, A::BM, A::BK, A::TA, A::THREADS, FA> left_side = {a};
  Side<T, A::N, A::BN, A::BK, !A::TB, A::THREADS, FB> right_side = {b};
  const int first = part * A::RUN, last = min(first + A::RUN, A::K);
  const auto load = [&](int k0) { left_side.load(m0, k0, last), right_side.load(n0, k0, last); };
  load(first);
  for (int k0 = first; k0 < last; k0 += A::BK) {
    __syncthreads();
    left_side.store(as), right_side.store(bs);
    __syncthreads();
    if (A::RUN > A::BK) load(k0 + A::BK);  // not in a branch, so that it is not waited for before the products
#pragma unroll 16
    for (int k = 0; k < A::BK; k++) {
      const Pack<T, A::TM> left = *reinterpret_cast<const Pack<T, A::TM>*>(&as[k][gm * A::TM]);
      const Pack<T, A::TN> right = *reinterpret_cast<const Pack<T, A::TN>*>(&bs[k][gn * A::TN]);
#pragma unroll
      for (int m = 0; m < A::TM; m++)
#pragma unroll
        for (int n = 0; n < A::TN; n++) sums[m][n] += left.v[m] * right.v[n];
    }
  }
  finish_and_store<A::TM * A::TN, A::N % A::TN == 0 ? A::TN : 1, T>(
    [=](int k, uint32& i) {
      const int row = m0 + gm * A::TM + k / A::TN, column = n0 + gn * A::TN + k % A::TN;
      i = uint32(part * A::M + row) * A::N + column;
      return (A::M % A::BM == 0 || row < A::M) && (A::N % A::BN == 0 || column < A::N);
    },
    [&](int k) { return sums[k / A::TN][k % A::TN]; }, finish, store);
}

// Reduction --------------------------------------------------------------------------------------------------

struct Plus {
  template <class T> static DEVICE T start() { return T(0); }
  template <class T> static DEVICE T join(T a, T b) { return a + b; }
};
struct Largest {
  template <class T> static DEVICE T start() { return -Limits<T>::infinity(); }
  template <class T> static DEVICE T join(T a, T b) { return maximum(a, b); }
};

// Calls out(i, value) for each of O results, those of part p p * O later, each over R terms f(o, r) that are cut into PARTS; a block makes OX
// results with RX threads each, the terms (or else the results) of neighbouring threads lying next to each other.
template <class T, class Join, int O, int R, int PARTS, int OX, int RX, bool terms_first, class F, class Out>
DEVICE void reduce(int block, F f, Out out) {
  static_assert(OX * RX <= 256 && sizeof(T) <= 8, "unit_shared is too small");
  T* const shared = static_cast<T*>(unit_shared());
  const int thread = threadIdx.x, part = block % PARTS;
  const int rx = terms_first ? thread % RX : thread / OX, ox = terms_first ? thread / RX : thread % OX;
  const int o = block / PARTS * OX + ox;
  constexpr int RUN = quotient(R, PARTS);
  const int first = part * RUN, last = min(first + RUN, R);
  T total = Join::template start<T>();
  if (O % OX == 0 || o < O) {
#pragma unroll 8
    for (int r = first + rx; r < last; r += RX) total = Join::join(total, T(f(o, r)));
  }
  __syncthreads();
  shared[rx * OX + ox] = total;
#pragma unroll
  for (int half = RX / 2; half > 0; half /= 2) {
    __syncthreads();
    if (rx < half) shared[rx * OX + ox] = total = Join::join(total, shared[(rx + half) * OX + ox]);
  }
  if (rx == 0 && (O % OX == 0 || o < O)) out(uint32(part) * O + o, total);
}

// The same where terms of N neighbouring results come together: f(o, r) gives them as `Lanes`, o being a multiple of N as O is.
template <class T, class Join, int O, int R, int PARTS, int OX, int RX, int N, class F, class Out>
DEVICE void reduce_lanes(int block, F f, Out out) {
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
