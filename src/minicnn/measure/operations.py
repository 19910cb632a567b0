"""Time of each node of a Program, as the backend really runs it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends._executables import TimedLaunches
from minicnn.backends.base import Array, Backend, Executable, Kernel
from minicnn.measure.timing import stopwatch
from minicnn.models import Model
from minicnn.program.graph import Node, Program, Value
from minicnn.program.shares import shares

IN_A_ROW_S = 0.002  # for which an operation on a GPU is launched again and again


@dataclass(frozen=True)
class NodeTime:
    """Time of one node of a Program.

    Attributes:
        op: Name of the primitive.
        scope: Layer, loss or optimizer that it belongs to.
        phase: "forward", "backward" or "update".
        flops: Floating-point operations.
        bytes_moved: Bytes read and written.
        seconds: Time of each run, with the device idle before and after; or the mean of several in a row.
    """

    op: str
    scope: str
    phase: str
    flops: int
    bytes_moved: int
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, node: Node, seconds: Iterable[float]) -> NodeTime:
        """The times of a node in some runs."""
        return cls(node.op.name, node.scope, node.phase, node.cost.flops, node.cost.bytes, tuple(seconds))


def step_inputs(model: Model, program: Program, batch: Mapping[str, Any]) -> dict[str, Array]:
    """All inputs of a step's Program on the model's backend: its weights, what is given, zeros for the rest.

    Args:
        model: The model.
        program: One of its Programs.
        batch: Data by name, such as "x" and "y", and "learning_rate".
    """
    known = {**model.get_weights(), **batch}
    return {
        v.name: model.backend.asarray(known.get(v.name, np.zeros(v.shape, v.dtype)), v.dtype) for v in program.inputs
    }


def step_times(
    backend: Backend, program: Program, arrays: Mapping[str, Array], *, repeats: int, merged: bool = True
) -> tuple[str, list[NodeTime]] | None:
    """Time the parts of a Program while the backend runs it.

    The functions that the backend runs for the nodes are wrapped in clocks, and the Program is compiled and run as
    always. A backend that merges nodes, or compiles the step as a whole, does not call them; it may tell the times of
    its kernels, in steps launched kernel by kernel.

    Args:
        backend: The backend.
        program: The Program; the backend may rewrite it.
        arrays: Its inputs by name.
        repeats: How often it is run, after one run that does not count.
        merged: Whether kernels of merged nodes will do.

    Returns:
        "nodes" and all nodes in order, as rewritten by the backend; or "merged" and the nodes of the kernels in order,
        each kernel's time divided among its nodes by their operations and bytes; None if the backend tells neither.
    """
    nodes: list[Node] = []
    times: list[list[float]] = []
    watched = copy.copy(backend)

    def functions(rewritten: Program) -> list[Kernel]:
        kernels = backend.functions(rewritten)
        nodes.extend(rewritten.nodes)
        times.extend([] for _ in kernels)
        return [_timed(function, times[i], backend.synchronize) for i, function in enumerate(kernels)]

    vars(watched)["functions"] = functions
    run = watched.compile(program)
    arrays = dict(arrays)

    def once() -> None:
        results = run(arrays)
        arrays.update({name: results[name] for name in program.updates})  # a backend may overwrite what it was given

    once()  # it compiles kernels, and fills caches; JAX calls the functions now, and never again
    for samples in times:
        samples.clear()
    once()
    if any(times):
        for _ in range(repeats - 1):
            once()
        return "nodes", [NodeTime.of(node, samples) for node, samples in zip(nodes, times, strict=True)]
    if merged and isinstance(run, TimedLaunches):
        return "merged", [
            NodeTime.of(node, [share * s for s in seconds])
            for kernel, seconds in run.launch_times(arrays, repeats)
            for node, share in zip(kernel, shares(kernel), strict=True)
        ]
    return None


def carry(program: Program, results: Mapping[str, Value]) -> None:
    """Have a Program replace arrays by its results, as a training step does, rather than return them.

    What is carried is written where it is. An output may be copied after the step, which can take longer than a kernel.
    """
    for name, value in results.items():
        program.input(name, value.shape, value.dtype, kind="statistic")
        program.updates[name] = value


def apart(backend: Backend, program: Program, arrays: Mapping[str, Array], *, repeats: int) -> list[NodeTime]:
    """Time each node of a Program by itself: compiled by the backend as a Program of one node, on the right arrays.

    It is what a step would take without merging nodes into kernels and without running them together. Operands are
    parameters and results are carried, so that both stay where they are: see `carry`. On a GPU each is launched many
    times in a row, and the mean counts: launching one and waiting for it takes longer than most operations.

    Args:
        backend: The backend.
        program: The Program.
        arrays: Its inputs by name.
        repeats: How often each node is run, after one run that does not count.
    """
    known = {id(v): arrays[v.name] for v in program.inputs}
    known |= {id(v): backend.asarray(v.data, v.dtype) for v in program.constants}
    times = []
    for node in program.nodes:
        alone = Program(node.op.name)
        operands = [alone.input(f"in{i}", v.shape, v.dtype, kind="parameter") for i, v in enumerate(node.inputs)]
        results = node.op(*operands, **node.attrs)
        here = {f"in{i}": known[id(v)] for i, v in enumerate(node.inputs)}
        carry(alone, {f"out{i}": v for i, v in enumerate(results if isinstance(results, tuple) else (results,))})
        here |= {name: backend.asarray(np.zeros(v.shape, v.dtype)) for name, v in alone.updates.items()}
        run = backend.compile(alone)
        here |= run(here)  # the memory of what was given may be gone
        least_s = 0.0 if backend.device == "cpu" else IN_A_ROW_S
        seconds = [_seconds(run, here, backend.synchronize, least_s) for _ in range(repeats)]
        known |= {id(v): here[f"out{i}"] for i, v in enumerate(node.outputs)}
        times.append(NodeTime.of(node, seconds))
    return times


def _seconds(run: Executable, arrays: dict[str, Array], synchronize: Callable[[], None], least_s: float) -> float:
    """Seconds of a run. Its results replace what was given: JAX's can only be waited for while they exist."""
    return stopwatch(lambda: arrays.update(run(arrays)), synchronize, least_s=least_s)


def _timed(function: Kernel, samples: list[float], synchronize: Callable[[], None]) -> Kernel:
    def timed(*arrays: Array) -> Any:
        synchronize()
        start = time.perf_counter()
        results = function(*arrays)
        synchronize()
        samples.append(time.perf_counter() - start)
        return results

    return timed
