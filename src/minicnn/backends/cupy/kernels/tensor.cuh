// Convolution on tensor cores: the matrix product of patches and filters, without the matrix of patches.
//
// A block holds a piece of an image in shared memory, channels last, as records of 16-bit parts (mma.cuh): the record of a
// position is its C channels or, where these are few, the KW * C elements that a row of taps sees there, so that fragments
// always load runs of 8. Records lie an odd number of 16 bytes apart: eight neighbours are in different banks.
#pragma once
#include "parts.cuh"

// How a window is cut into taps and records of C channels; if `wide`, a record holds a row of taps.
template <class S, int C, bool wide> struct Record {
  static constexpr int KW = wide ? 1 : S::KW;            // records of a row of taps
  static constexpr int LENGTH = wide ? S::KW * C : C;    // elements of a record
  static constexpr int RUNS = quotient(LENGTH, 8);       // of 8 elements
  static constexpr int SIZE = odd_run(LENGTH);           // from one record to the next
  static constexpr int SW = wide ? 1 : S::SW;            // from the record of a result to that of the next
  static constexpr int CHUNKS = S::KH * KW * RUNS;       // runs of 8 that a result sums over
  // Records of a row that so many results need.
  static constexpr int columns(int w) { return wide ? w : (w - 1) * S::SW + (S::KW - 1) * S::DW + 1; }
  // From the record of a result, in rows of IW records, to the elements of its chunk q.
  template <int IW> static constexpr DEVICE int offset(int q) {
    return q < CHUNKS ? (q / RUNS / KW * S::DH * IW + q / RUNS % KW * S::DW) * SIZE + q % RUNS * 8 : 0;
  }
};

// Records of NB x IH x IW positions from channels c0 .. C - 1 of `in`, in planes of PLANE elements.
template <class P, class R, int C, int PLANE, int NB, int IH, int IW, class In>
DEVICE auto records(uint32* xs, int n0, int h0, int w0, int c0, const In& in) {
  return filling<P, NB * IH * IW * R::RUNS>(
    [=](int k, typename P::Run& v) {
      const int e = k % R::RUNS * 8, q = k / R::RUNS % IW, h = h0 + k / R::RUNS / IW % IH, n = n0 + k / R::RUNS / IW / IH;
      if constexpr (C % 8 == 0 && In::template eights<typename P::Number>()) in.eight(n, h, w0 + q, c0 + e, c0 + e < C, v);
      else
        gather_run<P, C % 4 == 0>(
          e, R::LENGTH % 8 == 0 && C % R::LENGTH == 0 ? e + 8 : min(R::LENGTH, C - c0), v,
          [&](int c) { return in(n, h, w0 + q, c0 + c); },
          [&](int c, float (&four)[4]) { in.template four<C % 4 == 0>(n, h, w0 + q, c0 + c, four); });
    },
    [=](int k, const typename P::Run& v) { store_run<P, PLANE>(xs + (k / R::RUNS * R::SIZE + k % R::RUNS * 8) / 2, v); });
}

// Wide records, from `stage`, where each element of the image is put first.
template <class P, class S, class R, int C, int PLANE, int NB, int IH, int IW, int THREADS, class In>
DEVICE auto wide_records(uint32* xs, float* stage, int n0, int h0, int w0, const In& in) {
  constexpr int COLUMNS = (IW - 1) * S::SW + (S::KW - 1) * S::DW + 1;
  return filling<P, NB * IH * IW * R::RUNS>(
    [=](int k, typename P::Run& v) {
      const int run = k % R::RUNS * 8, q = k / R::RUNS;
      const auto staged = [&](int i) {
        const int e = R::RUNS == 1 ? i : run + i;
        return e < R::LENGTH ? stage[(q / IW * COLUMNS + q % IW * S::SW + e / C * S::DW) * C + e % C] : 0.0f;
      };
      gather_run<P, false>(0, 8, v, staged, Nothing());
    },
    [=](int k, const typename P::Run& v) { store_run<P, PLANE>(xs + (k / R::RUNS * R::SIZE + k % R::RUNS * 8) / 2, v); },
    [=]() {
      fill<float, NB * IH * COLUMNS * C, THREADS>(
        [&](int k) { return in(n0 + k / C / COLUMNS / IH, h0 + k / C / COLUMNS % IH, w0 + k / C % COLUMNS, k % C); },
        [&](int k, float value) { stage[k] = value; });
      __syncthreads();
    });
}

// Tile of a convolution on tensor cores: a block makes FB filters for patches of PY x PX positions, GY x GX of them in NB
// images each, CC channels at a time; a warp 8 patches x NT * 8 filters.
template <class P_, class Y_, class S_, int C_, int F_, class Sizes> struct TensorConvolutionTile {
  using P = P_;
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, EH = Sizes::result_rows, EW = Sizes::result_columns, NB = Sizes::images;
  static constexpr int GY = Sizes::patches_down, GX = Sizes::patches_across, FB = Sizes::filters, CC = Sizes::channels;
  static constexpr int PY = Sizes::patch_rows, PX = Sizes::patch_columns, NT = Sizes::warp_columns;
  static constexpr bool WIDE = Sizes::wide;
  using R = Record<S_, CC, WIDE>;
  static constexpr int MT = PY * PX / 2, FX = 2 * NT, SIDE = 2, PATCHES = NB * GY * GX;
  static constexpr int WM = quotient(PATCHES, 8), WN = FB / 8 / NT, THREADS = 32 * WM * WN;
  static constexpr int TH = GY * PY, TW = GX * PX;
  static constexpr int IH = (TH - 1) * S::SH + (S::KH - 1) * S::DH + 1, IW = R::columns(TW);
  static constexpr int STEPS = quotient(R::CHUNKS, 2);
  static constexpr int PLANE = NB * IH * IW * R::SIZE, ROW = odd_run(FB), WEIGHTS = STEPS * 16 * ROW;  // elements of a part
  static constexpr int ROWS = quotient(EH, TH), COLUMNS = quotient(EW, TW), FILTER_PARTS = quotient(F, FB);
  static constexpr int BLOCKS = quotient(Y::N, NB) * ROWS * COLUMNS * FILTER_PARTS;
  static constexpr int UNROLL = STEPS * MT * NT <= 160 ? STEPS : 1;
};

// Calls out(n, h, w, filter, sum): sum(k, y, x) is that of filter(k), counted within the group, at position (h + y, w + x), for
// each k < FX, y < PY and x < PX.
template <class T, class A, class E, class In, class W, class Out> DEVICE void tensor_convolve(int block, In in, W weight, Out out) {
  using P = typename A::P;
  using R = typename A::R;
  using S = typename A::S;
  using Y = typename A::Y;
  uint32* const xs = reinterpret_cast<uint32*>(dynamic_shared());
  uint32* const ws = xs + A::PLANE * P::PARTS / 2;
  const int f0 = block % A::FILTER_PARTS * A::FB;
  block /= A::FILTER_PARTS;
  const int w0 = block % A::COLUMNS * A::TW;
  block /= A::COLUMNS;
  const int h0 = block % A::ROWS * A::TH, n0 = block / A::ROWS * A::NB;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % A::WM, wn = warp / A::WM;

  // What this lane's addresses point to: row `row` of matrix `matrix`, see load_matrices.
  const int row = lane % 8, matrix = lane / 8;
  const int patch = A::PATCHES % 8 == 0 || wm * 8 + row < A::PATCHES ? wm * 8 + row : 0;
  const int corner = (patch / A::GX / A::GY * A::IH + patch / A::GX % A::GY * A::PY * S::SH) * A::IW + patch % A::GX * A::PX * R::SW;
  SharedAddress left[A::MT];
#pragma unroll
  for (int m = 0; m < A::MT; m++) {
    const int q = 2 * m + matrix % 2;
    left[m] = shared_address(xs) + (corner + q / A::PX * S::SH * A::IW + q % A::PX * R::SW) * R::SIZE * 2;
  }
  const SharedAddress right = shared_address(ws) + ((matrix % 2 * 8 + row) * A::ROW + wn * A::NT * 8 + matrix / 2 * 8) * 2;

  float sums[A::MT][A::NT][4] = {};

  int scale = LARGEST_SCALE;  // of the sums: the exponent of the power of two that they are multiplied by
#pragma unroll 1
  for (int c0 = 0; c0 < A::C; c0 += A::CC) {
    if (c0) __syncthreads();
    // Row k of the filters: element k of a sum, as the chunks of records have it.
    const auto filter = [=](int k, auto use) {
      const int q = k / 8, e = q % R::RUNS * 8 + k % 8, tap = q / R::RUNS;
      const int b = A::WIDE ? e / A::C : tap % R::KW, c = A::WIDE ? e % A::C : c0 + e;
      const bool real = q < R::CHUNKS && e < R::LENGTH && (A::C % A::CC == 0 || c < A::C);
      use(real, real ? tap / R::KW : 0, real ? b : 0, real ? c : 0);
    };
    const auto filters = matrix_rows<P, A::STEPS * 16, A::FB, A::ROW, A::F % 4 == 0, W::BACK, W::template eights<typename P::Number>()>(
      ws, A::F - f0,
      [=](int k, int f) {
        float value;
        filter(k, [&](bool real, int a, int b, int c) { value = weight(a, b, c, f0 + f), value = real ? value : 0.0f; });
        return value;
      },
      [=](int k, int f, float (&v)[4]) {
        filter(k, [&](bool real, int a, int b, int c) {
          weight.template four<A::F % 4 == 0>(a, b, c, f0 + f, v);
#pragma unroll
          for (int i = 0; i < 4; i++) v[i] = real ? v[i] : 0.0f;
        });
      },
      [=](int k, int f, auto& run) {
        if constexpr (W::template eights<typename P::Number>())
          filter(k, [&](bool real, int a, int b, int c) { weight.eight(a, b, c, f0 + f, real, run); });
      });
    const int top = h0 * S::SH - S::PT, edge = w0 * S::SW - S::PL;
    int own_scale;
    if constexpr (A::WIDE) {
      float* const stage = reinterpret_cast<float*>(ws + A::WEIGHTS * P::PARTS / 2);
      const auto image = wide_records<P, S, R, A::C, A::PLANE, A::NB, A::IH, A::IW, A::THREADS>(xs, stage, n0, top, edge, in);
      own_scale = fill_both<P, A::THREADS, E>(scale, image, filters);
    } else {
      const auto image = records<P, R, A::C, A::PLANE, A::NB, A::IH, A::IW>(xs, n0, top, edge, c0, in);
      own_scale = fill_both<P, A::THREADS, E>(scale, image, filters);
    }
    rescale(sums, scale, own_scale);
    __syncthreads();
#pragma unroll A::UNROLL
    for (int s = 0; s < A::STEPS; s++) {
      uint32 a[A::MT][P::PARTS][4], b[A::NT][P::PARTS][2];
      load_columns<P, A::NT, A::WEIGHTS * 2>(b, right + s * 16 * A::ROW * 2);
      const int chunk = (matrix / 2 ? R::template offset<A::IW>(2 * s + 1) : R::template offset<A::IW>(2 * s)) * 2;
#pragma unroll
      for (int m = 0; m < A::MT; m++)
#pragma unroll
        for (int p = 0; p < P::PARTS; p++) load_matrices(a[m][p], left[m] + chunk + p * (A::PLANE * 2));
      multiply_fragments<P, A::MT, A::NT>(sums, a, b);
    }
  }
  const int own = wm * 8 + lane / 4, n = n0 + own / A::GX / A::GY;
  const int h = h0 + own / A::GX % A::GY * A::PY, w = w0 + own % A::GX * A::PX;
  if (n >= Y::N || (A::PATCHES % 8 && own >= A::PATCHES)) return;
  out(
    n, h, w, [=](int k) { return f0 + (wn * A::NT + k / 2) * 8 + lane % 4 * 2 + k % 2; },
    [&](int k, int y, int x) {
      const int q = y * A::PX + x;
      return T(scaled(sums[q / 2][k / 2][q % 2 * 2 + k % 2], -scale));
    });
}

// Weight gradient --------------------------------------------------------------------------------------------

// Tile of a weight gradient on tensor cores: a block makes all taps of CB channels x FB filters from every PARTS-th strip of
// TH rows of NB images of dy; a warp MW * 16 elements of records x NT * 8 filters, from every SLICES-th 16 positions of a strip.
template <class P_, class X_, class Y_, class S_, int C_, int F_, class Sizes> struct TensorWeightGradientTile {
  using P = P_;
  using X = X_;
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, CB = Sizes::channels, FB = Sizes::filters, NB = Sizes::images, TH = Sizes::rows;
  static constexpr int MW = Sizes::warp_rows, NT = Sizes::warp_columns, SLICES = Sizes::slices, PARTS = Sizes::splits;
  static constexpr bool WIDE = Sizes::wide;
  using R = Record<S_, CB, WIDE>;
  static constexpr int WM = quotient(quotient(R::CHUNKS, 2), MW), WN = FB / 8 / NT, OWN = 32 * WM * WN, THREADS = OWN * SLICES;
  static constexpr int IH = (TH - 1) * S::SH + (S::KH - 1) * S::DH + 1, IW = R::columns(Y::W);
  static constexpr int REAL = NB * TH * Y::W, STEPS = quotient(REAL, 16);
  static constexpr int PLANE = NB * IH * IW * R::SIZE, ROW = odd_run(FB), GRADIENT = STEPS * 16 * ROW;
  static constexpr int ROWS = quotient(Y::H, TH), STRIPS = quotient(Y::N, NB) * ROWS;
  static_assert(PARTS <= STRIPS, "a block without strips would not wait for the launch ahead");
  static constexpr int C_PARTS = quotient(C, CB), F_PARTS = quotient(F, FB), GROUPS = Y::C / F;
  static constexpr int SIZE = S::KH * S::KW * C * Y::C;
  static constexpr int BLOCKS = PARTS * C_PARTS * F_PARTS * GROUPS;
};

// finish and store get each element of the gradient; those of part p come p * SIZE later.
template <class T, class A, class E, class FX, class FDY, class Finish, class Store>
DEVICE void tensor_weight_gradient(int block, FX x, FDY gradient, Finish finish, Store store) {
  using P = typename A::P;
  using R = typename A::R;
  using S = typename A::S;
  using X = typename A::X;
  using Y = typename A::Y;
  uint32* const xs = reinterpret_cast<uint32*>(dynamic_shared());
  uint32* const ds = xs + A::PLANE * P::PARTS / 2;
  const int part = block % A::PARTS;
  block /= A::PARTS;
  const int f0 = block % A::F_PARTS * A::FB;
  block /= A::F_PARTS;
  const int c0 = block % A::C_PARTS * A::CB, group = block / A::C_PARTS;
  const Padded<T, X, FX> in = {x, group * A::C};
  const Padded<T, Y, FDY> dy = {gradient, group * A::F};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wm = warp % A::WM, wn = warp / A::WM % A::WN, slice = warp / A::WM / A::WN;
  const int row = lane % 8, matrix = lane / 8;

  SharedAddress left[A::MW];
#pragma unroll
  for (int m = 0; m < A::MW; m++)
    left[m] = shared_address(xs) + R::template offset<A::IW>(2 * (wm * A::MW + m) + matrix % 2) * 2;
  const SharedAddress right = shared_address(ds) + ((matrix % 2 * 8 + row) * A::ROW + wn * A::NT * 8 + matrix / 2 * 8) * 2;

  float sums[A::MW][A::NT][4] = {};

  int scale = LARGEST_SCALE;
#pragma unroll 1
  for (int strip = part; strip < A::STRIPS; strip += A::PARTS) {
    const int n0 = strip / A::ROWS * A::NB, h0 = strip % A::ROWS * A::TH;
    __syncthreads();
    const auto position = [=](int k, auto use) {
      const int n = A::REAL % 16 == 0 || k < A::REAL ? n0 + k / Y::W / A::TH : Y::N;
      use(n, h0 + k / Y::W % A::TH, k % Y::W);
    };
    constexpr bool eights = A::F % 8 == 0 && Padded<T, Y, FDY>::template eights<typename P::Number>();
    const auto gradients = matrix_rows<P, A::STEPS * 16, A::FB, A::ROW, A::F % 4 == 0, Y::FORMAT != NHWC, eights>(
      ds, A::F - f0,
      [=](int k, int f) {
        float value;
        position(k, [&](int n, int h, int w) { value = dy(n, h, w, f0 + f); });
        return value;
      },
      [=](int k, int f, float (&v)[4]) {
        position(k, [&](int n, int h, int w) { dy.template four<A::F % 4 == 0>(n, h, w, f0 + f, v); });
      },
      [=](int k, int f, auto& run) {
        if constexpr (eights) position(k, [&](int n, int h, int w) { dy.eight(n, h, w, f0 + f, f0 + f < A::F, run); });
      });
    int own_scale;
    if constexpr (A::WIDE) {
      float* const stage = reinterpret_cast<float*>(ds + A::GRADIENT * P::PARTS / 2);
      const auto image = wide_records<P, S, R, A::C, A::PLANE, A::NB, A::IH, A::IW, A::THREADS>(
        xs, stage, n0, h0 * S::SH - S::PT, -S::PL, in);
      own_scale = fill_both<P, A::THREADS, E>(scale, image, gradients);
    } else {
      const auto image = records<P, R, A::C, A::PLANE, A::NB, A::IH, A::IW>(xs, n0, h0 * S::SH - S::PT, -S::PL, c0, in);
      own_scale = fill_both<P, A::THREADS, E>(scale, image, gradients);
    }
    rescale(sums, scale, own_scale);
    __syncthreads();
#pragma unroll 1
    for (int s = slice; s < A::STEPS; s += A::SLICES) {
      uint32 a[A::MW][P::PARTS][4], b[A::NT][P::PARTS][2];
      load_columns<P, A::NT, A::GRADIENT * 2>(b, right + s * 16 * A::ROW * 2);
      const int k = s * 16 + matrix / 2 * 8 + row, real = A::REAL % 16 == 0 || k < A::REAL ? k : 0;
      const int record = (real / Y::W / A::TH * A::IH + real / Y::W % A::TH * S::SH) * A::IW + real % Y::W * R::SW;
#pragma unroll
      for (int m = 0; m < A::MW; m++)
#pragma unroll
        for (int p = 0; p < P::PARTS; p++) load_transposed(a[m][p], left[m] + (record * R::SIZE + p * A::PLANE) * 2);
      multiply_fragments<P, A::MW, A::NT>(sums, a, b);
    }
  }
  let_next_begin();
  sum_slices<A::SLICES, A::OWN>(reinterpret_cast<float*>(xs), slice, sums);
  if (slice) return;
  finish_and_store<A::MW * A::NT * 4, A::F % 2 == 0 && Y::C % 2 == 0 ? 2 : 1, T>(
    [=](int k, uint32& i) {
      const int r = k % 4, n = k / 4 % A::NT, q = 2 * (wm * A::MW + k / 4 / A::NT) + r / 2, e = q % R::RUNS * 8 + lane / 4, tap = q / R::RUNS;
      const int b = R::KW == S::KW ? tap % R::KW : e / A::CB, c = c0 + (R::KW == S::KW ? e : e % A::CB);
      const int f = f0 + (wn * A::NT + n) * 8 + lane % 4 * 2 + r % 2;
      i = uint32(part) * A::SIZE + ((tap / R::KW * S::KW + b) * A::C + c) * Y::C + group * A::F + f;
      return q < R::CHUNKS && e < R::LENGTH && (A::C % A::CB == 0 || c < A::C) && (A::F % A::FB == 0 || f < A::F);
    },
    [&](int k) { return T(scaled(sums[k / 4 / A::NT][k / 4 % A::NT][k % 4], -scale)); }, finish, store);
}
