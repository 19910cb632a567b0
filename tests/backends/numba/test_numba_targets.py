"""Machine code for CPUs that are not at hand: the loops that take most time, in words."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.program import Program
from support.machine_code import inner_loops
from support.numerics import assert_close
from support.small_training import arrays, assert_same_bits, compiled, digits

cpus = pytest.importorskip("minicnn.backends.numba.cpus")

# By architecture: a multiply-add, an access to the stack, a jump to a label, and a vector that is stored elsewhere.
WORDS = {
    "x86_64": (r"\tvf[a-z]*madd\w+", r"\(%rsp", r"\tj\w+\t(\S+)", r"\tvmov[au]ps\t%[yz]mm\d+.*, [^%]*\((?!%rsp)"),
    "aarch64": (r"\t(?:fml[as]|fmadd)\t", r"\[sp\b", r"\tb\S*\t(?:\w+, )?(\S+)", r"\tst\w+\tq\d+.*\[(?!sp)"),
}
# CPUs, and how full registers are written.
TARGETS = {
    "AVX-512": (cpus.Target("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f,+avx512vl,+avx2,+fma"), "%zmm"),
    "AVX2": (cpus.Target("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma"), "%ymm"),
    "NEON": (cpus.Target("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"), r"\.4s"),
}


def kernels(convolution: str, filters: int, size: int, strides: int) -> list[Any]:
    """Sources of a convolution, its gradients, a product and its gradients, for the CPU that `cpus.host` describes."""
    from minicnn.backends.numba.rules import lower

    n = 4 if convolution == "channels" else 64
    program, attrs = Program(), {"strides": (strides, strides)}
    x, w = program.input("x", (n, 12, 12, 16)), program.input("w", (size, size, 16, filters), kind="parameter")
    y = program.outputs["y"] = ops.conv2d(x, w, **attrs)
    dy = program.input("dy", y.shape)
    with program.scope("", "backward"):
        program.outputs["dx"] = ops.conv2d_input_gradient(dy, w, image=(12, 12), **attrs)
        program.outputs["dw"] = ops.conv2d_weight_gradient(dy, x, kernel=(size, size), **attrs)
    rows, units = program.input("rows", (8 * n, 256)), program.input("units", (256, 48), kind="parameter")
    sums = program.input("sums", (8 * n, 48))
    program.outputs["product"] = ops.matmul(rows, units)
    program.outputs["drows"] = ops.matmul(sums, units, transpose_b=True)
    program.outputs["dunits"] = ops.matmul(rows, sums, transpose_a=True)
    return [task.source for task in lower(program, 2, convolution).tasks if task.source is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "full"), TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    ("convolution", "filters", "size", "strides"),
    [
        ("direct", 24, 3, 1),
        ("direct", 32, 5, 2),
        ("winograd", 32, 3, 1),
        ("channels", 64, 3, 1),
        ("channels", 96, 5, 2),
    ],
)
def test_sums_stay_in_full_registers(
    target: Any, full: str, convolution: str, filters: int, size: int, strides: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicnn.backends.numba.kernel import assembly

    monkeypatch.setattr(cpus, "host", lambda: target)
    multiply_add, stack, jump, store = WORDS[target.architecture]
    names = set()
    for source in kernels(convolution, filters, size, strides):
        if source.name == "winograd weights":
            continue  # a transform of few numbers
        for lines in inner_loops(assembly(source, target), jump):
            products = [line for line in lines if re.search(multiply_add, line)]
            if len(products) < 4 or any(re.search(store, line) for line in lines):
                continue  # the last elements of a row; a transform, which stores what it makes
            names.add(source.name if convolution == "winograd" else source.name.partition(" by ")[0])
            assert all(re.search(full, line) for line in products), (source.name, source.tiles)
            assert not [line for line in lines if re.search(stack, line)], (source.name, source.tiles, lines)
    endings = {"winograd": (" by winograd F(4x4)", " by winograd F(4x4)", ""), "channels": (" of channels",) * 3}
    forward, backward, product = endings.get(convolution, ("",) * 3)
    assert names == {
        f"conv2d{forward}", f"conv2d_input_gradient{backward}", f"conv2d_weight_gradient{backward}", f"matmul{product}",
        f"conv2d_weight_gradient{product}",  # of the matrix
    }  # fmt: skip


PROGRAM = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    from minicnn.backends import backend_class
    from support.small_training import arrays, compiled, digits

    model = compiled(backend_class("numba")(threads=2, strict=True))
    for _ in range(3):
        model.train_on_batch(*digits(40))
    np.savez(sys.argv[2], **arrays(model))
"""


@pytest.mark.no_cover
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the CPU is none of x86")
def test_training_on_narrower_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits with AVX2 alone as with all that this CPU has, which are NumPy's but for rounding."""
    monkeypatch.undo()  # threads cost what they do, as in the other process
    file, tests = tmp_path / "arrays.npz", Path(__file__).parents[2]
    environ = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tests), str(file)]
    subprocess.run(command, env=os.environ | environ, check=True)
    narrow = dict(np.load(file))
    for backend in (backend_class("numba")(threads=2), "numpy"):  # type: ignore[call-arg]
        model = compiled(backend)
        for _ in range(3):
            model.train_on_batch(*digits(40))
        if backend != "numpy":
            assert_same_bits(narrow, arrays(model))
        for name, array in arrays(model).items():
            assert_close(narrow[name], array, terms=40)
