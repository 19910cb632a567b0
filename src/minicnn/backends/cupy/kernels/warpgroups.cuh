// Products of matrices in shared memory by the 128 threads of a warpgroup together: wgmma, which capability 9.0 has and no other
// (sm_90a). A product is started, and its sums are there once it has been waited for; until then, nobody touches its operands.
//
// An operand, of 64 rows or N columns and 16 terms, is described by a number, "Matrix Descriptor Format" in the PTX manual: bits 0 to
// 13 have its address, 16 to 29 its leading and 32 to 45 its stride offset, all in units of 16 bytes, bits 62 and 63 how it is swizzled.
// Bits 49 to 51 are 0, as what is swizzled begins at a multiple of 1,024 bytes. The sums of a warp, of 16 rows, lie as those of mma.cuh.
#pragma once
#include "mma.cuh"

// Operands of the format P, which warpgroups multiply.
template <class P> struct Warpgroups : P {
  static constexpr bool WARPGROUPS = true;
};

// The descriptor of what is so many elements, a multiple of 8, behind: shared memory ends before the address does.
DEVICE uint64 behind(uint64 descriptor, uint32 elements) {
  return (descriptor & 0xffffffff00000000ull) | uint32(uint32(descriptor) + elements / 8);
}

#ifndef MINICNN_EMULATED
// Where something is in shared memory, in bytes.
DEVICE uint32 shared_offset(const void* p) { return shared_address(p); }
// A number that all threads of a warp have: what is computed of it is computed once for all of them, as descriptors have to be.
DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ON_SM90A(...) __VA_ARGS__
#else
#define ON_SM90A(...)
#endif
// What this thread has written to shared memory, copies included, is seen by products behind the next barrier.
DEVICE void show_to_warpgroups() { ON_SM90A(asm volatile("fence.proxy.async.shared::cta;" ::: "memory");) }
// Products that follow see what this thread has done with their sums.
DEVICE void begin_products() { ON_SM90A(asm volatile("wgmma.fence.sync.aligned;" ::: "memory");) }
// The products since the last call form a group.
DEVICE void close_products() { ON_SM90A(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");) }
// Waits until all groups of products but the last N have ended.
template <int N> DEVICE void wait_for_products() { ON_SM90A(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");) }

// Starts c += a * b for 64 rows, N columns and 16 terms. TA, TB: whether neighbours in memory are rows of A, columns of B, not terms.
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128 REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS_16(n) SUMS_4(n), SUMS_4(n + 1), SUMS_4(n + 2), SUMS_4(n + 3)
#define SUMS_32(n) SUMS_16(n), SUMS_16(n + 4)
#define SUMS_64(n) SUMS_32(n), SUMS_32(n + 8)
#define SUMS_128(n) SUMS_64(n), SUMS_64(n + 16)
#define WARPGROUP_PRODUCT(P, TYPE, N, COUNT, REST) \
  template <bool TA, bool TB> DEVICE void start_product(P, float (&c)[N / 8][4], uint64 a, uint64 b) { \
    ON_SM90A(asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS_##COUNT "}, " REST ";" \
                          : SUMS_##COUNT(0) : "l"(a), "l"(b), "n"(int(TA)), "n"(int(TB)));) \
  }
#define WARPGROUP_PRODUCTS(P, TYPE) \
  WARPGROUP_PRODUCT(P, TYPE, 32, 16, "%16, %17, 1, 1, 1, %18, %19") \
  WARPGROUP_PRODUCT(P, TYPE, 64, 32, "%32, %33, 1, 1, 1, %34, %35") \
  WARPGROUP_PRODUCT(P, TYPE, 128, 64, "%64, %65, 1, 1, 1, %66, %67") \
  WARPGROUP_PRODUCT(P, TYPE, 256, 128, "%128, %129, 1, 1, 1, %130, %131")
WARPGROUP_PRODUCTS(Warpgroups<Bfloat16>, "bf16")
WARPGROUP_PRODUCTS(Warpgroups<Float16>, "f16")

// Keeps the compiler from moving what is done with sums across this.
template <int M, int N> DEVICE void hold(float (&sums)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M * N * 4; i++) asm volatile("" : "+f"((&sums[0][0][0])[i])::"memory");
}
#endif

// ROWS rows of COLUMNS elements in shared memory as warpgroups read them: WIDTH columns after WIDTH columns. Rows of these lie close
// together, and their runs of eight elements are exchanged with each other, so that neighbours below each other are in different
// banks: bits 4 to 6 of an address are combined with bits 7 to 9, or as many of them as a row has runs.
template <int ROWS_, int COLUMNS_, int MOST> struct SwizzledRows {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, WIDTH = COLUMNS < MOST ? COLUMNS : MOST, RUNS = WIDTH / 8;
  static constexpr int SIZE = ROWS * COLUMNS;
  static_assert(COLUMNS % WIDTH == 0 && ROWS % 8 == 0 && (RUNS == 8 || RUNS == 4 || RUNS == 2), "there is such a swizzle");
  // Where a row would be from a column on, if its runs stayed where they are.
  static DEVICE int start(int row, int column) { return column / WIDTH * (ROWS * WIDTH) + row * WIDTH + column % WIDTH; }
  // Where the run of eight from a column on is, in row row + more; `more` is a constant.
  static DEVICE int at(int row, int more, int column) {
    if (more * WIDTH % 512 == 0) return swizzled(start(row, column)) + more * WIDTH;
    return swizzled(start(row + more, column));
  }
  static DEVICE int swizzled(int i) { return i ^ i / 64 % RUNS * 8; }
  // The descriptor of what begins there. `down`: terms of the sums are rows. Where they are columns, no leading offset is looked at.
  static DEVICE uint64 descriptor(const uint16* place, bool down) {
    const uint32 leading = down ? ROWS * WIDTH * 2 : 16, stride = 8 * WIDTH * 2, mode = RUNS == 8 ? 1 : RUNS == 4 ? 2 : 3;
    return uint64(shared_offset(place) >> 4 & 0x3fff) | uint64(leading >> 4) << 16 | uint64(stride >> 4) << 32 | uint64(mode) << 62;
  }
};
