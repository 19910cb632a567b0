"""The generated kernels on the CPU: compiled as C++, one thread of the host for each thread of a block.

Slow, but it checks every kernel, plan and placement of memory on machines without a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.backends._cuda import compiler
from minicnn.backends._cuda.fusing import Plan
from minicnn.backends._cuda.generation import Source, generate
from minicnn.backends._cuda.placement import place
from minicnn.backends._cuda.rewriting import rewrite
from minicnn.program.graph import Program, Value

Array = np.ndarray[Any, Any]

HOST = r"""
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
struct Place { unsigned x; };
static thread_local Place threadIdx, blockIdx;
static std::barrier<>* everyone;
static inline void __syncthreads() { everyone->arrive_and_wait(); }
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline double __longlong_as_double(long long i) { double f; memcpy(&f, &i, 8); return f; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t(a) * b) >> 32; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
"""

_FOLDER = Path(tempfile.gettempdir()) / "minicnn-emulator"


def _library(source: Source) -> ctypes.CDLL:
    count = len(source.arguments) + (2 if source.queued else 0)
    slots = [f"(decltype(argument<{k}>(kernel)))a[{k}]" for k in range(count)]
    if source.queued:
        slots[-1] = "*(int*)a[" + str(count - 1) + "]"
    parallel = any(word in source.text for word in ("sliced_sum", "convolve<", "correlate<", "multiply<", "reduce<"))
    call = f"kernel({', '.join(slots)});"
    helper = (
        "template <int k, class... A> auto argument(void (*)(A...)) -> std::tuple_element_t<k, std::tuple<A...>>;\n"
    )
    if parallel:
        body = f"""
  std::barrier<> all({source.threads});
  everyone = &all;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < {source.threads}; t++) threads.emplace_back([=] {{
    threadIdx.x = t;
    for (unsigned b = 0; b < {source.blocks}; b++) {{ blockIdx.x = b; {call} __syncthreads(); }}
  }});
  for (auto& t : threads) t.join();"""
    else:
        body = f"""
  for (unsigned b = 0; b < {source.blocks}; b++)
    for (unsigned t = 0; t < {source.threads}; t++) {{ blockIdx.x = b; threadIdx.x = t; {call} }}"""
    headers = "".join(compiler.header(name) for name in compiler.HEADERS)
    for name in compiler.HEADERS:
        headers = headers.replace(f'#include "{name}"', "")
    headers = headers.replace("#pragma once", "").replace("#pragma unroll", "//")
    text = HOST + "#include <tuple>\n" + headers + source.text.replace('#include "tiles.cuh"', "") + helper
    text += f'extern "C" void run(void** a) {{{body}\n}}\n'
    path = _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
    if not path.exists():
        _FOLDER.mkdir(exist_ok=True)
        cpp = path.with_suffix(".cpp")
        cpp.write_text(text)
        made = subprocess.run(
            ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", str(cpp), "-o", str(path)],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, (
            "\n".join(x for x in made.stderr.splitlines() if "error" in x)[:1500] + "\n" + source.text
        )
    return ctypes.CDLL(str(path))


class Emulated:
    """A Program run by its kernels on the host."""

    def __init__(self, program: Program, *, fuse: bool = True, tiled: bool = True) -> None:
        self.plan = Plan(rewrite(program, fuse=fuse, tiled=tiled), fuse=fuse, tiled=tiled)
        self.placement = place(self.plan)
        self.queued = {id(v) for v in program.inputs if v.name in ("index", "learning_rate")}
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
                return arena[start : start + value.spec.nbytes].view("bool" if value.dtype == "bool" else value.dtype)
            if value.kind == "constant":
                return constants.setdefault(id(value), np.array(value.data, value.dtype))
            return arrays[value.name]

        cursor = np.zeros(1, "int32")
        for source in self.sources:
            pointers = [memory(v).ctypes.data for v in source.arguments]
            pointers += [cursor.ctypes.data] * 2 if source.queued else []
            _library(source).run((ctypes.c_void_p * max(1, len(pointers)))(*pointers))
        results = {k: memory(v).reshape(v.shape).copy() for k, v in self.program.outputs.items()}
        for old, value in self.placement.copies:
            arrays[old.name] = memory(value).reshape(value.shape).copy()
        return results | {name: arrays[name].copy() for name in self.program.updates}
