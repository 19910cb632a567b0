// Scalar semantics of the primitives: what one element of a result is, given functions of the inputs' elements.
//
// Every function takes inputs as function objects `x(i)`, which give element i of an array in row-major order;
// an object may read memory or compute the element from others, so regions of operations need no memory between.
#pragma once

typedef unsigned char uint8;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef long long int64;
typedef signed char int8;
typedef short int16;
typedef unsigned short uint16;

#define DEVICE __device__ __forceinline__

#ifndef MINICNN_EMULATED
// Shared memory of a size that the launch states (Tile.shared), which may exceed the 48 KB that a text can declare.
DEVICE unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// A kernel may be in place before the one ahead of it has ended: this waits until all that one wrote is there. Every block does,
// before it looks at what that one writes and before it writes; so all is there that was written before the one ahead. What that one
// writes has no __restrict__: the assembler moves loads through the read-only cache ahead of this.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be put in place once all blocks have said so, or have ended. It follows wait_for_previous.
DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether a thread has nothing to do, because the units beside its own have larger blocks. It returns; barriers do not wait for it.
DEVICE bool spare(int threads) { return threadIdx.x >= threads; }
#endif

// Numbers of 16 bits: arrays have them, but nothing is computed in them. Made of float32, to nearest: two at a time, of which one is
// not needed, as the instruction that makes one alone takes four times as long.
struct bfloat16 {
  uint16 bits;
  bfloat16() = default;
  explicit DEVICE bfloat16(float x) {
#ifdef MINICNN_EMULATED
    bits = to_bfloat16(x);
#elif __CUDA_ARCH__ >= 800
    uint32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    bits = uint16(both);
#else
    const uint32 u = uint32(__float_as_int(x));
    bits = uint16(x == x ? (u + 0x7fffu + (u >> 16 & 1u)) >> 16 : 0x7fffu);
#endif
  }
  DEVICE operator float() const { return __int_as_float(int(uint32(bits) << 16)); }
};
struct float16 {
  uint16 bits;
  float16() = default;
#ifdef MINICNN_EMULATED
  explicit float16(float x) : bits(to_float16(x)) {}
  operator float() const { return from_float16(bits); }
#else
  explicit DEVICE float16(float x) {
#if __CUDA_ARCH__ >= 800
    uint32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    bits = uint16(both);
#else
    asm("{.reg .f16 h; cvt.rn.f16.f32 h, %1; mov.b16 %0, h;}" : "=h"(bits) : "f"(x));
#endif
  }
  DEVICE operator float() const {
    float x;
    asm("{.reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "h"(bits));
    return x;
  }
#endif
};

template <class T> struct Limits;
template <> struct Limits<float> {
  static DEVICE float infinity() { return __int_as_float(0x7f800000); }
};
template <> struct Limits<double> {
  static DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
};

// Arrays in memory -------------------------------------------------------------------------------------------

template <class T, int n> struct alignas(sizeof(T) * n > 16 ? 16 : sizeof(T) * n) Pack { T v[n]; };

// N neighbours in memory, of which the first is at a multiple of N elements, and arrays begin at multiples of 16 bytes.
template <int N, class T> DEVICE Pack<T, N> load_run(const T* place) { return *reinterpret_cast<const Pack<T, N>*>(place); }
template <int N, class T> DEVICE void store_run(T* place, const Pack<T, N>& run) { *reinterpret_cast<Pack<T, N>*>(place) = run; }
// N neighbours copied to or from a thread's own array, by loads or stores of up to 16 bytes.
template <int N, class T> DEVICE void copy_in(T* to, const T* from) {
  const Pack<T, N> run = load_run<N>(from);
#pragma unroll
  for (int e = 0; e < N; e++) to[e] = run.v[e];
}
template <int N, class T> DEVICE void copy_out(T* to, const T* from) {
  Pack<T, N> run;
#pragma unroll
  for (int e = 0; e < N; e++) run.v[e] = from[e];
  store_run(to, run);
}
// N neighbours as one number: what computes one element of an image computes those of N channels.
template <class T, int N> struct Lanes : Pack<T, N> {
  using Pack<T, N>::v;
  DEVICE Lanes(T x) {
#pragma unroll
    for (int e = 0; e < N; e++) v[e] = x;
  }
  template <class U> DEVICE explicit Lanes(const Pack<U, N>& x) {
#pragma unroll
    for (int e = 0; e < N; e++) v[e] = T(x.v[e]);
  }
  template <class F> static DEVICE Lanes of(F f) {
    Lanes made(T(0));
#pragma unroll
    for (int e = 0; e < N; e++) made.v[e] = f(e);
    return made;
  }
  DEVICE Lanes operator-() const {
    return of([&](int e) { return -v[e]; });
  }
  DEVICE Lanes operator+(const Lanes& x) const {
    return of([&](int e) { return v[e] + x.v[e]; });
  }
  DEVICE Lanes operator*(const Lanes& x) const {
    return of([&](int e) { return v[e] * x.v[e]; });
  }
  DEVICE Lanes operator/(const Lanes& x) const {
    return of([&](int e) { return v[e] / x.v[e]; });
  }
  DEVICE Lanes<bool, N> operator<=(const Lanes& x) const {
    return Lanes<bool, N>::of([&](int e) { return v[e] <= x.v[e]; });
  }
  DEVICE Lanes<bool, N> operator==(const Lanes& x) const {
    return Lanes<bool, N>::of([&](int e) { return v[e] == x.v[e]; });
  }
  DEVICE void operator+=(const Lanes& x) {
#pragma unroll
    for (int e = 0; e < N; e++) v[e] += x.v[e];
  }
};
// One of two numbers that both exist.
template <class T> DEVICE T choose(bool condition, T yes, T no) { return condition ? yes : no; }
template <class T, int N> DEVICE Lanes<T, N> choose(const Lanes<bool, N>& condition, const Lanes<T, N>& yes, const Lanes<T, N>& no) {
  return Lanes<T, N>::of([&](int e) { return condition.v[e] ? yes.v[e] : no.v[e]; });
}
template <class T, int N> struct Limits<Lanes<T, N>> {
  static DEVICE Lanes<T, N> infinity() { return Limits<T>::infinity(); }
};
// Sums of n such runs, `step` elements apart.
template <uint32 n, int N, class T> DEVICE Pack<T, N> sum_of_runs(const T* place, uint32 step) {
  Pack<T, N> total = {};
#pragma unroll 8
  for (uint32 r = 0; r < n; r++) {
    const Pack<T, N> run = load_run<N>(place + r * step);
#pragma unroll
    for (int e = 0; e < N; e++) total.v[e] += run.v[e];
  }
  return total;
}

// Elements of an array whose first is at a multiple of 16 bytes.
template <class T> struct Plain {
  const T* p;
  DEVICE T operator()(uint32 i) const { return p[i]; }
};
// The same of numbers of 16 bits, as float32.
template <class T> struct Widened {
  const T* p;
  DEVICE float operator()(uint32 i) const { return p[i]; }
};

// Elements i .. i + 3 of x; by one load, if i is a multiple of 4 and they lie in memory.
template <bool aligned, class T, class F> DEVICE void load_four(const F& x, uint32 i, T (&v)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = T(x(i + k));
}
template <bool aligned, class T, class U> DEVICE void load_four(const Plain<U>& x, uint32 i, T (&v)[4]) {
  if (aligned) {
    const Pack<U, 4> four = *reinterpret_cast<const Pack<U, 4>*>(x.p + i);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = T(four.v[k]);
  } else {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = T(x.p[i + k]);
  }
}

template <bool aligned, class T, class U> DEVICE void load_four(const Widened<U>& x, uint32 i, T (&v)[4]) {
  load_four<aligned>(Plain<U>{x.p}, i, v);
}

// Elements of an array by a function of one place, and by a function that gives four from a multiple of 4 on.
template <class T, class F, class G> struct Fours {
  F one;
  G four;
  DEVICE T operator()(uint32 i) const { return one(i); }
};
template <bool aligned, class T, class U, class F, class G> DEVICE void load_four(const Fours<U, F, G>& x, uint32 i, T (&v)[4]) {
  if (aligned) {
    const Lanes<U, 4> four = x.four(i);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = T(four.v[k]);
  } else {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = T(x.one(i + k));
  }
}
template <class T, class F> DEVICE Lanes<T, 4> load_lanes(const F& x, uint32 i) {
  Lanes<T, 4> four(T(0));
  load_four<true>(x, i, four.v);
  return four;
}

// Whether elements of an array lie in memory as numbers of type U, and where element i does.
template <class U, class F> struct InMemory { static constexpr bool value = false; };
template <class U> struct InMemory<U, const Widened<U>> {
  static constexpr bool value = true;
  static DEVICE const U* at(const Widened<U>& x, uint32 i) { return x.p + i; }
};

// An array as rows of COLUMNS elements.
template <int COLUMNS, class F> struct Matrix {
  // Whether eight neighbours, from a multiple of 8 on, are in memory as numbers of type U.
  template <class U> static constexpr bool eights() { return COLUMNS % 8 == 0 && InMemory<U, F>::value; }
  template <class U> DEVICE const U* at(uint32 r, uint32 c) const { return InMemory<U, F>::at(x, r * COLUMNS + c); }
  F x;
  DEVICE auto operator()(uint32 r, uint32 c) const { return x(r * COLUMNS + c); }
};

template <class U, class M> struct MatrixEights { static constexpr bool value = false; };
template <class U, int COLUMNS, class F> struct MatrixEights<U, Matrix<COLUMNS, F>> {
  static constexpr bool value = Matrix<COLUMNS, F>::template eights<U>();
};

// Columns c .. c + 3 of row r; by one load, if c and the number of columns are multiples of 4 and they lie in memory.
template <bool aligned, class T, class F> DEVICE void load_four_columns(const F& matrix, uint32 r, uint32 c, T (&v)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = T(matrix(r, c + k));
}
template <bool aligned, class T, int COLUMNS, class F>
DEVICE void load_four_columns(const Matrix<COLUMNS, F>& matrix, uint32 r, uint32 c, T (&v)[4]) {
  load_four<aligned>(matrix.x, r * COLUMNS + c, v);
}

// Elementwise ------------------------------------------------------------------------------------------------

// NaN wins, as in the Array API.
template <class T> DEVICE T maximum(T a, T b) { return (a > b || a != a) ? a : b; }
#if !defined(MINICNN_EMULATED) && __CUDA_ARCH__ >= 800
DEVICE float maximum(float a, float b) {
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
#endif
template <class T, int N> DEVICE Lanes<T, N> maximum(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return Lanes<T, N>::of([&](int e) { return maximum(a.v[e], b.v[e]); });
}
template <class T> DEVICE T minimum(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> DEVICE T sign(T x) { return x != x ? x : T(x > T(0)) - T(x < T(0)); }

#include "scalars.cuh"
#ifndef MINICNN_EMULATED
template <> DEVICE float rounded_product<float>(float x, float y) { return __fmul_rn(x, y); }
template <> DEVICE double rounded_product<double>(double x, double y) { return __dmul_rn(x, y); }
#endif

// Sum of f(0) .. f(n - 1), in that order.
template <class T, uint32 n, class F> DEVICE T sum_of(F f) {
  T total = T(0);
#pragma unroll 4
  for (uint32 r = 0; r < n; r++) total += f(r);
  return total;
}

// Random numbers ---------------------------------------------------------------------------------------------

// Element i of Philox4x32-10 with the counter (i / 4, 0, step, stream), as a multiple of 2^-24 from 0 to 1.
template <class T> DEVICE T random_uniform(uint32 i, uint32 step, uint32 stream, uint32 key0, uint32 key1) {
  uint32 c0 = i / 4, c1 = 0, c2 = step, c3 = stream;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32 h0 = __umulhi(c0, 0xD2511F53u), l0 = c0 * 0xD2511F53u;
    const uint32 h1 = __umulhi(c2, 0xCD9E8D57u), l1 = c2 * 0xCD9E8D57u;
    c0 = h1 ^ c1 ^ key0, c1 = l1, c2 = h0 ^ c3 ^ key1, c3 = l0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  const uint32 word = i % 4 == 0 ? c0 : i % 4 == 1 ? c1 : i % 4 == 2 ? c2 : c3;
  return T(word >> 8) * T(0x1p-24);
}
