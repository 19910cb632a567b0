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
