// Operands of tensor cores in shared memory: rows of 16-bit parts (mma.cuh), how they are filled and scaled, and the sums of
// fragments. Rows are cut into runs of 8 elements and lie an odd number of runs apart: eight neighbours are in different banks.
#pragma once
#include "tiles.cuh"

constexpr int odd_run(int n) { return (quotient(n, 8) | 1) * 8; }

// Eight float32 as parts, to where they belong in each plane of PLANE elements.
template <class P, int PLANE> DEVICE void store_run(uint32* place, const float (&v)[8]) {
  Pack<uint32, 4> planes[P::PARTS];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32 parts[P::PARTS];
    P::split(parts, v[2 * k], v[2 * k + 1]);
#pragma unroll
    for (int p = 0; p < P::PARTS; p++) planes[p].v[k] = parts[p];
  }
#pragma unroll
  for (int p = 0; p < P::PARTS; p++) *reinterpret_cast<Pack<uint32, 4>*>(place + p * (PLANE / 2)) = planes[p];
}

template <class P, int PLANE> DEVICE void store_run(uint32* place, const Packed& run) {
  *reinterpret_cast<Pack<uint32, 4>*>(place) = {run.v[0], run.v[1], run.v[2], run.v[3]};
}

// 2^n, for n from -126 to 127.
DEVICE float two_to_the(int n) { return __int_as_float((n + 127) << 23); }

constexpr int LARGEST_SCALE = 1000;

// x * 2^n for any n that two factors can express.
DEVICE float scaled(float x, int n) {
  n = n < -252 ? -252 : n > 252 ? 252 : n;
  return x * two_to_the(n / 2) * two_to_the(n - n / 2);
}

// The n for which 2^n brings a number, given as bits, to 2^14 or a little more, but `most` at most.
DEVICE int exponent_of_scale(uint32 bits, int most) {
  const int n = bits >= 0x7f800000u ? 0 : 14 - (int(bits >> 23) - 127);  // nothing helps infinity
  return max(-126, min(min(n, 126), most));
}

// The largest of the bits that the threads of a block bring, for each of N numbers. All threads call it.
template <int N> DEVICE void largest_of_block(uint32 (&bits)[N], int threads) {
  __shared__ uint32 largest[2][32];
#pragma unroll
  for (int i = 0; i < N; i++) bits[i] = largest_of_warp(bits[i]);
  __syncthreads();  // the last call's numbers have been read
#pragma unroll
  for (int i = 0; i < N; i++)
    if (threadIdx.x % 32 == 0) largest[i][threadIdx.x / 32] = bits[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++)
    for (int k = 0; k < threads / 32; k++) bits[i] = largest[i][k] > bits[i] ? largest[i][k] : bits[i];
}

DEVICE uint32 larger_magnitude(uint32 bits, float x) {
  const uint32 own = uint32(__float_as_int(x)) & 0x7fffffffu;
  return own > bits ? own : bits;
}

// How a part of shared memory is filled: store(k, run) with eight elements from load(k, run), for each k below TOTAL; if STAGED, all
// threads call stage() first, which brings what is loaded into shared memory.
struct Nothing {
  DEVICE void operator()() const {}
};
template <class P, int TOTAL_, bool staged, class Load, class Store, class Stage> struct Filling {
  using Run = typename P::Run;
  static constexpr bool SCALED = P::SCALED;
  static constexpr int TOTAL = TOTAL_;
  static constexpr bool STAGED = staged;
  Load load;
  Store store;
  Stage stage;
};
template <class P, int TOTAL, class Load, class Store> DEVICE Filling<P, TOTAL, false, Load, Store, Nothing> filling(Load load, Store store) {
  return {load, store, {}};
}
template <class P, int TOTAL, class Load, class Store, class Stage>
DEVICE Filling<P, TOTAL, true, Load, Store, Stage> filling(Load load, Store store, Stage stage) {
  return {load, store, stage};
}

// A thread's share of a filling: the runs of eight that it keeps in registers, and all others, which it reads again.
template <class F, int THREADS, int MOST> struct Share {
  static constexpr int STEPS = quotient(F::TOTAL, THREADS), RUN = STEPS < MOST ? STEPS : MOST;
  const F& f;
  typename F::Run v[RUN];
  DEVICE explicit Share(const F& filling) : f(filling) {}
  DEVICE void load(int step) {
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = int(threadIdx.x) + (step + u) * THREADS;
      f.load(k < F::TOTAL ? k : 0, v[u]);
    }
  }
  // Bits of the largest magnitude.
  DEVICE uint32 largest() const {
    uint32 bits = 0;
#pragma unroll
    for (int u = 0; u < RUN; u++)
#pragma unroll
      for (int e = 0; e < 8; e++) bits = larger_magnitude(bits, v[u][e]);
#pragma unroll 1
    for (int step = RUN; step < STEPS; step += 3) {  // three at a time, as registers are scarce
      float more[3][8];
#pragma unroll
      for (int u = 0; u < 3; u++) {
        const int k = int(threadIdx.x) + (step + u) * THREADS;
        f.load(k < F::TOTAL ? k : 0, more[u]);
      }
#pragma unroll
      for (int u = 0; u < 3; u++)
#pragma unroll
        for (int e = 0; e < 8; e++) bits = larger_magnitude(bits, more[u][e]);
    }
    return bits;
  }
  DEVICE void store(float factor) {
#pragma unroll 1
    for (int step = 0; step < STEPS; step += RUN) {
      if (step) load(step);
#pragma unroll
      for (int u = 0; u < RUN; u++) {
        const int k = int(threadIdx.x) + (step + u) * THREADS;
        if constexpr (F::SCALED) {
#pragma unroll
          for (int e = 0; e < 8; e++) v[u][e] *= factor;
        }
        if (k < F::TOTAL) f.store(k, v[u]);
      }
    }
  }
};

// Which operands the kernel ahead does not write: they need not wait for it.
template <bool left, bool right> struct Early {
  static constexpr bool LEFT = left, RIGHT = right;
};

// Fills both operands, whose loads are under way together. If P wants it, they are multiplied by 2^n with exponents n that add up to
// the result, which is `most` at most.
template <class P, int THREADS, class E, class FA, class FB> DEVICE int fill_both(int most, const FA& fa, const FB& fb) {
  Share<FA, THREADS, 6> a(fa);
  Share<FB, THREADS, 6> b(fb);
  constexpr bool early = E::LEFT && !FA::STAGED;
  if (early) a.load(0);
  if (E::RIGHT) b.load(0);
  wait_for_previous();
  if (!E::RIGHT) b.load(0);
  fa.stage();
  if (!early) a.load(0);
  int na = 0, nb = 0;
  if constexpr (P::SCALED) {
    uint32 bits[2] = {a.largest(), b.largest()};
    largest_of_block(bits, THREADS);
    na = exponent_of_scale(bits[0], LARGEST_SCALE), nb = exponent_of_scale(bits[1], most - na);
  }
  a.store(two_to_the(na)), b.store(two_to_the(nb));
  return na + nb;
}

// Elements `first` to `first` + 7 of a row, zeros from `end` on, from one(e) or, four at a time where that saves loads, from
// four(e, v); element 0 is read in place of those that are not there.
template <class P, bool fours, class One, class Four> DEVICE void gather_run(int first, int end, float (&v)[8], One one, Four four) {
  if constexpr (fours) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int e = first + 4 * half;
      float part[4];
      four(e < end ? e : 0, part);
#pragma unroll
      for (int k = 0; k < 4; k++) v[4 * half + k] = e < end ? part[k] : 0.0f;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int e = first + k;
      const float value = one(e < end ? e : 0);
      v[k] = e < end ? value : 0.0f;
    }
  }
}

template <class P, bool fours, class One, class Four> DEVICE void gather_run(int first, int end, Packed& run, One one, Four four) {
  float v[8];
  gather_run<P, fours>(first, end, v, one, four);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32 part[1];
    P::split(part, v[2 * k], v[2 * k + 1]);
    run.v[k] = part[0];
  }
}

// The eight numbers of 16 bits at a place, which is a multiple of 16 bytes; zeros, if they are not `real`.
template <class U> DEVICE void load_eight(bool real, const U* place, Packed& run) {
  const Packed found = *reinterpret_cast<const Packed*>(place);
#pragma unroll
  for (int k = 0; k < 4; k++) run.v[k] = real ? found.v[k] : 0u;
}

// Rows k below ROWS of COLUMNS elements, ROW elements apart, in planes. Element (k, f) is one(k, f), elements f .. f + 3 of a row
// four(k, f, v), the first `real` of a row count; if `eights`, eight(k, f, run) brings f .. f + 7, of which all or none count.
// `down`: neighbours in memory are below each other.
template <class P, int ROWS, int COLUMNS, int ROW, bool fours, bool down, bool eights, class One, class Four, class EightOf>
DEVICE auto matrix_rows(uint32* place, int real, One one, Four four, EightOf eight) {
  constexpr int RUNS = COLUMNS / 8;
  return filling<P, ROWS * RUNS>(
    [=](int i, typename P::Run& v) {
      const int k = down ? i % ROWS : i / RUNS, f = (down ? i / ROWS : i % RUNS) * 8;
      if constexpr (eights) eight(k, f, v);
      else gather_run<P, fours>(f, real, v, [&](int e) { return one(k, e); }, [&](int e, float (&part)[4]) { four(k, e, part); });
    },
    [=](int i, const typename P::Run& v) {
      const int k = down ? i % ROWS : i / RUNS, f = (down ? i / ROWS : i % RUNS) * 8;
      store_run<P, ROWS * ROW>(place + (k * ROW + f) / 2, v);
    });
}

// Sums multiplied by 2^scale, made ready for terms multiplied by 2^own, which is not more; scale becomes own. At first, they are 0.
template <int M, int N> DEVICE void rescale(float (&sums)[M][N][4], int& scale, int own) {
  if (own != scale && scale != LARGEST_SCALE) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) sums[m][n][r] = scaled(sums[m][n][r], own - scale);
  }
  scale = own;
}

// The fragments B of N runs of 8 columns, stored as rows of K or, if `across`, as the columns' own rows; `at`: address of a lane
// for the first part and run. Planes are PLANE bytes apart, runs RUN.
template <class P, int N, int PLANE, int RUN = 16, bool across = false>
DEVICE void load_columns(uint32 (&b)[N][P::PARTS][2], SharedAddress at) {
#pragma unroll
  for (int n = 0; n < N; n += 2)
#pragma unroll
    for (int p = 0; p < P::PARTS; p++) {
      const SharedAddress place = at + p * PLANE + n * RUN;
      if (n + 1 < N) {
        uint32 both[4];
        if (across) load_matrices(both, place);
        else load_transposed(both, place);
        b[n][p][0] = both[0], b[n][p][1] = both[1], b[n + 1 < N ? n + 1 : n][p][0] = both[2], b[n + 1 < N ? n + 1 : n][p][1] = both[3];
      } else if (across) {
        load_matrices(b[n][p], place);
      } else {
        load_transposed(b[n][p], place);
      }
    }
}
