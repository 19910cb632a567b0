"""Programs and machines: what a training step costs, where its values lie, what runs together, and what it has seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.exercises.exercise import Array, Example, Exercise, Item, Rng, WrongError, call

CHAPTER = "Programs and machines"


def _ints(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(n) for n in rng.integers(low, high, count)]


# FLOPs and bytes ------------------------------------------------------------------------------------


def _conv2d_cost(
    n: int, h: int, w: int, c: int, kh: int, kw: int, f: int, stride: int, padding: int, *, shrinks: bool = True,
    macs: int = 2,
) -> tuple[int, int]:  # fmt: skip
    """The answer; or if the result has the size of the image, or a product and an addition count once."""
    oh, ow = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1
    oh, ow = (oh, ow) if shrinks else (h, w)
    return macs * n * oh * ow * kh * kw * c * f, 4 * (n * h * w * c + kh * kw * c * f + n * oh * ow * f)


def _conv(rng: Rng) -> Example:
    n, c, kh, kw, f = _ints(rng, 1, 6, 5)
    return call(n, *_ints(rng, 7, 20, 2), c, kh, kw, f, int(rng.integers(1, 4)), int(rng.integers(0, 3)))


def _layers(rng: Rng) -> Example:
    widths = _ints(rng, 2, 30, 4)
    return call(list(itertools.pairwise(widths)), int(rng.integers(1, 40)))


def _training_flops(layers: Sequence[tuple[int, int]], n: int, *, first: int = 2) -> int:
    return sum((first if i == 0 else 3) * 2 * n * d * f for i, (d, f) in enumerate(layers))


# Memory ---------------------------------------------------------------------------------------------


def _lifetimes(program: Sequence[tuple[str, Sequence[str]]], results: Sequence[str]) -> dict[str, tuple[int, int]]:
    first = {value: step for step, (value, _) in enumerate(program)}
    last = {value: step for step, (_, reads) in enumerate(program) for value in reads}
    end = len(program) - 1
    return {v: (s, end if v in results else max(s, last.get(v, s))) for v, s in first.items()}


def _program(rng: Rng) -> Example:
    names = [f"v{i}" for i in rng.permutation(8)]
    steps = [(name, [names[int(p)] for p in rng.integers(0, max(i, 1), min(i, 2))]) for i, name in enumerate(names)]
    return call(steps, [names[-1], names[int(rng.integers(7))]])


def _lives(rng: Rng, count: int = 10) -> Example:
    lives = {}
    for i in range(count):
        first, last = sorted(_ints(rng, 0, 12, 2))
        lives[f"v{i}"] = (first, last)
    return call(lives, {name: 4 * int(rng.integers(1, 12)) for name in lives})


def _peak(lives: dict[str, tuple[int, int]], sizes: dict[str, int]) -> int:
    steps = range(max(last for _, last in lives.values()) + 1)
    return max(sum(sizes[v] for v, (first, last) in lives.items() if first <= step <= last) for step in steps)


def _first_fit(lives: dict[str, tuple[int, int]], sizes: dict[str, int]) -> int:
    """Bytes of a plan that places large values first."""
    placed: dict[str, int] = {}
    for value in sorted(sizes, key=lambda v: -sizes[v]):
        place = 0
        for begin, end in sorted(
            (placed[o], placed[o] + sizes[o]) for o in placed if _together(lives[o], lives[value])
        ):
            if place + sizes[value] <= begin:
                break
            place = max(place, end)
        placed[value] = place
    return max(placed[v] + sizes[v] for v in placed)


def _together(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _planned(small: bool) -> Any:
    def judge(case: Example, result: Any) -> None:
        lives, sizes = case.arguments
        if (
            not isinstance(result, dict)
            or set(result) != set(lives)
            or any(type(p) is not int or p < 0 for p in result.values())
        ):
            raise WrongError("plan(...) should be a dict from each value to the byte at which it begins")
        for a in lives:
            for b in lives:
                apart = result[a] + sizes[a] <= result[b] or result[b] + sizes[b] <= result[a]
                if a < b and _together(lives[a], lives[b]) and not apart:
                    raise WrongError(f"{a} and {b} live at the same time and overlap in memory")
        total, most = max(result[v] + sizes[v] for v in result), _first_fit(lives, sizes)
        if small and total > most:
            raise WrongError(f"the plan needs {total} bytes, and one that places large values first {most}")

    return judge


# Fusion ---------------------------------------------------------------------------------------------

ELEMENTWISE = ("add", "multiply", "relu", "exp", "subtract")
Step = tuple[str, str, Sequence[str]]


def _steps(rng: Rng) -> tuple[list[Step], list[str]]:
    names, program = ["x"], list[Step]()
    for i in range(9):
        operation = ["conv2d", "matmul", "add", "relu", "multiply", "exp", "relu"][rng.integers(7)]
        near = names[-1] if rng.random() < 0.7 else names[int(rng.integers(len(names)))]
        others = [] if operation in ("relu", "exp") else [names[int(rng.integers(len(names)))]]
        program.append((f"v{i}", operation, [near, *others]))
        names.append(f"v{i}")
    return program, ["v8", f"v{rng.integers(8)}"]


def _readers(program: Sequence[Step]) -> dict[str, int]:
    return {value: sum(value in reads for _, _, reads in program) for value, _, _ in program}


def _fuse(program: Sequence[Step], results: Sequence[str], *, careful: bool = True) -> list[list[str]]:
    """The answer; or if a value is fused although others read it."""
    counts, operations = _readers(program), {value: operation for value, operation, _ in program}
    group_of: dict[str, list[str]] = {}
    groups: list[list[str]] = []
    for value, operation, reads in program:
        first = reads[0]
        joins = operation in ELEMENTWISE and operations.get(first) in ELEMENTWISE
        if joins and (not careful or (counts[first] == 1 and first not in results)):
            group_of[value] = group_of[first]
        else:
            groups.append([])
            group_of[value] = groups[-1]
        group_of[value].append(value)
    return groups


def _traffic(program: Sequence[Step], groups: Sequence[Sequence[str]], sizes: dict[str, int]) -> int:
    reads_of = {value: set(reads) for value, _, reads in program}
    read = [set().union(*(reads_of[v] for v in group)) - set(group) for group in groups]
    return sum(sum(sizes[v] for v in r) + sizes[g[-1]] for r, g in zip(read, groups, strict=True))


def _moved(rng: Rng) -> Example:
    program, results = _steps(rng)
    sizes = {name: 4 * int(rng.integers(1, 50)) for name in ["x", *(value for value, _, _ in program)]}
    return call(program, _fuse(program, results), sizes)


# Roofline -------------------------------------------------------------------------------------------


def _machine(rng: Rng) -> tuple[float, float]:
    return float(rng.integers(50, 200)), float(rng.integers(5, 20))


def _operations(rng: Rng) -> list[tuple[float, float]]:
    return [(float(f), float(b)) for f, b in rng.integers(10, 400, (4, 2))]


def _step_time(operations: Any, peak: float, bandwidth: float, launch: float) -> float:
    return sum(max(flops / peak, size / bandwidth) + launch for flops, size in operations)


def _speedup(operations: Any, peak: float, bandwidth: float, launch: float, saved: float) -> float:
    flops, size = sum(f for f, _ in operations), sum(b for _, b in operations)
    before = _step_time(operations, peak, bandwidth, launch)
    return before / _step_time([(flops, size - saved)], peak, bandwidth, launch)


# All-reduce -----------------------------------------------------------------------------------------


def _tree_sum(parts: list[Array]) -> Array:
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def _same_bits(case: Example, result: Any) -> None:
    right = _tree_sum(*case.arguments)
    if not isinstance(result, np.ndarray) or result.dtype != right.dtype or result.shape != right.shape:
        raise WrongError(f"tree_sum(...) should be an array {right.shape} of float32")
    if result.tobytes() != right.tobytes():
        left = result.tobytes() == sum(case.arguments[0][1:], case.arguments[0][0]).tobytes()
        said = ": it is added from left to right" if left else ""
        raise WrongError(f"the sum of {len(case.arguments[0])} parts has other bits than that of the tree{said}")


def _schedule(ranks: int) -> list[list[tuple[int, int]]]:
    rounds, distance = [], 1
    while distance < ranks:
        rounds.append([(r + distance, r) for r in range(0, ranks - distance, 2 * distance)])
        distance *= 2
    return rounds


# Grad-CAM -------------------------------------------------------------------------------------------


def _grad_cam(activation: Array, gradient: Array, *, cut: bool = True, averaged: bool = True) -> Array:
    weight = gradient.mean(axis=(1, 2), keepdims=True) if averaged else gradient
    maps = (weight * activation).sum(axis=3)
    maps = np.maximum(maps, 0) if cut else maps
    largest = maps.max(axis=(1, 2), keepdims=True)
    return np.asarray(maps / np.where(largest > 0, largest, 1))


def _maps(rng: Rng) -> Example:
    activation, gradient = rng.standard_normal((2, 3, 4, 5, 6))
    gradient[0] = -np.abs(gradient[0])  # of the first image nothing is left
    return call(np.abs(activation), gradient)


def _score_gradient(labels: Array, weights: Array, height: int, width: int) -> Array:
    rows = weights.T[labels][:, None, None, :] / (height * width)
    return np.broadcast_to(rows, (len(labels), height, width, len(weights))).copy()


EXERCISES = {
    "counting": Exercise(
        "FLOPs and bytes by hand", CHAPTER,
        (
            Item("dense", 3, "dense_cost", lambda rng: call(*_ints(rng, 1, 50, 3))),
            Item("convolution", 4, "conv2d_cost", _conv),
            Item("training", 3, "training_flops", _layers),
        ),
        {
            "dense_cost": lambda n, d, f: (2 * n * d * f, 4 * (n * d + d * f + n * f)), "conv2d_cost": _conv2d_cost,
            "training_flops": _training_flops,
        },
        hints=(
            "Each element of the result is a sum of D products: 2 * D operations.",
            "OH = (H + 2 * padding - KH) // stride + 1; each of N * OH * OW * F elements sums KH * KW * C products.",
            "Three products for each layer, forward and two gradients; two for the first layer.",
        ),
        mistakes={
            "conv2d_cost": (
                ("the result is as large as the image only with padding", lambda *a: _conv2d_cost(*a, shrinks=False)),
                ("a product and an addition are two operations", lambda *a: _conv2d_cost(*a, macs=1)),
            ),
            "training_flops": (
                ("the first layer needs no gradient of its inputs", lambda *a: _training_flops(*a, first=3)),
            ),
        },
    ),
    "memory_plan": Exercise(
        "a memory plan", CHAPTER,
        (
            Item("lifetimes", 3, "lifetimes", _program),
            Item("peak", 2, "peak", _lives),
            Item("plan", 3, "plan", _lives, _planned(False), rounds=12),
            Item("small plan", 2, "plan", lambda rng: _lives(rng, 20), _planned(True), rounds=8, after="plan"),
        ),
        {"lifetimes": _lifetimes, "peak": _peak},
        hints=(
            "Two values live at the same time if each begins before the other ends: a[0] <= b[1] and b[0] <= a[1].",
            "sorted(sizes, key=lambda v: -sizes[v]) are the values, the largest first.",
            "For each value sort the places of those that are placed and live at the same time; go through them, and "
            "take the first gap that is large enough.",
        ),
    ),
    "fusion": Exercise(
        "a fusion pass", CHAPTER,
        (
            Item("readers", 2, "readers", lambda rng: call(_steps(rng)[0])),
            Item("groups", 5, "fuse", lambda rng: call(*_steps(rng)), rounds=12),
            Item("traffic", 3, "traffic", _moved),
        ),
        {"readers": _readers, "fuse": _fuse, "traffic": _traffic},
        hints=(
            "A step that reads a value twice, as in multiply(a, a), is one reader.",
            "Keep a dict from each value to the list that is its group; joining means appending to that list.",
            "Traffic: for each group, what its steps read less what it makes, as a set, and its last value.",
        ),
        mistakes={
            "fuse": (("a value that others read, or that is a result, stays in a register",
                      lambda *a: _fuse(*a, careful=False)),),
        },
    ),
    "roofline": Exercise(
        "predictions by the roofline", CHAPTER,
        (
            Item("roof", 2, "attainable", lambda rng: call(float(rng.integers(1, 40)), *_machine(rng)), rounds=8),
            Item("bound", 2, "bound", lambda rng: call(*_operations(rng)[0], *_machine(rng)), rounds=12),
            Item("step", 3, "step_time", lambda rng: call(_operations(rng), *_machine(rng), float(rng.random()))),
            Item("fusion", 3, "speedup", lambda rng: call(_operations(rng), *_machine(rng), float(rng.random()), 15.0)),
        ),
        {
            "attainable": lambda intensity, peak, bandwidth: min(peak, intensity * bandwidth),
            "bound": lambda f, b, peak, bandwidth: "memory" if b / bandwidth > f / peak else "arithmetic",
            "step_time": _step_time, "speedup": _speedup,
        },
        hints=(
            "min(peak, intensity * bandwidth)",
            "Each operation: max(flops / peak, bytes / bandwidth) + launch.",
            "One kernel has the sum of all FLOPs, the sum of all bytes less those saved, and one launch.",
        ),
        mistakes={
            "step_time": (
                ("arithmetic and memory go on at the same time: the longer counts, not the sum",
                 lambda o, p, b, launch: sum(f / p + s / b + launch for f, s in o)),
                ("each operation is launched", lambda o, p, b, launch: _step_time(o, p, b, 0) + launch),
            ),
        },
    ),
    "all_reduce": Exercise(
        "all-reduce as a tree", CHAPTER,
        (
            Item("sum", 4, "tree_sum", lambda rng: call(
                [rng.standard_normal(64, dtype="float32") for _ in range(rng.integers(4, 20))]), _same_bits),
            Item("schedule", 4, "schedule", lambda rng: call(int(rng.integers(2, 40)))),
            Item("bytes", 2, "bytes_sent", lambda rng: call(*_ints(rng, 2, 40, 2))),
        ),
        {
            "tree_sum": _tree_sum, "schedule": _schedule,
            "bytes_sent": lambda ranks, size: 2 * (ranks - 1) * size,
        },
        hints=(
            "One round makes a list half as long; repeat while there are two or more.",
            "In round k the distance of sender and receiver is 2^k; receivers are multiples of 2^(k + 1).",
            "Each rank but rank 0 sends its sum once; then each but rank 0 receives the whole.",
        ),
    ),
    "grad_cam": Exercise(
        "Grad-CAM, where a network looks", CHAPTER,
        (
            Item("map", 5, "grad_cam", _maps),
            Item("gradient", 3, "score_gradient", lambda rng: call(
                rng.integers(0, 4, 5), rng.standard_normal((6, 4)), *_ints(rng, 2, 6, 2))),
            Item("enlarge", 2, "enlarge", lambda rng: call(rng.standard_normal((2, 3, 4)), int(rng.integers(2, 5)))),
        ),
        {
            "grad_cam": _grad_cam, "score_gradient": _score_gradient,
            "enlarge": lambda maps, factor: maps.repeat(factor, axis=1).repeat(factor, axis=2),
        },
        hints=(
            "gradient.mean(axis=(1, 2), keepdims=True) can be multiplied with the activation.",
            "np.where(largest > 0, largest, 1) is never zero.",
            "The gradient of a mean over H * W elements is 1 / (H * W) at each: weights[:, label] / (H * W).",
        ),
        mistakes={
            "grad_cam": (
                ("what speaks against the class is not cut off", lambda *a: _grad_cam(*a, cut=False)),
                ("the gradient is not averaged over the map", lambda *a: _grad_cam(*a, averaged=False)),
            )
        },
    ),
}  # fmt: skip
