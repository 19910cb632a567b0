"""Models as ONNX files: the prediction, the evaluation, the whole training step, and the state that it begins with.

A file is kept only if ONNX Runtime computes with it what NumPy does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from minicnn.backends import get_backend
from minicnn.extras import install
from minicnn.files import Path, check_folder, write_file
from minicnn.names import known_name
from minicnn.program.graph import Program, Value
from minicnn.program.passes import PRODUCTS
from minicnn.tolerance import EPSILON, tolerance

if TYPE_CHECKING:
    from minicnn.models import Model

ExportKind = Literal["predict", "evaluate", "train", "state"]
Arrays = dict[str, np.ndarray[Any, Any]]

WEIGHTS, STATE = ("parameter", "statistic"), ("parameter", "statistic", "optimizer", "counter")
CHECKED = 3  # samples of the batch with which a file is tried
NUDGES = 4  # runs of NumPy on inputs that moved by roundings, to see what these do
SMALL = 1e-3  # elements of the optimizer's state there: squares above 0, sums that hide no gradient


def export(model: Model, path: Path, kind: ExportKind = "predict", *, hold_weights: bool = True) -> None:
    """Write a step of a model as an ONNX file; see `Model.export`."""
    check_folder(path)
    data = exported(model, kind, hold_weights=hold_weights)
    if model._training.chief:
        write_file(path, data)


def exported(model: Model, kind: ExportKind, *, hold_weights: bool = True) -> bytes:
    """The bytes of a file that `export` writes."""
    known_name("kind", kind, get_args(ExportKind))
    try:
        import onnxruntime

        from minicnn.interop.onnx import writing
        from minicnn.interop.onnx.merging import SIZES
    except ImportError as error:
        raise ImportError(f"Exports need onnx and onnxruntime: {install('onnx')}.", name=error.name) from error
    first, second, tried = (_program(model, kind, samples) for samples in (*SIZES, CHECKED))
    model.join()
    state = _state(model, second)
    if kind == "state":
        return writing.serialized(writing.state_model(state))
    held = {v.name: state[v.name] for v in first.inputs if v.kind in WEIGHTS and kind != "train" and hold_weights}
    data = writing.serialized(writing.model_of((first, second), held))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    problem = _problem(session, tried, model, state)
    if problem:
        raise RuntimeError(
            f"An exported step computes in ONNX Runtime what it does in NumPy. Received: {problem}. Nothing was "
            "written; export the parts of the model one by one to find which differs, and report it."
        )
    return data


def _program(model: Model, kind: ExportKind, samples: int) -> Program:
    """The step of a batch that nobody shares, whatever the model's distribution."""
    if not model.built:
        raise RuntimeError("A model is exported once it is built. Received: one without layers or an input shape. "
                           "Put an Input in front, or call it on data first.")  # fmt: skip
    if model.precision != "float32":
        raise ValueError(
            f"Exported steps compute in float32. Received: a model compiled with precision={model.precision!r}. "
            "Compile a copy with precision='float32', which keeps its weights."
        )
    if any(tensor.trials for tensor in model.inputs):
        raise ValueError(
            f"An exported step has known lengths, but for the batch. Received: a model of {model.input_shape}. Make it "
            "with an Input of one size, and give it the weights."
        )
    step = model._training.step
    feed = step.feed(samples)
    if kind == "predict":
        feed = replace(feed, y=())
    return step.trace("train" if kind == "state" else kind, feed)


def _state(model: Model, program: Program) -> Arrays:
    """State that a model carries from step to step; zero where it has not been needed yet."""
    variables = model._training.variables
    return {
        v.name: variables.get(v.name) if v.name in variables.cells else np.zeros(v.shape, v.dtype)
        for v in program.inputs if v.kind in STATE
    }  # fmt: skip


def _drawn(v: Value, model: Model, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An input that a file is tried with."""
    if v.kind in ("optimizer", "counter", "metric"):
        value = {"optimizer": SMALL, "counter": 3, "metric": 0}[v.kind]
        return np.full(v.shape, value, v.dtype)
    if v.name == "learning_rate":
        return np.ones(v.shape, v.dtype)
    if v.name.startswith("y"):
        if v.dtype == "int32":
            outputs = [t.shape[-1] or 1 for t in model.outputs]
            return rng.integers(0, max(1, outputs[int(v.name[1:] or 0)]), v.shape).astype(v.dtype)
        shares = rng.random(v.shape, "float32")
        return np.asarray(shares / shares.sum(-1, keepdims=True), v.dtype)
    if "int" in v.dtype:
        return rng.integers(0, 2 if v.dtype != "uint8" else 256, v.shape).astype(v.dtype)
    return rng.standard_normal(v.shape).astype(v.dtype)


def _allowed(program: Program) -> float:
    """Relative tolerance of a step: its products come one after the other, and the errors of all add up."""
    from minicnn.measure.parity import longest_sum  # with its package, which others do not need

    products = sum(node.op.name in PRODUCTS for node in program.nodes)
    return tolerance("float32", longest_sum(program) * max(1, products))[0]


def _problem(session: Any, program: Program, model: Model, state: Arrays) -> str:
    """Difference between a session and NumPy beyond what rounding explains, in words; empty if there is none.

    Where a sum nearly cancels, or a ReLU is at its kink, much comes of the last place. So what tells, if results differ
    by more than the tolerance, is how far those of NumPy move when weights and data move by roundings.
    """
    from minicnn.measure.parity import differences  # as above

    rng = np.random.default_rng(0)
    arrays = {v.name: state[v.name] if v.kind in WEIGHTS else _drawn(v, model, rng) for v in program.inputs}
    run = get_backend("numpy").compile(program)
    results = session.run(None, {info.name: arrays[info.name] for info in session.get_inputs()})
    theirs = _changes(dict(zip((*program.outputs, *program.updates), results, strict=True)), arrays)
    ours, allowed = _changes(run(arrays), arrays), _allowed(program)
    rounding = {n: EPSILON["float32"] * float(np.abs(arrays[n]).max(initial=0)) for n in ours if n in arrays}

    def errors_of(others: Arrays) -> dict[str, float]:
        return {path: float(difference.max(initial=0)) for path, difference in differences(others, ours, rounding)}

    errors = errors_of(theirs)
    if max(errors.values(), default=0.0) <= allowed:
        return ""
    moved = []
    for _ in range(NUDGES):
        other = {
            n: np.asarray(a * (1 + 4 * EPSILON["float32"] * rng.standard_normal(a.shape)), a.dtype)
            if a.dtype.kind == "f" and a.ndim else a
            for n, a in arrays.items()
        }  # fmt: skip
        moved.append(errors_of(_changes(run(other), other)))
    excess = {n: e - 4 * max(m[n] for m in moved) for n, e in errors.items()}
    name = max(excess, key=lambda n: excess[n] if excess[n] == excess[n] else math.inf)
    if excess[name] <= allowed:
        return ""
    return f"{name} differs by {errors[name]:.1e} (relative; {allowed:.1e} are allowed)"


def _changes(results: Mapping[str, Any], before: Arrays) -> Arrays:
    """Results in float64, those that replace an input less that; NaN, which a diverged model gives, as the number 0."""
    return {n: np.nan_to_num(np.asarray(a, "float64") - before.get(n, 0.0), posinf=np.inf) for n, a in results.items()}
