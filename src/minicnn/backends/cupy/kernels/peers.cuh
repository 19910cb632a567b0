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

// The sum of what some ranks give, in the order of a group's tree: cut at the largest power of two.
template <int COUNT, class T> DEVICE T sum_in_tree(const Summand<T>* x) {
  if constexpr (COUNT == 1) {
    return x->value;
  } else {
    constexpr int LEFT = COUNT <= 2 ? 1 : COUNT <= 4 ? 2 : COUNT <= 8 ? 4 : COUNT <= 16 ? 8 : COUNT <= 32 ? 16 : 32;
    static_assert(COUNT <= 64, "ranks of one machine");
    return sum_in_tree<LEFT>(x) + sum_in_tree<COUNT - LEFT>(x + LEFT);
  }
}

// Waits until all words of some numbers are of a round, and takes these; any numbers when all waiting is ended.
//
// All words are looked at together, since each look takes as long as memory does.
// place: where word w of number k is. ended: the host's word that ends all waiting.
template <int COUNT, class T, class F> DEVICE void take_words(Summand<T>* taken, uint32 round, const uint32* ended, F place) {
  constexpr int WORDS = sizeof(T) / 4;
  bool there;
  int looks = 0;
  do {
    there = true;
#pragma unroll
    for (int k = 0; k < COUNT; k++)
#pragma unroll
      for (int w = 0; w < WORDS; w++) {
        const uint64 word = look_at_word(place(k, w));
        taken[k].words[w] = uint32(word);
        there &= uint32(word >> 32) == round;
      }
    if (!there) take_a_breath();
  } while (!there && (++looks % LOOKS || !look_at_host(ended)));
}

// Sum of `count` numbers of each of so many ranks. Each block is a channel of its own, with a count of its rounds.
//
// places: addresses of the ranks' windows, and of the host's word that ends all waiting. blocks: those of this launch.
template <int RANKS, int THREADS, class T>
DEVICE void sum_of_peers(const T* own, T* total, const uint64* places, uint32* rounds, int rank, int count, int blocks) {
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
    take_words<RANKS>(taken, round, ended, [&](int r, int w) { return window + (r * WORDS + w) * THREADS; });
    if (i < count) total[i] = sum_in_tree<RANKS>(taken);
  }
  // Not before: blocks of the next kernel would wait in the places of one that a peer waits for.
  let_next_begin();
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) rounds[blockIdx.x] = round;
}
