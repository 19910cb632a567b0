"""Predictions on the CPU beside PyTorch and ONNX Runtime, in turns in one process, after checking that all agree.

    python benchmarks/cpu_inference.py [--json FILE] [--threads N] [--batches N ...] [--compiled] [CASE ...]

Cases are networks of `minicnn.measure.cases`, with first weights of their own. Images are float32 and in memory; every
contender returns the outputs for all of them from one call: `predict` of minicnn on `numba`, a torch.nn module in eager
mode in PyTorch's two orders of axes (--compiled adds torch.compile), and the exported model in ONNX Runtime. Times are
microseconds, medians; "kernels" is the time of minicnn's kernels alone, so that the rest is what a call costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from minicnn import machine
from minicnn.backends.numba.backend import NumbaBackend
from minicnn.backends.numba.executable import NumbaExecutable
from minicnn.backends.numba.threads import KernelList, pool
from minicnn.measure import torch_networks
from minicnn.measure.cases import CASES, get_model
from minicnn.measure.timing import interleaved, stopwatch

SHOWN = ("platforms", "kernels", "stride2", "channels12", "squeezenet1_1", "resnet18")
LEAST_S = 2e-3  # a measurement repeats its call for so long
RTOL = 1e-3  # of the largest output: sums of many layers, in other orders


def contenders(name: str, batch: int, threads: int, *, compiled: bool) -> dict[str, Callable[[], Any]]:
    """Calls that give the outputs for the same images, by contender, and one for the kernels."""
    case = CASES[name]
    backend = NumbaBackend(threads=threads)
    model = get_model(name, num_classes=case.classes, input_shape=case.image, backend=backend, **case.options)
    x = np.random.default_rng(0).random((batch, *case.image), np.float32)
    calls: dict[str, Callable[[], Any]] = {"minicnn": partial(model.predict, x, batch)}
    H, W, C = case.image
    network = torch_networks.build(name, (H, W, C), case.classes, model.get_weights(), torch.float32).eval()
    images = torch.from_numpy(x).permute(0, 3, 1, 2)
    orders = {"torch": torch.contiguous_format, "torch channels-last": torch.channels_last}
    for contender, order in orders.items():
        module = torch_networks.build(name, (H, W, C), case.classes, model.get_weights(), torch.float32).eval()
        calls[contender] = partial(module.to(memory_format=order), images.contiguous(memory_format=order))
    if compiled:
        calls["torch.compile"] = partial(torch.compile(network), images.contiguous())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        model.export(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    calls["onnxruntime"] = partial(session.run, None, {session.get_inputs()[0].name: x})
    calls["kernels"] = kernels(model, backend, batch)
    return calls


def kernels(model: Any, backend: NumbaBackend, batch: int) -> Callable[[], Any]:
    """A call of the kernels of a prediction, on memory of their own."""
    program = model.program("predict", batch_size=batch)
    run = backend.compile(program)
    if not isinstance(run, NumbaExecutable):
        raise TypeError(f"A prediction runs in kernels of numba. Received: {run!r}.")
    arrays = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs}
    held = run, arrays, run(arrays)  # kernels read and write the arrays of the last call, and are freed with `run`
    lists = [segment for segment in run.segments if isinstance(segment, KernelList)]

    def call(_: Any = held) -> None:
        for segment in lists:
            pool(backend.threads).run(segment)

    return call


def check(name: str, results: dict[str, Any]) -> None:
    """Check that all outputs are those of minicnn."""
    outputs = {k: np.asarray(r[0] if isinstance(r, list) else r) for k, r in results.items() if k != "kernels"}
    expected = outputs["minicnn"]
    for contender, output in outputs.items():
        error = np.abs(output - expected).max() / np.abs(expected).max()
        if not error <= RTOL:
            raise RuntimeError(f"{name}: all contenders compute the same. Received: {contender}, error {error}.")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Results as a Markdown table, in microseconds."""
    names = list(rows[0]["us"])
    lines = [
        f"| case, batch | {' | '.join(names)} | ONNX Runtime's time against minicnn's |",
        "| --- |" + " ---: |" * (len(names) + 1),
    ]
    for row in rows:
        us = row["us"]
        cells = " | ".join(f"{us[name]:,.0f}" for name in names)
        lines.append(f"| `{row['case']}`, {row['batch']} | {cells} | {us['onnxruntime'] / us['minicnn']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print a line for each case and batch size, and all of them as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases; {', '.join(SHOWN)} if none is named")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too, which needs a C++ compiler")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name in chosen.cases or SHOWN:
            for batch in chosen.batches:
                calls = contenders(name, batch, chosen.threads, compiled=chosen.compiled)
                check(name, {contender: call() for contender, call in calls.items()})
                timers = {contender: partial(stopwatch, call, least_s=LEAST_S) for contender, call in calls.items()}
                seconds = interleaved(timers, rounds=chosen.rounds)
                us = {contender: 1e6 * statistics.median(each) for contender, each in seconds.items()}
                rows.append({"case": name, "batch": batch, "us": us})
                print(name, batch, ", ".join(f"{contender} {each:.0f}" for contender, each in us.items()), flush=True)
                if chosen.json:
                    facts = {"machine": machine.facts(), "threads": chosen.threads, "precision": "float32"}
                    chosen.json.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
