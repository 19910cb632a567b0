"""The cases of onnx.backend.test, each as what became of it on primitives.

`python -m support.onnx_cases` prints how many of each operator passed.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections import Counter
from typing import Any

import numpy as np

from minicnn import get_backend
from minicnn.program import Program
from minicnn.program.graph import ITEMSIZE


def cases() -> list[Any]:
    """All cases for single operators but LpPool's, which nothing here covers and which take as long as all others."""
    from onnx.backend.test.case import base, node

    base.process_snippet = lambda op, name, export: (name, "")  # source text for a page
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are computed when they are imported, with overflows
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if not module.name.endswith(".lppool"):
                importlib.import_module(module.name)
    return list(node._NodeTestCases)


def outcome(case: Any) -> str:
    """ "passed", "wrong: ..." or "refused: ..."."""
    from minicnn.interop.counterparts import NoCounterpartError
    from minicnn.interop.onnx import graph
    from minicnn.interop.onnx.emitting import Emitter

    model = case.model
    unknown = {n.op_type for n in model.graph.node} - set(graph.OPERATORS)
    if unknown or {n.domain for n in model.graph.node} - {"", "ai.onnx"}:
        return f"refused: {', '.join(sorted(unknown))} unknown"
    for inputs, outputs in case.data_sets:
        if not all(isinstance(a, np.ndarray) and a.dtype.name in ITEMSIZE for a in (*inputs, *outputs)):
            return "refused: what are no arrays of NumPy"
        names = [i.name for i in model.graph.input]
        shapes = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == 7}  # int64: mostly shapes
        program = Program("case")
        emitter = Emitter(program, graph.opset_of(model))
        given = {
            name: emitter.constant(a) if name in shapes or (a.dtype.kind in "iub" and a.size < 100 and len(names) > 1)
            else program.input(name, a.shape, a.dtype.name)
            for name, a in zip(names, inputs, strict=False)
        }  # fmt: skip
        try:
            values = graph.emitted(model, emitter, given)
        except NoCounterpartError as error:
            return f"refused: {error}"
        program.outputs = {o.name: values[o.name] for o in model.graph.output}
        run = get_backend("numpy").compile(program)
        with np.errstate(all="ignore"):
            found = run({name: a for name, a in zip(names, inputs, strict=False) if given[name].kind == "input"})
        for right, info in zip(outputs, model.graph.output, strict=True):
            y = np.asarray(found[info.name])
            if y.dtype != right.dtype or y.shape != right.shape:
                return f"wrong: {y.dtype}{list(y.shape)} for {right.dtype}{list(right.shape)}"
            if not np.allclose(y.astype("float64"), right.astype("float64"), case.rtol, case.atol, equal_nan=True):
                return "wrong: other numbers"
    return "passed"


def outcomes() -> dict[str, tuple[str, str]]:
    """Operator and outcome of each case by its name."""
    return {case.name: (case.model.graph.node[0].op_type, outcome(case)) for case in cases()}


def table(known: dict[str, tuple[str, str]]) -> str:
    """How many cases of each operator passed, of the outcomes of all."""
    passed = Counter(op for op, what in known.values() if what == "passed")
    total = Counter(op for op, _ in known.values())
    rows = [f"{op:28}{passed[op]:4} of {total[op]}" for op in sorted(total) if passed[op]]
    return "\n".join([*rows, f"{'all':28}{passed.total():4} of {total.total()}"])


if __name__ == "__main__":
    print(table(outcomes()))
