"""The kernels around those of a step: one moves the cursor of its queue, two collect its outputs."""

from __future__ import annotations

from minicnn.backends._gpu.runtime import KernelText

_ADVANCE = """#include "core.cuh"
extern "C" __global__ void kernel(int* cursor, int steps) {
  wait_for_previous();
  cursor[0] += steps;
}
"""

_COLLECT = """#include "core.cuh"
extern "C" __global__ void kernel(
    const {word}* from, {word}* to, unsigned count, const int* cursor, int offset) {{
  wait_for_previous();
  const unsigned i = blockIdx.x * 256u + threadIdx.x;
  if (i < count) to[(unsigned long long)(cursor[0] + offset) * count + i] = from[i];
}}
"""


def _collect(word: str, dtype: str) -> KernelText:
    return KernelText(_COLLECT.format(word=word), (f"{dtype}*", f"{dtype}*", "uint32", "int32*", "int32"), 256)


ADVANCE = KernelText(_ADVANCE, ("int32*", "int32"), 1)
COLLECT = _collect("unsigned char", "uint8"), _collect("unsigned", "uint32")
