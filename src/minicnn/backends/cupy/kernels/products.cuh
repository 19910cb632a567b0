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
  T sums[A::TM][A::TN];
#pragma unroll
  for (int m = 0; m < A::TM; m++)
#pragma unroll
    for (int n = 0; n < A::TN; n++) sums[m][n] = T(0);

  // The next terms are on their way from memory while those in shared memory are multiplied.
  constexpr int LEFT = quotient(A::BK * A::BM, A::THREADS), RIGHT = quotient(A::BK * A::BN, A::THREADS);
  T next_a[LEFT], next_b[RIGHT];
  const int first = part * A::RUN, last = min(first + A::RUN, A::K);
  const auto load = [&](int k0) {
#pragma unroll
    for (int u = 0; u < LEFT; u++) {
      const int e = thread + u * A::THREADS;
      const int m = m0 + (A::TA ? e % A::BM : e / A::BK), k = k0 + (A::TA ? e / A::BM : e % A::BK);
      const bool real = (A::M % A::BM == 0 || m < A::M) && k < last && (A::BK * A::BM % A::THREADS == 0 || e < A::BK * A::BM);
      const int row = real ? (A::TA ? k : m) : 0, column = real ? (A::TA ? m : k) : 0;
      const T value = a(row, column);
      next_a[u] = real ? value : T(0);
    }
#pragma unroll
    for (int u = 0; u < RIGHT; u++) {
      const int e = thread + u * A::THREADS;
      const int n = n0 + (A::TB ? e / A::BK : e % A::BN), k = k0 + (A::TB ? e % A::BK : e / A::BN);
      const bool real = (A::N % A::BN == 0 || n < A::N) && k < last && (A::BK * A::BN % A::THREADS == 0 || e < A::BK * A::BN);
      const int row = real ? (A::TB ? n : k) : 0, column = real ? (A::TB ? k : n) : 0;
      const T value = b(row, column);
      next_b[u] = real ? value : T(0);
    }
  };
  load(first);
  for (int k0 = first; k0 < last; k0 += A::BK) {
    __syncthreads();
#pragma unroll
    for (int u = 0; u < LEFT; u++) {
      const int e = thread + u * A::THREADS;
      if (A::BK * A::BM % A::THREADS == 0 || e < A::BK * A::BM) as[A::TA ? e / A::BM : e % A::BK][A::TA ? e % A::BM : e / A::BK] = next_a[u];
    }
#pragma unroll
    for (int u = 0; u < RIGHT; u++) {
      const int e = thread + u * A::THREADS;
      if (A::BK * A::BN % A::THREADS == 0 || e < A::BK * A::BN) bs[A::TB ? e % A::BK : e / A::BN][A::TB ? e / A::BK : e % A::BN] = next_b[u];
    }
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
