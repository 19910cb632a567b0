// Matrix products on tensor cores.
#pragma once
#include "parts.cuh"

// Tile of a product on tensor cores: M x N with sums of K terms, cut into PARTS; a block makes BM x BN of it, BK terms at a time, a
// warp MT * 16 x NT * 8, from every SLICES-th 16 terms. TA, TB: whether the operands are stored transposed.
template <class P_, int M_, int N_, int K_, bool TA_, bool TB_, class Sizes> struct TensorProductTile {
  using P = P_;
  static constexpr int M = M_, N = N_, K = K_, BM = Sizes::rows, BN = Sizes::columns, BK = Sizes::terms;
  static constexpr int MT = Sizes::warp_rows, NT = Sizes::warp_columns, SLICES = Sizes::slices, PARTS = Sizes::splits;
  static constexpr bool TA = TA_, TB = TB_;
  static constexpr int WM = BM / 16 / MT, WN = BN / 8 / NT, OWN = 32 * WM * WN, THREADS = OWN * SLICES;
  static constexpr int COLUMNS = quotient(N, BN), ROWS = quotient(M, BM), BLOCKS = ROWS * COLUMNS * PARTS;
  static constexpr int RUN = quotient(quotient(K, PARTS), BK) * BK;  // terms of a part
  static_assert((PARTS - 1) * RUN < K, "a block without terms would not wait for the launch ahead");
  static constexpr int A_ROWS = TA ? BK : BM, A_ROW = odd_run(TA ? BM : BK), B_ROWS = TB ? BN : BK, B_ROW = odd_run(TB ? BK : BN);
};

// Rows and columns from (r0, c0) of a matrix as it is stored, of which `rows` and `columns` are real.
template <class P, int ROWS, int COLUMNS, int ROW, bool fours, class F>
DEVICE auto matrix_part(uint32* place, const F& matrix, int r0, int c0, int rows, int columns) {
  constexpr bool eights = MatrixEights<typename P::Number, F>::value;
  return matrix_rows<P, ROWS, COLUMNS, ROW, fours, false, eights>(
    place, columns - c0,
    [=](int r, int c) {
      const bool real = r0 + r < rows;
      const float value = matrix(real ? r0 + r : 0, c0 + c);
      return real ? value : 0.0f;
    },
    [=](int r, int c, float (&v)[4]) {
      const bool real = r0 + r < rows;
      load_four_columns<fours>(matrix, real ? r0 + r : 0, c0 + c, v);
#pragma unroll
      for (int k = 0; k < 4; k++) v[k] = real ? v[k] : 0.0f;
    },
    [=](int r, int c, auto& run) {
      if constexpr (eights) {
        const bool real = r0 + r < rows && c0 + c < columns;
        load_eight(real, matrix.template at<typename P::Number>(real ? r0 + r : 0, real ? c0 + c : 0), run);
      }
    });
}

// As `multiply`.
template <class T, class A, class E, class FA, class FB, class Finish, class Store>
DEVICE void tensor_multiply(int block, FA a, FB b, Finish finish, Store store) {
  using P = typename A::P;
  constexpr int A_PLANE = A::A_ROWS * A::A_ROW, B_PLANE = A::B_ROWS * A::B_ROW;
  uint32* const as = reinterpret_cast<uint32*>(dynamic_shared());
  uint32* const bs = as + A_PLANE * P::PARTS / 2;
  const int part = block % A::PARTS;
  block /= A::PARTS;
  const int n0 = block % A::COLUMNS * A::BN, m0 = block / A::COLUMNS * A::BM;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  const int wm = warp % A::WM * A::MT * 16, wn = warp / A::WM % A::WN * A::NT * 8, slice = warp / A::WM / A::WN;
  const int lower = matrix % 2 * 8, upper = matrix / 2 * 8;
  const SharedAddress left =
    shared_address(as) + (A::TA ? (upper + row) * A::A_ROW + wm + lower : (wm + lower + row) * A::A_ROW + upper) * 2;
  const SharedAddress right =
    shared_address(bs) + (A::TB ? (wn + upper + row) * A::B_ROW + lower : (lower + row) * A::B_ROW + wn + upper) * 2;

  float sums[A::MT][A::NT][4] = {};

  int scale = LARGEST_SCALE;
  const int first = part * A::RUN, last = min(first + A::RUN, A::K);
#pragma unroll 1
  for (int k0 = first; k0 < last; k0 += A::BK) {
    __syncthreads();
    const auto fa = matrix_part<P, A::A_ROWS, A::TA ? A::BM : A::BK, A::A_ROW, (A::TA ? A::M : A::K) % 4 == 0>(
      as, a, A::TA ? k0 : m0, A::TA ? m0 : k0, A::TA ? last : A::M, A::TA ? A::M : last);
    const auto fb = matrix_part<P, A::B_ROWS, A::TB ? A::BK : A::BN, A::B_ROW, (A::TB ? A::K : A::N) % 4 == 0>(
      bs, b, A::TB ? n0 : k0, A::TB ? k0 : n0, A::TB ? A::N : last, A::TB ? last : A::N);
    const int own_scale = fill_both<P, A::THREADS, E>(scale, fa, fb);
    rescale(sums, scale, own_scale);
    __syncthreads();
#pragma unroll 2
    for (int s = slice; s < A::BK / 16; s += A::SLICES) {
      uint32 rows[A::MT][P::PARTS][4], columns[A::NT][P::PARTS][2];
      load_columns<P, A::NT, B_PLANE * 2, A::TB ? 8 * A::B_ROW * 2 : 16, A::TB>(columns, right + s * 16 * (A::TB ? 1 : A::B_ROW) * 2);
#pragma unroll
      for (int m = 0; m < A::MT; m++)
#pragma unroll
        for (int p = 0; p < P::PARTS; p++) {
          const SharedAddress place = left + (s * 16 * (A::TA ? A::A_ROW : 1) + m * 16 * (A::TA ? 1 : A::A_ROW) + p * A_PLANE) * 2;
          if (A::TA) load_transposed(rows[m][p], place);
          else load_matrices(rows[m][p], place);
        }
      multiply_fragments<P, A::MT, A::NT>(sums, rows, columns);
    }
  }
  let_next_begin();
  sum_slices<A::SLICES, A::OWN>(reinterpret_cast<float*>(as), slice, sums);
  if (slice) return;
  finish_and_store<A::MT * A::NT * 4, A::N % 2 == 0 ? 2 : 1, T>(
    [=](int k, uint32& i) {
      const int r = k % 4, row = m0 + wm + k / 4 / A::NT * 16 + lane / 4 + r / 2 * 8, column = n0 + wn + k / 4 % A::NT * 8 + lane % 4 * 2 + r % 2;
      i = uint32(part * A::M + row) * A::N + column;
      return (A::M % A::BM == 0 || row < A::M) && (A::N % A::BN == 0 || column < A::N);
    },
    [&](int k) { return T(scaled(sums[k / 4 / A::NT][k / 4 % A::NT][k % 4], -scale)); }, finish, store);
}
