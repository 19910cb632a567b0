// Convolutions and their gradients where all operands lie in memory as numbers of 16 bits, channels last: matrix products whose
// operands are brought to shared memory some steps ahead of the tensor cores, by copies that nobody waits for.
//
// Rows of the product are positions of the result, or elements of the filters for a weight gradient. No matrix of patches is built: a
// step has one tap and BK channels, so a row of a step is a piece of one pixel, and neighbouring taps find their pixels in the cache.
#pragma once
#include "rows.cuh"
#include "stages.cuh"

// Sums over the rows of what a block makes, of which a lane has those of eight columns: lane n of a warp from n * 8 on, once they are
// joined. Where a warp passes all its columns at once, all lanes that have the same ones keep their own until the end.
template <class A, int SUMS_> struct ColumnSums {
  using Pass = Passage<A::NT>;
  static constexpr int SUMS = SUMS_;
  static constexpr bool LATE = A::NT == Pass::NT;
  Pack<float, 8> own[SUMS ? SUMS : 1] = {}, added[SUMS ? SUMS : 1] = {};

  DEVICE void join(Pack<float, 8> (&runs)[SUMS ? SUMS : 1]) {
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
      for (int e = 0; e < 8; e++)
#pragma unroll
        for (int apart = Pass::NT; apart < 32; apart *= 2) runs[s].v[e] += __shfl_xor_sync(0xffffffffu, runs[s].v[e], apart);
  }
  // What is added to, of the columns that are passed now.
  DEVICE Pack<float, 8> (&now())[SUMS ? SUMS : 1] {
    if constexpr (LATE) return own;
    else return added;
  }
  // All rows of those from fragment n0 on have been added.
  DEVICE void keep(int n0) {
    if (LATE || SUMS == 0) return;
    join(added);
    const bool here = threadIdx.x % 32 / Pass::NT * Pass::NT == n0;
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
      for (int e = 0; e < 8; e++) own[s].v[e] += here ? added[s].v[e] : 0.0f, added[s].v[e] = 0.0f;
  }
  // Those of the block, in an order that is always the same: total(s, column, sum) gets them.
  template <class Total> DEVICE void finish(Total total) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (LATE) join(own);
    __syncthreads();
    float* const shared = reinterpret_cast<float*>(dynamic_shared());
#pragma unroll
    for (int s = 0; s < SUMS; s++)
      if (lane < A::NT) store_run(shared + (s * A::WM + warp % A::WM) * A::BN + (warp / A::WM * A::NT + lane) * 8, own[s]);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll 1
      for (int column = threadIdx.x; column < A::BN; column += A::THREADS) {
        float sum = shared[s * A::WM * A::BN + column];
#pragma unroll
        for (int w = 1; w < A::WM; w++) sum += shared[(s * A::WM + w) * A::BN + column];
        total(s, column, sum);
      }
  }
};

// The sums of a tile on their way out, eight neighbours of a row at a time. place(row, column, i) says whether there are such, and
// which element i the first of them is; ends(channel(column))(i) fetches what follows them, and that(sums, added) computes and stores
// it, and adds to `columns`, for TOGETHER runs at a time. A warp hands its sums around in shared memory, 16 rows of up to 64 columns at
// a time.
template <class A, int TOGETHER, class Columns, class Channel, class Place, class Ends>
DEVICE void store_runs(const float (&sums)[A::MT][A::NT][4], Columns& columns, Channel channel, Place place, Ends ends) {
  using Pass = Passage<A::NT>;
  constexpr int NT = Pass::NT, ROW = Pass::ROW, ITEMS = NT / 2, GROUP = ITEMS < TOGETHER ? ITEMS : TOGETHER;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const own = reinterpret_cast<float*>(dynamic_shared()) + warp * Pass::SIZE;
  static_assert(32 % NT == 0 && A::NT % NT == 0 && ITEMS % GROUP == 0, "a lane has the same columns in all rows");
#pragma unroll 1
  for (int piece = 0; piece < A::NT / NT * A::MT; piece++) {
    const int m = piece % A::MT, n0 = piece / A::MT * NT;
#pragma unroll
    for (int each = 0; each < A::NT / NT * A::MT; each++)
      if (each == piece)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int r = 0; r < 4; r += 2) {
            const float(&four)[4] = sums[each % A::MT][each / A::MT * NT + n];
            *reinterpret_cast<Pack<float, 2>*>(own + (lane / 4 + r * 4) * ROW + n * 8 + lane % 4 * 2) = {four[r], four[r + 1]};
          }
    warp_barrier();
    const int row0 = A::row(warp, m) + lane / NT, column = (warp / A::WM * A::NT + n0 + lane % NT) * 8;
    const auto those = ends(channel(column));
#pragma unroll
    for (int first = 0; first < ITEMS; first += GROUP) {
      bool real[GROUP];
      fetched<0, GROUP>(
        [&](int k) {
          uint32 i = 0;
          real[k] = place(row0 + (first + k) * (32 / NT), column, i);
          return those(real[k] ? i : 0u);
        },
        [&](int k, const auto& one) {
          const Pack<float, 8> run = load_run<8>(own + (lane / NT + (first + k) * (32 / NT)) * ROW + lane % NT * 8);
          if (real[k]) one(run, columns.now());
        });
    }
    warp_barrier();
    if (m + 1 == A::MT) columns.keep(n0);
  }
}

// Convolution, or with BACK the gradient for its input: Y is the result, X what is summed over, S the window of the convolution. An
// input gradient of strides SH x SW has as many *phases*, whose positions see the same taps: each tile has positions of one. A block
// makes TURNS tiles of the same filters, one after the other, and every PARTS-th part of their sums.
template <class P_, class X_, class Y_, class S_, int C_, int F_, bool back, class Sizes>
struct PipelinedTile : Pipeline<P_, Sizes, false, back> {
  using X = X_;
  using Y = Y_;
  using S = S_;
  using Base = Pipeline<P_, Sizes, false, back>;
  using Base::BM, Base::BN, Base::BK, Base::STAGES, Base::PARTS, Base::TURNS;
  static constexpr int C = C_, F = F_, GROUPS = Y::C / F;
  static constexpr bool BACK = back;
  static constexpr int ROWS = back ? S::SH : 1, COLUMNS = back ? S::SW : 1;  // of phases
  static_assert((ROWS == 1 || S::DH == 1) && (COLUMNS == 1 || S::DW == 1), "phases see the same taps");
  static constexpr int H = quotient(Y::H, ROWS), W = quotient(Y::W, COLUMNS), POSITIONS = Y::N * H * W;
  static constexpr int FILTER_PARTS = quotient(F, BN), TILES = quotient(POSITIONS, BM) * ROWS * COLUMNS;
  static constexpr int BLOCKS = FILTER_PARTS * quotient(TILES, TURNS) * PARTS;
  // Whether a position of the result sees the pixel of its own number, and no other.
  static constexpr bool POINTWISE =
    S::KH * S::KW * S::SH * S::SW == 1 && X::H == Y::H && X::W == Y::W && S::PT == 0 && S::PL == 0;
  static constexpr bool WHOLE = ROWS * COLUMNS * PARTS == 1 && quotient(C, BK) * S::KH * S::KW == STAGES;  // all steps are there at once
};

// Taps along an axis: `count` from `first` on, every `step`-th, and the element of X that the first of them meets for position 0.
struct Taps {
  int first, step, count, start;
};
template <bool back, int K, int STRIDE, int BEFORE> DEVICE Taps taps_of(int phase) {
  if (!back) return {0, 1, K, -BEFORE};
  const int first = (phase + BEFORE) % STRIDE;
  return {first, STRIDE, first < K ? (K - first + STRIDE - 1) / STRIDE : 0, (phase + BEFORE - first) / STRIDE};
}

// Calls ahead(i) for what follows a block's results, FETCHED neighbours at a time, long before it is loaded; place as for `store_runs`.
template <class A, int FETCHED, class Place, class Ahead> DEVICE void fetch_ends(Place place, Ahead ahead) {
  constexpr int STEP = FETCHED < A::BN ? FETCHED : A::BN, EACH = A::BN / STEP;
#pragma unroll 1
  for (int k = threadIdx.x; k < A::BM * EACH; k += A::THREADS) {
    uint32 i = 0;
    if (place(k / EACH, k % EACH * STEP, i)) ahead(i);
  }
}

// What follows the sums is as `store_runs` takes it; `ahead` fetches it, if FETCHED is not 0. Of each channel, what is added over the
// positions of a block goes to total(s, i, sum), for s < SUMS; i is the element of an array with a row for each block of positions.
template <class A, int SUMS, int TOGETHER, int FETCHED, class U, class Ahead, class Ends, class Total>
DEVICE void pipelined_convolve(int block, int group, const U* x, const U* weight, Ahead ahead, Ends ends, Total total) {
  using X = typename A::X;
  using Y = typename A::Y;
  using S = typename A::S;
  using Image = Runs<typename A::Left, A::THREADS>;
  using Filters = Runs<typename A::Right, A::THREADS>;
  if constexpr (A::P::WARPGROUPS)
    fetch_share<S::KH * S::KW * A::C * A::F * A::GROUPS, A::BLOCKS * A::GROUPS, A::THREADS>(&weight->bits, group * A::BLOCKS + block);
  const int f0 = block % A::FILTER_PARTS * A::BN;
  block /= A::FILTER_PARTS;
  const int split = block % A::PARTS, part = block / A::PARTS, tile0 = part * A::TURNS;
  const int turns = A::TURNS == 1 ? 1 : min(A::TURNS, A::TILES - tile0);
  const int phase = part % (A::ROWS * A::COLUMNS), phase_row = phase / A::COLUMNS, phase_column = phase % A::COLUMNS;
  const Taps down = taps_of<A::BACK, S::KH, A::ROWS, S::PT>(phase_row), right = taps_of<A::BACK, S::KW, A::COLUMNS, S::PL>(phase_column);
  // From tap to tap, X is gone through forwards or, for a gradient, backwards.
  constexpr int DOWN = !A::BACK ? S::DH : A::ROWS > 1 ? -1 : -S::DH, RIGHT = !A::BACK ? S::DW : A::COLUMNS > 1 ? -1 : -S::DW;
  const auto row_of = [=](int turn) { return (tile0 + turn) / (A::ROWS * A::COLUMNS) * A::BM; };

  // Of each run, the pixel that the first tap meets; and, as bits, which taps down (0 .. 14) and right (16 .. 30) are inside of X.
  int place[Image::COUNT];
  uint32 seen[Image::COUNT];
  const auto begin = [&](int turn) {
#pragma unroll
    for (int k = 0; k < Image::COUNT; k++) {
      const int at = row_of(turn) + Image::row(k), n = at / A::W / A::H;
      if (A::POINTWISE) {
        place[k] = at * X::C + group * A::C + Image::column();
        seen[k] = (A::POSITIONS % A::BM == 0 || at < A::POSITIONS) * 0x10001;
        continue;
      }
      const int h = at / A::W % A::H * (A::BACK ? 1 : S::SH) + down.start, w = at % A::W * (A::BACK ? 1 : S::SW) + right.start;
      place[k] = ((n * X::H + h) * X::W + w) * X::C + group * A::C + Image::column();
      seen[k] = 0;
#pragma unroll
      for (int t = 0; t < S::KH; t++) seen[k] |= uint32(n < Y::N && inside<X::H>(h + t * DOWN)) << t;
#pragma unroll
      for (int t = 0; t < S::KW; t++) seen[k] |= uint32(inside<X::W>(w + t * RIGHT)) << (16 + t);
    }
  };
  begin(0);
  const int taps = down.count * right.count, steps = quotient(A::C, A::BK) * taps;
  const int first = A::PARTS > 1 ? quotient(steps, A::PARTS) * split : 0, own = A::PARTS > 1 ? min(quotient(steps, A::PARTS), steps - first) : steps;
  // The channels and the tap of the step that is sent for, and whether it is of the first turn: filters stay for the others.
  int c0 = 0, i = 0, j = 0;
  bool filtered = true;
  if (A::PARTS > 1 && taps) c0 = first / taps * A::BK, i = first % taps / right.count, j = first % taps % right.count;
  constexpr int ROW = (A::BACK ? A::C : A::F) * A::GROUPS;  // of the filters, from one to the next
  const int column = Filters::column(), row = Filters::row(0);
  const U* const filters = weight + (A::BACK ? (f0 + row) * ROW + group * A::C + column : row * ROW + group * A::F + f0 + column);
  const auto bring = [&](uint16* a, uint16* b, int share, int shares) {
    const U* const image = x + (i * DOWN * X::W + j * RIGHT) * X::C + c0;
    const uint32 needed = 1u << i | 1u << (16 + j) | uint32(A::C % A::BK != 0 && c0 + Image::column() >= A::C) << 15;
    Image::template send<A::POINTWISE>(a, share, shares, [&](int k, bool& real) {
      real = (needed & ~seen[k]) == 0;
      return image + place[k];
    });
    const int tap = (down.first + i * down.step) * S::KW + right.first + j * right.step;
    const U* const those = filters + tap * (A::BACK ? A::F : A::C) * ROW + c0 * (A::BACK ? 1 : ROW);
    if (filtered)
      Filters::template send<true>(b, share, shares, [&](int k, bool& real) {
        const int c = c0 + (A::BACK ? column : row + k * Filters::STEP), f = f0 + (A::BACK ? row + k * Filters::STEP : column);
        real = (A::C % A::BK == 0 || c < A::C) && (A::F % A::BN == 0 || f < A::F);
        return those + k * Filters::STEP * ROW;
      });
    if (share + 1 < shares) return;
    if (++j == right.count) {
      j = 0;
      if (++i == down.count) i = 0, c0 += A::BK;
    }
  };
  const auto result_of = [=](int turn) {
    const int m0 = row_of(turn);
    return [=](int row, int column, uint32& to) {
      const int at = m0 + row, f = f0 + column, n = at / A::W / A::H;
      const int y = at / A::W % A::H * A::ROWS + phase_row, z = at % A::W * A::COLUMNS + phase_column;
      to = A::ROWS * A::COLUMNS == 1 ? uint32(at) * Y::C + group * A::F + f : Y::at(n, y, z, group * A::F + f);
      to += uint32(split) * (Y::N * Y::H * Y::W * Y::C);
      return (A::POSITIONS % A::BM == 0 || at < A::POSITIONS) && (A::F % A::BN == 0 || f < A::F) && (Y::H % A::ROWS == 0 || y < Y::H) &&
        (Y::W % A::COLUMNS == 0 || z < Y::W);
    };
  };
  if constexpr (FETCHED > 0) fetch_ends<A, FETCHED>(result_of(0), ahead);
  wait_for_previous();
  ColumnSums<A, SUMS> columns;
  pipelined_sums<A>(
    own, turns,
    [&](int turn) {
      begin(turn);
      c0 = i = j = 0, filtered = false;
    },
    bring,
    [&](const float(&sums)[A::MT][A::NT][4], int turn) {
      if (turn + 1 == turns) let_next_begin();
      store_runs<A, TOGETHER>(
        sums, columns, [=](int column) { return uint32(group * A::F + (A::F % A::BN == 0 || f0 + column < A::F ? f0 + column : 0)); },
        result_of(turn), ends);
    });
  if constexpr (SUMS > 0)
    columns.finish([=](int s, int column, float sum) {
      if (A::F % A::BN == 0 || f0 + column < A::F) total(s, uint32(part) * Y::C + group * A::F + f0 + column, sum);
    });
}

// Weight gradient: BM elements (tap, channel) of the filters x BN filters, from every PARTS-th part of the positions of dy.
template <class P_, class X_, class Y_, class S_, int C_, int F_, class Sizes>
struct PipelinedWeightGradientTile : Pipeline<P_, Sizes, true, false> {
  using X = X_;
  using Y = Y_;
  using S = S_;
  using Base = Pipeline<P_, Sizes, true, false>;
  using Base::BM, Base::BN, Base::BK, Base::PARTS;
  static constexpr int C = C_, F = F_, GROUPS = Y::C / F, ELEMENTS = S::KH * S::KW * C;
  static constexpr int POSITIONS = Y::N * Y::H * Y::W, STEPS = quotient(quotient(POSITIONS, BK), PARTS);
  static constexpr int F_PARTS = quotient(F, BN), ROWS = quotient(ELEMENTS, BM);
  static constexpr int BLOCKS = F_PARTS * ROWS * PARTS * GROUPS;
  static constexpr bool ONE_TAP = S::KH * S::KW == 1 || C % BM == 0;  // of a block, which meets each pixel once then
};

template <class A, int TOGETHER, class U, class Ends>
DEVICE void pipelined_weight_gradient(int block, const U* x, const U* dy, Ends ends) {
  using X = typename A::X;
  using Y = typename A::Y;
  using S = typename A::S;
  using Image = Runs<typename A::Left, A::THREADS>;
  using Gradient = Runs<typename A::Right, A::THREADS>;
  if constexpr (A::P::WARPGROUPS) fetch_share<X::N * X::H * X::W * X::C, A::BLOCKS, A::THREADS>(&x->bits, block);
  const int f0 = block % A::F_PARTS * A::BN;
  block /= A::F_PARTS;
  const int m0 = block % A::ROWS * A::BM;
  block /= A::ROWS;
  const int part = block % A::PARTS, group = block / A::PARTS, first = part * A::STEPS * A::BK;
  const int last = min(first + A::STEPS * A::BK, A::POSITIONS);
  const int element = m0 + Image::column(), tap = element / A::C, c = group * A::C + element % A::C, f = f0 + Gradient::column();
  const int down = tap / S::KW * S::DH - S::PT, right = tap % S::KW * S::DW - S::PL;
  // Of each run, the pixel that its tap meets; a step is BK positions of dy further.
  int place[Image::COUNT], h[Image::COUNT], w[Image::COUNT];
#pragma unroll
  for (int k = 0; k < Image::COUNT; k++) {
    const int p = first + Image::row(k);
    h[k] = p / Y::W % Y::H * S::SH + down, w[k] = p % Y::W * S::SW + right;
    place[k] = ((p / Y::W / Y::H * X::H + h[k]) * X::W + w[k]) * X::C + c;
  }
  constexpr int BK_W = A::BK % Y::W, BK_H = A::BK / Y::W % Y::H, BK_N = A::BK / Y::W / Y::H;
  const U* gradient = dy + (first + Gradient::row(0)) * Y::C + group * A::F + f;
  int remaining = last - first;
  const auto bring = [&](uint16* a, uint16* b, int share, int shares) {
    Image::template send<A::ONE_TAP>(a, share, shares, [&](int k, bool& real) {
      real = Image::row(k) < remaining && inside<X::H>(h[k]) && inside<X::W>(w[k]) && (A::ELEMENTS % A::BM == 0 || element < A::ELEMENTS);
      const U* const from = x + place[k];
      place[k] += ((BK_N * X::H + BK_H * S::SH) * X::W + BK_W * S::SW) * X::C, h[k] += BK_H * S::SH, w[k] += BK_W * S::SW;
      if (BK_W && w[k] >= Y::W * S::SW + right) w[k] -= Y::W * S::SW, h[k] += S::SH, place[k] += (S::SH * X::W - Y::W * S::SW) * X::C;
      if (BK_W + BK_H && h[k] >= Y::H * S::SH + down) h[k] -= Y::H * S::SH, place[k] += (X::H - Y::H * S::SH) * X::W * X::C;
      return from;
    });
    Gradient::template send<true>(b, share, shares, [&](int k, bool& real) {
      real = Gradient::row(k) < remaining && (A::F % A::BN == 0 || f < A::F);
      return gradient + k * Gradient::STEP * Y::C;
    });
    if (share + 1 == shares) remaining -= A::BK, gradient += A::BK * Y::C;
  };
  wait_for_previous();
  pipelined_sums<A>(
    last > first ? quotient(last - first, A::BK) : 0, 1, [](int) {}, bring, [&](const float(&sums)[A::MT][A::NT][4], int) {
      let_next_begin();
      ColumnSums<A, 0> none;
      store_runs<A, TOGETHER>(
        sums, none, [](int) { return 0u; },
        [=](int row, int column, uint32& to) {
          to = uint32(part * A::ELEMENTS + m0 + row) * Y::C + group * A::F + f0 + column;
          return (A::ELEMENTS % A::BM == 0 || m0 + row < A::ELEMENTS) && (A::F % A::BN == 0 || f0 + column < A::F);
        },
        ends);
    });
}
