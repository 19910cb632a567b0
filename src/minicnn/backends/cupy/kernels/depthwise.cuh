// Depthwise convolutions of images in 16 bits, by tiles: a block brings a piece of the image, with its margin, to shared memory once,
// 16 bytes at a time, and computes there what was inlined. Of a multiple of 8 channels, a thread has a run of 8. It makes PX neighbours
// of a row at a time and slides over the pixels that these see: each is loaded once for all of them.
#pragma once
#include "tiles.cuh"

constexpr int floor_quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// One axis of windows. Result t of a convolution sees element t * STRIDE + k * DILATION - BEFORE under tap k; with `back`, that of an
// input gradient sees element (t + BEFORE - k * DILATION) / STRIDE, if there is no rest.
template <bool back, int K, int STRIDE, int BEFORE, int DILATION> struct Axis {
  static constexpr int LOW = back ? floor_quotient(BEFORE - (K - 1) * DILATION, STRIDE) : -BEFORE;  // the first that result 0 sees
  // How many elements so many results see, and the first of them; the first result of an input gradient is a multiple of STRIDE.
  static constexpr int seen(int results) {
    return back ? floor_quotient(results - 1 + BEFORE, STRIDE) - LOW + 1 : (results - 1) * STRIDE + (K - 1) * DILATION + 1;
  }
  static constexpr int first(int t) { return back ? t / STRIDE : t * STRIDE; }
  // Whether result t sees element v under tap k; v is counted from LOW on.
  static constexpr bool meets(int v, int t, int k) {
    return back ? t + BEFORE - k * DILATION == (v + LOW) * STRIDE : v == t * STRIDE + k * DILATION;
  }
};

// A float32 that is a number of 16 bits, as such.
DEVICE void shorten(bfloat16& to, float x) { to.bits = uint16(uint32(__float_as_int(x)) >> 16); }
DEVICE void shorten(float16& to, float x) { to = float16(x); }

// Pixels of G runs of 8 channels in shared memory: an odd number of runs apart, so that neighbours are in different banks.
template <int G> constexpr int pixel() { return (G | 1) * 8; }

// Brings NB images of H x W pixels, from (n, h, w) of the image I on, to shared memory; zeros where there are none. x(i) are 8 channels.
template <class I, class U, int G, int NB, int H, int W, int THREADS, class F> DEVICE void stage_pixels(U* to, int n0, int h0, int w0, int c, F x) {
  const int own = threadIdx.x % G * 8;
#pragma unroll 4
  for (int k = threadIdx.x / G; k < NB * H * W; k += THREADS / G) {
    const int n = n0 + k / (H * W), h = h0 + k / W % H, w = w0 + k % W;
    const bool real = n < I::N && inside<I::H>(h) && inside<I::W>(w);
    const auto run = x(real ? I::at(n, h, w, c) : uint32(c));
    Pack<U, 8> made;
#pragma unroll
    for (int e = 0; e < 8; e++) shorten(made.v[e], real ? run.v[e] : 0.0f);
    store_run(to + k * pixel<G>() + own, made);
  }
}

// The tiles of a result Out: NB images of TH x TW positions of G runs of channels, for each of which a block is.
template <class U_, class In_, class Out_, class S_, bool back, class Sizes> struct DepthwiseTile {
  using U = U_;
  using In = In_;
  using Out = Out_;
  using S = S_;
  using Down = Axis<back, S::KH, S::SH, S::PT, S::DH>;
  using Right = Axis<back, S::KW, S::SW, S::PL, S::DW>;
  static constexpr bool BACK = back;
  static constexpr int G = Sizes::runs, NB = Sizes::images, TH = Sizes::rows, TW = Sizes::columns, PX = Sizes::strip, THREADS = Sizes::threads;
  static constexpr int WIDE = 8 * G, SLICES = Out::C / WIDE, STEP = THREADS / G, STRIPS = TW / PX, ITEMS = NB * TH * STRIPS;
  static constexpr int H = Down::seen(TH), W = Right::seen(TW), SPAN = Right::seen(PX);  // of the piece; of a strip
  static constexpr int H_TILES = quotient(Out::H, TH), W_TILES = quotient(Out::W, TW), TILES = quotient(Out::N, NB) * H_TILES * W_TILES;
  static constexpr int IMAGE = NB * H * W * pixel<G>() * 2;  // bytes
  static_assert(Out::C % WIDE == 0 && THREADS % G == 0 && TW % PX == 0, "threads share channels and strips");
  static_assert(!back || (TH % S::SH == 0 && PX % S::SW == 0), "strips begin at the first phase");
  int n, h, w;  // the first image, row and column
  static DEVICE int channel(int block) { return block % SLICES * WIDE + threadIdx.x % G * 8; }  // the first of a thread's run
  DEVICE explicit DepthwiseTile(int tile) : n(tile / W_TILES / H_TILES * NB), h(tile / W_TILES % H_TILES * TH), w(tile % W_TILES * TW) {}
};

// Convolution or input gradient: ends(channel)(i)(sums, added) gets 8 neighbouring results from i on, and adds to SUMS sums over positions, of
// which each block leaves its own by total(s, i, sum), i being the element of an array with a row for each tile. weight(i): as in memory.
template <class A, int SUMS, class F, class FW, class Ends, class Total>
DEVICE void depthwise(int block, F x, FW weight, Ends ends, Total total) {
  using U = typename A::U;
  using S = typename A::S;
  using Out = typename A::Out;
  using Right = typename A::Right;
  constexpr int LOW = A::Down::LOW, TAPS = S::KH * S::KW;
  U* const image = reinterpret_cast<U*>(dynamic_shared());
  float* const filters = reinterpret_cast<float*>(dynamic_shared() + A::IMAGE);  // by tap, halves of runs, runs
  const A at(block / A::SLICES);
  const int g = threadIdx.x % A::G, first = block % A::SLICES * A::WIDE, c = A::channel(block);
  for (int k = threadIdx.x; k < TAPS * A::WIDE; k += A::THREADS)
    filters[k] = weight(k / A::WIDE * Out::C + first + k / 4 % A::G * 8 + k / (4 * A::G) % 2 * 4 + k % 4);
  stage_pixels<typename A::In, U, A::G, A::NB, A::H, A::W, A::THREADS>(
    image, at.n, A::Down::first(at.h) + LOW, Right::first(at.w) + Right::LOW, c, x);
  __syncthreads();
  let_next_begin();
  const auto those = ends(uint32(c));
  Pack<float, 8> added[SUMS ? SUMS : 1] = {};
#pragma unroll 1
  for (int item = threadIdx.x / A::G; item < A::ITEMS; item += A::STEP) {
    const int n = item / A::STRIPS / A::TH, y = item / A::STRIPS % A::TH, j0 = item % A::STRIPS * A::PX;
    if (at.n + n >= Out::N || at.h + y >= Out::H || at.w + j0 >= Out::W) continue;
    Pack<float, 8> sums[A::PX] = {};
#pragma unroll
    for (int a = 0; a < S::KH; a++) {
      int row = A::BACK ? y + S::PT - a * S::DH : y * S::SH + a * S::DH;
      if (A::BACK && row % S::SH) continue;
      if (A::BACK) row = row / S::SH - LOW;
      const U* const pixels = image + ((n * A::H + row) * A::W + Right::first(j0)) * pixel<A::G>() + g * 8;
      Pack<float, 4> taps[S::KW][2];
#pragma unroll
      for (int b = 0; b < 2 * S::KW; b++) taps[b / 2][b % 2] = load_run<4>(filters + ((a * S::KW * 2 + b) * A::G + g) * 4);
#pragma unroll
      for (int v = 0; v < A::SPAN; v++) {
        const Pack<U, 8> run = load_run<8>(pixels + v * pixel<A::G>());
#pragma unroll
        for (int j = 0; j < A::PX; j++)
#pragma unroll
          for (int b = 0; b < S::KW; b++)
#pragma unroll
            for (int e = 0; e < 8; e++)
              if (Right::meets(v, j, b)) sums[j].v[e] += float(run.v[e]) * taps[b][e / 4].v[e % 4];
      }
    }
#pragma unroll
    for (int j = 0; j < A::PX; j++)
      if (Out::W % A::TW == 0 || at.w + j0 + j < Out::W) those(Out::at(at.n + n, at.h + y, at.w + j0 + j, c))(sums[j], added);
  }
  if constexpr (SUMS > 0) {
    float* const shared = reinterpret_cast<float*>(dynamic_shared());
    __syncthreads();
#pragma unroll
    for (int s = 0; s < SUMS; s++) store_run(shared + (s * A::STEP + threadIdx.x / A::G) * A::WIDE + g * 8, added[s]);
    __syncthreads();
    for (int k = threadIdx.x; k < SUMS * A::WIDE; k += A::THREADS) {
      const int s = k / A::WIDE, column = k % A::WIDE;
      const float sum = sum_of<float, A::STEP>([&](uint32 r) { return shared[(s * A::STEP + r) * A::WIDE + column]; });
      total(s, uint32(block / A::SLICES) * Out::C + first + column, sum);
    }
  }
}

// The same where a thread keeps the sums of some rows of taps while the block goes through every PARTS-th tile of dy.
template <class U, class X, class Y, class S, bool back, class Sizes> struct DepthwiseWeightGradientTile : DepthwiseTile<U, X, Y, S, back, Sizes> {
  using DepthwiseTile<U, X, Y, S, back, Sizes>::DepthwiseTile;
  static constexpr int TAP_ROWS = Sizes::tap_rows, PARTS = Sizes::splits;
};

// Weight gradient: out(i, sum) gets element i of an array of PARTS filters. dy(i), x(i): 8 channels.
template <class A, class FX, class FDY, class Out>
DEVICE void depthwise_weights(int block, FX x, FDY dy, Out out) {
  using U = typename A::U;
  using S = typename A::S;
  using Y = typename A::Out;
  using Right = typename A::Right;
  constexpr int ROWS = A::TAP_ROWS, PARTS = A::PARTS, TEAMS = quotient(S::KH, ROWS), MEMBERS = A::STEP / TEAMS, AT_ONCE = S::KW <= 3 ? S::KW : 1;
  static_assert(A::STEP % TEAMS == 0, "each row of taps has as many threads");
  U* const image = reinterpret_cast<U*>(dynamic_shared());
  U* const gradient = reinterpret_cast<U*>(dynamic_shared() + A::IMAGE);
  const int g = threadIdx.x % A::G, team = threadIdx.x / A::G % TEAMS, member = threadIdx.x / A::G / TEAMS;
  const int part = block / A::SLICES, first = block % A::SLICES * A::WIDE, c = A::channel(block);
  Pack<float, 8> sums[ROWS][S::KW] = {};
#pragma unroll 1
  for (int tile = part; tile < A::TILES; tile += PARTS) {
    const A at(tile);
    stage_pixels<typename A::In, U, A::G, A::NB, A::H, A::W, A::THREADS>(
      image, at.n, A::Down::first(at.h) - S::PT, Right::first(at.w) - S::PL, c, x);
    stage_pixels<Y, U, A::G, A::NB, A::TH, A::TW, A::THREADS>(gradient, at.n, at.h, at.w, c, dy);
    __syncthreads();
#pragma unroll 1
    for (int item = member; item < A::ITEMS; item += MEMBERS) {
      const int n = item / A::STRIPS / A::TH, y = item / A::STRIPS % A::TH, j0 = item % A::STRIPS * A::PX;
      Pack<U, 8> d[A::PX];
#pragma unroll
      for (int j = 0; j < A::PX; j++) d[j] = load_run<8>(gradient + ((n * A::TH + y) * A::TW + j0 + j) * pixel<A::G>() + g * 8);
#pragma unroll
      for (int a = 0; a < ROWS; a++) {
        const int tap = team * ROWS + a;
        if (S::KH % ROWS && tap >= S::KH) continue;
        const U* const pixels = image + ((n * A::H + y * S::SH + tap * S::DH) * A::W + j0 * S::SW) * pixel<A::G>() + g * 8;
#pragma unroll
        for (int v = 0; v < A::SPAN; v++) {
          const Pack<U, 8> run = load_run<8>(pixels + v * pixel<A::G>());
#pragma unroll
          for (int j = 0; j < A::PX; j++)
#pragma unroll
            for (int b = 0; b < S::KW; b++)
#pragma unroll
              for (int e = 0; e < 8; e++)
                if (Right::meets(v, j, b)) sums[a][b].v[e] += float(run.v[e]) * float(d[j].v[e]);
        }
      }
    }
    __syncthreads();
  }
  let_next_begin();
  float* const shared = reinterpret_cast<float*>(dynamic_shared());  // by tap, team, member
#pragma unroll
  for (int a = 0; a < ROWS; a++)
#pragma unroll
    for (int b0 = 0; b0 < S::KW; b0 += AT_ONCE) {
      if (a + b0) __syncthreads();
#pragma unroll
      for (int b = 0; b < AT_ONCE; b++) store_run(shared + ((b * TEAMS + team) * MEMBERS + member) * A::WIDE + g * 8, sums[a][b0 + b]);
      __syncthreads();
      for (int k = threadIdx.x; k < AT_ONCE * TEAMS * A::WIDE; k += A::THREADS) {
        const int row = k / A::WIDE % TEAMS * ROWS + a, tap = row * S::KW + b0 + k / A::WIDE / TEAMS;
        const float sum = sum_of<float, MEMBERS>([&](uint32 r) { return shared[(k / A::WIDE * MEMBERS + r) * A::WIDE + k % A::WIDE]; });
        if (S::KH % ROWS == 0 || row < S::KH) out(uint32(part * S::KH * S::KW + tap) * Y::C + first + k % A::WIDE, sum);
      }
    }
}
