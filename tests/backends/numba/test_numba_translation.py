"""Texts of kernels as machine code and as Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numba_check import without_jit

kernel = pytest.importorskip("minicnn.backends.numba.kernel")

pytestmark = pytest.mark.no_cover  # compiled, in part

# Each is the value of an integer for i from -9 to 8.
INTEGERS = {
    "floors": "i // 3 + i // -3 * 10 + i // 4 * 100",
    "remainders": "i % 3 + i % -3 * 10 + i % 4 * 100 + (i * 5 + 1) % (i * i + 1) * 1000",
    "bits": "(i << 3) ^ (i >> 1) | i & 6",
    "chains": "int64(-3 <= i < 5) + int64(i != 2) * 2 + int64(not i > 0) * 4",
    "choices": "i if i > 2 and i < 5 or i == -9 else -i",
    "extrema": "min(i, 3, 2 * i) + max(i, -2) * 10",
    "truths": "int64(bool(i)) + int64(i > 0 or True) * 2 + int64(True and i < 0) * 4",
    "floats": "int64(float32(i) / float32(4) * float32(8)) + int64(float32(i) > float32(0.5)) * 100",
    "bytes": "int64(uload(x)) + int64(iload(x + 4))",
}
STATEMENTS = {
    "sums": ("r = 0", "for k in range(2, 9, 3):", "    r += k * i"),
    "no rounds": ("r = i", "for k in range(i):", "    r += 1", "for k in range(3, 3):", "    r = 0"),
    "countdown": ("r, n = 0, max(i, 0)", "while n > 0 and r < 9:", "    r += n", "    n -= 2"),
    "branches": ("r = 1", "if i < -3:", "    r = 2", "elif i == 0:", "    r = 3", "else:", "    r -= i"),
    "a name for tiles": (
        "v = vload(x)",
        "r = int64(vlane(v, 1) > vlane(v, 0))",
        "v = vgt(v, v)",
        "r += int64(mall(v))",
    ),
    "guarded": ("r = iload(x + 4 * i) if 0 <= i and i < 2 else -1",),
}


def values(lines: tuple[str, ...]) -> list[int]:
    """What r is after some lines, for each i."""
    body = ("for i in range(start, stop):", *(f"    {line}" for line in lines), "    astore(y + 8 * (i + 9), int64(r))")
    x, y = np.arange(1, 17, dtype=np.int32), np.zeros(18, np.int64)
    table = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    kernel.callable_of(kernel.KernelCode("text", ("x", "y"), body))(table.ctypes.data, -9, 9)
    return y.tolist()


@pytest.mark.parametrize("lines", [*((f"r = {text}",) for text in INTEGERS.values()), *STATEMENTS.values()])
def test_machine_code_does_what_python_does(lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = values(lines)
    without_jit(monkeypatch)
    assert compiled == values(lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("r = [1]", r"The code of kernels has no such words\. Received: \[1\]"),
        ("r = i / 2", r"no such words\. Received: i / 2"),
        ("i = float32(1)", r"A variable keeps its type\. Received: a float for the integer i"),
        ("r = vadd(i, i)", r"A variable and an argument have one type\. Received: i64 for <16 x float>"),
        ("for k in (1, 2):", r"no such words\. Received: for k in \(1, 2\)"),
    ],
)
def test_other_words_are_refused(line: str, message: str) -> None:
    lines: tuple[Any, ...] = (line, "    r = 1") if line.endswith(":") else (line,)
    with pytest.raises(TypeError, match=message):
        values(lines)
