"""What the translation makes of kernels' texts, run thread by thread on the host, beside NumPy."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("llvmlite")

from backends.cupy.networks import NETWORKS, data
from backends.numba_cuda.translated import HostKernel, TranslatedBackend
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends.numba_cuda.compiling import python_function
from minicnn.backends.numba_cuda.nvvm import module_of
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.backends.numba_cuda.translation import UnknownWordError
from support.tolerances import STEP

pytestmark = pytest.mark.skipif(SIMULATED, reason="numbers have the device's types outside of the simulator alone")
VERSIONS = (2, 0, 3, 2)
BY_DAY = "tests/backends/numba_cuda/test_nbcuda_translation.py::test_a_network_trains_as_with_numpy"


@pytest.mark.parametrize(
    "network",
    [
        "mlp",
        pytest.param("lenet", marks=pytest.mark.night(BY_DAY)),
        pytest.param("normalized", marks=pytest.mark.night(BY_DAY)),
    ],
)
def test_a_network_trains_as_with_numpy(network: str) -> None:
    x, y = data()
    losses, weights = [], []
    for backend in ("numpy", TranslatedBackend(strict=True)):
        model = NETWORKS[network](backend)
        losses.append(model.fit(x[:12], y[:12], batch_size=6, epochs=1, verbose=0).history["loss"])
        weights.append(model.get_weights())
    np.testing.assert_allclose(losses[1], losses[0], rtol=STEP)
    for path, weight in weights[0].items():
        np.testing.assert_allclose(weights[1][path], weight, rtol=STEP, atol=STEP, err_msg=path)


def run(body: str, *arrays: np.ndarray, threads: int = 1) -> None:
    """Run a kernel of so many lines on arrays a, b, c."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    names = ", ".join("abc"[: len(arrays)])
    signature = tuple(f"{array.dtype}*" for array in arrays)
    kernel = HostKernel(KernelText(f"def kernel({names}):\n{lines}", signature, threads))
    kernel(1, [array.ctypes.data for array in arrays])


def test_a_kernel_is_translated_after_linecache_was_cleared() -> None:
    kernel = python_function("@device\ndef twice(x):\n    return x + x\n\n\ndef kernel(a):\n    a[0] = twice(a[0])\n")
    linecache.clearcache()
    assert "fadd float" in module_of(kernel, ("float32*",), 1, VERSIONS)


@pytest.mark.parametrize("divisor", [4, 3, -3])
def test_integers_are_divided_as_in_python(divisor: int) -> None:
    a = np.arange(-7, 8)
    b, c = np.zeros_like(a), np.zeros_like(a)
    known = "\n".join([f"for i in range({a.size}):", f"    b[i] = a[i] // {divisor}", f"    c[i] = a[i] % {divisor}"])
    run(known, a, b, c)
    np.testing.assert_array_equal([b, c], [a // divisor, a % divisor])
    b[:] = c[:] = divisor
    run(known.replace(f"// {divisor}", "// b[i]").replace(f"% {divisor}", "% c[i]"), a, b, c)
    np.testing.assert_array_equal([b, c], [a // divisor, a % divisor])


def test_what_is_divided_by_zero_is_zero() -> None:
    a, b = np.array([5]), np.array([0])
    run("a[0] = a[0] // b[0] + 7 + a[0] % b[0]", a, b)
    assert a[0] == 7


def test_integers_become_wide_where_they_meet() -> None:
    a, b = np.array([2**32 - 1], "uint32"), np.zeros(4, "int64")
    run("b[0] = a[0] + 1\nb[1] = index(a[0] + 1)\nb[2] = a[0] - 2 * a[0]\nb[3] = signed(a[0])", a, b)
    np.testing.assert_array_equal(b, [2**32, 0, -(2**32) + 1, -1])


def test_variables_of_loops_and_branches() -> None:
    a = np.zeros(3, "int64")
    run(
        "total = 0\nfor i in range(5):\n    if i % 2 == 0:\n        total += i\n    else:\n        total -= 1\n"
        "k = total\nwhile k > 0 and k < 100:\n    k = k * 3\na[0] = total\na[1] = k\n"
        "if a[0] > 3:\n    x = 10\nelse:\n    x = 20\na[2] = x",
        a,
    )
    np.testing.assert_array_equal(a, [4, 108, 10])


def test_only_what_is_chosen_is_loaded() -> None:
    """An address far outside would end the process."""
    a, b = np.array([1.0], "float32"), np.zeros(2, "float32")
    run(
        "i = 1 << 60\nb[0] = a[i] if a[0] > 2 else np.float32(3)\n"
        "b[1] = np.float32(1) if a[0] > 2 and a[i] > 0 else np.float32(4)",
        a, b,
    )  # fmt: skip
    np.testing.assert_array_equal(b, [3, 4])


def test_threads_share_memory() -> None:
    a = np.arange(8)
    run(
        "s = cuda.shared.array(8, types.int64, ALIGNED)\ns[slot(cuda.threadIdx.x)] = a[cuda.threadIdx.x]\n"
        "cuda.syncthreads()\na[cuda.threadIdx.x] = s[slot(7 - cuda.threadIdx.x)]",
        a, threads=8,
    )  # fmt: skip
    np.testing.assert_array_equal(a, np.arange(8)[::-1])


@pytest.mark.parametrize(
    "line", ["a[0] = a[0] @ a[0]", "for x in a:\n        pass", "a[0] = [1][0]", "a[0] = print(1)", "a[0] = 1.5 // 2.0"]
)
def test_other_words_are_refused(line: str) -> None:
    function = python_function(f"def kernel(a):\n    {line}\n")
    with pytest.raises(UnknownWordError, match="have no such words"):
        module_of(function, ("float64*",), 1, VERSIONS)


def test_a_variable_keeps_its_kind() -> None:
    text = "def kernel(a):\n    x = 1\n    for i in range(3):\n        x = a[i]\n    a[0] = x\n"
    with pytest.raises(UnknownWordError, match="keeps its kind"):
        module_of(python_function(text), ("float32*",), 1, VERSIONS)
