// Convolution and pooling, one element of the result at a time: the plainest kernels, and the semantics of the others.
#pragma once
#include "core.cuh"

enum Format { NHWC, NCHW, HWCN };

// An image of shape (N, H, W, C) whose elements are stored in the order of the format.
template <Format format, int N_, int H_, int W_, int C_> struct Image {
  static constexpr int N = N_, H = H_, W = W_, C = C_;
  static constexpr Format FORMAT = format;
  static DEVICE uint32 at(int n, int h, int w, int c) {
    if (format == NHWC) return ((uint32(n) * H + h) * W + w) * C + c;
    if (format == NCHW) return ((uint32(n) * C + c) * H + h) * W + w;
    return ((uint32(h) * W + w) * C + c) * N + n;
  }
  int n, h, w, c;
  DEVICE explicit Image(uint32 i) {
    if (format == NHWC) c = i % C, i /= C, w = i % W, i /= W, h = i % H, n = i / H;
    else if (format == NCHW) w = i % W, i /= W, h = i % H, i /= H, c = i % C, n = i / C;
    else n = i % N, i /= N, c = i % C, i /= C, w = i % W, h = i / W;
  }
};

// Channels c .. c + 3 of an image; `aligned`: c is a multiple of 4, and so is the number of channels.
template <bool aligned, class X, class T, class F> DEVICE void load_four_channels(const F& x, int n, int h, int w, int c, T (&v)[4]) {
  if (X::FORMAT == NHWC) {
    load_four<aligned>(x, X::at(n, h, w, c), v);
  } else {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = T(x(X::at(n, h, w, c + k)));
  }
}

// How a window slides: taps KH x KW, strides, zeros before the image, distance between taps.
template <int KH_, int KW_, int SH_, int SW_, int PT_, int PL_, int DH_ = 1, int DW_ = 1> struct Window {
  static constexpr int KH = KH_, KW = KW_, SH = SH_, SW = SW_, PT = PT_, PL = PL_, DH = DH_, DW = DW_;
};

template <int n> DEVICE bool inside(int i) { return uint32(i) < uint32(n); }

template <class T, class X, class Y, class S, int groups, class FX, class FW>
DEVICE T conv2d(FX x, FW w, uint32 i) {
  constexpr int C = X::C / groups, F = Y::C / groups;
  const Y y(i);
  const int first = y.c / F * C;
  T total = T(0);
  for (int a = 0; a < S::KH; a++) {
    const int h = y.h * S::SH + a * S::DH - S::PT;
    if (!inside<X::H>(h)) continue;
    for (int b = 0; b < S::KW; b++) {
      const int q = y.w * S::SW + b * S::DW - S::PL;
      if (!inside<X::W>(q)) continue;
      for (int c = 0; c < C; c++) total += T(x(X::at(y.n, h, q, first + c))) * T(w(((a * S::KW + b) * C + c) * Y::C + y.c));
    }
  }
  return total;
}

template <class T, class X, class Y, class S, int groups, class FDY, class FW>
DEVICE T conv2d_input_gradient(FDY dy, FW w, uint32 i) {
  constexpr int C = X::C / groups, F = Y::C / groups;
  const X x(i);
  const int first = x.c / C * F;
  T total = T(0);
  for (int a = 0; a < S::KH; a++) {
    const int h = x.h + S::PT - a * S::DH;
    if (h < 0 || h % S::SH || h / S::SH >= Y::H) continue;
    for (int b = 0; b < S::KW; b++) {
      const int q = x.w + S::PL - b * S::DW;
      if (q < 0 || q % S::SW || q / S::SW >= Y::W) continue;
      for (int f = 0; f < F; f++)
        total += T(dy(Y::at(x.n, h / S::SH, q / S::SW, first + f))) * T(w(((a * S::KW + b) * C + x.c % C) * Y::C + first + f));
    }
  }
  return total;
}

template <class T, class X, class Y, class S, int groups, class FDY, class FX>
DEVICE T conv2d_weight_gradient(FDY dy, FX x, uint32 i) {
  constexpr int C = X::C / groups, F = Y::C / groups;
  const int f = i % Y::C, c = i / Y::C % C, b = i / Y::C / C % S::KW, a = i / Y::C / C / S::KW;
  T total = T(0);
  for (int n = 0; n < X::N; n++)
    for (int p = 0; p < Y::H; p++) {
      const int h = p * S::SH + a * S::DH - S::PT;
      if (!inside<X::H>(h)) continue;
      for (int q = 0; q < Y::W; q++) {
        const int v = q * S::SW + b * S::DW - S::PL;
        if (inside<X::W>(v)) total += T(x(X::at(n, h, v, f / F * C + c))) * T(dy(Y::at(n, p, q, f)));
      }
    }
  return total;
}

// Depthwise, with a kernel (KH, KW, C, M) and result channels c * M + m, which has as many groups as channels: what position r of dy adds
// to element i of the weights' gradient; positions are in the order in which they lie in memory.
template <class T, class X, class Y, class S, class FDY, class FX>
DEVICE T depthwise_conv2d_weight_term(FDY dy, FX x, uint32 i, uint32 r) {
  constexpr int M = Y::C / X::C;
  constexpr bool images_last = Y::FORMAT == HWCN;
  const int f = i % Y::C, b = i / Y::C % S::KW, a = i / Y::C / S::KW;
  const int n = images_last ? r % Y::N : r / (Y::H * Y::W), at = images_last ? r / Y::N : r % (Y::H * Y::W);
  const int p = at / Y::W, q = at % Y::W;
  const int h = p * S::SH + a * S::DH - S::PT, v = q * S::SW + b * S::DW - S::PL;
  const bool real = inside<X::H>(h) && inside<X::W>(v);
  const T value = T(x(real ? X::at(n, h, v, f / M) : 0u)) * T(dy(Y::at(n, p, q, f)));
  return real ? value : T(0);
}

template <class T, class X, class Y, class S, class FDY, class FX>
DEVICE T depthwise_conv2d_weight_gradient(FDY dy, FX x, uint32 i) {
  return sum_of<T, Y::N * Y::H * Y::W>([&](uint32 r) { return depthwise_conv2d_weight_term<T, X, Y, S>(dy, x, i, r); });
}

// Pooling ----------------------------------------------------------------------------------------------------

// Element of the window of output position (p, q) under tap (a, b); minus infinity in the padding.
template <class T, class X, class S, class FX> DEVICE T tap(FX x, int n, int p, int q, int c, int a, int b) {
  const int h = p * S::SH + a - S::PT, w = q * S::SW + b - S::PL;
  return inside<X::H>(h) && inside<X::W>(w) ? T(x(X::at(n, h, w, c))) : -Limits<T>::infinity();
}

template <class T, class X, class Y, class S, class FX> DEVICE T max_pool2d(FX x, uint32 i) {
  const Y y(i);
  T best = -Limits<T>::infinity();
#pragma unroll
  for (int a = 0; a < S::KH; a++)
#pragma unroll
    for (int b = 0; b < S::KW; b++) best = maximum(best, tap<T, X, S>(x, y.n, y.h, y.w, y.c, a, b));
  return best;
}

// The largest element so far, and the number of the first tap that holds it.
template <class T> struct Highest {
  T best;
  int found;
  DEVICE void meet(T value, int t) {
    if (!(value <= best)) best = value, found = t;
  }
};
template <class T, int N> struct Highest<Lanes<T, N>> {
  Lanes<T, N> best;
  Lanes<uint8, N> found;
  DEVICE void meet(const Lanes<T, N>& value, int t) {
#pragma unroll
    for (int e = 0; e < N; e++)
      if (!(value.v[e] <= best.v[e])) best.v[e] = value.v[e], found.v[e] = uint8(t);
  }
};

// Number of the tap that holds the maximum: the first in row-major order; beside a NaN the last tap. Elements are compared with each
// other, never with a maximum that was computed elsewhere: x may be computed anew wherever it is read, with other roundings.
template <class T, class X, class S, class FX> DEVICE auto hit(FX x, int n, int p, int q, int c) {
  Highest<T> highest = {tap<T, X, S>(x, n, p, q, c, 0, 0), 0};
#pragma unroll
  for (int t = 1; t < S::KH * S::KW; t++) highest.meet(tap<T, X, S>(x, n, p, q, c, t / S::KW, t % S::KW), t);
  return highest.found;
}

// Calls f(p, q, tap) for each window (p, q) that covers position (h, w), in row-major order of the taps.
template <class Y, class S, class F> DEVICE void covering(int h, int w, F f) {
#pragma unroll
  for (int a = 0; a < S::KH; a++) {
    const int u = h + S::PT - a;
    if (u < 0 || u % S::SH || u / S::SH >= Y::H) continue;
#pragma unroll
    for (int b = 0; b < S::KW; b++) {
      const int v = w + S::PL - b;
      if (v < 0 || v % S::SW || v / S::SW >= Y::W) continue;
      f(u / S::SH, v / S::SW, a * S::KW + b);
    }
  }
}

template <class T, class X, class Y, class S, class FDY, class FX> DEVICE T max_pool2d_gradient(FDY dy, FX x, uint32 i) {
  const X at(i);
  T total = T(0);
  covering<Y, S>(at.h, at.w, [&](int p, int q, int t) {
    const uint32 j = Y::at(at.n, p, q, at.c);
    if (hit<T, X, S>(x, at.n, p, q, at.c) == t) total += T(dy(j));
  });
  return total;
}

// Number of the tap that holds the maximum of window i.
template <class T, class X, class Y, class S, class FX> DEVICE auto max_pool2d_index(FX x, uint32 i) {
  const Y at(i);
  if constexpr (AreLanes<T>::YES) return hit<T, X, S>(x, at.n, at.h, at.w, at.c);
  else return uint8(hit<T, X, S>(x, at.n, at.h, at.w, at.c));
}

// Adds what comes from the tap that holds a window's maximum.
template <class T> DEVICE void add_from(T& total, int index, int t, T value) {
  if (index == t) total += value;
}
template <class T, int N> DEVICE void add_from(Lanes<T, N>& total, const Lanes<uint8, N>& index, int t, const Lanes<T, N>& value) {
#pragma unroll
  for (int e = 0; e < N; e++) total.v[e] += index.v[e] == t ? value.v[e] : T(0);
}

// The same from the number of the tap that holds the maximum of each window.
template <class T, class X, class Y, class S, class FDY, class FI>
DEVICE T max_pool2d_scatter(FDY dy, FI index, uint32 i) {
  const X at(i);
  if constexpr (!AreLanes<T>::YES && S::KH == S::SH && S::KW == S::SW && S::PT == 0 && S::PL == 0) {  // no overlap: one window, and no branches
    const int p = at.h / S::KH, q = at.w / S::KW, t = at.h % S::KH * S::KW + at.w % S::KW;
    const bool real = (X::H / S::KH * S::KH == X::H || p < Y::H) && (X::W / S::KW * S::KW == X::W || q < Y::W);
    const uint32 j = real ? Y::at(at.n, p, q, at.c) : 0u;
    const T value = dy(j);
    return real && int(index(j)) == t ? value : T(0);
  } else {
    T total = T(0);
    covering<Y, S>(at.h, at.w, [&](int p, int q, int t) {
      const uint32 j = Y::at(at.n, p, q, at.c);
      add_from(total, index(j), t, T(dy(j)));
    });
    return total;
  }
}

// The scattered gradient as an array.
template <class T, class X, class Y, class S, class FDY, class FI> struct Scattered {
  FDY dy;
  FI index;
  DEVICE T operator()(uint32 i) const { return max_pool2d_scatter<T, X, Y, S>(dy, index, i); }
};
template <bool aligned, class T, class X, class Y, class S, class FDY, class FI>
DEVICE void load_four(const Scattered<T, X, Y, S, FDY, FI>& x, uint32 i, T (&v)[4]) {
  if (!aligned || X::FORMAT != NHWC || S::KH != S::SH || S::KW != S::SW || S::PT || S::PL) {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = x(i + k);
    return;
  }
  const X at(i);
  const int p = at.h / S::KH, q = at.w / S::KW, t = at.h % S::KH * S::KW + at.w % S::KW;
  const bool real = (X::H / S::KH * S::KH == X::H || p < Y::H) && (X::W / S::KW * S::KW == X::W || q < Y::W);
  const uint32 j = real ? Y::at(at.n, p, q, at.c) : 0u;
  int taps[4];
  load_four<aligned>(x.dy, j, v);
  load_four<aligned>(x.index, j, taps);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = real && taps[k] == t ? v[k] : T(0);
}

// Elements that the window of output position (p, q) averages.
template <class T, class X, class S, bool count_padding> DEVICE T elements(int p, int q) {
  if (count_padding) return T(S::KH * S::KW);
  const int h = p * S::SH - S::PT, w = q * S::SW - S::PL;
  const int rows = min(h + S::KH, X::H) - max(h, 0), columns = min(w + S::KW, X::W) - max(w, 0);
  return T(rows * columns);
}

template <class T, class X, class Y, class S, bool count_padding, class FX> DEVICE T average_pool2d(FX x, uint32 i) {
  const Y y(i);
  T total = T(0);
#pragma unroll
  for (int a = 0; a < S::KH; a++)
#pragma unroll
    for (int b = 0; b < S::KW; b++) {
      const int h = y.h * S::SH + a - S::PT, w = y.w * S::SW + b - S::PL;
      if (inside<X::H>(h) && inside<X::W>(w)) total += T(x(X::at(y.n, h, w, y.c)));
    }
  return total / elements<T, X, S, count_padding>(y.h, y.w);
}

template <class T, class X, class Y, class S, bool count_padding, class FDY>
DEVICE T average_pool2d_gradient(FDY dy, uint32 i) {
  const X at(i);
  T total = T(0);
  covering<Y, S>(at.h, at.w, [&](int p, int q, int) {
    total += T(dy(Y::at(at.n, p, q, at.c))) / elements<T, X, S, count_padding>(p, q);
  });
  return total;
}
