// The sums of products whose operands are brought to shared memory some steps ahead of the tensor cores, by copies that nobody waits
// for: by warps, with fragments in registers, or by warpgroups, which take operands from shared memory themselves.
#pragma once
#include "parts.cuh"
#include "warpgroups.cuh"

#ifndef MINICNN_EMULATED
// Copies 16 bytes to shared memory, zeros if they are not `real`; copies until close_copies() belong to a group. What a block reads
// ONCE does not push out of the multiprocessor's cache what it reads again.
template <bool ONCE> DEVICE void copy_or_clear(void* to, const void* from, bool real) {
#if __CUDA_ARCH__ >= 800
  if (ONCE) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0) : "memory");
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
// Brings the 128 bytes around a place from memory to the cache; nobody waits for them, and who writes there later does no harm.
DEVICE void fetch(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }
#endif

// Fetches a block's share of an array that was written long ago: all of it is on its way at once, before the kernel ahead has ended,
// while copies would ask for a few steps of it at a time.
template <int ELEMENTS, int BLOCKS, int THREADS> DEVICE void fetch_share(const uint16* array, int block) {
  constexpr int LINES = quotient(ELEMENTS, 64);
#pragma unroll 4
  for (int line = block * THREADS + threadIdx.x; line < LINES; line += BLOCKS * THREADS) fetch(array + line * 64);
}

// Rows of COLUMNS elements in shared memory for `load_matrices`: eight neighbours below each other are in different banks.
template <int ROWS_, int COLUMNS_> struct PaddedRows {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, ROW = odd_run(COLUMNS), SIZE = ROWS * ROW;
  // Where the run of eight from a column on is, in row row + more.
  static DEVICE int at(int row, int more, int column) { return (row + more) * ROW + column; }
};
template <bool swizzled, int ROWS, int COLUMNS, int MOST> struct RowsOf : SwizzledRows<ROWS, COLUMNS, MOST> {};
template <int ROWS, int COLUMNS, int MOST> struct RowsOf<false, ROWS, COLUMNS, MOST> : PaddedRows<ROWS, COLUMNS> {};

// How a warp hands around sums of NT fragments beside each other: in rows of some of them, which begin 8 banks apart.
template <int NT_> struct Passage {
  static constexpr int NT = NT_ < 8 ? NT_ : 8, ROW = NT * 8 + (40 - NT * 8 % 32) % 32, SIZE = 16 * ROW;
};

// A product by a block: BM x BN sums, BK terms in a step, STAGES steps in shared memory at a time; a warp makes MT * 16 x NT * 8 of
// it, MT pieces that are WM * 16 rows apart in a product by warpgroups, neighbours otherwise. TA, TB: whether operands are stored
// transposed.
template <class P_, class Sizes, bool TA_, bool TB_> struct Pipeline {
  using P = P_;
  static constexpr int BM = Sizes::rows, BN = Sizes::columns, BK = Sizes::terms, STAGES = Sizes::stages, PARTS = Sizes::splits;
  static constexpr int MT = Sizes::warp_rows, NT = Sizes::warp_columns;
  static constexpr bool TA = TA_, TB = TB_, WHOLE = false;
  static constexpr int WM = BM / 16 / MT, WN = BN / 8 / NT, THREADS = 32 * WM * WN;
  // Tiles that a block makes one after the other; where there are several, bytes of shared memory that only results pass.
  static constexpr int TURNS = Sizes::turns, PASSED = TURNS > 1 ? WM * WN * Passage<NT>::SIZE * 4 : 0;
  using Left = RowsOf<P::WARPGROUPS, TA ? BK : BM, TA ? BM : BK, 64>;
  using Right = RowsOf<P::WARPGROUPS, TB ? BN : BK, TB ? BK : BN, (TB || NT >= 8 ? 64 : NT * 8)>;  // a warpgroup begins with whole ones
  static constexpr int STAGE = Left::SIZE + Right::SIZE;  // elements
  // The first of 16 rows of a warp's sums.
  static DEVICE int row(int warp, int m) { return (P::WARPGROUPS ? m * WM + warp % WM : warp % WM * MT + m) * 16; }
};

// A thread's share of rows in a stage: runs of eight from `column` on, in rows row(0) .. row(COUNT - 1).
template <class Rows, int THREADS> struct Runs {
  static constexpr int EACH = Rows::COLUMNS / 8, STEP = THREADS / EACH, COUNT = quotient(Rows::ROWS, STEP);
  static_assert(THREADS % EACH == 0, "a thread has one column of runs");
  static DEVICE int column() { return threadIdx.x % EACH * 8; }
  static DEVICE int row(int k) { return threadIdx.x / EACH + k * STEP; }
  // Sends for a share of the runs of a stage: from(k, real) says where run k is in memory, if it is `real`.
  template <bool ONCE, class From> static DEVICE void send(uint16* stage, int share, int shares, From from) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
      if (k * shares / COUNT != share || (Rows::ROWS % STEP && row(k) >= Rows::ROWS)) continue;
      bool real = false;
      const auto* const place = from(k, real);
      copy_or_clear<ONCE>(stage + Rows::at(row(0), k * STEP, column()), place, real);
    }
  }
};

// The operands of 16 terms of a warp's sums.
template <class A> struct Fragments {
  uint32 rows[A::MT][1][4], columns[A::NT][1][2];
};

// `pipelined_sums` by warps. While tensor cores multiply, the fragments of the next 16 terms are loaded, those of the next step as well.
template <class A, class Bring, class Finish> DEVICE void sums_by_warps(int steps, Bring bring, Finish finish) {
  using P = typename A::P;
  static_assert(A::TURNS == 1, "warps that multiply by themselves make one tile");
  constexpr int PIECES = A::BK / 16, SHARES = PIECES > 1 ? PIECES - 1 : 1;  // copies are sent for before the last piece
  uint16* const memory = reinterpret_cast<uint16*>(dynamic_shared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  const int wm = warp % A::WM * A::MT * 16, wn = warp / A::WM * A::NT * 8, lower = matrix % 2 * 8, upper = matrix / 2 * 8;
  const SharedAddress left =
    shared_address(memory) + (A::TA ? (upper + row) * A::Left::ROW + wm + lower : (wm + lower + row) * A::Left::ROW + upper) * 2;
  const SharedAddress right = shared_address(memory) +
    (A::Left::SIZE + (A::TB ? (wn + upper + row) * A::Right::ROW + lower : (lower + row) * A::Right::ROW + wn + upper)) * 2;
  const auto send = [&](int stage, int share, int shares) {
    bring(memory + stage * A::STAGE, memory + stage * A::STAGE + A::Left::SIZE, share, shares);
  };
  const auto load = [&](Fragments<A>& f, int stage, int piece) {
    const int at = stage * A::STAGE * 2;
    load_columns<P, A::NT, 0, A::TB ? 8 * A::Right::ROW * 2 : 16, A::TB>(f.columns, right + at + piece * 16 * (A::TB ? 1 : A::Right::ROW) * 2);
#pragma unroll
    for (int m = 0; m < A::MT; m++) {
      const SharedAddress place = left + at + (piece * 16 * (A::TA ? A::Left::ROW : 1) + m * 16 * (A::TA ? 1 : A::Left::ROW)) * 2;
      if (A::TA) load_transposed(f.rows[m][0], place);
      else load_matrices(f.rows[m][0], place);
    }
  };
#pragma unroll
  for (int s = 0; s < A::STAGES - 1; s++) {
    if (s < steps) send(s, 0, 1);
    close_copies();
  }
  wait_for_copies<A::STAGES - 2>();
  __syncthreads();
  float sums[A::MT][A::NT][4] = {};
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
      if (piece < SHARES && step + A::STAGES - 1 < steps) send(next, piece, SHARES);
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
  finish(sums, 0);
}

// Calls step(k) for k < N groups of copies, each as soon as it has arrived.
template <int K, int N, class Step> DEVICE void arriving(Step step) {
  wait_for_copies<N - 1 - K>();
  step(K);
  if constexpr (K + 1 < N) arriving<K + 1, N>(step);
}

// `pipelined_sums` by warpgroups. While a step's products are on their way, those of the next are started; what they are made of is
// overwritten a step later, or, if all steps are in shared memory (WHOLE), when a turn's products have ended.
template <class A, class Begin, class Bring, class Finish>
DEVICE void sums_by_warpgroups(int steps, int turns, Begin begin, Bring bring, Finish finish) {
  using P = typename A::P;
  using Left = typename A::Left;
  using Right = typename A::Right;
  constexpr int AHEAD = A::WHOLE ? A::STAGES : A::STAGES - 2;  // steps that are on their way
  static_assert(AHEAD > 0 && A::WM % 4 == 0 && A::STAGE % 512 == 0, "warps are whole warpgroups, stages begin where swizzles do");
  static_assert(A::WHOLE || A::TURNS == 1, "the next turn's steps take the places of all of this one's");
  unsigned char* const first = dynamic_shared() + A::PASSED;
  uint16* const memory = reinterpret_cast<uint16*>(first + (-shared_offset(first) & 1023));
  const int warp = A::THREADS > 128 ? uniform(threadIdx.x / 128 * 4) : 0, wm = warp % A::WM * 16, wn = warp / A::WM * A::NT * 8;
  const uint64 left = Left::descriptor(memory + (A::TA ? Left::start(0, wm) : Left::start(wm, 0)), A::TA);
  const uint64 right = Right::descriptor(memory + Left::SIZE + (A::TB ? Right::start(wn, 0) : Right::start(0, wn)), !A::TB);
  const auto send = [&](int stage, bool real) {  // even zeros would take their time
    if (real) bring(memory + stage * A::STAGE, memory + stage * A::STAGE + Left::SIZE, 0, 1);
    close_copies();
  };
  float sums[A::MT][A::NT][4];
  const auto multiply = [&](int stage) {
    begin_products();
#pragma unroll
    for (int k = 0; k < A::BK; k += 16)
#pragma unroll
      for (int m = 0; m < A::MT; m++) {
        const int rows = m * A::WM * 16;
        start_product<A::TA, !A::TB>(P(), sums[m],
                                     behind(left, stage * A::STAGE + (A::TA ? Left::start(k, rows) : Left::start(rows, k))),
                                     behind(right, stage * A::STAGE + (A::TB ? Right::start(0, k) : Right::start(k, 0))));
      }
    close_products();
  };
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < A::MT * A::NT * 4; i++) (&sums[0][0][0])[i] = 0.0f;
    hold(sums);
  };
  const auto end = [&] {
    wait_for_copies<0>();
    wait_for_products<0>();
    hold(sums);
    __syncthreads();
  };
#pragma unroll
  for (int s = 0; s < AHEAD; s++) send(s, A::WHOLE || s < steps);
  if constexpr (A::WHOLE) {
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
      clear();
      arriving<0, A::STAGES>([&](int stage) {
        show_to_warpgroups();
        __syncthreads();
        multiply(stage);
      });
      end();
      if (turn + 1 < turns) {
        begin(turn + 1);
#pragma unroll
        for (int s = 0; s < AHEAD; s++) send(s, true);
      }
      finish(sums, turn);
    }
  } else {
    clear();
    int stage = 0, next = AHEAD;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      wait_for_copies<AHEAD - 1>();
      show_to_warpgroups();
      wait_for_products<1>();
      __syncthreads();  // this step's operands are there for all, and nobody reads those of the last but one any more
      multiply(stage);
      send(next, step + AHEAD < steps);
      stage = stage + 1 == A::STAGES ? 0 : stage + 1, next = next + 1 == A::STAGES ? 0 : next + 1;
    }
    end();
    finish(sums, 0);
  }
}

// The sums of `steps` steps; bring(a, b, share, shares) sends for a share of the next step's operands. Of several turns, each of as
// many steps, begin(turn) goes to the next one, whose operands are on their way while finish(sums, turn) makes results. That has all
// the shared memory, or its first PASSED bytes if there are several turns.
template <class A, class Begin, class Bring, class Finish>
DEVICE void pipelined_sums(int steps, int turns, Begin begin, Bring bring, Finish finish) {
  if constexpr (A::P::WARPGROUPS) sums_by_warpgroups<A>(steps, turns, begin, bring, finish);
  else sums_by_warps<A>(steps, bring, finish);
}
