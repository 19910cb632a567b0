"""Install each CUDA extra, and nothing else, in a new environment, and compile there with what it brought.

Neither a GPU nor a toolkit is needed, and a toolkit that is there does not help: each library and header must lie in
the environment. Kernels of a network are compiled for two capabilities, or with MINICNN_EVERY_CASE=1 for that of
every known GPU, and so is a text with the headers that CuPy's own kernels include. Needs uv; without UV_CONSTRAINT the
versions are those of constraints.txt.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cuda12", "cuda13")
OUTSIDE = ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")
CUPY_KERNEL = """
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/float16.cuh>
#include <cupy/bfloat16.cuh>
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void kernel(float* x, float16* h, complex<float>* z) {
  typedef cub::BlockReduce<float, 128> Sum;
  __shared__ typename Sum::TempStorage place;
  x[0] = Sum(place).Sum(x[threadIdx.x] + float(h[threadIdx.x]) + z[0].real());
}
"""


def main() -> None:
    """A new environment for each extra, in which this file runs again."""
    for extra in EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            inside = {k: v for k, v in os.environ.items() if k not in OUTSIDE}
            inside = {"UV_CONSTRAINT": str(ROOT / "constraints.txt"), **inside, "MINICNN_CACHE": f"{folder}/cache"}
            python = f"{folder}/new/bin/python"
            subprocess.run(["uv", "venv", "-q", "--python", sys.executable, f"{folder}/new"], check=True)
            subprocess.run(
                ["uv", "pip", "install", "-q", "--python", python, f"{ROOT}[{extra}]"], env=inside, check=True
            )
            subprocess.run([python, "-I", __file__, extra], env=inside, cwd=folder, check=True)


def check(holds: bool, rule: str, received: object) -> None:
    """End the program unless a rule holds."""
    if not holds:
        sys.exit(f"{rule}. Received: {received}.")


def compile_all(extra: str) -> None:
    """Compile with what this environment has."""
    from cupy._core import core

    from minicnn.backends._gpu.cubin import resources
    from minicnn.backends._gpu.device import KNOWN
    from minicnn.backends.cupy import compiler, nvrtc

    here = Path(sys.prefix).resolve()
    options = core.assemble_cupy_compiler_options(())
    outside = [o for o in options if o.startswith("-I") and here not in Path(o[2:]).resolve().parents]
    check(not outside, "CuPy's headers are those of the environment", outside)
    print(f"{extra}: NVRTC {nvrtc.version()}")
    gpus = list({g.architecture: g for g in KNOWN.values()}.values())
    for gpu in gpus if os.environ.get("MINICNN_EVERY_CASE") == "1" else (gpus[0], gpus[-1]):  # by day oldest and newest
        texts = list(kernels(gpu))
        codes = compiler.compile_all(texts, gpu.architecture)
        registers = [resources(code).registers for code in codes]
        cupys = nvrtc.compile_program(CUPY_KERNEL, {}, (f"--gpu-architecture={gpu.architecture}", *options))
        check(all(r > 0 for r in registers), "A kernel takes registers", registers)
        print(
            f"  {gpu.architecture}: {len(texts)} kernels of a network, {sum(map(len, codes)):,} bytes, at most "
            f"{max(registers)} registers; CuPy's headers, {resources(cupys).registers} registers"
        )
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libnvrtc" in line}
    check(len(loaded) == 2, "NVRTC and its builtins are loaded", loaded)
    check(all(here in Path(path).parents for path in loaded), "NVRTC is that of the environment", loaded)


def kernels(gpu):
    """Texts of the kernels of a small network's training step, in each precision that the GPU has."""
    from minicnn import Sequential
    from minicnn.backends._gpu.planning import planned
    from minicnn.backends.cupy.generation import generate
    from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling

    layers = [Rescaling(1 / 255), Conv2D(32, 3, activation="relu"), MaxPooling2D(), Flatten(), Dense(10, "softmax")]
    for precision in ("float32", "mixed_bfloat16") if gpu.has_tensor_cores else ("float32",):
        model = Sequential([Input((28, 28, 1), dtype="uint8"), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", precision=precision)
        step = planned(model.program("train", batch_size=64), gpu, generate)
        yield from (launch.source.text for launch in step.launches if launch.source is not None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_all(sys.argv[1])
    else:
        main()
