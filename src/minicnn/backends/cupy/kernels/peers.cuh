// Sums over ranks in each other's memory: every rank writes its numbers into the windows of all, and adds what comes into its own.
//
// A word has four bytes of a number and the number of its round. Memory takes its eight bytes as a whole, so that whoever sees the
// round has the bytes, without fences. Rounds alternate between two halves of a window. Each thread is the only one with its words:
// it begins round n + 2 when it has the words of round n + 1, which their senders wrote when they had taken those of round n.
#pragma once
#include "core.cuh"

#ifndef MINICNN_EMULATED
DEVICE void put_word(uint64* place, uint64 word) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory"); }
DEVICE uint64 look_at_word(const uint64* place) {
  uint64 word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}
// A flag that is seen tells that all is there which was written before it; so do those of threads that met its writer at a barrier.
DEVICE void put_flag(uint32* place, uint32 flag) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(place), "r"(flag) : "memory"); }
DEVICE uint32 look_at_flag(const uint32* place) {
  uint32 flag;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(place) : "memory");
  return flag;
}
template <class Run> DEVICE Run load_far(const Run* place) { return *place; }
template <class Run> DEVICE void store_far(Run* place, const Run& run) { *place = run; }
DEVICE uint32 look_at_host(const uint32* place) { return *reinterpret_cast<const volatile uint32*>(place); }
DEVICE void take_a_breath() {}
#endif

template <class T> union Summand {
  T value;
  uint32 words[sizeof(T) / 4];
};

constexpr int LOOKS = 1024;  // between two at the host's memory, which is far

// Sum of `count` numbers of each of so many ranks. Each block is a channel of its own, with a count of its rounds.
//
// places: addresses of the ranks' windows, and of the host's word that ends all waiting; the sums are then any numbers.
// blocks: those of this launch.
// add: the sum of as many Summands as there are ranks.
template <int RANKS, int THREADS, class T, class F>
DEVICE void sum_of_peers(const T* own, T* total, const uint64* places, uint32* rounds, int rank, int count, int blocks, F add) {
  constexpr int WORDS = sizeof(T) / 4, HALF = RANKS * THREADS * 2;  // of the widest numbers
  const uint32* ended = reinterpret_cast<const uint32*>(places[RANKS]);
  uint32 round = rounds[blockIdx.x];
  for (int first = blockIdx.x * THREADS; first < count; first += blocks * THREADS) {
    const int i = first + int(threadIdx.x);
    const uint32 half = (2 * blockIdx.x + (++round & 1)) * HALF + threadIdx.x;
    Summand<T> mine;
    mine.value = i < count ? own[i] : T(0);  // all threads take part, so that each knows how far the others are
#pragma unroll
    for (int r = 0; r < RANKS; r++)
#pragma unroll
      for (int w = 0; w < WORDS; w++)
        put_word(reinterpret_cast<uint64*>(places[r]) + half + (rank * WORDS + w) * THREADS, uint64(round) << 32 | mine.words[w]);
    const uint64* window = reinterpret_cast<const uint64*>(places[rank]) + half;
    Summand<T> taken[RANKS];
    bool there;
    int looks = 0;
    do {
      there = true;
#pragma unroll
      for (int r = 0; r < RANKS; r++)
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
          const uint64 word = look_at_word(window + (r * WORDS + w) * THREADS);
          taken[r].words[w] = uint32(word);
          there &= uint32(word >> 32) == round;
        }
      if (!there) take_a_breath();
    } while (!there && (++looks % LOOKS || !look_at_host(ended)));
    if (i < count) total[i] = add(taken);
  }
  // Not before: blocks of the next kernel would wait in the places of one that a peer waits for.
  let_next_begin();
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) rounds[blockIdx.x] = round;
}

// Waits until the same block of every rank has come so far, for its n-th time; what was written before is there for all.
template <int RANKS> DEVICE void meet(const uint64* flags, const uint32* ended, int rank, uint32 n) {
  __syncthreads();
  if (threadIdx.x < RANKS) {
    put_flag(reinterpret_cast<uint32*>(flags[threadIdx.x]) + blockIdx.x * RANKS + rank, n);
    const uint32* flag = reinterpret_cast<const uint32*>(flags[rank]) + blockIdx.x * RANKS + threadIdx.x;
    int looks = 0;
    // Another may be ahead: it has come when all have, and goes on before this one has seen it.
    while (int(look_at_flag(flag) - n) < 0 && (++looks % LOOKS || !look_at_host(ended))) take_a_breath();
  }
  __syncthreads();
}

// Sum of an array of each of so many ranks, in memory that all of them reach: every rank reads its share of all arrays, adds, and
// writes the sums to all. Each block is a channel of its own, with a count of its meetings.
//
// places: addresses of the ranks' memory, of their flags, and of the host's word that ends all waiting.
// source, target: where the arrays and the sums begin in that memory, in runs of 16 bytes.
// runs: those of the array, of which each rank has as large a share.
// blocks, add: see above.
template <int RANKS, int THREADS, class T, class F>
DEVICE void sum_of_shares(const uint64* places, uint32* meetings, int rank, int source, int target, int runs, int blocks, F add) {
  using Run = Pack<T, 16 / sizeof(T)>;
  constexpr int AT_ONCE = RANKS < 16 ? 16 / RANKS : 1;  // of a thread, on their way at a time
  const uint64* flags = places + RANKS;
  const uint32* ended = reinterpret_cast<const uint32*>(places[2 * RANKS]);
  const uint32 met = meetings[blockIdx.x];
  const int share = runs / RANKS, own = rank * share;
  Run* memory[RANKS];
#pragma unroll
  for (int r = 0; r < RANKS; r++) memory[r] = reinterpret_cast<Run*>(places[r]);
  meet<RANKS>(flags, ended, rank, met + 1);  // all have made their arrays, and read what lies where the sums go
  for (int first = blockIdx.x * THREADS * AT_ONCE; first < share; first += blocks * THREADS * AT_ONCE) {
    Run taken[AT_ONCE][RANKS];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS + int(threadIdx.x);
#pragma unroll
      for (int r = 0; r < RANKS; r++)
        if (i < share) taken[k][r] = load_far(memory[r] + source + own + i);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS + int(threadIdx.x);
      Run total;
#pragma unroll
      for (int e = 0; e < 16 / int(sizeof(T)); e++) {
        Summand<T> x[RANKS];
#pragma unroll
        for (int r = 0; r < RANKS; r++) x[r].value = taken[k][r].v[e];
        total.v[e] = add(x);
      }
#pragma unroll
      for (int r = 0; r < RANKS; r++)
        if (i < share) store_far(memory[r] + target + own + i, total);
    }
  }
  meet<RANKS>(flags, ended, rank, met + 2);  // all sums have come here, and nobody reads the array any more
  let_next_begin();
  if (threadIdx.x == 0) meetings[blockIdx.x] = met + 2;
}
