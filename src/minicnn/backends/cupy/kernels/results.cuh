// The results of a thread's tile on their way out: what follows is computed for some of them together, and neighbours in memory are
// stored at once.
#pragma once
#include "windows.cuh"

template <int n> struct Width {
  static constexpr int N = n;
};

// N neighbours in memory, by one store of up to 16 bytes if they are 2, 4 or 8: the first is at a multiple of N elements.
template <int N, class T, class Value> DEVICE void store_neighbours(T* place, Value value) {
  if constexpr (N == 2 || N == 4 || N == 8) {
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; e++) pack.v[e] = value(e);
    *reinterpret_cast<Pack<T, N>*>(place) = pack;
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) place[e] = value(e);
  }
}

// Calls finish(k, fetch(k)) for k < N once all of them are fetched: answers of memory are waited for together.
template <int K, int N, class Fetch, class Finish> DEVICE void fetched(Fetch fetch, Finish finish) {
  const auto one = fetch(K);
  if constexpr (K + 1 < N) fetched<K + 1, N>(fetch, finish);
  finish(K, one);
}

// COUNT runs of neighbours, STEP elements apart, of arrays of SIZE: load(i) fetches one, and what that returns makes and stores it.
template <int COUNT, uint32 STEP, uint32 SIZE, class Load> DEVICE void make_runs(uint32 first, Load load) {
  fetched<0, COUNT>([&](int k) { return load(first + k * STEP < SIZE ? first + k * STEP : 0u); },
                    [&](int k, const auto& one) {
                      if (first + k * STEP < SIZE) one();
                    });
}

// A thread's COUNT results on their way out: place(k, i) says whether there is a result k, and which element i it is; value(k) is its
// sum; finish(i, sum) makes what store(i, made, Width<N>) stores: N results that are neighbours in memory, as those from any multiple
// of N on are. Some are finished before any of them is stored, so that all answers of memory are waited for together. The compiler
// would let each store follow its load; so what is read has no __restrict__.
template <int COUNT, int N, class Sum, class Place, class Value, class Finish, class Store>
DEVICE void finish_and_store(Place place, Value value, Finish finish, Store store) {
  using Made = decltype(finish(0u, Sum()));
  constexpr int MOST = sizeof(Made) * N > 64 ? N : 64 / sizeof(Made) / N * N, GROUP = COUNT < MOST ? COUNT : MOST;
  static_assert(COUNT % N == 0, "results come in neighbours");
#pragma unroll
  for (int first = 0; first < COUNT; first += GROUP) {
    Made made[GROUP];
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
      if (first + k >= COUNT) continue;
      uint32 i = 0;
      const bool real = place(first + k, i);
      made[k] = finish(real ? i : 0u, value(first + k));
    }
#pragma unroll
    for (int k = 0; k < GROUP; k += N) {
      uint32 i = 0;
      if (first + k < COUNT && place(first + k, i)) store(i, &made[k], Width<N>());
    }
  }
}

// How many filters of a thread, of F in a group, are neighbours in an image.
template <class A, class Image, int F> constexpr int neighbours() {
  return Image::FORMAT == NHWC && F % A::SIDE == 0 && Image::C % A::SIDE == 0 ? A::SIDE : 1;
}

// Where result k of a tile of a convolution is: neighbours come first, then the PATCH positions of a filter.
template <int N, int PATCH, int COLUMNS> struct Result {
  int filter, y, x;
  DEVICE explicit Result(int k)
      : filter(k / N / PATCH * N + k % N), y(k / N % PATCH / COLUMNS), x(k / N % PATCH % COLUMNS) {}
};

// The results of a convolution's tile, which lie in the image A::Y, whose group begins at channel `first`.
template <class T, class A, class Filter, class Sum, class Finish, class Store>
DEVICE void each(int n, int h, int w, int first, Filter filter, Sum sum, Finish finish, Store store) {
  using Y = typename A::Y;
  constexpr int PATCH = A::PY * A::PX, N = neighbours<A, Y, A::F>();
  using At = Result<N, PATCH, A::PX>;
  finish_and_store<A::FX * PATCH, N, T>(
    [=](int k, uint32& i) {
      const At at(k);
      const int f = filter(at.filter), row = h + at.y, column = w + at.x;
      i = Y::at(n, row, column, first + f);
      return (A::F % A::FB == 0 || f < A::F) && (Y::H % A::TH == 0 || row < Y::H) && (Y::W % A::TW == 0 || column < Y::W);
    },
    [&](int k) { return sum(At(k).filter, At(k).y, At(k).x); }, finish, store);
}

// The same for SH * SW phases of F filters each (FlippedFilters), which lie in the image X.
template <class T, class A, class X, int F, int SH, int SW, class Filter, class Sum, class Finish, class Store>
DEVICE void each_of_phases(int n, int h, int w, int first, Filter filter, Sum sum, Finish finish, Store store) {
  constexpr int PATCH = A::PY * A::PX, N = neighbours<A, X, F>();
  using At = Result<N, PATCH, A::PX>;
  finish_and_store<A::FX * PATCH, N, T>(
    [=](int k, uint32& i) {
      const At at(k);
      const int f = filter(at.filter), phase = f / F, row = (h + at.y) * SH + phase / SW, column = (w + at.x) * SW + phase % SW;
      i = X::at(n, row, column, first + f - phase * F);
      return (A::F % A::FB == 0 || f < A::F) && row < X::H && column < X::W;
    },
    [&](int k) { return sum(At(k).filter, At(k).y, At(k).x); }, finish, store);
}

// The maximum of a window of max-pooling, and the first tap that has it.
template <class T> struct Pooled {
  T top;
  int tap;
};

// Max-pooling of before(i, sum) over windows KH x KW that do not overlap; finish gets `Pooled`. P: pooled image.
template <class T, class A, class P, int KH, int KW, class Filter, class Sum, class Before, class Finish, class Store>
DEVICE void each_pooled(int n, int h, int w, int first, Filter filter, Sum sum, Before before, Finish finish, Store store) {
  using Y = typename A::Y;
  constexpr int COLUMNS = A::PX / KW, PATCH = A::PY / KH * COLUMNS, N = neighbours<A, P, A::F>();
  using At = Result<N, PATCH, COLUMNS>;
  finish_and_store<A::FX * PATCH, N, Pooled<T>>(
    [=](int k, uint32& i) {
      const At at(k);
      const int f = filter(at.filter), p = h / KH + at.y, q = w / KW + at.x;
      i = P::at(n, p, q, first + f);
      return (A::F % A::FB == 0 || f < A::F) && p < P::H && q < P::W;
    },
    [&](int k) {
      const At at(k);
      const int f = filter(at.filter), y = at.y * KH, x = at.x * KW;
      const bool real = (A::F % A::FB == 0 || f < A::F) && h / KH + at.y < P::H && w / KW + at.x < P::W;
      T values[KH * KW];
      Pooled<T> result = {-Limits<T>::infinity(), KH * KW - 1};
#pragma unroll
      for (int t = 0; t < KH * KW; t++) {
        const uint32 i = real ? Y::at(n, h + y + t / KW, w + x + t % KW, first + f) : 0u;
        values[t] = before(i, sum(at.filter, y + t / KW, x + t % KW));
        result.top = maximum(result.top, values[t]);
      }
#pragma unroll
      for (int t = KH * KW - 2; t >= 0; t--)
        if (values[t] == result.top) result.tap = t;
      return result;
    },
    finish, store);
}
