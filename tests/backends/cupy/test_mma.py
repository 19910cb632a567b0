"""Fragments of tensor cores: splitting, loading and multiplying small matrices, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cupy import emulator
from minicnn.backends._gpu.source import Source

KERNEL = """
#include "parts.cuh"
extern "C" __global__ void kernel(const float* a, const float* b, float* c) {{
  __shared__ __align__(16) uint32 as[{kind}::PARTS][16][8], bs[{kind}::PARTS][16][4];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32 parts[{kind}::PARTS];
  for (int i = lane; i < 128; i += 32) {{
    {kind}::split(parts, a[2 * i], a[2 * i + 1]);
    for (int k = 0; k < {kind}::PARTS; k++) as[k][i / 8][i % 8] = parts[k];
  }}
  for (int i = lane; i < 64; i += 32) {{
    {kind}::split(parts, b[2 * i], b[2 * i + 1]);
    for (int k = 0; k < {kind}::PARTS; k++) bs[k][i / 4][i % 4] = parts[k];
  }}
  __syncthreads();
  uint32 left[1][{kind}::PARTS][4], right[1][{kind}::PARTS][2];
  for (int k = 0; k < {kind}::PARTS; k++) {{
    load_matrices(left[0][k], shared_address(&as[k][lane % 16][lane / 16 * 4]));
    load_transposed(right[0][k], shared_address(&bs[k][lane % 16][0]));
  }}
  float sums[1][1][4];
  for (int r = 0; r < 4; r++) sums[0][0][r] = c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
  multiply_fragments<{kind}, 1, 1>(sums, left, right);
  for (int r = 0; r < 4; r++) c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = sums[0][0][r];
}}
"""


BYTES = """
#include "bytes.cuh"
extern "C" __global__ void kernel(const uint8* a, const float* b, float* c) {
  __shared__ __align__(16) uint8 as[16][32];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (int i = lane; i < 512; i += 32) as[i / 32][i % 32] = a[i];
  __syncthreads();
  uint32 left[4], bytes[2][3];
  load_matrices(left, shared_address(&as[lane % 16][lane / 16 * 16]));
  for (int r = 0; r < 2; r++) {
    float x[4];
    for (int i = 0; i < 4; i++) x[i] = b[(16 * r + 4 * t + i) * 8 + g];
    split_bytes(bytes[r], x, 1.0f);
  }
  int sums[3][4] = {};
  for (int j = 0; j < 3; j++) {
    const uint32 right[2] = {bytes[0][j], bytes[1][j]};
    mma_bytes(sums[j], left, right);
  }
  for (int r = 0; r < 4; r++)
    for (int j = 0; j < 3; j++) c[((g + 8 * (r / 2)) * 8 + 2 * t + r % 2) * 3 + j] = float(sums[j][r]);
}
"""


@emulator.needs_gxx
def test_a_product_of_bytes_is_exact() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (16, 32)).astype("uint8")
    b = rng.integers(-0x808080, 0x7F7F80, (32, 8)).astype("float32")
    b[:4, 0] = -0x808080, 0x7F7F7F, -0x80, 0x7F
    c = np.full((16, 8, 3), np.nan, "float32")
    source = Source(BYTES, (), False, 1, 32, "bytes")
    emulator.prepared(source, (a, b, c), source.blocks)()
    np.testing.assert_array_equal(c.astype("int64") @ [1, 256, 65536], a.astype("int64") @ b.astype("int64"))


def multiplied(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The sum c + a @ b of fragments (16 x 16, 16 x 8, 16 x 8) of a kind."""
    a, b, c = (np.array(x, "float32") for x in (a, b, c))
    source = Source(KERNEL.format(kind=kind), (), False, 1, 32, kind)
    emulator.prepared(source, (a, b, c), source.blocks)()
    return c


@emulator.needs_gxx
@pytest.mark.parametrize(("kind", "error"), [("Float32", 3e-7), ("Bfloat16", 8e-3), ("Float16", 1e-3)])
def test_a_product_of_fragments(kind: str, error: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(16, 16)).astype("float32"), rng.normal(size=(16, 8)).astype("float32")
    expected = a.astype("float64") @ b
    assert np.linalg.norm(multiplied(kind, a, b, np.zeros((16, 8))) - expected) < error * np.linalg.norm(expected)


@emulator.needs_gxx
@pytest.mark.parametrize(("kind", "sums"), [
    ("Float16", [1 + 2**-23, -1 - 2**-23, 1.0, 2**-22, 1 + 2**-23]),  # cut off: as published, see emulator.py
    ("Bfloat16", [1 + 2**-23, -1 - 2**-23, 1.0, 2**-22, 1 + 2**-23]),
    ("Float32", [1 + 2**-22, -1 - 2**-22, 1 + 2**-22, 2**-22, 1 + 2**-22]),  # to nearest
])  # fmt: skip
def test_tensor_cores_cut_off_what_float32_rounds(kind: str, sums: list[float]) -> None:
    a, b, c = np.zeros((16, 16)), np.full((16, 8), 2**-11), np.zeros((16, 8))
    c[[0, 2, 4]], c[1] = 1, -1
    a[0, 0], a[1, 0] = 1.5 * 2**-12, -1.5 * 2**-12  # one and a half units in the last place of c
    a[2, :8] = a[3, :8] = 2**-14  # an eighth of one, eight times: each is lost beside c
    a[4, 0], a[4, 15] = 2**-12, 2**-13  # one, then a half in the second half of the terms
    found = multiplied(kind, a, b, c)[:5]
    np.testing.assert_array_equal(found, np.broadcast_to(np.array(sums, "float32")[:, None], (5, 8)))
