// Convolution on tensor cores: the matrix product of patches and filters, without the matrix of patches.
//
// A block holds a piece of an image in shared memory, channels last, as records of 16-bit parts (mma.cuh): the record of a
// position is its C channels or, where these are few, the KW * C elements that a row of taps sees there, so that fragments
// always load runs of 8. Records lie an odd number of 16 bytes apart: eight neighbours are in different banks.
#pragma once
#include "tiles.cuh"

constexpr int odd_run(int n) { return (quotient(n, 8) | 1) * 8; }

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
  // Where element e of record q is in the image.
  static DEVICE int column(int q, int e) { return wide ? q * S::SW + e / C * S::DW : q; }
  static DEVICE int channel(int e) { return wide ? e % C : e; }
  // From the record of a result, in rows of IW records, to the elements of its chunk q.
  template <int IW> static constexpr DEVICE int offset(int q) {
    return q < CHUNKS ? (q / RUNS / KW * S::DH * IW + q / RUNS % KW * S::DW) * SIZE + q % RUNS * 8 : 0;
  }
};

// Calls store(k, low, high) with the pairs load(k, 0), load(k, 1), k below `total`, shared by the threads of a block.
template <int total, int threads, class Load, class Store> DEVICE void fill_pairs(Load load, Store store) {
  constexpr int STEPS = quotient(total, threads), RUN = STEPS < 8 ? STEPS : 8;
#pragma unroll 1
  for (int step = 0; step < STEPS; step += RUN) {
    float low[RUN], high[RUN];
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = int(threadIdx.x) + (step + u) * threads, real = k < total ? k : 0;
      low[u] = load(real, 0), high[u] = load(real, 1);
    }
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = int(threadIdx.x) + (step + u) * threads;
      if (k < total) store(k, low[u], high[u]);
    }
  }
}

// Records of NB x IH x IW positions from in(n, h, w, channel), in planes of PLANE elements, one for each part.
template <class P, class R, int PLANE, int NB, int IH, int IW, int THREADS, class In>
DEVICE void fill_records(uint32* xs, int n0, int h0, int w0, In in) {
  constexpr int PAIRS = R::RUNS * 4;
  fill_pairs<NB * IH * IW * PAIRS, THREADS>(
    [&](int k, int half) {
      const int e = k % PAIRS * 2 + half, q = k / PAIRS % IW, h = k / PAIRS / IW % IH, n = k / PAIRS / IW / IH;
      const bool real = R::LENGTH % 8 == 0 || e < R::LENGTH;
      const float value = in(n0 + n, h0 + h, w0 + R::column(q, real ? e : 0), R::channel(real ? e : 0));
      return real ? value : 0.0f;
    },
    [&](int k, float low, float high) {
      uint32 parts[P::PARTS];
      P::split(parts, low, high);
#pragma unroll
      for (int p = 0; p < P::PARTS; p++) xs[(p * PLANE + k / PAIRS * R::SIZE) / 2 + k % PAIRS] = parts[p];
    });
}

// Rows of LENGTH elements from load(row, element), ROW elements apart, in planes of ROWS rows.
template <class P, int ROWS, int LENGTH, int ROW, int THREADS, class Load> DEVICE void fill_rows(uint32* rows, Load load) {
  constexpr int PAIRS = LENGTH / 2;
  fill_pairs<ROWS * PAIRS, THREADS>(
    [&](int k, int half) { return load(k / PAIRS, k % PAIRS * 2 + half); },
    [&](int k, float low, float high) {
      uint32 parts[P::PARTS];
      P::split(parts, low, high);
#pragma unroll
      for (int p = 0; p < P::PARTS; p++) rows[(p * ROWS + k / PAIRS) * (ROW / 2) + k % PAIRS] = parts[p];
    });
}

// The fragments B of N runs of 8 columns, stored as rows of K; `at`: address of a lane for the first part and run. Planes are
// PLANE bytes apart.
template <class P, int N, int PLANE> DEVICE void load_columns(uint32 (&b)[N][P::PARTS][2], SharedAddress at) {
#pragma unroll
  for (int n = 0; n < N; n += 2)
#pragma unroll
    for (int p = 0; p < P::PARTS; p++) {
      if (n + 1 < N) {
        uint32 both[4];
        load_transposed(both, at + p * PLANE + n * 16);
        b[n][p][0] = both[0], b[n][p][1] = both[1], b[n + 1 < N ? n + 1 : n][p][0] = both[2], b[n + 1 < N ? n + 1 : n][p][1] = both[3];
      } else {
        load_transposed(b[n][p], at + p * PLANE + n * 16);
      }
    }
}

// Tile of a convolution on tensor cores: a block makes FB filters for patches of PY x PX positions, GY x GX of them in NB
// images each, CC channels at a time; a warp 8 patches x NT * 8 filters.
template <class P_, class Y_, class S_, int C_, int F_, int EH_, int EW_, int NB_, int GY_, int GX_, int FB_, int CC_, int PY_, int PX_, int NT_, bool wide>
struct TensorTile {
  using P = P_;
  using Y = Y_;
  using S = S_;
  using R = Record<S_, CC_, wide>;
  static constexpr int C = C_, F = F_, EH = EH_, EW = EW_, NB = NB_, GY = GY_, GX = GX_, FB = FB_, CC = CC_, PY = PY_, PX = PX_, NT = NT_;
  static constexpr int MT = PY * PX / 2, PATCHES = NB * GY * GX;
  static constexpr int WM = quotient(PATCHES, 8), WN = FB / 8 / NT, THREADS = 32 * WM * WN;
  static constexpr int TH = GY * PY, TW = GX * PX;
  static constexpr int IH = (TH - 1) * S::SH + (S::KH - 1) * S::DH + 1, IW = R::columns(TW);
  static constexpr int STEPS = quotient(R::CHUNKS, 2);
  static constexpr int PLANE = NB * IH * IW * R::SIZE, ROW = odd_run(FB), WEIGHTS = STEPS * 16 * ROW;  // elements of a part
  static constexpr int ROWS = quotient(EH, TH), COLUMNS = quotient(EW, TW), FILTER_PARTS = quotient(F, FB);
  static constexpr int BLOCKS = quotient(Y::N, NB) * ROWS * COLUMNS * FILTER_PARTS;
  static constexpr int UNROLL = STEPS * MT * NT <= 160 ? STEPS : 1;
};

// Calls out(n, h, w, f, sums) as `convolve` does: for the PY x PX positions that begin at (h, w) and filter f of the group.
template <class T, class A, class In, class W, class Out> DEVICE void tensor_convolve(int block, In in, W weight, Out out) {
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

  float sums[A::MT][A::NT][4];
#pragma unroll
  for (int m = 0; m < A::MT; m++)
#pragma unroll
    for (int n = 0; n < A::NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) sums[m][n][r] = 0.0f;

#pragma unroll 1
  for (int c0 = 0; c0 < A::C; c0 += A::CC) {
    if (c0) __syncthreads();
    fill_records<P, R, A::PLANE, A::NB, A::IH, A::IW, A::THREADS>(
      xs, n0, h0 * S::SH - S::PT, w0 * S::SW - S::PL, [&](int n, int h, int w, int c) {
        const bool real = A::C % A::CC == 0 || c0 + c < A::C;
        const float value = in(n, h, w, real ? c0 + c : 0);
        return real ? value : 0.0f;
      });
    fill_rows<P, A::STEPS * 16, A::FB, A::ROW, A::THREADS>(ws, [&](int k, int f) {
      const int q = k / 8, e = q % R::RUNS * 8 + k % 8, tap = q / R::RUNS, b = R::KW == S::KW ? tap % R::KW : e / A::CC;
      const int c = R::KW == S::KW ? e : e % A::CC;
      const bool real = q < R::CHUNKS && e < R::LENGTH && (A::F % A::FB == 0 || f0 + f < A::F) && (A::C % A::CC == 0 || c0 + c < A::C);
      const float value = weight(real ? tap / R::KW : 0, real ? b : 0, real ? c0 + c : 0, real ? f0 + f : 0);
      return real ? value : 0.0f;
    });
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
#pragma unroll
  for (int k = 0; k < A::NT; k++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int f = f0 + (wn * A::NT + k) * 8 + lane % 4 * 2 + e;
      if (A::F % A::FB && f >= A::F) continue;
      T values[A::PY][A::PX];
#pragma unroll
      for (int q = 0; q < A::PY * A::PX; q++) values[q / A::PX][q % A::PX] = sums[q / 2][k][q % 2 * 2 + e];
      out(n, h, w, f, values);
    }
}

// Weight gradient --------------------------------------------------------------------------------------------

// Tile of a weight gradient on tensor cores: a block makes all taps of CB channels x FB filters from every PARTS-th strip of
// TH rows of NB images of dy; a warp MW * 16 elements of records x NT * 8 filters, from every SLICES-th 16 positions of a strip.
template <class P_, class X_, class Y_, class S_, int C_, int F_, int CB_, int FB_, int NB_, int TH_, int MW_, int NT_, int SLICES_, int PARTS_, bool wide>
struct TensorWeightTile {
  using P = P_;
  using X = X_;
  using Y = Y_;
  using S = S_;
  using R = Record<S_, CB_, wide>;
  static constexpr int C = C_, F = F_, CB = CB_, FB = FB_, NB = NB_, TH = TH_, MW = MW_, NT = NT_, SLICES = SLICES_, PARTS = PARTS_;
  static constexpr int WM = quotient(quotient(R::CHUNKS, 2), MW), WN = FB / 8 / NT, OWN = 32 * WM * WN, THREADS = OWN * SLICES;
  static constexpr int IH = (TH - 1) * S::SH + (S::KH - 1) * S::DH + 1, IW = R::columns(Y::W);
  static constexpr int REAL = NB * TH * Y::W, STEPS = quotient(REAL, 16);
  static constexpr int PLANE = NB * IH * IW * R::SIZE, ROW = odd_run(FB), GRADIENT = STEPS * 16 * ROW;
  static constexpr int ROWS = quotient(Y::H, TH), STRIPS = quotient(Y::N, NB) * ROWS;
  static constexpr int C_PARTS = quotient(C, CB), F_PARTS = quotient(F, FB), GROUPS = Y::C / F;
  static constexpr int BLOCKS = PARTS * C_PARTS * F_PARTS * GROUPS;
};

// Calls out(part, i, value) for each element i of the gradient.
template <class T, class A, class FX, class FDY, class Out> DEVICE void tensor_correlate(int block, FX x, FDY dy, Out out) {
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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wm = warp % A::WM, wn = warp / A::WM % A::WN, slice = warp / A::WM / A::WN;
  const int row = lane % 8, matrix = lane / 8;

  SharedAddress left[A::MW];
#pragma unroll
  for (int m = 0; m < A::MW; m++)
    left[m] = shared_address(xs) + R::template offset<A::IW>(2 * (wm * A::MW + m) + matrix % 2) * 2;
  const SharedAddress right = shared_address(ds) + ((matrix % 2 * 8 + row) * A::ROW + wn * A::NT * 8 + matrix / 2 * 8) * 2;

  float sums[A::MW][A::NT][4];
#pragma unroll
  for (int m = 0; m < A::MW; m++)
#pragma unroll
    for (int n = 0; n < A::NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) sums[m][n][r] = 0.0f;

#pragma unroll 1
  for (int strip = part; strip < A::STRIPS; strip += A::PARTS) {
    const int n0 = strip / A::ROWS * A::NB, h0 = strip % A::ROWS * A::TH;
    __syncthreads();
    fill_records<P, R, A::PLANE, A::NB, A::IH, A::IW, A::THREADS>(
      xs, n0, h0 * S::SH - S::PT, -S::PL, [&](int n, int h, int w, int c) {
        const bool real = n < X::N && inside<X::H>(h) && inside<X::W>(w) && (A::C % A::CB == 0 || c0 + c < A::C);
        const float value = x(real ? X::at(n, h, w, group * A::C + c0 + c) : 0u);
        return real ? value : 0.0f;
      });
    fill_rows<P, A::STEPS * 16, A::FB, A::ROW, A::THREADS>(ds, [&](int k, int f) {
      const int n = n0 + k / Y::W / A::TH, h = h0 + k / Y::W % A::TH;
      const bool real = (A::REAL % 16 == 0 || k < A::REAL) && n < Y::N && h < Y::H && (A::F % A::FB == 0 || f0 + f < A::F);
      const float value = dy(real ? Y::at(n, h, k % Y::W, group * A::F + f0 + f) : 0u);
      return real ? value : 0.0f;
    });
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
  // Sum over the slices: in each round the upper half hands its sums to the lower.
  float* const shared = reinterpret_cast<float*>(xs);
  float* const flat = &sums[0][0][0];
  constexpr int SIZE = A::MW * A::NT * 4;
  const int own = threadIdx.x % A::OWN;
#pragma unroll
  for (int half = A::SLICES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice >= half && slice < 2 * half) {
#pragma unroll
      for (int k = 0; k < SIZE; k++) shared[((slice - half) * SIZE + k) * A::OWN + own] = flat[k];
    }
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int k = 0; k < SIZE; k++) flat[k] += shared[(slice * SIZE + k) * A::OWN + own];
    }
  }
  if (slice) return;
#pragma unroll
  for (int m = 0; m < A::MW; m++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int q = 2 * (wm * A::MW + m) + r / 2, e = q % R::RUNS * 8 + lane / 4, tap = q / R::RUNS;
      const int b = R::KW == S::KW ? tap % R::KW : e / A::CB, c = c0 + (R::KW == S::KW ? e : e % A::CB);
      if (q >= R::CHUNKS || e >= R::LENGTH || (A::C % A::CB && c >= A::C)) continue;
#pragma unroll
      for (int k = 0; k < A::NT; k++) {
        const int f = f0 + (wn * A::NT + k) * 8 + lane % 4 * 2 + r % 2;
        if (A::F % A::FB && f >= A::F) continue;
        out(part, ((tap / R::KW * S::KW + b) * A::C + c) * Y::C + group * A::F + f, T(sums[m][k][r]));
      }
    }
}
