// Convolutions and their gradients where all operands lie in memory as numbers of 16 bits, channels last: matrix products whose
// operands are brought to shared memory some steps ahead of the tensor cores, by copies that nobody waits for.
//
// Rows of the product are positions of the result, or elements of the filters for a weight gradient. No matrix of patches is built: a
// step has one tap and BK channels, so a row of a step is a piece of one pixel, and neighbouring taps find their pixels in the cache.
#pragma once
#include "parts.cuh"
#include "rows.cuh"

#ifndef MINICNN_EMULATED
// Copies 16 bytes to shared memory, zeros if they are not `real`; copies until close_copies() belong to a group.
DEVICE void copy_or_clear(void* to, const void* from, bool real) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0) : "memory");
#else
  const Packed zeros = {};
  *reinterpret_cast<Packed*>(to) = real ? *reinterpret_cast<const Packed*>(from) : zeros;
#endif
}
DEVICE void close_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all groups of this thread but the last N have arrived.
template <int N> DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
DEVICE void warp_barrier() { __syncwarp(); }
#endif

// A product by a block: BM x BN sums, BK terms in a step, STAGES steps in shared memory at a time; a warp makes MT * 16 x NT * 8 of
// it. TA, TB: how operands are stored, as in `ProductTile`.
template <class P_, int BM_, int BN_, int BK_, int MT_, int NT_, int STAGES_, bool TA_, bool TB_> struct Pipeline {
  using P = P_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, MT = MT_, NT = NT_, STAGES = STAGES_;
  static constexpr bool TA = TA_, TB = TB_;
  static constexpr int WM = BM / 16 / MT, WN = BN / 8 / NT, THREADS = 32 * WM * WN;
  static constexpr int A_ROWS = TA ? BK : BM, A_COLUMNS = TA ? BM : BK, A_ROW = odd_run(A_COLUMNS);
  static constexpr int B_ROWS = TB ? BN : BK, B_COLUMNS = TB ? BK : BN, B_ROW = odd_run(B_COLUMNS);
  static constexpr int A_SIZE = A_ROWS * A_ROW, STAGE = A_SIZE + B_ROWS * B_ROW;  // elements
};

// A thread's share of ROWS rows of COLUMNS elements in a stage: runs of eight from `column` on, in rows row(0) .. row(COUNT - 1).
template <int ROWS, int COLUMNS, int ROW, int THREADS> struct Runs {
  static constexpr int STEP = THREADS / (COLUMNS / 8), COUNT = quotient(ROWS, STEP);
  static_assert(THREADS % (COLUMNS / 8) == 0, "a thread has one column of runs");
  static DEVICE int column() { return threadIdx.x % (COLUMNS / 8) * 8; }
  static DEVICE int row(int k) { return threadIdx.x / (COLUMNS / 8) + k * STEP; }
  // Sends for a share of the runs of a stage: from(k, real) says where run k is in memory, if it is `real`.
  template <class From> static DEVICE void send(uint16* stage, int share, int shares, From from) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
      if (k * shares / COUNT != share || (ROWS % STEP && row(k) >= ROWS)) continue;
      bool real = false;
      const auto* const place = from(k, real);
      copy_or_clear(stage + row(k) * ROW + column(), place, real);
    }
  }
};

// The operands of 16 terms of a warp's sums.
template <class A> struct Fragments {
  uint32 rows[A::MT][1][4], columns[A::NT][1][2];
};

// The sums of `steps` steps; bring(a, b, share, shares) sends for a share of the next step's operands, zeros or any others
// behind the last. At the end, shared memory is free. While tensor cores multiply, the fragments of the next 16 terms are loaded, those of the next step as well.
template <class A, class Bring> DEVICE void pipelined_sums(float (&sums)[A::MT][A::NT][4], int steps, Bring bring) {
  using P = typename A::P;
  constexpr int PIECES = A::BK / 16, SHARES = PIECES > 1 ? PIECES - 1 : 1;  // copies are sent for before the last piece
  uint16* const memory = reinterpret_cast<uint16*>(dynamic_shared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  const int wm = warp % A::WM * A::MT * 16, wn = warp / A::WM * A::NT * 8, lower = matrix % 2 * 8, upper = matrix / 2 * 8;
  const SharedAddress left =
    shared_address(memory) + (A::TA ? (upper + row) * A::A_ROW + wm + lower : (wm + lower + row) * A::A_ROW + upper) * 2;
  const SharedAddress right = shared_address(memory) +
    (A::A_SIZE + (A::TB ? (wn + upper + row) * A::B_ROW + lower : (lower + row) * A::B_ROW + wn + upper)) * 2;
  const auto send = [&](int stage, int share, int shares) {
    bring(memory + stage * A::STAGE, memory + stage * A::STAGE + A::A_SIZE, share, shares);
  };
  const auto load = [&](Fragments<A>& f, int stage, int piece) {
    const int at = stage * A::STAGE * 2;
    load_columns<P, A::NT, 0, A::TB ? 8 * A::B_ROW * 2 : 16, A::TB>(f.columns, right + at + piece * 16 * (A::TB ? 1 : A::B_ROW) * 2);
#pragma unroll
    for (int m = 0; m < A::MT; m++) {
      const SharedAddress place = left + at + (piece * 16 * (A::TA ? A::A_ROW : 1) + m * 16 * (A::TA ? 1 : A::A_ROW)) * 2;
      if (A::TA) load_transposed(f.rows[m][0], place);
      else load_matrices(f.rows[m][0], place);
    }
  };
#pragma unroll
  for (int s = 0; s < A::STAGES - 1; s++) {
    send(s, 0, 1);
    close_copies();
  }
  wait_for_copies<A::STAGES - 2>();
  __syncthreads();
  Fragments<A> f[2];
  load(f[0], 0, 0);
  int stage = 0, next = A::STAGES - 1;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const int following = stage + 1 == A::STAGES ? 0 : stage + 1;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
      Fragments<A>& loaded = f[(piece + 1) % 2];
      if (piece + 1 < PIECES) load(loaded, stage, piece + 1);
      if (piece < SHARES) send(next, piece, SHARES);
      if (piece + 1 == SHARES) close_copies();
      if (piece + 1 == PIECES) {
        wait_for_copies<A::STAGES - 2>();
        __syncthreads();  // the next step's operands are there for all, and nobody reads this step's stage any more
        load(loaded, following, 0);
      }
      multiply_fragments<P, A::MT, A::NT>(sums, f[piece % 2].rows, f[piece % 2].columns);
    }
    if (PIECES % 2) f[0] = f[1];
    stage = following, next = next + 1 == A::STAGES ? 0 : next + 1;
  }
  wait_for_copies<0>();
  __syncthreads();
}

// N sums over the rows of what a block makes, for each column: of term(s, made); store(s, column, sum) gets them.
struct NoColumnSums {
  static constexpr int N = 0;
};
template <int N_, class Term, class Store> struct ColumnSums {
  static constexpr int N = N_;
  Term term;
  Store store;
};
template <int N, class Term, class Store> DEVICE ColumnSums<N, Term, Store> column_sums(Term term, Store store) { return {term, store}; }

// The lanes' own sums of eight columns become those of a warp, then of the block; the order is always the same.
template <class A, class Columns> DEVICE void sum_columns(float (&own)[Columns::N][8], const Columns& columns) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < Columns::N; s++)
#pragma unroll
    for (int e = 0; e < 8; e++)
#pragma unroll
      for (int apart = A::NT; apart < 32; apart *= 2) own[s][e] += __shfl_xor_sync(0xffffffffu, own[s][e], apart);
  __syncthreads();
  float* const shared = reinterpret_cast<float*>(dynamic_shared());
#pragma unroll
  for (int s = 0; s < Columns::N; s++)
#pragma unroll
    for (int e = 0; e < 8; e++)
      if (lane < A::NT) shared[(s * A::WM + warp % A::WM) * A::BN + (warp / A::WM * A::NT + lane) * 8 + e] = own[s][e];
  __syncthreads();
#pragma unroll
  for (int s = 0; s < Columns::N; s++)
    for (int column = threadIdx.x; column < A::BN; column += A::THREADS) {
      float total = shared[s * A::WM * A::BN + column];
#pragma unroll
      for (int w = 1; w < A::WM; w++) total += shared[(s * A::WM + w) * A::BN + column];
      columns.store(s, column, total);
    }
}

// The sums of a block on their way out, eight neighbours of a row at a time: place(row, column, i) says whether there are such, and
// which element i the first of them is. A warp hands its sums around in shared memory, 16 rows at a time.
template <class A, class Place, class Finish, class Store, class Columns>
DEVICE void store_runs(const float (&sums)[A::MT][A::NT][4], Place place, Finish finish, Store store, const Columns& columns) {
  constexpr int ROW = A::NT * 8 + (40 - A::NT * 8 % 32) % 32, ITEMS = A::NT / 2;  // rows begin 8 banks apart
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const own = reinterpret_cast<float*>(dynamic_shared()) + warp * 16 * ROW;
  static_assert(32 % A::NT == 0, "a lane has the same columns in all rows");
  float added[Columns::N > 0 ? Columns::N : 1][8] = {};
#pragma unroll 1
  for (int m = 0; m < A::MT; m++) {
#pragma unroll
    for (int each = 0; each < A::MT; each++)
      if (each == m)
#pragma unroll
        for (int n = 0; n < A::NT; n++)
#pragma unroll
          for (int r = 0; r < 4; r += 2)
            *reinterpret_cast<Pack<float, 2>*>(own + (lane / 4 + r * 4) * ROW + n * 8 + lane % 4 * 2) = {sums[each][n][r], sums[each][n][r + 1]};
    warp_barrier();
    const int row0 = (warp % A::WM * A::MT + m) * 16, column0 = warp / A::WM * A::NT * 8;
    finish_and_store<ITEMS * 8, 8, float>(
      [=](int k, uint32& i) {
        const int item = lane + k / 8 * 32;
        const bool real = place(row0 + item / A::NT, column0 + item % A::NT * 8, i);
        i += k % 8;
        return real;
      },
      [=](int k) {
        const int item = lane + k / 8 * 32;
        return own[item / A::NT * ROW + item % A::NT * 8 + k % 8];
      },
      finish,
      [&](uint32 i, const auto* made, auto width) {
        store(i, made, width);
#pragma unroll
        for (int s = 0; s < Columns::N; s++)
#pragma unroll
          for (int e = 0; e < 8; e++)
            if constexpr (Columns::N > 0) added[s][e] += columns.term(s, made[e]);
      });
    warp_barrier();
  }
  if constexpr (Columns::N > 0) sum_columns<A>(added, columns);
}

// Convolution, or with BACK the gradient for its input: Y is the result, X what is summed over, S the window of the convolution. An
// input gradient of strides SH x SW has as many *phases*, whose positions see the same taps: each block makes positions of one, and
// every PARTS-th part of their sums.
template <class P_, class X_, class Y_, class S_, int C_, int F_, bool back, int BM, int BN, int BK, int MT, int NT, int STAGES, int PARTS_>
struct PipelinedConvTile : Pipeline<P_, BM, BN, BK, MT, NT, STAGES, false, back> {
  using X = X_;
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, GROUPS = Y::C / F, PARTS = PARTS_;
  static constexpr bool BACK = back;
  static constexpr int ROWS = back ? S::SH : 1, COLUMNS = back ? S::SW : 1;  // of phases
  static_assert((ROWS == 1 || S::DH == 1) && (COLUMNS == 1 || S::DW == 1), "phases see the same taps");
  static constexpr int H = quotient(Y::H, ROWS), W = quotient(Y::W, COLUMNS), POSITIONS = Y::N * H * W;
  static constexpr int FILTER_PARTS = quotient(F, BN), BLOCKS = FILTER_PARTS * quotient(POSITIONS, BM) * ROWS * COLUMNS * PARTS;
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

// Of each channel, the sum of term(s, made) over the positions of a block goes to total(s, i, sum), for s < SUMS; i is the element of
// an array with a row for each block of positions.
template <class A, int SUMS, class U, class Finish, class Store, class Term, class Total>
DEVICE void pipelined_convolve(int block, int group, const U* x, const U* weight, Finish finish, Store store, Term term, Total total) {
  using X = typename A::X;
  using Y = typename A::Y;
  using S = typename A::S;
  using Image = Runs<A::A_ROWS, A::A_COLUMNS, A::A_ROW, A::THREADS>;
  using Filters = Runs<A::B_ROWS, A::B_COLUMNS, A::B_ROW, A::THREADS>;
  const int f0 = block % A::FILTER_PARTS * A::BN;
  block /= A::FILTER_PARTS;
  const int split = block % A::PARTS;
  block /= A::PARTS;
  const int part = block, phase = block % (A::ROWS * A::COLUMNS), m0 = block / (A::ROWS * A::COLUMNS) * A::BM;
  const int phase_row = phase / A::COLUMNS, phase_column = phase % A::COLUMNS;
  const Taps down = taps_of<A::BACK, S::KH, A::ROWS, S::PT>(phase_row), right = taps_of<A::BACK, S::KW, A::COLUMNS, S::PL>(phase_column);
  // From tap to tap, X is gone through forwards or, for a gradient, backwards.
  constexpr int DOWN = !A::BACK ? S::DH : A::ROWS > 1 ? -1 : -S::DH, RIGHT = !A::BACK ? S::DW : A::COLUMNS > 1 ? -1 : -S::DW;

  // Of each run, the pixel that the first tap meets; and, as bits, which taps down (0 .. 14) and right (16 .. 30) are inside of X.
  int place[Image::COUNT];
  uint32 seen[Image::COUNT];
#pragma unroll
  for (int k = 0; k < Image::COUNT; k++) {
    const int at = m0 + Image::row(k), n = at / A::W / A::H;
    const int h = at / A::W % A::H * (A::BACK ? 1 : S::SH) + down.start, w = at % A::W * (A::BACK ? 1 : S::SW) + right.start;
    place[k] = ((n * X::H + h) * X::W + w) * X::C + group * A::C + Image::column();
    seen[k] = 0;
#pragma unroll
    for (int t = 0; t < S::KH; t++) seen[k] |= uint32(n < Y::N && inside<X::H>(h + t * DOWN)) << t;
#pragma unroll
    for (int t = 0; t < S::KW; t++) seen[k] |= uint32(inside<X::W>(w + t * RIGHT)) << (16 + t);
  }
  const int taps = down.count * right.count, steps = quotient(A::C, A::BK) * taps;
  const int first = A::PARTS > 1 ? quotient(steps, A::PARTS) * split : 0, own = A::PARTS > 1 ? min(quotient(steps, A::PARTS), steps - first) : steps;
  // The channels and the tap of the step that is sent for; there are no channels from C on.
  int c0 = 0, i = 0, j = 0;
  if (!taps) c0 = A::C;
  else if (A::PARTS > 1) c0 = first / taps * A::BK, i = first % taps / right.count, j = first % taps % right.count;
  constexpr int ROW = (A::BACK ? A::C : A::F) * A::GROUPS;  // of the filters, from one to the next
  const int column = Filters::column(), row = Filters::row(0);
  const U* const filters = weight + (A::BACK ? (f0 + row) * ROW + group * A::C + column : row * ROW + group * A::F + f0 + column);
  const auto bring = [&](uint16* a, uint16* b, int share, int shares) {
    const U* const image = x + (i * DOWN * X::W + j * RIGHT) * X::C + c0;
    const uint32 needed = 1u << i | 1u << (16 + j) | uint32((A::C % A::BK ? c0 + Image::column() : c0) >= A::C) << 15;
    Image::send(a, share, shares, [&](int k, bool& real) {
      real = (needed & ~seen[k]) == 0;
      return image + place[k];
    });
    const int tap = (down.first + i * down.step) * S::KW + right.first + j * right.step;
    const U* const those = filters + tap * (A::BACK ? A::F : A::C) * ROW + c0 * (A::BACK ? 1 : ROW);
    Filters::send(b, share, shares, [&](int k, bool& real) {
      const int c = c0 + (A::BACK ? column : row + k * Filters::STEP), f = f0 + (A::BACK ? row + k * Filters::STEP : column);
      real = (A::C % A::BK ? c : c0) < A::C && (A::F % A::BN == 0 || f < A::F);
      return those + k * Filters::STEP * ROW;
    });
    if (share + 1 < shares) return;
    if (++j == right.count) {
      j = 0;
      if (++i == down.count) i = 0, c0 += A::BK;
    }
  };
  wait_for_previous();
  float sums[A::MT][A::NT][4] = {};
  pipelined_sums<A>(sums, own, bring);
  let_next_begin();
  const auto columns = column_sums<SUMS>(term, [=](int s, int column, float sum) {
    if constexpr (SUMS > 0)
      if (A::F % A::BN == 0 || f0 + column < A::F) total(s, uint32(part) * Y::C + group * A::F + f0 + column, sum);
  });
  store_runs<A>(
    sums,
    [=](int row, int column, uint32& to) {
      const int at = m0 + row, f = f0 + column, n = at / A::W / A::H;
      const int y = at / A::W % A::H * A::ROWS + phase_row, z = at % A::W * A::COLUMNS + phase_column;
      to = A::ROWS * A::COLUMNS == 1 ? uint32(at) * Y::C + group * A::F + f : Y::at(n, y, z, group * A::F + f);
      to += uint32(split) * (Y::N * Y::H * Y::W * Y::C);
      return at < A::POSITIONS && (A::F % A::BN == 0 || f < A::F) && (Y::H % A::ROWS == 0 || y < Y::H) && (Y::W % A::COLUMNS == 0 || z < Y::W);
    },
    finish, store, columns);
}

// Weight gradient: BM elements (tap, channel) of the filters x BN filters, from every PARTS-th part of the positions of dy.
template <class P_, class X_, class Y_, class S_, int C_, int F_, int BM, int BN, int BK, int MT, int NT, int STAGES, int PARTS_>
struct PipelinedWeightTile : Pipeline<P_, BM, BN, BK, MT, NT, STAGES, true, false> {
  using X = X_;
  using Y = Y_;
  using S = S_;
  static constexpr int C = C_, F = F_, PARTS = PARTS_, GROUPS = Y::C / F, ELEMENTS = S::KH * S::KW * C;
  static constexpr int POSITIONS = Y::N * Y::H * Y::W, STEPS = quotient(quotient(POSITIONS, BK), PARTS);
  static constexpr int F_PARTS = quotient(F, BN), ROWS = quotient(ELEMENTS, BM);
  static constexpr int BLOCKS = F_PARTS * ROWS * PARTS * GROUPS;
};

template <class A, class U, class Finish, class Store>
DEVICE void pipelined_correlate(int block, const U* x, const U* dy, Finish finish, Store store) {
  using X = typename A::X;
  using Y = typename A::Y;
  using S = typename A::S;
  using Image = Runs<A::A_ROWS, A::A_COLUMNS, A::A_ROW, A::THREADS>;
  using Gradient = Runs<A::B_ROWS, A::B_COLUMNS, A::B_ROW, A::THREADS>;
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
    Image::send(a, share, shares, [&](int k, bool& real) {
      real = Image::row(k) < remaining && inside<X::H>(h[k]) && inside<X::W>(w[k]) && (A::ELEMENTS % A::BM == 0 || element < A::ELEMENTS);
      const U* const from = x + place[k];
      place[k] += ((BK_N * X::H + BK_H * S::SH) * X::W + BK_W * S::SW) * X::C, h[k] += BK_H * S::SH, w[k] += BK_W * S::SW;
      if (BK_W && w[k] >= Y::W * S::SW + right) w[k] -= Y::W * S::SW, h[k] += S::SH, place[k] += (S::SH * X::W - Y::W * S::SW) * X::C;
      if (BK_W + BK_H && h[k] >= Y::H * S::SH + down) h[k] -= Y::H * S::SH, place[k] += (X::H - Y::H * S::SH) * X::W * X::C;
      return from;
    });
    Gradient::send(b, share, shares, [&](int k, bool& real) {
      real = Gradient::row(k) < remaining && (A::F % A::BN == 0 || f < A::F);
      return gradient + k * Gradient::STEP * Y::C;
    });
    if (share + 1 == shares) remaining -= A::BK, gradient += A::BK * Y::C;
  };
  wait_for_previous();
  float sums[A::MT][A::NT][4] = {};
  pipelined_sums<A>(sums, last > first ? quotient(last - first, A::BK) : 0, bring);
  let_next_begin();
  store_runs<A>(
    sums,
    [=](int row, int column, uint32& to) {
      to = uint32(part * A::ELEMENTS + m0 + row) * Y::C + group * A::F + f0 + column;
      return (A::ELEMENTS % A::BM == 0 || m0 + row < A::ELEMENTS) && (A::F % A::BN == 0 || f0 + column < A::F);
    },
    finish, store, NoColumnSums());
}
