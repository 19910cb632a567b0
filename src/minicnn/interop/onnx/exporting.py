"""Models as ONNX files: the prediction, the evaluation, the whole training step, and the state that it begins with.

A file is kept only if ONNX Runtime computes with it what NumPy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from minicnn.backends import get_backend
from minicnn.extras import install
from minicnn.files import Path, check_folder, write_file
from minicnn.jobs.parity import largest_difference, longest_sum
from minicnn.models.network import Network
from minicnn.names import known_name
from minicnn.program.graph import Program, Value
from minicnn.program.passes import PRODUCTS
from minicnn.tolerance import EPSILON, tolerance

ExportKind = Literal["predict", "evaluate", "train", "state"]
Arrays = dict[str, np.ndarray[Any, Any]]

WEIGHTS, STATE = ("parameter", "statistic"), ("parameter", "statistic", "optimizer", "counter")
CHECKED = 3  # samples of the batch with which a file is tried
TRIALS = 3  # batches: in one a ReLU may be at its kink, where both sides are right
SMALL = 1e-3  # elements of the optimizer's state there: squares above 0, sums that hide no gradient


def export(model: Network, path: Path, kind: ExportKind = "predict", *, hold_weights: bool = True) -> None:
    """Write a step of a model as an ONNX file; see `Model.export`."""
    check_folder(path)
    data = exported(model, kind, hold_weights=hold_weights)
    if model.chief:
        write_file(path, data)


def exported(model: Network, kind: ExportKind, *, hold_weights: bool = True) -> bytes:
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
    names = {name: writing.result_name(name, tried) for name in (*tried.outputs, *tried.updates)}
    run = get_backend("numpy").compile(tried)
    problem = ""
    for seed in range(TRIALS):
        given = {v.name: state[v.name] if v.kind in WEIGHTS else _drawn(v, model, seed) for v in tried.inputs}
        theirs = dict(zip(names, session.run(list(names.values()), _needed(session, given)), strict=True))
        problem = _difference(theirs, run(given), given, _allowed(tried))
        if not problem:
            return data
    raise RuntimeError(
        f"An exported step computes in ONNX Runtime what it does in NumPy. Received: {problem}. Nothing was written; "
        "export the parts of the model one by one to find which differs, and report it."
    )


def _program(model: Network, kind: ExportKind, samples: int) -> Program:
    """The step of a batch that nobody shares, whatever the model's distribution."""
    if not model.built:
        raise RuntimeError("A model is exported once it is built. Received: one without layers or an input shape. "
                           "Put an Input in front, or call it on data first.")  # fmt: skip
    if model.precision != "float32":
        raise ValueError(
            f"Exported steps compute in float32. Received: a model compiled with precision={model.precision!r}. "
            "Compile a copy with precision='float32', which keeps its weights."
        )
    return model._traced("train" if kind == "state" else kind, model._feed(samples))[0]


def _state(model: Network, program: Program) -> Arrays:
    """What a model carries from step to step; zero where it has not been needed yet."""
    there = model._engine.names()
    return {
        v.name: model._engine.get(v.name) if v.name in there else np.zeros(v.shape, v.dtype)
        for v in program.inputs if v.kind in STATE
    }  # fmt: skip


def _drawn(v: Value, model: Network, seed: int) -> np.ndarray[Any, Any]:
    """An input that a file is tried with."""
    rng = np.random.default_rng([seed, len(v.name)])
    if v.kind in ("optimizer", "counter", "metric"):
        value = {"optimizer": SMALL, "counter": 3, "metric": 0}[v.kind]
        return np.full(v.shape, value, v.dtype)
    if v.name == "learning_rate":
        return np.ones(v.shape, v.dtype)
    if v.name.startswith("y"):
        if v.dtype == "int32":
            outputs = [t.shape[-1] or 1 for t in model._outputs]
            return rng.integers(0, max(1, outputs[int(v.name[1:] or 0)]), v.shape).astype(v.dtype)
        shares = rng.random(v.shape, "float32")
        return np.asarray(shares / shares.sum(-1, keepdims=True), v.dtype)
    if "int" in v.dtype:
        return rng.integers(0, 2 if v.dtype != "uint8" else 256, v.shape).astype(v.dtype)
    return rng.standard_normal(v.shape).astype(v.dtype)


def _allowed(program: Program) -> float:
    """Relative tolerance of a step: its products come one after the other, and the errors of all add up."""
    products = sum(node.op.name in PRODUCTS for node in program.nodes)
    return tolerance("float32", longest_sum(program) * max(1, products))[0]


def _needed(session: Any, given: Arrays) -> Arrays:
    return {info.name: given[info.name] for info in session.get_inputs()}


def _difference(theirs: Arrays, ours: Mapping[str, Any], given: Arrays, rtol: float) -> str:
    """Where results differ by more than the tolerance, in words; those that replace an input by their changes."""
    ours, theirs = ({n: np.asarray(a, "float64") - given.get(n, 0.0) for n, a in r.items()} for r in (ours, theirs))
    for name, right in ours.items():  # a diverged model gives NaN on both sides
        if np.shape(right) == np.shape(theirs[name]):
            both = np.isnan(right) & np.isnan(theirs[name])
            ours[name], theirs[name] = (np.where(both, 0.0, a[name]) for a in (ours, theirs))
    rounding = {n: EPSILON["float32"] * float(np.abs(given[n]).max(initial=0)) for n in ours if n in given}
    found, where = largest_difference(theirs, ours, rounding)
    return "" if found <= rtol else f"{where} differs by {found:.1e} (relative; at most {rtol:.1e})"
