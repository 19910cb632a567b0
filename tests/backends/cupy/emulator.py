"""The generated kernels on the CPU: compiled as C++, the threads of a block taking turns.

Slow, but it checks every kernel, plan and placement of memory on machines without a GPU.

Tensor cores round as NVIDIA's do. Products of 8 terms of 16 bits, or of 4 of TF32, are exact. They and the sum so far
are aligned to the largest exponent among them (that of a product is the sum of its factors' exponents), and each loses
what lies behind 24 bits and one more. What is left is added exactly, and the sum is cut off behind 24 bits. Nothing is
rounded to nearest: each time a sum loses up to a unit in its last place, always towards zero. This is capability 8.x;
9.0 takes twice as many terms at a time and keeps two more bits rather than one, so that it loses less.

See Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330,
2021, and Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv:2512.07004, 2025.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import EACH_STEP
from minicnn.backends.cupy import compiler
from minicnn.backends.cupy.generation import generate
from minicnn.program.graph import Program, Value
from support.plans import MULTIPLY_ADDS, plan_of

Array = np.ndarray[Any, Any]

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ is not installed, with which kernels are compiled for the CPU"
)

HOST = r"""
#include <math.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sched.h>
#include <setjmp.h>
#include <type_traits>
#include <utility>
#include <ucontext.h>
#define UNCHECKED __attribute__((no_sanitize_address))
#define INLINED __attribute__((always_inline))
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define MINICNN_EMULATED
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
struct Place { unsigned x; };
constexpr int STACK = 1 << 16;
static Place threadIdx, blockIdx;
// Threads of a block take turns in one thread of the host, each until it waits for others or ends. A context is set
// when a thread begins; each later turn is a jump, which asks nothing of the host's operating system.
struct Thread {
  ucontext_t state;
  jmp_buf turn;
  bool begun, ended;
};
static Thread threads[1024];
static unsigned thread_count;
alignas(16) static char stacks[1024][STACK];
alignas(128) static unsigned char dynamic_memory[232448];
static jmp_buf outside;
UNCHECKED static void take_turns() {
  Thread& own = threads[threadIdx.x];
  if (_setjmp(own.turn)) return;
  do threadIdx.x = threadIdx.x + 1 == thread_count ? 0 : threadIdx.x + 1;
  while (threads[threadIdx.x].ended && &threads[threadIdx.x] != &own);
  Thread& next = threads[threadIdx.x];
  if (next.ended) _longjmp(outside, 1);
  if (next.begun) _longjmp(next.turn, 1);
  next.begun = true;
  setcontext(&next.state);
}
struct Barrier {
  int here, arrived, round;
  UNCHECKED void wait() {
    const int now = round;
    if (++arrived == here) return pass();
    while (round == now) take_turns();
  }
  UNCHECKED void leave() { if (arrived == --here && here) pass(); }  // others do not wait for threads that have left
  UNCHECKED void pass() { arrived = 0, round++; }
};
struct Warp {
  Barrier all;
  const void* rows[32];
  uint32_t a[32][4], b[32][2];
};
static Barrier everyone;
static Warp warps[32];
// Copies of a thread that nobody has waited for.
struct Copy { void* to; const void* from; bool real; int group; };
struct Copies { Copy waiting[512]; int count, group, shown; };
static Copies copies[1024];
// By which thread 16 bytes were copied last, and how often it had shown its copies to warpgroups before.
struct Landing { unsigned thread; int shown; };
static Landing landings[sizeof(dynamic_memory) / 16];
static void (*called)(void**);
static void** arguments;
static void in_a_thread() {
  called(arguments);
  threads[threadIdx.x].ended = true;
  take_turns();
}
template <class T> T argument(void* a) {
  if constexpr (std::is_pointer_v<T>) return (T)a;
  else return *(T*)a;
}
template <class... A, size_t... k>
__attribute__((no_sanitize_address)) void call(void (*kernel)(A...), void** a, std::index_sequence<k...>) {
  kernel(argument<A>(a[k])...);
}
template <class... A> __attribute__((no_sanitize_address)) void call(void (*kernel)(A...), void** a) {
  call(kernel, a, std::index_sequence_for<A...>());
}
static inline void __syncthreads() { everyone.wait(); }
static inline void warp_barrier() { warps[threadIdx.x / 32].all.wait(); }
// Copies arrive as late as they may; what they overwrite is gone at once.
struct alignas(16) Sixteen { uint32_t v[4]; };
template <bool ONCE> static inline void copy_or_clear(void* to, const void* from, bool real) {
  Copies& own = copies[threadIdx.x];
  *(Sixteen*)to = {~0u, ~0u, ~0u, ~0u};
  own.waiting[own.count++] = {to, from, real, own.group};
}
static inline void fetch(const void* place) { volatile uint8_t first = *(const uint8_t*)place; }  // it must exist
static inline void close_copies() { copies[threadIdx.x].group++; }
template <int N> static inline void wait_for_copies() {
  Copies& own = copies[threadIdx.x];
  int kept = 0;
  for (int k = 0; k < own.count; k++) {
    const Copy c = own.waiting[k];
    if (c.group >= own.group - N) {
      own.waiting[kept++] = c;
      continue;
    }
    *(Sixteen*)c.to = c.real ? *(const Sixteen*)c.from : Sixteen();
    landings[((unsigned char*)c.to - dynamic_memory) / 16] = {threadIdx.x + 1, own.shown};
  }
  own.count = kept;
}
// What the launch ahead has written is not there before all threads of a block have come to wait for it.
struct Late { void* to; const void* from; size_t n; };
static const Late* late;
static int late_count;
static bool has_waited;  // a thread of the block
UNCHECKED static void wait_for_previous() {
  has_waited = true;
  if (late_count) take_turns();
  for (; late_count; late_count--) {
    const Late& each = late[late_count - 1];
    memcpy(each.to, each.from, each.n);
  }
}
static inline void let_next_begin() {}
// Memory that other processes write, too. While nothing has come the threads of the block take turns, so that they
// exchange their words in one round, and then the processor is the others'.
UNCHECKED static void put_word(unsigned long long* place, unsigned long long word) {
  __atomic_store_n(place, word, __ATOMIC_RELAXED);
}
UNCHECKED static unsigned long long look_at_word(const unsigned long long* place) {
  return __atomic_load_n(place, __ATOMIC_RELAXED);
}
UNCHECKED static unsigned look_at_host(const unsigned* place) { return *(volatile const unsigned*)place; }
UNCHECKED static void take_a_breath() {
  if (threadIdx.x == 0) sched_yield();
  take_turns();
}
static inline bool spare(int threads) {
  if (int(threadIdx.x) < threads) return false;
  everyone.leave();
  return true;
}
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
static inline double __longlong_as_double(long long i) { double f; memcpy(&f, &i, 8); return f; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t(a) * b) >> 32; }
static inline unsigned char* dynamic_shared() { return dynamic_memory; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int __float2int_rn(float x) { return x == x ? int(lrintf(x < -2e9f ? -2e9f : x > 2e9f ? 2e9f : x)) : 0; }
static inline void atomicMax(uint32_t* to, uint32_t x) { *to = *to < x ? x : *to; }
"""

# Runs a kernel; returns which rule it broke, if any.
RUN = r"""
static void forget_products(unsigned count);
UNCHECKED static const char* in_blocks(
    unsigned blocks, unsigned count, size_t shared, void (*kernel)(void**), void** a, const size_t* sizes, int n,
    const Late* ahead, int ahead_count) {
  thread_count = count, called = kernel, arguments = a, shared_size = shared, wrong[0] = 0, given_count = n;
  late = ahead, late_count = ahead_count;
  for (int k = 0; k < n; k++) given[k] = {(const char*)a[k], sizes[k]};
  for (blockIdx.x = 0; blockIdx.x < blocks && !wrong[0]; blockIdx.x++, blocks_begun++) {
    memset(dynamic_memory, 0xFF, shared);  // NaN where nothing was written
    has_waited = false;
    memset(landings, 0, sizeof(landings));
    forget_products(count);
    everyone = {int(count), 0, 0};
    for (unsigned i = 0; i < count; i += 32) warps[i / 32].all = {count - i < 32 ? int(count - i) : 32, 0, 0};
    for (unsigned i = 0; i < count; i++) {
      Thread& t = threads[i];
      t.begun = t.ended = false;
      copies[i].count = copies[i].group = copies[i].shown = 0;
      getcontext(&t.state);
      t.state.uc_stack.ss_sp = stacks[i], t.state.uc_stack.ss_size = STACK;
      makecontext(&t.state, in_a_thread, 0);
    }
    threadIdx.x = 0, threads[0].begun = true;
    if (!_setjmp(outside)) setcontext(&threads[0].state);
    if (ahead && !has_waited && !wrong[0])
      snprintf(wrong, sizeof(wrong), "Every block waits for the launch ahead. Received: block %u.", blockIdx.x);
  }
  return wrong[0] ? wrong : nullptr;
}
"""

# What mma.cuh needs.
WARPS = r"""
using SharedAddress = const char*;
static inline SharedAddress shared_address(const void* p) { return (SharedAddress)p; }
static inline uint32_t at(const void* row, int i) { return ((const uint16_t*)row)[i]; }
template <int n> static inline void load_matrices(uint32_t (&r)[n], SharedAddress row) {
  Warp& w = warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  w.rows[lane] = row;
  w.all.wait();
  for (int i = 0; i < n; i++) r[i] = at(w.rows[8 * i + g], 2 * t) | at(w.rows[8 * i + g], 2 * t + 1) << 16;
  w.all.wait();
}
template <int n> static inline void load_transposed(uint32_t (&r)[n], SharedAddress row) {
  Warp& w = warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  w.rows[lane] = row;
  w.all.wait();
  for (int i = 0; i < n; i++) r[i] = at(w.rows[8 * i + 2 * t], g) | at(w.rows[8 * i + 2 * t + 1], g) << 16;
  w.all.wait();
}
static inline float from_bfloat16(uint32_t r) { return __int_as_float(int(r << 16)); }
static inline float from_float16(uint32_t r) { _Float16 h; uint16_t b = r; memcpy(&h, &b, 2); return float(h); }
static inline float low_float16(uint32_t r) { return from_float16(r & 0xffff); }
static inline float high_float16(uint32_t r) { return from_float16(r >> 16); }
static inline uint32_t largest_of_warp(uint32_t x) {
  Warp& w = warps[threadIdx.x / 32];
  w.a[threadIdx.x % 32][0] = x;
  w.all.wait();
  for (auto& a : w.a) x = a[0] > x ? a[0] : x;
  w.all.wait();
  return x;
}
static inline uint32_t to_bfloat16(float x) {
  uint32_t r;
  memcpy(&r, &x, 4);
  return (x != x ? 0x7fff0000u : r + 0x7fff + (r >> 16 & 1)) >> 16;
}
static inline uint32_t to_float16(float x) { _Float16 h = x; uint16_t b; memcpy(&b, &h, 2); return b; }
static inline uint32_t pack_bfloat16(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
static inline uint32_t pack_float16(float low, float high) { return to_float16(low) | to_float16(high) << 16; }
constexpr int AT_ONCE = 8, EXTRA_BITS = 1;  // capability 8.x, whose sums lose most; 9.0 has 16 and 2
using FragmentA = const uint32_t[4];
using FragmentB = const uint32_t[2];
// Operands have EACH numbers in a register, so that there are 8 * EACH terms; add(c, x, y) adds the products of so many
// numbers, as bits, to c.
template <int EACH, class T, class F> static inline void mma(T (&c)[4], FragmentA& a, FragmentB& b, F add) {
  Warp& w = warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  memcpy(w.a[lane], a, sizeof(FragmentA));
  memcpy(w.b[lane], b, sizeof(FragmentB));
  w.all.wait();
  for (int r = 0; r < 4; r++) {
    const int m = g + 8 * (r / 2), n = 2 * t + r % 2;
    uint32_t x[8 * EACH], y[8 * EACH];
    for (int k = 0; k < 8 * EACH; k++) {
      const int half = k / (4 * EACH), at = k / EACH % 4, shift = k % EACH * (32 / EACH);
      x[k] = w.a[m % 8 * 4 + at][m / 8 + 2 * half] >> shift, y[k] = w.b[n * 4 + at][half] >> shift;
    }
    c[r] = add(c[r], x, y);
  }
  w.all.wait();
}
// Products of floating-point numbers are added N at a time, by the rules in this file's docstring. LEAST: exponent of
// the least normal number.
static inline int exponent(float x, int least) { return max((__float_as_int(x) >> 23 & 255) - 127, least); }
template <int TERMS, int N, int LEAST, class F>
static inline float truncated_sum(float c, const uint32_t* x, const uint32_t* y, F number) {
  for (int first = 0; first < TERMS; first += N) {
    double terms[N + 1] = {c}, rounded = c;
    int top = c == 0 ? -1000 : exponent(c, -126);
    for (int k = 0; k < N; k++) {
      const float u = number(x[first + k]), v = number(y[first + k]);
      rounded += terms[k + 1] = double(u) * v;
      if (u != 0 && v != 0) top = max(top, exponent(u, LEAST) + exponent(v, LEAST));
    }
    c = float(rounded);
    if (top == -1000 || !(fabsf(c) < INFINITY)) continue;
    int64_t sum = 0;
    for (double term : terms) sum += int64_t(ldexp(term, 23 + EXTRA_BITS - top));
    int64_t last = 1;  // of the 24 bits that a float32 holds
    while (sum / last >= 1 << 24 || sum / last <= -(1 << 24)) last *= 2;
    c = float(ldexp(double(sum / last * last), top - 23 - EXTRA_BITS));
  }
  return c;
}
static inline void mma_bytes(int (&c)[4], FragmentA& a, FragmentB& b) {
  mma<4>(c, a, b, [](int sum, const uint32_t* x, const uint32_t* y) {
    for (int k = 0; k < 32; k++) sum += int(uint8_t(x[k])) * int8_t(y[k]);
    return sum;
  });
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int m) {
  Warp& w = warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  w.rows[lane] = &x;
  w.all.wait();
  const T other = *(const T*)w.rows[lane ^ m];
  w.all.wait();
  return other;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= unsigned(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return r;
}
static inline void mma_bfloat16(float (&c)[4], FragmentA& a, FragmentB& b) {
  mma<2>(c, a, b, [](float sum, const uint32_t* x, const uint32_t* y) {
    return truncated_sum<16, AT_ONCE, -126>(sum, x, y, [](uint32_t r) { return from_bfloat16(r & 0xffff); });
  });
}
static inline void mma_float16(float (&c)[4], FragmentA& a, FragmentB& b) {
  mma<2>(c, a, b, [](float sum, const uint32_t* x, const uint32_t* y) {
    return truncated_sum<16, AT_ONCE, -14>(sum, x, y, [](uint32_t r) { return from_float16(r & 0xffff); });
  });
}
static inline void mma_tf32(float (&c)[4], FragmentA& a, FragmentB& b) {
  mma<1>(c, a, b, [](float sum, const uint32_t* x, const uint32_t* y) {
    return truncated_sum<8, AT_ONCE / 2, -126>(sum, x, y, [](uint32_t r) { return __int_as_float(r & 0xffffe000); });
  });
}
"""

CHECKS, WARPGROUPS = (Path(__file__).with_name(f"{name}.hpp").read_text() for name in ("checks", "warpgroups"))
FLAGS = (
    "-std=c++20", "-O1", "-w", "-fPIC", "-fno-gnu-unique", "-U_FORTIFY_SOURCE",  # with it, jumps stay on one stack
    "-fsanitize=kernel-address", "--param=asan-stack=0", "--param=asan-globals=0",
    "--param=asan-instrumentation-with-call-threshold=0",
)  # fmt: skip
_FOLDER = Path(tempfile.gettempdir()) / "minicnn-emulator"


@functools.cache
def _common() -> Path:
    """What all kernels include, compiled beforehand: half the time of each would go there."""
    headers = "".join(compiler.header(name) for name in compiler.HEADERS)
    headers = re.sub(r'#include "\w+\.cuh"|#pragma once', "", headers).replace("#pragma unroll", "//")
    text = " ".join(FLAGS).join(("// ", "\n")) + HOST + CHECKS + RUN + WARPS + WARPGROUPS + headers
    path = _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.hpp"
    made = path.with_suffix(".hpp.gch")
    if not made.exists():
        _FOLDER.mkdir(exist_ok=True)
        with _alone(path.stem), tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            if not made.exists():
                (header := Path(folder) / path.name).write_text(text)
                _compile(text, "-x", "c++-header", header, "-o", Path(folder) / "made.gch")
                header.replace(path)
                (Path(folder) / "made.gch").replace(made)
    return path


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other process compiles these meanwhile: ranks need the same kernels, which one makes and all others load."""
    with (_FOLDER / f"{name}.lock").open("w") as lock:  # given up when it is closed, or when the process ends
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(text: str, *arguments: str | Path) -> None:
    command = ["g++", *FLAGS, *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, "\n".join(x for x in made.stderr.splitlines() if "error" in x)[:1500] + "\n" + text


class _Late(ctypes.Structure):
    """See `Late` above."""

    _fields_ = (("to", ctypes.c_void_p), ("first", ctypes.c_void_p), ("n", ctypes.c_size_t))


class Ahead:
    """The launch ahead of the next one, which is in place before that has ended.

    Until it waits, the next one finds what was there before. Loads of restricted pointers may come ahead of waiting, so
    that they find it at any time.

    Attributes:
        written: Bytes of the arrays that the launch ahead writes, and what was there before it.
    """

    def __init__(self) -> None:
        self.written: list[tuple[Array, Array]] = []

    def end(self) -> None:
        """It has ended before anything else begins."""
        self.written = []

    def run(self, launch: Callable[..., Any], parameters: Sequence[str], arrays: Sequence[Array]) -> Any:
        """The result of a launch, which is the one ahead from here on.

        Args:
            launch: launch(arrays, late) runs it, with what becomes late.
            parameters: Its parameters, in C++.
            arrays: Its arguments.
        """
        pointers = [a if "*" in text else None for a, text in zip(arrays, parameters, strict=True)]
        own = [_bytes(a) for a, text in zip(pointers, parameters, strict=True) if a is not None and "const" not in text]
        before = [(each, each.copy()) for each in own]
        late = [(each, each.copy()) for each, _ in self.written]
        for each, old in self.written:
            each[:] = old
        found = [
            a.copy() if "__restrict__" in text and any(np.may_share_memory(a, each) for each, _ in late) else a
            for a, text in zip(arrays, parameters, strict=True)
        ]
        result = launch(found, late)
        self.written = before
        return result


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view("uint8")


def prepared(kernel: Source | KernelText, arguments: Sequence[Array | int], blocks: int) -> Callable[..., None]:
    """What runs a kernel, compiled for the host.

    Args:
        kernel: The kernel.
        arguments: Its arguments: arrays, and 32-bit integers.
        blocks: Blocks that are launched.

    Returns:
        A function of the launch ahead, if launches overlap, which raises an AssertionError if the kernel breaks a rule
        of `checks.hpp`.
    """
    held = [a.view(np.ndarray) if isinstance(a, np.ndarray) else np.array(a, "int32") for a in arguments]
    sizes = (ctypes.c_size_t * len(held))(*(a.nbytes for a in held))
    compile_all([kernel.text])
    run = _function(_path(kernel.text))
    launched = (blocks, kernel.threads, ctypes.c_size_t(kernel.shared))
    declared = re.search(r"\bkernel\(([^)]*)\)", kernel.text)
    assert declared is not None
    parameters = declared[1].split(",")

    def launch(arrays: Sequence[Array], late: Sequence[tuple[Array, Array]] | None) -> Any:
        places = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        copies = (
            None
            if late is None
            else (_Late * max(1, len(late)))(
                *(_Late(each.ctypes.data, new.ctypes.data, each.nbytes) for each, new in late)
            )
        )
        return run(*launched, places, sizes, len(arrays), copies, len(late or ()))

    def checked(ahead: Ahead | None = None) -> None:
        wrong = launch(held, None) if ahead is None else ahead.run(launch, parameters, held)
        assert wrong is None, f"{kernel.title}: {wrong.decode()}"

    return checked


def _path(text: str) -> Path:
    """Place of the library that holds a kernel."""
    return _FOLDER / f"{_common().stem}-{hashlib.sha256(text.encode()).hexdigest()}.so"


def compile_all(texts: Sequence[str]) -> None:
    """Compile those of some kernels that have no library yet, into one, as starting g++ takes longer than a kernel."""
    missing = [text for text in dict.fromkeys(texts) if not _path(text).exists()]
    if missing:
        with _alone(_path("".join(missing)).stem):
            _compile_into_one([text for text in missing if not _path(text).exists()])


def _compile_into_one(missing: Sequence[str]) -> None:
    if not missing:
        return
    parts = [
        f"namespace {_name(_path(text))} {{\n{_without_linkage(text)}\n"
        f'extern "C" const char* run_{_name(_path(text))}(\n'
        "    unsigned blocks, unsigned threads, size_t shared, void** a, const size_t* sizes, int n,\n"
        "    const Late* ahead, int count) {\n"
        "  return in_blocks(\n"
        "      blocks, threads, shared, [](void** a) UNCHECKED { call(kernel, a); }, a, sizes, n, ahead, count);\n"
        "}\n}\n"
        for text in missing
    ]
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        (cpp := Path(folder) / "kernels.cpp").write_text("".join(parts))
        _compile("\n".join(missing), "-include", _common(), "-shared", cpp, "-o", cpp.with_suffix(".so"))
        for text in missing:  # a link for each, put in place at once: another process may be at it
            (link := Path(folder) / "link").hardlink_to(cpp.with_suffix(".so"))
            link.replace(_path(text))


def _without_linkage(text: str) -> str:
    """A kernel's text as it may stand beside others, in a namespace."""
    return re.sub(r'#include "\w+\.cuh"', "", text).replace('extern "C"', "")


def _name(path: Path) -> str:
    return "kernel_" + path.stem.rpartition("-")[2][:32]


def _function(path: Path) -> Any:
    function = getattr(ctypes.CDLL(str(path)), f"run_{_name(path)}")
    function.restype = ctypes.c_char_p
    return function


class Emulated:
    """A Program run by its kernels on the host."""

    def __init__(
        self, program: Program, *, fuse: bool = True, tiled: bool = True, tiles: Tiles = MULTIPLY_ADDS
    ) -> None:
        self.plan = plan_of(program, tiles, fuse=fuse, tiled=tiled)
        self.placement = place(self.plan)
        self.queued = {id(v) for v in program.inputs if v.name in EACH_STEP}
        self.sources = [generate(self.plan, launch, self.queued) for launch in self.plan.launches]
        self.program = program

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs and updates; carried arrays stay as they are."""
        arrays = {name: np.ascontiguousarray(a).copy() for name, a in arrays.items()}
        arena = np.full(self.placement.nbytes + 64, 0xFF, "uint8")  # NaN where nothing was written
        constants: dict[int, Array] = {}

        def memory(value: Value) -> Array:
            value = self.plan.root(value)
            value = self.placement.in_place.get(id(value), value)
            if id(value) in self.placement.offsets:
                start = self.placement.offsets[id(value)]
                dtype = "uint16" if value.dtype == "bfloat16" else value.dtype
                return arena[start : start + value.spec.nbytes].view(dtype)
            if value.kind == "constant":
                return constants.setdefault(id(value), np.array(value.data, value.dtype))
            return arrays[value.name]

        cursor = np.zeros(1, "int32")
        compile_all([source.text for source in self.sources])
        ahead = Ahead()  # of the first launch: the last one of the step before, and what brings the step's inputs
        ahead.written = [(each, np.full_like(each, 0xFF)) for each in map(_bytes, (*arrays.values(), cursor))]
        for source in self.sources:
            operands = [*map(memory, source.arguments), *([cursor, 0] if source.queued else [])]
            prepared(source, operands, source.blocks)(ahead)
        results = {k: memory(v).reshape(v.shape).copy() for k, v in self.program.outputs.items()}
        for old, value in self.placement.copies:
            arrays[old.name] = memory(value).reshape(value.shape).copy()
        return results | {name: arrays[name].copy() for name in self.program.updates}
