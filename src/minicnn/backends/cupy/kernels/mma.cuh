// Products of small matrices by the 32 threads of a warp together, on tensor cores (sm_80 and later; of bytes sm_75).
//
// Operands are 16-bit floating-point numbers, two in a register, sums are float32. A float32 operand becomes the sum of two
// float16 numbers, of which three products are taken: that of the smaller parts is below 2^-22 of the whole. See Ootomo and
// Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance",
// International Journal of High Performance Computing Applications 36 (4), 2022.
//
// Fragments, as the PTX manual numbers them, of lane = 4 * g + t: an operand A (16 x 16) has at register r the elements
// (g + 8 * (r % 2), 2 * t + 8 * (r / 2)) and the one right of it; B (16 x 8) those of rows 2 * t + 8 * r and the one below in column g;
// sums C (16 x 8) the elements (g + 8 * (r / 2), 2 * t + r % 2).
#pragma once
#include "core.cuh"

#ifndef MINICNN_EMULATED

// A place in shared memory, in bytes.
typedef uint32 SharedAddress;
DEVICE SharedAddress shared_address(const void* p) { return uint32(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 * i + j gives the address of row j of matrix i (16 bytes).
DEVICE void load_matrices(uint32 (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
DEVICE void load_matrices(uint32 (&r)[2], SharedAddress row) {  // two, by the addresses of lanes 0 to 15
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}
// The same, each matrix transposed.
DEVICE void load_transposed(uint32 (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
DEVICE void load_transposed(uint32 (&r)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}

// Two numbers as bfloat16 or float16 in one register, the first in its lower half; to nearest.
DEVICE uint32 pack_bfloat16(float low, float high) {
  uint32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE uint32 pack_float16(float low, float high) {
  uint32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The numbers that two float16 in a register stand for.
DEVICE float low_float16(uint32 r) {
  float x;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(r));
  return x;
}
DEVICE float high_float16(uint32 r) {
  float x;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(r));
  return x;
}

// The largest of the numbers of a warp.
DEVICE uint32 largest_of_warp(uint32 x) {
#if __CUDA_ARCH__ < 800
  for (int m = 16; m > 0; m /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, m));
  return x;
#else
  return __reduce_max_sync(0xffffffffu, x);
#endif
}

DEVICE void mma_bfloat16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_float16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Products of TF32 numbers, K = 8, of which a register holds one: those of A have the elements (g + 8 * (r % 2), t + 4 * (r / 2)), those
// of B rows t + 4 * r of column g.
DEVICE void mma_tf32(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Products of unsigned bytes with signed ones, K = 32: register r of A has the elements (g + 8 * (r % 2), 4 * t + 16 * (r / 2)) and
// three right of it, B those of rows 4 * t + 16 * r and three below in column g.
DEVICE void mma_bytes(int (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
#if __CUDA_ARCH__ < 800  // Turing takes eight rows and sixteen columns of A at a time
#pragma unroll
  for (int r = 0; r < 4; r++)
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[r % 2 * 2]), "+r"(c[r % 2 * 2 + 1]) : "r"(a[r]), "r"(b[r / 2]));
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#endif


// How float32 operands are written for tensor cores: as PARTS numbers, the largest first, two neighbours in a register; and
// which parts are multiplied, the smallest products first. If SCALED, operands are multiplied by a power of two that brings
// the largest of a tile close below 2^15.
// RUN is what a thread keeps of eight elements on their way to shared memory: themselves, or the 16 bytes that are stored there. Of
// the latter, the elements may be NUMBERs in memory, which are stored as they are.
struct alignas(16) Packed {
  uint32 v[4];
};
struct Float32 {  // two float16, which hold 22 of 24 bits, and 2^-39 of the largest at least
  static constexpr int PARTS = 2, PRODUCTS = 3;
  using Run = float[8];
  using Number = void;
  static constexpr bool SCALED = true;
  static constexpr DEVICE int left(int k) { return k == 0; }
  static constexpr DEVICE int right(int k) { return k == 1; }
  static DEVICE void split(uint32 (&r)[2], float low, float high) {
    r[0] = pack_float16(low, high);
    r[1] = pack_float16(low - low_float16(r[0]), high - high_float16(r[0]));
  }
  static DEVICE void mma(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) { mma_float16(c, a, b); }
};
struct OnePart {
  static constexpr int PARTS = 1, PRODUCTS = 1;
  static constexpr bool WARPGROUPS = false;
  static constexpr DEVICE int left(int) { return 0; }
  static constexpr DEVICE int right(int) { return 0; }
};
struct Bfloat16 : OnePart {
  using Run = Packed;
  using Number = bfloat16;
  static constexpr bool SCALED = false;
  static DEVICE void split(uint32 (&r)[1], float low, float high) { r[0] = pack_bfloat16(low, high); }
  static DEVICE void mma(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) { mma_bfloat16(c, a, b); }
};
struct Float16 : OnePart {
  using Run = float[8];
  using Number = void;
  static constexpr bool SCALED = true;
  static DEVICE void split(uint32 (&r)[1], float low, float high) { r[0] = pack_float16(low, high); }
  static DEVICE void mma(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) { mma_float16(c, a, b); }
};

// c[m][n] += sums[m][n] by ordinary additions.
template <int M, int N> DEVICE void add_fragments(float (&c)[M][N][4], const float (&sums)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M * N * 4; i++) (&c[0][0][0])[i] += (&sums[0][0][0])[i];
}

// c[m][n] += a[m] * b[n] for M x N fragments: products that wait for each other are far apart. Tensor cores cut sums off, always towards
// zero, rather than rounding them to nearest, so that the error of many terms would grow with their number. Where operands have several
// parts, to keep float32's accuracy, tensor cores therefore sum these 16 terms alone, from zero.
template <class P, int M, int N>
DEVICE void multiply_fragments(float (&c)[M][N][4], const uint32 (&a)[M][P::PARTS][4], const uint32 (&b)[N][P::PARTS][2]) {
  float alone[M][N][4] = {};
  float (&sums)[M][N][4] = P::PARTS > 1 ? alone : c;
#pragma unroll
  for (int k = 0; k < P::PRODUCTS; k++)
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int n = 0; n < N; n++) P::mma(sums[m][n], a[m][P::left(k)], b[n][P::right(k)]);
  if (P::PARTS > 1) add_fragments(c, alone);
}
