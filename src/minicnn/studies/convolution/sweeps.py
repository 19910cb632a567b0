"""Strategies of convolution, each on each backend: errors, memory and times over kernels, channels, images, batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends.base import Array, Executable
from minicnn.measure import CandidateError, Worker, awaken, interleaved, stopwatch, torch_peer
from minicnn.measure.candidates import on_gpu
from minicnn.measure.memory import allocated
from minicnn.measure.operations import carry
from minicnn.measure.worker import together
from minicnn.ops.strategies import DIRECTIONS, PRIMITIVES, STRATEGIES, Direction, Problem, Strategy
from minicnn.program.graph import Program
from minicnn.tolerance import tolerance

OWN = "own kernel"  # of a backend that has one for convolutions
VENDOR, CHANNELS_FIRST = "vendor", "vendor, channels first"  # the library's own on images in NHWC, and in NCHW
LEAST_S = 0.01  # a call that takes less is repeated, and the mean counts
IDLE_S = 0.02  # a candidate that was idle for so long computes for a moment before it is timed
FACTS = ("errors", "layouts", "workspace", "measured", "prepared")
HostArray = np.ndarray[Any, Any]
Way = tuple[str, Direction]


def step(problem: Problem, direction: Direction) -> Program:
    """A Program that is one convolution, or one of its gradients: from "x", "w", "dy" to "result".

    The operands are parameters and the result is carried, so that all stay where they are, as within a training step.
    """
    program = Program(direction)
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "dy": problem.y_shape}

    def operand(name: str) -> Any:
        return program.input(name, shapes[name], problem.dtype, kind="parameter")

    if direction == "forward":
        result = ops.conv2d(operand("x"), operand("w"), **problem.attrs)
    elif direction == "input gradient":
        result = ops.conv2d_input_gradient(operand("dy"), operand("w"), image=problem.image, **problem.attrs)
    else:
        result = ops.conv2d_weight_gradient(operand("dy"), operand("x"), kernel=problem.kernel, **problem.attrs)
    carry(program, {"result": result})
    return program


def operands(problem: Problem, seed: int = 0) -> dict[str, HostArray]:
    """Standard normal images and gradient, and a kernel that keeps their size; images in NHWC."""
    rng = np.random.default_rng(seed)
    n, (h, w), (oh, ow) = problem.batch, problem.image, problem.output
    shapes = {"x": (n, h, w, problem.channels), "w": problem.w_shape, "dy": (n, oh, ow, problem.filters)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays["w"] *= np.float32(np.prod(problem.w_shape[:3]) ** -0.5)
    return arrays


def expected(problem: Problem) -> dict[str, HostArray]:
    """The results in float64 by direction, images in NHWC: by FFT, whose time does not grow with the kernel."""
    problem = replace(problem, dtype="float64")
    backend = get_backend("numpy", convolution="fft")
    arrays = {name: a.astype(np.float64) for name, a in operands(problem).items()}
    results: dict[str, HostArray] = {}
    for direction in DIRECTIONS:
        program = step(problem, direction)
        arrays["result"] = np.zeros(program.value("result").shape)
        results[direction] = backend.compile(program)({v.name: arrays[v.name] for v in program.inputs})["result"]
    return results


def useful_flops(problem: Problem) -> int:
    """Multiplications and additions with pixels of the image: padding is multiplied with, too, but for nothing."""

    def within(axis: int) -> int:
        """Number of taps, over all places of the output along an axis, that lie on the image."""
        before, stride, step = problem.padding[axis][0], problem.strides[axis], problem.dilation[axis]
        places = np.arange(problem.output[axis])[:, None] * stride + np.arange(problem.kernel[axis]) * step - before
        return int(((places >= 0) & (places < problem.image[axis])).sum())

    channels = problem.channels // problem.groups
    return 2 * problem.batch * problem.filters * channels * within(0) * within(1)


def strategy_of(way: str) -> Strategy:
    """The strategy that a way to convolve takes."""
    return STRATEGIES[VENDOR if way == CHANNELS_FIRST else way]


class Convolver:
    """A candidate: computes convolutions by every strategy that its backend can; lives in a process of its own.

    Args:
        name: Name of the backend.
        ways: Strategies that take part, with the library's own in either order of axes, and the backend's own kernel.
    """

    def __init__(self, name: str, ways: Sequence[str] = (*STRATEGIES, CHANNELS_FIRST, OWN)) -> None:
        self.name, self._ways = name, ways
        self.backend = get_backend(name)
        if self.backend.name == "torch":
            torch_peer.at_its_best()
        self._runs: dict[Way, tuple[Executable, dict[str, Array]]] = {}
        self._seconds: dict[Way, float] = {}
        self._last_run = 0.0
        self._prepared = 0.0  # seconds of the last `begin`
        self._last: dict[str, Array] = {}
        self._problems: dict[str, Problem] = {}

    def begin(self, problem: Problem) -> dict[str, str]:
        """Take up a problem (in NHWC); returns for each strategy that cannot compute it the reason."""
        self._runs.clear()
        self._seconds.clear()
        self._problems.clear()
        start = time.monotonic()
        refusals: dict[str, str] = {}
        arrays = operands(problem)
        for way in self._ways:
            reason = self._add(way, problem, arrays)
            if reason is not None:
                refusals[way] = reason
        if self.backend.device != "cpu":  # what a library compiles when it is first called
            for way, direction in self._runs:
                self._run(way, direction)
            self.backend.synchronize()
        self._prepared = time.monotonic() - start
        return refusals

    def _add(self, way: str, problem: Problem, arrays: Mapping[str, HostArray]) -> str | None:
        if way == OWN:
            return self._add_own(problem, arrays)
        if self.name == "numba":
            return "its arrays are NumPy's: see numpy"
        strategy = strategy_of(way)
        reason = strategy.refusal(problem, self.backend.xp)
        if reason is not None:
            return reason
        layout = {VENDOR: "NHWC", CHANNELS_FIRST: "NCHW"}.get(way) or self._layout(problem)
        self._compile(
            way, replace(problem, data_format=layout), arrays, get_backend(self.name, convolution=strategy.name)
        )
        return None

    def _add_own(self, problem: Problem, arrays: Mapping[str, HostArray]) -> str | None:
        for direction in DIRECTIONS:
            rows = self.backend.explain(step(problem, direction))
            texts = [text for node, text in rows if node.op.name.startswith(tuple(PRIMITIVES))]
            if not texts or any(text.startswith("reference") for text in texts):
                return texts[0].removeprefix("reference: ") if texts else "it has none"
        self._compile(OWN, problem, arrays, self.backend)
        return None

    def _layout(self, problem: Problem) -> str:
        """The order of the axes that the backend's passes give to images."""
        nodes = self.backend.rewrite(step(problem, "forward")).nodes
        return next((str(n.attrs["data_format"]) for n in nodes if n.op.name in PRIMITIVES), "NHWC")

    def _compile(self, way: str, problem: Problem, arrays: Mapping[str, HostArray], backend: Any) -> None:
        self._problems[way] = problem
        order = ["NHWC".index(a) for a in problem.data_format]
        for direction in DIRECTIONS:
            program = step(problem, direction)
            here = {name: a if name == "w" else a.transpose(order) for name, a in arrays.items()}
            here["result"] = np.zeros(program.value("result").shape, np.float32)
            inputs = {v.name: backend.asarray(np.ascontiguousarray(here[v.name])) for v in program.inputs}
            self._runs[way, direction] = (backend.compile(program), inputs)

    def facts(self, right: Mapping[str, HostArray]) -> dict[str, Any]:
        """Facts besides times: errors, layouts, workspace stated and measured, by strategy; seconds of `begin`."""
        every = self.errors(right), self.layouts(), self.workspace(), self.measured(), self._prepared
        return dict(zip(FACTS, every, strict=True))

    def errors(self, right: Mapping[str, HostArray]) -> dict[str, dict[str, float]]:
        """Largest error of each strategy by direction, relative to the largest element of the result."""
        errors: dict[str, dict[str, float]] = {way: {} for way in self._problems}
        largest = {direction: _largest(right[direction]) for direction in DIRECTIONS}
        for way, direction in self._runs:
            result = self.backend.to_numpy(self._run(way, direction)["result"])
            if direction != "weight gradient":
                result = result.transpose([self._problems[way].data_format.index(a) for a in "NHWC"])
            errors[way][direction] = _largest(result, right[direction]) / largest[direction]
        return errors

    def _run(self, way: str, direction: Direction) -> dict[str, Array]:
        run, inputs = self._runs[way, direction]
        results = run(inputs)
        inputs |= results  # its memory may be that of what was given
        return results

    def time(self, way: str, direction: Direction) -> float:
        """Seconds of one run."""

        def call() -> None:
            # Kept, since JAX's results can only be waited for while they are there.
            self._last = self._run(way, direction)
            if self.backend.device == "cpu":
                self.backend.synchronize()

        if time.monotonic() - self._last_run > IDLE_S:
            awaken(self.backend, call)
        seconds = stopwatch(
            call, self.backend.synchronize, least_s=LEAST_S, expected_s=self._seconds.get((way, direction))
        )
        self._seconds[way, direction], self._last_run = seconds, time.monotonic()
        return seconds

    def layouts(self) -> dict[str, str]:
        """Order of the axes of images by strategy."""
        return {way: problem.data_format for way, problem in self._problems.items()}

    def workspace(self) -> dict[str, dict[str, int | None]]:
        """Bytes beside operands and result that each strategy states."""
        return {
            way: {d: strategy_of(way).workspace(problem, d) for d in DIRECTIONS}
            for way, problem in self._problems.items()
            if way != OWN
        }

    def measured(self) -> dict[str, dict[str, int]]:
        """Bytes beside operands and result that a run really takes, where that can be measured exactly."""
        workspaces: dict[str, dict[str, int]] = {}
        for way, direction in self._runs:
            peak = allocated(self.backend, partial(self._run, way, direction))
            if peak is not None:
                result = self._problems[way].result_bytes(direction)
                workspaces.setdefault(way, {})[direction] = max(peak - result, 0)
        return workspaces


def _largest(result: HostArray, right: HostArray | None = None) -> float:
    """The largest magnitude of an array, or of its difference from another, image by image: the whole would be slow."""
    others = right if right is not None else np.zeros(len(result))
    return max(float(np.abs(one - other).max()) for one, other in zip(result, others, strict=True))


def measure(names: Sequence[str], problems: Sequence[Problem], rounds: int, budget_s: float) -> dict[str, Any]:
    """All strategies on all backends: refusals, errors, memory, and interleaved seconds.

    Args:
        names: The backends.
        problems: The problems, in NHWC and float32.
        rounds: How often each is measured.
        budget_s: Seconds after which no round of a problem and direction starts, once each has had three.

    Returns:
        "points", one a problem, and "out": why backends could not take part.
    """
    with together({name: Worker(name, Convolver, name) for name in names}) as (workers, out):
        return {"points": [point_of(workers, p, rounds, budget_s) for p in problems], "out": out}


def _answers(workers: Mapping[str, Worker], failed: dict[str, str]) -> dict[str, Any]:
    """The results of those that were called and did not fail; of one that fails, the reason is noted."""
    answers = {}
    for name in [name for name in workers if name not in failed]:
        try:
            answers[name] = workers[name].receive()
        except CandidateError as error:
            failed[name] = error.why
    return answers


def _begun(
    workers: Mapping[str, Worker], failed: dict[str, str], problem: Problem
) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Results of `Convolver.begin` and `Convolver.facts` for each that has not failed.

    All begin at the same time. While those on a GPU compile, the others report their facts, one after the other: side
    by side, their threads would wait for cores that the threads of others keep busy, ten times as long on two cores.
    """
    for worker in workers.values():
        worker.send("begin", problem)
    right = expected(problem)
    gpu = {name: worker for name, worker in workers.items() if on_gpu(name)}
    cpu = {name: worker for name, worker in workers.items() if name not in gpu}
    skipped = _answers(cpu, failed)
    facts: dict[str, Any] = {}
    for name, worker in cpu.items():
        facts |= _asked({name: worker}, failed, right)
    skipped |= _answers(gpu, failed)
    return skipped, facts | _asked(gpu, failed, right)


def _asked(workers: Mapping[str, Worker], failed: dict[str, str], right: Mapping[str, HostArray]) -> dict[str, Any]:
    """`Convolver.facts` of some at the same time."""
    for name, worker in workers.items():
        if name not in failed:
            worker.send("facts", right)
    return _answers(workers, failed)


def point_of(workers: Mapping[str, Worker], problem: Problem, rounds: int, budget_s: float) -> dict[str, Any]:
    """A problem on all workers, which hold a `Convolver`: see `measure`."""
    failed: dict[str, str] = {}
    skipped, facts = _begun(workers, failed, problem)
    candidates: dict[str, dict[str, Any]] = {}
    for name in workers:
        if name in failed:
            candidates[name] = {"failure": failed[name], **{k: {} for k in ("times", "refused", "skipped", *FACTS)}}
            continue
        errors = facts[name]["errors"]
        refused = {way: text for way, text in _judged(errors, problem).items() if text}
        times: dict[str, dict[str, list[float]]] = {way: {} for way in errors if way not in refused}
        candidates[name] = {"skipped": skipped[name], "refused": refused, "times": times, **facts[name]}
    for direction in DIRECTIONS:
        calls = {
            (name, way): partial(workers[name].call, "time", way, direction)
            for name, candidate in candidates.items()
            for way in candidate["times"]
        }
        samples = interleaved({f"{way} on {name}": call for (name, way), call in calls.items()},
                              rounds=rounds, budget_s=budget_s)  # fmt: skip
        for name, way in calls:
            candidates[name]["times"][way][direction] = samples[f"{way} on {name}"]
    return {"problem": asdict(problem), "candidates": candidates}


def allowed(way: str, problem: Problem, direction: Direction) -> float:
    """The largest error of a strategy, relative to the largest result, that rounding in float32 explains."""
    taps = problem.kernel[0] * problem.kernel[1]
    terms = {
        "forward": taps * problem.channels // problem.groups,
        "input gradient": taps * problem.filters // problem.groups,
        "weight gradient": problem.batch * problem.output[0] * problem.output[1],
    }[direction]
    factor = 1.0 if way == OWN else strategy_of(way).error
    return factor * tolerance(problem.dtype, terms)[0]


def _judged(errors: Mapping[str, Mapping[str, float]], problem: Problem) -> dict[str, str]:
    """For each strategy that errs by more than rounding explains, in what; an empty text for the others."""
    texts = {}
    for way, by_direction in errors.items():
        wrong = [
            f"its {d} errs by {by_direction[d]:.1e} (relative; at most {allowed(way, problem, d):.1e})"
            for d in DIRECTIONS
            if not by_direction[d] <= allowed(way, problem, d)
        ]
        texts[way] = " and ".join(wrong)
    return texts
