"""Programs as ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.backends.numpy import NumpyBackend
from minicnn.program import Program

Array = np.ndarray[Any, Any]


def session_of(data: Any) -> Any:
    """A session with the bytes or the path of a model, on the CPU, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run_program(program: Program, arrays: list[Array]) -> list[Array]:
    """The outputs of a Program, in order, for arrays in the order of its inputs."""
    from minicnn.interop.onnx.writing import model_of

    session = session_of(model_of((program, program), {}).SerializeToString())
    return list(session.run(list(program.outputs), {v.name: a for v, a in zip(program.inputs, arrays, strict=True)}))


class OnnxBackend(NumpyBackend):
    """NumPy's arrays, and steps that ONNX Runtime computes, for a batch of one size each."""

    name = "onnx"

    def compile(self, program: Program) -> Any:
        from minicnn.interop.onnx.writing import model_of, result_name

        # Totals of metrics begin at zero in an exported step: the backend adds those so far.
        totals = [v.name for v in program.inputs if v.kind == "metric"]
        session = session_of(model_of((program, program), {}).SerializeToString())
        names = {name: result_name(name, program) for name in (*program.outputs, *program.updates)}
        needed = [i.name for i in session.get_inputs()]

        def run(arrays: Any) -> dict[str, Array]:
            found = session.run(list(names.values()), {name: arrays[name] for name in needed})
            results = dict(zip(names, found, strict=True))
            return results | {name: results[name] + arrays[name] for name in totals if name in results}

        return run


def call(op: Any, *arrays: Array, **attrs: Any) -> list[Array]:
    """The results of one call of a primitive."""
    program = Program("call")
    made = op(*(program.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)), **attrs)
    program.outputs = {f"y{i}": v for i, v in enumerate(made if isinstance(made, tuple) else (made,))}
    return run_program(program, list(arrays))


def step(session: Any, given: dict[str, Any], state: dict[str, Array]) -> dict[str, Array]:
    """The results by name of a step of an exported model; `state` is replaced by that for the next one."""
    results = dict(zip((o.name for o in session.get_outputs()), session.run(None, {**given, **state}), strict=True))
    state |= {name.removeprefix("next/"): array for name, array in results.items() if name.startswith("next/")}
    return results


def state_of(path: Any) -> dict[str, Array]:
    """What the first training step takes, from a file of the kind "state"."""
    session = session_of(path)
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, {}), strict=True))
