// Geometry of images and of windows that slide over them.
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
