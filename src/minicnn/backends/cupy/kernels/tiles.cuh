// What tiles on tensor cores share: filling of shared memory, sums of slices, images with zeros around them, filters.
//
// Every sum is taken in a fixed order: within a thread, then over the threads of a block, then over the parts that
// blocks leave in memory. Nothing is accumulated by atomics, so a result has the same bits every time.
#pragma once
#include "mma.cuh"
#include "results.cuh"

constexpr int quotient(int a, int b) { return (a + b - 1) / b; }
// The next length whose rows start in different banks of shared memory.
constexpr int odd(int n) { return n | 1; }

// Calls store(k, load(k)) for each k below `total`, shared by the threads of a block. Sixteen loads are under way before
// the first is stored; load is also called with k = 0 by threads that have nothing left, so that no load waits for a branch.
template <class T, int total, int threads, class Load, class Store> DEVICE void fill(Load load, Store store) {
  constexpr int STEPS = quotient(total, threads), RUN = STEPS < 16 ? STEPS : 16;
  const int thread = threadIdx.x;
#pragma unroll 1
  for (int step = 0; step < STEPS; step += RUN) {
    T values[RUN];
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = thread + (step + u) * threads;
      values[u] = load(k < total ? k : 0);
    }
#pragma unroll
    for (int u = 0; u < RUN; u++) {
      const int k = thread + (step + u) * threads;
      if (k < total) store(k, values[u]);
    }
  }
}

// Sums of SLICES groups of OWN threads, which those of slice 0 get: in each round the upper half hands its sums to the lower.
template <int SLICES, int OWN, class T, int A, int B, int C> DEVICE void sum_slices(T* shared, int slice, T (&sums)[A][B][C]) {
  T* const flat = &sums[0][0][0];
  const int own = threadIdx.x % OWN;
#pragma unroll
  for (int half = SLICES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice >= half && slice < 2 * half) {
#pragma unroll
      for (int k = 0; k < A * B * C; k++) shared[((slice - half) * A * B * C + k) * OWN + own] = flat[k];
    }
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int k = 0; k < A * B * C; k++) flat[k] += shared[(slice * A * B * C + k) * OWN + own];
    }
  }
}

// An image with zeros around it and strides - 1 zeros between its elements.
template <class T, class X, int SH, int SW, class F> struct Spread {
  F x;
  int first;  // channel where the group begins
  static DEVICE bool real(int n, int h, int w) {
    return n < X::N && h % SH == 0 && w % SW == 0 && inside<X::H * SH>(h) && inside<X::W * SW>(w);
  }
  DEVICE T operator()(int n, int h, int w, int c) const {
    const bool there = real(n, h, w);
    const T value = x(there ? X::at(n, h / SH, w / SW, first + c) : 0u);
    return there ? value : T(0);
  }
  // Channels c .. c + 3, which begin at a multiple of 4 if `aligned`.
  template <bool aligned> DEVICE void four(int n, int h, int w, int c, T (&v)[4]) const {
    const bool there = real(n, h, w);
    load_four_channels<aligned, X>(x, there ? n : 0, there ? h / SH : 0, there ? w / SW : 0, first + c, v);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = there ? v[k] : T(0);
  }
  // Channels c .. c + 7, from a multiple of 8 on, if they are numbers of type U in memory; zeros, if they are not `wanted`.
  template <class U> static constexpr bool eights() { return X::FORMAT == NHWC && X::C % 8 == 0 && InMemory<U, F>::value; }
  template <class Run> DEVICE void eight(int n, int h, int w, int c, bool wanted, Run& run) const {
    const bool there = wanted && real(n, h, w);
    load_eight(there, x.p + (there ? X::at(n, h / SH, w / SW, first + c) : 0u), run);
  }
};

// An image with zeros around it.
template <class T, class X, class F> using Padded = Spread<T, X, 1, 1, F>;

// Filters of shape (KH, KW, C, GROUPS * F).
template <class T, int KW, int C, int F, int GROUPS, class W> struct Filters {
  W w;
  int group;
  static constexpr bool BACK = false;
  template <class U> static constexpr bool eights() { return F % 8 == 0 && InMemory<U, W>::value; }
  template <class Run> DEVICE void eight(int a, int b, int c, int f, bool real, Run& run) const {
    real = real && f < F;
    load_eight(real, w.p + (real ? at(a, b, c, f) : 0u), run);
  }
  DEVICE uint32 at(int a, int b, int c, int f) const { return ((a * KW + b) * C + c) * (F * GROUPS) + group * F + f; }
  DEVICE T operator()(int a, int b, int c, int f) const { return T(w(at(a, b, c, f))); }
  // Filters f .. f + 3, which begin at a multiple of 4 if `aligned`.
  template <bool aligned> DEVICE void four(int a, int b, int c, int f, T (&v)[4]) const { load_four<aligned>(w, at(a, b, c, f), v); }
};

// The filters of an input gradient, which are those of the convolution flipped: (KH, KW, F, GROUPS * C).
//
// With strides SH and SW, elements of the gradient that are as far apart see the same taps: SH * SW *phases* of F filters each, of one
// convolution of dy without strides, whose window S is what all phases see together. Filter f is one of phase f / F, and has zeros where
// only other phases have taps. PT, PL: zeros before the image of the convolution.
template <class T, class S, int KH, int KW, int C, int F, int GROUPS, int SH, int SW, int PT, int PL, class W> struct FlippedFilters {
  W w;
  int group;
  static constexpr bool BACK = true;
  template <class U> static constexpr bool eights() { return false; }
  static constexpr int DOWN = (PT + SH * S::PT) / S::DH, RIGHT = (PL + SW * S::PL) / S::DW;  // the tap of phase 0 that comes first
  DEVICE T operator()(int a, int b, int c, int f) const {
    const int phase = SH * SW == 1 ? 0 : f / F, i = phase / SW + DOWN - SH * a, j = phase % SW + RIGHT - SW * b;
    const bool real = SH * SW == 1 || (inside<KH>(i) && inside<KW>(j));
    const T value = T(w(real ? uint32(((i * KW + j) * F + f - phase * F) * (C * GROUPS) + group * C + c) : 0u));
    return real ? value : T(0);
  }
  template <bool aligned> DEVICE void four(int a, int b, int c, int f, T (&v)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = (*this)(a, b, c, f + k);
  }
};
