// Convolution and its gradients by tiles in shared memory.
//
// Every sum is taken in a fixed order: within a thread, then over the threads of a block, then over the parts that
// blocks leave in memory. Nothing is accumulated by atomics, so a result has the same bits every time.
#pragma once
#include "mma.cuh"
#include "results.cuh"

constexpr int largest(int a, int b) { return a > b ? a : b; }
constexpr int quotient(int a, int b) { return (a + b - 1) / b; }
// The next length whose rows start in different banks of shared memory.
constexpr int odd(int n) { return n | 1; }

// Calls store(k, load(k)) for each k below `total`, shared by the threads of a block. Sixteen loads are under way before
// the first is stored; load is also called with k = 0 by threads that have nothing left, so that no load waits for a branch.
template <class T, int total, int threads, class Load, class Store> DEVICE void fill(Load load, Store store) {
  constexpr int STEPS = quotient(total, threads), RUN = STEPS < 16 ? STEPS : 16;
  const int thread = threadIdx.x;
#pragma unroll 1
  for (int step = 0; step < STEPS; step += RUN) {
    T values[RUN];
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = thread + (step + u) * threads;
      values[u] = load(k < total ? k : 0);
    }
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = thread + (step + u) * threads;
      if (k < total) store(k, values[u]);
    }
  }
}

// Sums of SLICES groups of OWN threads, which those of slice 0 get: in each round the upper half hands its sums to the lower.
template <int SLICES, int OWN, class T, int A, int B, int C> DEVICE void sum_slices(T* shared, int slice, T (&sums)[A][B][C]) {
  T* const flat = &sums[0][0][0];
  const int own = threadIdx.x % OWN;
#pragma unroll
  for (int half = SLICES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice >= half && slice < 2 * half) {
#pragma unroll
      for (int k = 0; k < A * B * C; k++) shared[((slice - half) * A * B * C + k) * OWN + own] = flat[k];
    }
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int k = 0; k < A * B * C; k++) flat[k] += shared[(slice * A * B * C + k) * OWN + own];
    }
  }
}

// Convolution ------------------------------------------------------------------------------------------------

// An image with zeros around it and strides - 1 zeros between its elements.
template <class T, class X, int SH, int SW, class F> struct Spread {
  F x;
  int first;  // channel where the group begins
  static DEVICE bool real(int n, int h, int w) {
    return n < X::N && h % SH == 0 && w % SW == 0 && inside<X::H * SH>(h) && inside<X::W * SW>(w);
  }
  DEVICE T operator()(int n, int h, int w, int c) const {
    const bool there = real(n, h, w);
    const T value = x(there ? X::at(n, h / SH, w / SW, first + c) : 0u);
    return there ? value : T(0);
  }
  // Channels c .. c + 3, which begin at a multiple of 4 if `aligned`.
  template <bool aligned> DEVICE void four(int n, int h, int w, int c, T (&v)[4]) const {
    const bool there = real(n, h, w);
    load_four_channels<aligned, X>(x, there ? n : 0, there ? h / SH : 0, there ? w / SW : 0, first + c, v);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = there ? v[k] : T(0);
  }
  // Channels c .. c + 7, from a multiple of 8 on, if they are numbers of type U in memory; zeros, if they are not `wanted`.
  template <class U> static constexpr bool eights() { return X::FORMAT == NHWC && X::C % 8 == 0 && InMemory<U, F>::value; }
  template <class Run> DEVICE void eight(int n, int h, int w, int c, bool wanted, Run& run) const {
    const bool there = wanted && real(n, h, w);
    load_eight(there, x.p + (there ? X::at(n, h / SH, w / SW, first + c) : 0u), run);
  }
};

// An image with zeros around it.
template <class T, class X, class F> using Padded = Spread<T, X, 1, 1, F>;

// Filters of shape (KH, KW, C, GROUPS * F).
template <class T, int KW, int C, int F, int GROUPS, class W> struct Filters {
  W w;
  int group;
  static constexpr bool BACK = false;
  template <class U> static constexpr bool eights() { return F % 8 == 0 && InMemory<U, W>::value; }
  template <class Run> DEVICE void eight(int a, int b, int c, int f, bool real, Run& run) const {
    real = real && f < F;
    load_eight(real, w.p + (real ? at(a, b, c, f) : 0u), run);
  }
  DEVICE uint32 at(int a, int b, int c, int f) const { return ((a * KW + b) * C + c) * (F * GROUPS) + group * F + f; }
  DEVICE T operator()(int a, int b, int c, int f) const { return T(w(at(a, b, c, f))); }
  // Filters f .. f + 3, which begin at a multiple of 4 if `aligned`.
  template <bool aligned> DEVICE void four(int a, int b, int c, int f, T (&v)[4]) const { load_four<aligned>(w, at(a, b, c, f), v); }
};

// The filters of an input gradient, which are those of the convolution flipped: (KH, KW, F, GROUPS * C).
//
// With strides SH and SW, elements of the gradient that are as far apart see the same taps: SH * SW *phases* of F filters each, of one
// convolution of dy without strides, whose window S is what all phases see together. Filter f is one of phase f / F, and has zeros where
// only other phases have taps. PT, PL: zeros before the image of the convolution.
template <class T, class S, int KH, int KW, int C, int F, int GROUPS, int SH, int SW, int PT, int PL, class W> struct FlippedFilters {
  W w;
  int group;
  static constexpr bool BACK = true;
  template <class U> static constexpr bool eights() { return false; }
  static constexpr int DOWN = (PT + SH * S::PT) / S::DH, RIGHT = (PL + SW * S::PL) / S::DW;  // the tap of phase 0 that comes first
  DEVICE T operator()(int a, int b, int c, int f) const {
    const int phase = SH * SW == 1 ? 0 : f / F, i = phase / SW + DOWN - SH * a, j = phase % SW + RIGHT - SW * b;
    const bool real = SH * SW == 1 || (inside<KH>(i) && inside<KW>(j));
    const T value = T(w(real ? uint32(((i * KW + j) * F + f - phase * F) * (C * GROUPS) + group * C + c) : 0u));
    return real ? value : T(0);
  }
  template <bool aligned> DEVICE void four(int a, int b, int c, int f, T (&v)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = (*this)(a, b, c, f + k);
  }
};

// Tile of a convolution: a block makes FB filters at TH x TW positions of NB images, CC channels at a time; a thread
// FX filters at PY x PX neighbouring positions. Y: the result, with all its channels, of which the first EH x EW
// positions are made; C, F: channels of one group.
template <class Y_, class S_, int C_, int F_, int EH_, int EW_, int NB_, int TH_, int TW_, int FB_, int CC_, int PY_, int PX_, int FX_>
struct ConvTile {
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, EH = EH_, EW = EW_, NB = NB_, TH = TH_, TW = TW_, FB = FB_, CC = CC_;
  static constexpr int PY = PY_, PX = PX_, FX = FX_, SIDE = FX;  // filters of a thread that are side by side
  static constexpr int FG = FB / FX, GY = TH / PY, GX = TW / PX;
  static constexpr int THREADS = FG * GY * GX * NB;
  static constexpr int IH = (TH - 1) * S::SH + (S::KH - 1) * S::DH + 1, IW = (TW - 1) * S::SW + (S::KW - 1) * S::DW + 1;
  static constexpr int PLANE = odd(NB * IH * IW);
  static constexpr int TAPS = S::KH * S::KW;
  static constexpr int ROWS = quotient(EH, TH), COLUMNS = quotient(EW, TW), PARTS = quotient(F, FB);
  static constexpr int BLOCKS = quotient(Y::N, NB) * ROWS * COLUMNS * PARTS;
};

// Calls out(n, h, w, filter, sum): sum(k, y, x) is that of filter(k), counted within the group, at position (h + y, w + x), for
// each k < FX, y < PY and x < PX.
template <class T, class A, class In, class W, class Out> DEVICE void convolve(int block, In in, W weight, Out out) {
  using S = typename A::S;
  using Y = typename A::Y;
  auto& ws = *reinterpret_cast<T(*)[A::CC][A::TAPS][A::FB]>(dynamic_shared());
  auto& xs = *reinterpret_cast<T(*)[A::CC][A::PLANE]>(dynamic_shared() + sizeof(ws));
  const int thread = threadIdx.x;
  const int f0 = block % A::PARTS * A::FB;
  block /= A::PARTS;
  const int w0 = block % A::COLUMNS * A::TW;
  block /= A::COLUMNS;
  const int h0 = block % A::ROWS * A::TH, n0 = block / A::ROWS * A::NB;
  const int fg = thread % A::FG, gx = thread / A::FG % A::GX, gy = thread / A::FG / A::GX % A::GY;
  const int image = thread / A::FG / A::GX / A::GY;

  T sums[A::PY][A::PX][A::FX];
#pragma unroll
  for (int y = 0; y < A::PY; y++)
#pragma unroll
    for (int x = 0; x < A::PX; x++)
#pragma unroll
      for (int f = 0; f < A::FX; f++) sums[y][x][f] = T(0);

  for (int c0 = 0; c0 < A::C; c0 += A::CC) {
    if (c0) __syncthreads();
    // Channels lie next to each other in memory, and a plane apart in shared memory.
    fill<T, A::CC * A::NB * A::IH * A::IW, A::THREADS>(
      [&](int k) {
        const int c = k % A::CC, at = k / A::CC, w = at % A::IW, h = at / A::IW % A::IH, n = at / A::IW / A::IH;
        const bool real = A::C % A::CC == 0 || c0 + c < A::C;
        const T value = in(n0 + n, h0 * S::SH + h - S::PT, w0 * S::SW + w - S::PL, real ? c0 + c : 0);
        return real ? value : T(0);
      },
      [&](int k, T value) { xs[k % A::CC][k / A::CC] = value; });
    fill<T, A::CC * A::TAPS * A::FB, A::THREADS>(
      [&](int k) {
        const int f = k % A::FB, tap = k / A::FB % A::TAPS, c = k / A::FB / A::TAPS;
        const bool real = (A::F % A::FB == 0 || f0 + f < A::F) && (A::C % A::CC == 0 || c0 + c < A::C);
        const T value = weight(tap / S::KW, tap % S::KW, real ? c0 + c : 0, real ? f0 + f : 0);
        return real ? value : T(0);
      },
      [&](int k, T value) { ws[k / A::FB / A::TAPS][k / A::FB % A::TAPS][k % A::FB] = value; });
    __syncthreads();
    constexpr int SPAN = (A::PX - 1) * S::SW + (S::KW - 1) * S::DW + 1;
    const int corner = (image * A::IH + gy * A::PY * S::SH) * A::IW + gx * A::PX * S::SW;
#pragma unroll 1
    for (int c = 0; c < A::CC; c++) {
#pragma unroll
      for (int a = 0; a < S::KH; a++) {
        T row[A::PY][SPAN];
#pragma unroll
        for (int y = 0; y < A::PY; y++)
#pragma unroll
          for (int x = 0; x < SPAN; x++) row[y][x] = xs[c][corner + (y * S::SH + a * S::DH) * A::IW + x];
#pragma unroll
        for (int b = 0; b < S::KW; b++) {
          const Pack<T, A::FX> w = *reinterpret_cast<const Pack<T, A::FX>*>(&ws[c][a * S::KW + b][fg * A::FX]);
#pragma unroll
          for (int y = 0; y < A::PY; y++)
#pragma unroll
            for (int x = 0; x < A::PX; x++)
#pragma unroll
              for (int f = 0; f < A::FX; f++) sums[y][x][f] += row[y][x * S::SW + b * S::DW] * w.v[f];
        }
      }
    }
  }
  const int n = n0 + image, h = h0 + gy * A::PY, w = w0 + gx * A::PX;
  if (n >= Y::N) return;
  out(n, h, w, [=](int k) { return f0 + fg * A::FX + k; }, [&](int k, int y, int x) { return sums[y][x][k]; });
}

// Weight gradient --------------------------------------------------------------------------------------------

// Tile of a weight gradient: a block makes KB rows of taps x CB channels x FB filters from every PARTS-th strip of TH
// rows of dy; a thread one channel and FX filters, from every SLICES-th run of PX positions of a strip.
template <class X_, class Y_, class S_, int C_, int F_, int KB_, int CB_, int FB_, int TH_, int PX_, int FX_, int SLICES_, int PARTS_>
struct WeightTile {
  using X = X_;
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, KB = KB_, CB = CB_, FB = FB_, TH = TH_, PX = PX_, FX = FX_, SLICES = SLICES_, PARTS = PARTS_;
  static constexpr int FG = FB / FX, THREADS = FG * CB * SLICES;
  static constexpr int TW = quotient(Y::W, PX) * PX;
  static constexpr int IH = (TH - 1) * S::SH + (KB - 1) * S::DH + 1, IW = (TW - 1) * S::SW + (S::KW - 1) * S::DW + 1;
  static constexpr int ROWS = quotient(Y::H, TH), STRIPS = Y::N * ROWS;
  static constexpr int SIZE = S::KH * S::KW * C * Y::C;  // C is that of one group, Y::C of all
  static constexpr int K_PARTS = quotient(S::KH, KB), C_PARTS = quotient(C, CB), F_PARTS = quotient(F, FB), GROUPS = Y::C / F;
  static constexpr int BLOCKS = PARTS * K_PARTS * C_PARTS * F_PARTS * GROUPS;
  static constexpr int XS = quotient(IH * IW * CB, 4) * 4, DS = TH * TW * FB, OWN = KB * S::KW * FX;
  static constexpr int SHARED = largest(XS + DS, SLICES / 2 * FG * CB * OWN);
};

// finish and store get each element of the gradient; those of part p come p * SIZE later.
template <class T, class A, class FX, class FDY, class Finish, class Store>
DEVICE void weight_gradient(int block, FX x, FDY dy, Finish finish, Store store) {
  using S = typename A::S;
  using X = typename A::X;
  using Y = typename A::Y;
  T* const shared = reinterpret_cast<T*>(dynamic_shared());
  T* const xs = shared;
  T* const ds = shared + A::XS;
  const int thread = threadIdx.x, part = block % A::PARTS;
  block /= A::PARTS;
  const int f0 = block % A::F_PARTS * A::FB;
  block /= A::F_PARTS;
  const int c0 = block % A::C_PARTS * A::CB;
  block /= A::C_PARTS;
  const int a0 = block % A::K_PARTS * A::KB, group = block / A::K_PARTS;
  const int fg = thread % A::FG, c = thread / A::FG % A::CB, slice = thread / A::FG / A::CB;

  T sums[A::KB][S::KW][A::FX] = {};

  for (int strip = part; strip < A::STRIPS; strip += A::PARTS) {
    const int n = strip / A::ROWS, h0 = strip % A::ROWS * A::TH;
    __syncthreads();
    fill<T, A::IH * A::IW * A::CB, A::THREADS>(
      [&](int k) {
        const int ch = k % A::CB, w = k / A::CB % A::IW - S::PL, h = h0 * S::SH + a0 * S::DH + k / A::CB / A::IW - S::PT;
        const bool real = (A::C % A::CB == 0 || c0 + ch < A::C) && inside<X::H>(h) && inside<X::W>(w);
        const T value = x(real ? X::at(n, h, w, group * A::C + c0 + ch) : 0u);
        return real ? value : T(0);
      },
      [&](int k, T value) { xs[k] = value; });
    fill<T, A::DS, A::THREADS>(
      [&](int k) {
        const int f = k % A::FB, w = k / A::FB % A::TW, h = h0 + k / A::FB / A::TW;
        const bool real = (A::F % A::FB == 0 || f0 + f < A::F) && h < Y::H && (Y::W % A::PX == 0 || w < Y::W);
        const T value = dy(real ? Y::at(n, h, w, group * A::F + f0 + f) : 0u);
        return real ? value : T(0);
      },
      [&](int k, T value) { ds[k] = value; });
    __syncthreads();
    constexpr int RUNS = A::TW / A::PX, SPAN = (A::PX - 1) * S::SW + (S::KW - 1) * S::DW + 1;
#pragma unroll 1
    for (int run = slice; run < A::TH * RUNS; run += A::SLICES) {
      const int h = run / RUNS, w = run % RUNS * A::PX;
      Pack<T, A::FX> d[A::PX];
#pragma unroll
      for (int p = 0; p < A::PX; p++) d[p] = *reinterpret_cast<const Pack<T, A::FX>*>(&ds[(h * A::TW + w + p) * A::FB + fg * A::FX]);
#pragma unroll
      for (int a = 0; a < A::KB; a++) {
        T row[SPAN];
#pragma unroll
        for (int p = 0; p < SPAN; p++) row[p] = xs[((h * S::SH + a * S::DH) * A::IW + w * S::SW + p) * A::CB + c];
#pragma unroll
        for (int b = 0; b < S::KW; b++)
#pragma unroll
          for (int p = 0; p < A::PX; p++)
#pragma unroll
            for (int f = 0; f < A::FX; f++) sums[a][b][f] += row[p * S::SW + b * S::DW] * d[p].v[f];
      }
    }
  }
  sum_slices<A::SLICES, A::FG * A::CB>(shared, slice, sums);
  if (slice) return;
  finish_and_store<A::OWN, A::F % A::FX == 0 && Y::C % A::FX == 0 ? A::FX : 1, T>(
    [=](int k, uint32& i) {
      const int tap = k / A::FX, a = a0 + tap / S::KW, f = f0 + fg * A::FX + k % A::FX;
      i = uint32(part) * A::SIZE + ((a * S::KW + tap % S::KW) * A::C + c0 + c) * Y::C + group * A::F + f;
      return (S::KH % A::KB == 0 || a < S::KH) && (A::C % A::CB == 0 || c0 + c < A::C) && (A::F % A::FB == 0 || f < A::F);
    },
    [&](int k) { return (&sums[0][0][0])[k]; }, finish, store);
}
