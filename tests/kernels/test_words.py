"""Kernels as people read them."""

from __future__ import annotations

from minicnn import ops
from minicnn.backends._gpu.device import KNOWN
from minicnn.backends._gpu.planning import planned
from minicnn.backends.cupy.generation import generate
from minicnn.kernels import words
from minicnn.kernels.expressions import SHARED, Array, Load, Name, Number
from minicnn.kernels.statements import Barrier, Kernel, Part, Shared, Store, Variable
from minicnn.program import Program

POOLING = """max_pool2d+relu
1 block of 256 threads

p0: float32[2,5,5,3], x
p1: float32[2,3,3,3], v2, written

max_pool2d+relu:
    i = block * 256 + thread
    if i < 54:
        c = i % 3
        v = i / 3 % 3
        u = i / 9 % 3
        n = i / 27
        best = -inf
        for a in 0 .. 2:
            h = u * 2 + a - 1
            for b in 0 .. 2:
                w = v * 2 + b - 1
                best = maximum(best, (p0[((n * 5 + h) * 5 + w) * 3 + c] if {inside} else -inf))
        v0 = best
        v1 = relu(v0)
        p1[i] = v1
""".replace("{inside}", "h >= 0 and h < 5 and w >= 0 and w < 5")


def test_a_pooling_is_read_as_a_student_would_write_it() -> None:
    program = Program()
    attrs = {"kernel": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1)), "data_format": "NHWC"}
    program.outputs["y"] = ops.relu(ops.max_pool2d(program.input("x", (2, 5, 5, 3)), **attrs))
    (launch,) = planned(program, KNOWN["h200"], generate).launches
    assert words.text(launch.kernel) == POOLING


def test_shared_memory_barriers_and_several_parts() -> None:
    parts, x = Array("parts", "float32", 4, memory=SHARED), Array("x", "float32", 8, written=True, title="float32[8]")
    thread, total = Name("thread"), Name("total", "float32")
    statements = (
        Shared(parts), Variable(total, Number(0.5, "float32")), Store(parts, thread, total), Barrier(),
        Store(x, thread, Load(parts, thread + 1)),
    )  # fmt: skip
    kernel = Kernel("sums", 4, [x], [Part("first", 2, statements=statements), Part("second", 1)], queued=True)
    assert words.text(kernel) == (
        "sums\n3 blocks of 4 threads\n\nx: float32[8], written\nrow: the number of the step\n\nfirst, blocks 0 to 1:\n"
        "    parts: 4 numbers of float32 in shared memory\n    total = 0.5\n    parts[thread] = total\n"
        "    wait for all threads of the block\n    x[thread] = parts[thread + 1]\n\nsecond, block 2:\n"
    )
