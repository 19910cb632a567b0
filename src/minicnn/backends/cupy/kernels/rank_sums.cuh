// Sums over ranks within kernels: a thread gives its number to all ranks, and goes on with what comes back.
//
// Each number of a step has words of its own in the windows of all ranks, in two halves: see peers.cuh. Rounds are steps. A rank
// begins round n + 2 when it has the words of round n + 1, which others wrote when they were done with round n: the half is free.
// Whoever does the same again writes the same words, and finds the same.
#pragma once
#include "peers.cuh"

// The sum of those of some ranks from the first on, in the order of a group's tree: cut at the largest power of two.
template <int COUNT, class T> DEVICE T sum_in_tree(const Summand<T>* x) {
  if constexpr (COUNT == 1) {
    return x->value;
  } else {
    constexpr int LEFT = COUNT <= 2 ? 1 : COUNT <= 4 ? 2 : COUNT <= 8 ? 4 : COUNT <= 16 ? 8 : COUNT <= 32 ? 16 : 32;
    static_assert(COUNT <= 64, "ranks of one machine");
    return sum_in_tree<LEFT>(x) + sum_in_tree<COUNT - LEFT>(x + LEFT);
  }
}

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

// Sums of what all ranks give in a round, in their rows in this rank's window, one after the other; any numbers when all waiting is
// ended. All words are looked at together: each look takes as long as memory does.
template <int SUMS, class T, class... Rows>
DEVICE Pack<T, SUMS> taken_from_ranks(uint32 round, uint32 i, uint32 count, uint64 half, uint64 ended, Rows... rows) {
  constexpr uint32 WORDS = sizeof(T) / 4;
  constexpr int ALL = sizeof...(Rows), RANKS = ALL / SUMS;
  const uint64 addresses[] = {rows...};
  Summand<T> taken[ALL];
  bool there;
  int looks = 0;
  do {
    there = true;
#pragma unroll
    for (int r = 0; r < ALL; r++)
#pragma unroll
      for (uint32 w = 0; w < WORDS; w++) {
        const uint64 word = look_at_word(reinterpret_cast<const uint64*>(addresses[r] + (round & 1) * half) + (w * count + i));
        taken[r].words[w] = uint32(word);
        there &= uint32(word >> 32) == round;
      }
    if (!there) take_a_breath();
  } while (!there && (++looks % LOOKS || !look_at_host(reinterpret_cast<const uint32*>(ended))));
  Pack<T, SUMS> sums;
#pragma unroll
  for (int s = 0; s < SUMS; s++) sums.v[s] = sum_in_tree<RANKS>(taken + s * RANKS);
  return sums;
}
template <class T, class... A> DEVICE T sum_over_ranks(A... arguments) { return taken_from_ranks<1, T>(arguments...).v[0]; }
template <class T, class... A> DEVICE Pack<T, 2> two_sums_over_ranks(A... arguments) { return taken_from_ranks<2, T>(arguments...); }
