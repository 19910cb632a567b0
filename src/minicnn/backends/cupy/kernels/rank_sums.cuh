// Sums over ranks within kernels: a thread gives its number to all ranks, and goes on with what comes back.
//
// Each number of a step has words of its own in the windows of all ranks, in two halves: see peers.cuh. Rounds are steps. A rank
// begins round n + 2 when it has the words of round n + 1, which others wrote when they were done with round n: the half is free.
// Whoever does the same again writes the same words, and finds the same.
#pragma once
#include "peers.cuh"

// Number i of `count`, in the rows of this rank in all windows; returns the round. half: bytes of a window's half.
template <class T, class... Rows>
DEVICE uint32 give_to_ranks(T x, uint32 i, uint32 count, uint32 round, uint64 half, Rows... rows) {
  constexpr uint32 WORDS = sizeof(T) / 4;
  Summand<T> mine;
  mine.value = x;
  const uint64 addresses[] = {rows...};
#pragma unroll
  for (int r = 0; r < int(sizeof...(Rows)); r++)
#pragma unroll
    for (uint32 w = 0; w < WORDS; w++)
      put_word(
          reinterpret_cast<uint64*>(addresses[r] + (round & 1) * half) + (w * count + i), uint64(round) << 32 | mine.words[w]);
  return round;
}

// Sums of what all ranks give in a round, in their rows in this rank's window, one after the other.
template <int SUMS, class T, class... Rows>
DEVICE Pack<T, SUMS> taken_from_ranks(uint32 round, uint32 i, uint32 count, uint64 half, uint64 ended, Rows... rows) {
  constexpr int ALL = sizeof...(Rows), RANKS = ALL / SUMS;
  const uint64 addresses[] = {rows...};
  Summand<T> taken[ALL];
  take_words<ALL>(taken, round, reinterpret_cast<const uint32*>(ended), [&](int k, int w) {
    return reinterpret_cast<const uint64*>(addresses[k] + (round & 1) * half) + (w * count + i);
  });
  Pack<T, SUMS> sums;
#pragma unroll
  for (int s = 0; s < SUMS; s++) sums.v[s] = sum_in_tree<RANKS>(taken + s * RANKS);
  return sums;
}
template <class T, class... A> DEVICE T sum_over_ranks(A... arguments) { return taken_from_ranks<1, T>(arguments...).v[0]; }
template <class T, class... A> DEVICE Pack<T, 2> two_sums_over_ranks(A... arguments) { return taken_from_ranks<2, T>(arguments...); }
