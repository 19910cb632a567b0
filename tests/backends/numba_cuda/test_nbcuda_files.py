"""Rules for files with kernels, so that the simulator can run them; versions that are refused; the table of docs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from backends.numba_cuda.running import ON_DEVICE
from minicnn import ops
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.tiling import LIMITS, ProductTile
from minicnn.backends.numba_cuda import tiling
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.shim import SIMULATED, check_numpy
from minicnn.backends.numba_cuda.simulator import _one_array_for_all_threads
from minicnn.kernels.tiles import TileShape
from minicnn.program import Program
from support.plans import plan_of

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src/minicnn/backends/numba_cuda"
FILES = sorted(
    [
        *(PACKAGE / "kernels").glob("*.py"),
        *(p for p in PACKAGE.glob("*.py") if p.name not in ("shim.py", "simulator.py")),
    ]
)


def calls(tree: ast.AST) -> list[tuple[str, int]]:
    """Dotted names that are called, and their lines."""
    return [(ast.unparse(n.func), n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Call)]


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_rules_of_the_simulator(file: Path) -> None:
    """`cuda` is a global of that name; no warp intrinsics; one shared array a line."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module is None or not node.module.startswith("numba"), "import cuda from the shim"
            for name in node.names:
                if name.name == "cuda":
                    assert name.asname is None, "the global is called cuda"
                    assert node in tree.body, "and is one of the module"
        elif isinstance(node, ast.Import):
            assert not any(n.name.startswith("numba") for n in node.names), "import cuda from the shim"
    found = calls(tree)
    assert not [name for name, _ in found if re.search(r"syncwarp|shfl|\.atomic\.|vote_|match_", name)]
    lines = [line for name, line in found if name.endswith("shared.array")]
    assert len(lines) == len(set(lines)), "shared arrays on one line are one array in the simulator"


def test_text_of_generated_kernels_keeps_the_rules() -> None:
    text = "".join(file.read_text("utf-8") for file in PACKAGE.glob("*.py"))
    assert not re.search(r"shared\.array.*shared\.array", text)
    assert "atomic" not in text


@pytest.mark.parametrize(
    ("numpy", "numba_cuda", "fits"),
    [("2.4.6", "0.30.4", True), ("2.5.0", "0.30.4", False), ("2.5.0rc1", "0.30.3", False), ("2.10.1", "0.30.0", False),
     ("2.5.1", "0.31.0", True)],
)  # fmt: skip
def test_a_numpy_that_is_too_new_is_refused(numpy: str, numba_cuda: str, fits: bool) -> None:
    if fits:
        check_numpy(numpy, numba_cuda)
        return
    with pytest.raises(ImportError, match=rf"cannot launch kernels under NumPy {numpy}\. Use pip install .numpy<2\.5"):
        check_numpy(numpy, numba_cuda)


def test_the_remedy_reaches_the_user() -> None:
    code = (
        "import numpy; numpy.__version__ = '2.5.0'\n"
        "from minicnn import get_backend\n"
        "try: get_backend('numba_cuda')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Backend 'numba_cuda' needs a NumPy that is not newer than 2.4: numba-cuda")


def test_the_package_alone_imports_no_numba() -> None:
    code = "import sys, minicnn.backends as b; b.names(); print('numba' in sys.modules, 'numba_cuda' in b.names())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.skipif(not SIMULATED, reason="is about the simulator")
def test_threads_of_a_simulated_block_share_one_array() -> None:
    """Made by one line; of another size it is another array, as blocks of one launch may compute other products."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    with _one_array_for_all_threads():
        shared = FakeCUDAShared(0)
        found = [shared.array(size, np.float32) for size in (40, 80) * 4]
    assert sorted(len(array) for array in found) == [40] * 4 + [80] * 4
    assert len({id(array) for array in found}) == 2


@pytest.mark.skipif(ON_DEVICE, reason="there is a GPU")
def test_without_a_gpu_the_simulator_is_offered() -> None:
    code = "from minicnn import get_backend\ntry: get_backend('numba_cuda')\nexcept RuntimeError as error: print(error)"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("The numba_cuda backend needs an NVIDIA GPU")
    assert "NUMBA_ENABLE_CUDASIM=1" in done.stdout or "another backend" in done.stdout


def test_errors_of_cuda_say_what_to_do() -> None:
    from minicnn.backends._gpu.errors import explained

    class CoreError(Exception):
        """An error of cuda.core."""

    CoreError.__module__ = "cuda.core"
    for text, kind, said in (
        ("CUDA_ERROR_OUT_OF_MEMORY: no", MemoryError, "smaller batch_size"),
        ("CUDA driver library cannot be found", RuntimeError, "NUMBA_ENABLE_CUDASIM=1"),
        ("CUDA_ERROR_NO_DEVICE", RuntimeError, "make the GPU visible"),
        ("CUDA_ERROR_LAUNCH_FAILED", RuntimeError, "tell which kernel fails"),
    ):
        with pytest.raises(kind, match=said), explained():
            raise CoreError(text)
    with pytest.raises(KeyError), explained():
        raise KeyError


# The table ------------------------------------------------------------------------------------------------------

# Functions and constants of the Array API standard 2025.12, without its extensions.
STANDARD = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or
bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh sqrt square subtract tan tanh trunc
arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros
zeros_like astype can_cast finfo iinfo isdtype result_type take take_along_axis matmul matrix_transpose tensordot vecdot
broadcast_arrays broadcast_shapes broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze
stack tile unstack argmax argmin count_nonzero nonzero searchsorted where isin unique_all unique_counts unique_inverse
unique_values argsort sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff
e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
__array_namespace_info__ fft linalg
"""


def test_the_table_of_the_documentation_is_the_namespace() -> None:
    from minicnn.backends.numba_cuda import namespace

    page = (ROOT / "docs/numba-cuda.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?`) \| (yes|no: .*?) \|$", page, re.M)
    table = {name: answer for names, answer in rows for name in re.findall(r"`(\w+)`", names)}
    assert sorted(table) == sorted(STANDARD.split())
    for name, answer in table.items():
        there = hasattr(namespace, name)
        assert answer == ("yes" if there else f"no: {namespace.MISSING[name]}"), name
    assert set(namespace.MISSING) <= set(STANDARD.split())


@pytest.mark.parametrize(
    ("m", "k", "n", "transposed", "shape"),
    [(59_000, 784, 10, False, TileShape(256, 10, 2, 10, 16)),
     (783, 59_000, 10, True, TileShape(784, 10, 4, 10, 8, splits=264)), (59_000, 784, 17, False, None),
     (2_000, 4_000, 10, False, None), (590, 784, 10, False, None)],
)  # fmt: skip
def test_products_with_few_columns_have_tiles_of_their_own(
    m: int, k: int, n: int, transposed: bool, shape: TileShape | None
) -> None:
    program = Program()
    a, b = program.input("a", (k, m) if transposed else (m, k)), program.input("b", (k, n))
    program.outputs["y"] = ops.matmul(a, b, transpose_a=transposed)
    tile = tiling.NumbaTiles(H200, limits=LIMITS, simulated=False).product(program.nodes[0])
    assert isinstance(tile, ProductTile)
    assert (tile.shape == shape) == (shape is not None)
    if shape is not None:
        assert tile.threads == shape.rows // shape.thread_rows
        assert tile.blocks == -(-m // shape.rows) * shape.splits


@pytest.mark.skipif(SIMULATED, reason="tiles are smaller in the simulator")
def test_the_kernel_of_the_documentation_is_the_one_that_is_generated() -> None:
    program = Program()
    x, w = program.input("x", (256, 100)), program.input("w", (100, 32), kind="parameter")
    program.outputs["y"] = ops.relu(x @ w + program.input("b", (32,), kind="parameter"))
    plan = plan_of(program, tiling.NumbaTiles(H200))
    (launch,) = plan.launches
    text = generate(plan, launch, set(), 256).text
    assert f"```py\n{text}```\n" in (ROOT / "docs/numba-cuda.md").read_text("utf-8")
