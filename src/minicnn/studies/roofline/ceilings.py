"""The machine's ceilings: copies by the size of what is copied, matrix products by precision, the cost of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.measure import CandidateError, Spread, Worker, stopwatch
from minicnn.measure.candidates import PEERS, backend_of, on_gpu
from minicnn.program.graph import Program

COPIES = ("numpy", "torch", "cupy")  # libraries that copy into an existing array
PRECISIONS = {
    "numpy": ("float32", "float64"), "torch": ("float32", "float64", "bfloat16"), "jax": ("float32",),
    "cupy": ("float32", "float64", "float16"),
}  # fmt: skip
ON_GPU = {"torch": ("tf32", "float16")}  # further ones there
CHAIN = 100  # calls in a row of which the mean is taken
LEAST_S = 0.01
WARM_UPS = 3
# Ways to compute a float32 product, by what is measured for it: precision, and how many such products it takes.
WAYS = {
    "float32, multiply-adds": ("float32", 1), "float32 as 3 float16 products": ("float16", 3), "TF32": ("tf32", 1),
    "float16": ("float16", 1), "bfloat16": ("bfloat16", 1),
}  # fmt: skip
SPLIT = ("cupy",)  # candidates whose float32 products are float16 ones on tensor cores
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def cpu_caches(folder: Path = CPU_CACHES) -> dict[str, int]:
    """Bytes of the first core's data caches by name, as Linux says; empty elsewhere."""
    caches = {}
    for cache in sorted(folder.glob("index*")):
        level, kind, size = ((cache / n).read_text("ascii").strip() for n in ("level", "type", "size"))
        if kind != "Instruction":
            caches[f"L{level}"] = int(size.removesuffix("K")) * 1024
    return caches


def level_of(nbytes: int, caches: Mapping[str, int]) -> str:
    """The smallest level that holds so many bytes; "memory" only beyond twice the largest cache."""
    for name, size in caches.items():
        if nbytes <= size:
            return name
    return "memory" if nbytes > 2 * max(caches.values(), default=0) else "between"


def call_s(copies: Mapping[str, Sequence[float]]) -> float:
    """Seconds that a copy takes apart from its bytes: where the line through the two smallest copies is at no bytes.

    Args:
        copies: Bytes per second, read and written, by the bytes of the array that is copied. One size tells nothing: 0.
    """
    if len(copies) < 2:
        return 0.0
    (n, few), (m, more) = sorted((int(n), 2 * int(n) / median(rates)) for n, rates in copies.items())[:2]
    return max(0.0, (m * few - n * more) / (m - n))


class Ceilings:
    """A library's fastest copies and products on a device; lives in a process of its own.

    Args:
        name: Name of a backend, or the peer "torch.nn" with a device.
    """

    def __init__(self, name: str) -> None:
        self.backend = get_backend(backend_of(name))
        self._peer = name.partition(":")[0] in PEERS
        self.xp = self.backend.xp

    def _array(self, shape: tuple[int, ...], dtype: str) -> Any:
        rng = np.random.default_rng(0)
        values = rng.random(shape, np.float32)
        dtype = "float32" if dtype == "tf32" else dtype
        if dtype in ("bfloat16", "float16"):
            return self.xp.astype(self.backend.asarray(values), getattr(self.xp, dtype))
        return self.backend.asarray(values, dtype)

    def copy(self, nbytes: int, repeats: int) -> list[float]:
        """Bytes per second, read and written, of copies from one array of `nbytes` to another.

        On a CUDA device the faster of two ways: copies called one by one, and many as one graph. By itself a call takes
        longer than copying what a cache holds; in a graph CUDA copies some sizes otherwise, at two thirds of the rate
        (https://github.com/pytorch/pytorch/issues/191284).
        """
        x, y = self._array((nbytes // 4,), "float32"), self._array((nbytes // 4,), "float32")
        copy: Callable[[], object]
        if self.backend.name == "torch":
            copy = lambda: y.copy_(x)  # noqa: E731
        elif self.backend.name == "cupy":
            import cupy

            copy = lambda: cupy.copyto(y, x)  # noqa: E731
        else:
            copy = lambda: np.copyto(y, x)  # noqa: E731
        copy()
        ways = [(copy, 1)]
        if self.backend.device.startswith("cuda"):
            ways.append((self._captured(copy, CHAIN), CHAIN))
        rates = [
            [2 * nbytes * n / stopwatch(call, self.backend.synchronize, least_s=LEAST_S) for _ in range(repeats)]
            for call, n in ways
        ]
        return max(rates, key=median)

    def _captured(self, call: Callable[[], object], times: int) -> Callable[[], object]:
        """A function that runs what a call launches so many times, as a CUDA graph."""
        launch: Callable[[], object]
        if self.backend.name == "torch":
            import torch

            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                for _ in range(times):
                    call()
            launch = captured.replay
        else:
            import cupy

            with cupy.cuda.Stream(non_blocking=True) as stream:
                stream.begin_capture()
                for _ in range(times):
                    call()
                graph = stream.end_capture()
            launch = graph.launch
        launch()
        return launch

    def product(self, n: int, dtype: str, repeats: int) -> list[float]:
        """FLOP per second of products of two n x n matrices."""
        x = self._array((n, n), dtype)
        last: list[Any] = []

        def multiply() -> None:
            last[:] = [self.xp.matmul(x, x)]  # kept, since JAX's results can only be waited for while they are there
            if self.backend.device == "cpu":
                self.backend.synchronize()

        if self.backend.name == "torch":
            import torch

            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        if self.backend.name == "jax":
            import jax

            jax.config.update("jax_default_matmul_precision", "highest")  # on a GPU the default is TF32
        multiply()
        return [2 * n**3 / stopwatch(multiply, self.backend.synchronize, least_s=LEAST_S) for _ in range(repeats)]

    def cache(self) -> int | None:
        """Bytes of the GPU's last cache; None where the library does not tell."""
        if self.backend.name == "cupy":
            import cupy

            return int(cupy.cuda.Device().attributes["L2CacheSize"])
        if self.backend.name == "torch" and self.backend.device.startswith("cuda"):
            import torch

            return int(torch.cuda.get_device_properties(self.backend.device).L2_cache_size)
        return None

    def launch(self, repeats: int) -> list[float]:
        """Seconds of an operation on next to nothing, one of many in a step as the candidate carries it out."""
        call, count = self._modules() if self._peer else self._operations()
        for _ in range(WARM_UPS):  # a library may still choose algorithms, start threads, or let clocks rise
            stopwatch(call, self.backend.synchronize, least_s=LEAST_S)
        return [stopwatch(call, self.backend.synchronize, least_s=LEAST_S) / count for _ in range(repeats)]

    def _operations(self) -> tuple[Callable[[], object], int]:
        """A function that runs a Program of many small operations, and how many these are."""
        program = Program("launches")
        value = program.input("x", (1, 1, 1, 1))
        for _ in range(CHAIN):
            value = ops.average_pool2d(value, kernel=(1, 1), strides=(1, 1))
        program.outputs["y"] = value
        run = self.backend.compile(program)
        arrays = {"x": self._array((1, 1, 1, 1), "float32")}
        last = run(arrays)

        def call() -> None:
            last.update(run(arrays))

        return call, CHAIN

    def _modules(self) -> tuple[Callable[[], object], int]:
        """The same of many of PyTorch's modules, forward and backward."""
        import torch

        chain = torch.nn.Sequential(*(torch.nn.AvgPool2d(1) for _ in range(CHAIN)))
        x = torch.ones((1, 1, 1, 1), device=self.backend.device, requires_grad=True)
        return lambda: chain(x).backward(torch.ones_like(x)), 2 * CHAIN


def measure(names: Sequence[str], sizes: Sequence[int], sides: Mapping[str, int], repeats: int) -> dict[str, Any]:
    """Ceilings by library.

    Args:
        names: Backends; and peers, which have launches only.
        sizes: Bytes of the arrays that are copied.
        sides: Rows of the matrices by device, "cpu" or "gpu".
        repeats: Samples of each.

    Returns:
        "copies" by backend and bytes, "products" by backend and precision, "launches" by candidate, "caches" of the
        CPU, "l2" of GPUs by backend, and "out": why candidates could not take part.
    """
    result: dict[str, Any] = {"copies": {}, "products": {}, "launches": {}, "out": {}, "caches": cpu_caches(), "l2": {}}
    for name in names:
        library, gpu = name.partition(":")[0], on_gpu(name)
        try:
            with Worker(name, Ceilings, name) as worker:
                result["launches"][name] = worker.call("launch", repeats)
                if library in PEERS:
                    continue
                if library in COPIES:
                    result["copies"][name] = {str(n): worker.call("copy", n, repeats) for n in sizes}
                    result["l2"] |= {name: worker.call("cache")} if gpu else {}
                precisions = PRECISIONS.get(library, ()) + (ON_GPU.get(library, ()) if gpu else ())
                result["products"] |= {name: {}} if precisions else {}
                for p in precisions:
                    rates = worker.call("product", sides["gpu" if gpu else "cpu"], p, repeats)
                    result["products"][name][p] = rates
        except CandidateError as error:
            result["out"][name] = error.why
    return result


def peaks(ceilings: Mapping[str, Any], gpu: bool) -> dict[str, float]:
    """FLOP per second of each way to compute products, on that kind of device: the best of all libraries.

    Args:
        ceilings: What `measure` returned.
        gpu: Whether those of GPUs are wanted.
    """
    best: dict[str, float] = {}
    for name, products in ceilings["products"].items():
        if on_gpu(name) == gpu:
            for precision, rates in products.items():
                best[precision] = max(best.get(precision, 0.0), max(rates))
    return {
        way: best[precision] / times
        for way, (precision, times) in WAYS.items()
        if precision in best and (gpu or times == 1)
    }


def way_of(candidate: str) -> str:
    """Way in which a candidate computes products of float32."""
    first, second, *_ = WAYS
    return second if candidate.partition(":")[0] in SPLIT else first


def bandwidth(ceilings: Mapping[str, Any], gpu: bool) -> float:
    """Bytes per second from memory, read and written: the best of all libraries' largest copies; 0 without."""
    return max(
        (
            max(copies[max(copies, key=int)])
            for name, copies in ceilings["copies"].items()
            if on_gpu(name) == gpu and copies
        ),
        default=0.0,
    )


def launch_s(ceilings: Mapping[str, Any], candidate: str) -> Spread | None:
    """Seconds of an operation on next to nothing, without those in which the library was still starting."""
    launches = ceilings["launches"].get(candidate) or ceilings["launches"].get(backend_of(candidate))
    return Spread.after_first(launches) if launches else None
