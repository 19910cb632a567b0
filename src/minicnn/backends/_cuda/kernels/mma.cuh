// Products of small matrices by the 32 threads of a warp together, on tensor cores (sm_80 and later).
//
// Operands are 16-bit floating-point numbers, two in a register, sums are float32. A float32 operand becomes a sum of three
// bfloat16 numbers, which hold its 24 bits: six products of these parts give the product to float32's accuracy (the other
// three are below its last bit). See Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype
// For Higher-Precision Computations", 2019.
//
// Fragments, as the PTX manual numbers them, of lane = 4 * g + t: an operand A (16 x 16) has at register r the elements
// (g + 8 * (r % 2), 2 * t + 8 * (r / 2)) and the one right of it; B (16 x 8) those of rows 2 * t + 8 * r and the one below in column g;
// sums C (16 x 8) the elements (g + 8 * (r / 2), 2 * t + r % 2).
#pragma once
#include "core.cuh"

#ifndef MINICNN_EMULATED

DEVICE uint32 shared_address(const void* p) { return uint32(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 * i + j gives the address of row j of matrix i (16 bytes).
DEVICE void load_matrices(uint32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrices(uint32 (&r)[2], const void* row) {  // two, by the addresses of lanes 0 to 15
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
// The same, each matrix transposed.
DEVICE void load_transposed(uint32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_transposed(uint32 (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// Two numbers as bfloat16 or float16 in one register, the first in its lower half; to nearest.
DEVICE uint32 pack_bfloat16(float low, float high) {
  uint32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE uint32 pack_float16(float low, float high) {
  uint32 r;
#if __CUDA_ARCH__ < 800
  asm("{ .reg .f16 x, y; cvt.rn.f16.f32 x, %1; cvt.rn.f16.f32 y, %2; mov.b32 %0, {x, y}; }" : "=r"(r) : "f"(low), "f"(high));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
  return r;
}

DEVICE void mma_bfloat16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_float16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
#if __CUDA_ARCH__ < 800  // Turing takes eight columns of A at a time
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The numbers that two float16 in a register stand for.
DEVICE float low_float16(uint32 r) {
  float x;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(r));
  return x;
}
DEVICE float high_float16(uint32 r) {
  float x;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(r));
  return x;
}

#endif

// The numbers that two bfloat16 in a register stand for.
DEVICE float low_bfloat16(uint32 r) { return __int_as_float(int(r << 16)); }
DEVICE float high_bfloat16(uint32 r) { return __int_as_float(int(r & 0xffff0000u)); }

// How float32 operands are written for tensor cores: in PARTS registers for two numbers, the largest part first.
struct Float32 {  // as three bfloat16, which is exact for normal numbers
  static constexpr int PARTS = 3;
  static DEVICE void split(uint32 (&r)[3], float low, float high) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
      r[k] = pack_bfloat16(low, high);
      low -= low_bfloat16(r[k]), high -= high_bfloat16(r[k]);
    }
  }
  static DEVICE void multiply(float (&c)[4], const uint32 (&a)[3][4], const uint32 (&b)[3][2]) {
    mma_bfloat16(c, a[1], b[1]), mma_bfloat16(c, a[2], b[0]), mma_bfloat16(c, a[0], b[2]);
    mma_bfloat16(c, a[1], b[0]), mma_bfloat16(c, a[0], b[1]), mma_bfloat16(c, a[0], b[0]);
  }
};
struct Bfloat16 {
  static constexpr int PARTS = 1;
  static DEVICE void split(uint32 (&r)[1], float low, float high) { r[0] = pack_bfloat16(low, high); }
  static DEVICE void multiply(float (&c)[4], const uint32 (&a)[1][4], const uint32 (&b)[1][2]) { mma_bfloat16(c, a[0], b[0]); }
};
struct Float16 {
  static constexpr int PARTS = 1;
  static DEVICE void split(uint32 (&r)[1], float low, float high) { r[0] = pack_float16(low, high); }
  static DEVICE void multiply(float (&c)[4], const uint32 (&a)[1][4], const uint32 (&b)[1][2]) { mma_float16(c, a[0], b[0]); }
};
