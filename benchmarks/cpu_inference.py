"""Predictions on the CPU beside PyTorch and ONNX Runtime, interleaved, after checking that all agree.

    python benchmarks/cpu_inference.py [--json FILE] [--threads N] [--batches N ...] [--compiled] [CASE ...]

Cases are networks of `minicnn.measure.cases`, with first weights of their own. Images are float32 and in memory; each
contender has a process of its own, is idle while another is timed, and returns the outputs for all images from one
call: `predict` of minicnn on `numba`, a torch.nn module in eager mode in PyTorch's two orders of axes (--compiled adds
torch.compile), and the exported model in ONNX Runtime. Times are microseconds, medians and quartiles; "kernels" is the
time of minicnn's kernels alone, so that the rest is what a call costs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import machine
from minicnn.measure import Comparison, Spread
from minicnn.measure.cases import CASES, get_model
from minicnn.measure.timing import stopwatch

SHOWN = ("mlp", "platforms", "kernels", "stride2", "channels12", "squeezenet1_1", "resnet18")
CONTENDERS = ("minicnn", "kernels", "torch", "torch channels-last", "torch.compile", "onnxruntime")
AWAKE_S, LEAST_S = 0.02, 5e-3  # before a measurement, and in it, a contender repeats its call for so long
RTOL = 1e-3  # of the largest output: sums of many layers, in other orders


class Contender:
    """One library that predicts for the images of a case.

    Args:
        name: One of CONTENDERS.
        case: Name of the case.
        batch: Number of images.
        threads: Threads of the library.
    """

    def __init__(self, name: str, case: str, batch: int, threads: int) -> None:
        from minicnn.backends.numba.backend import NumbaBackend

        self._threads, self._batch, known = threads, batch, CASES[case]
        self.x = np.random.default_rng(0).random((batch, *known.image), np.float32)
        self.model = get_model(
            case, num_classes=known.classes, input_shape=known.image, backend=NumbaBackend(threads=threads),
            **known.options,
        )  # fmt: skip
        self._call: Callable[[], Any]
        if name == "minicnn":
            self._call = partial(self.model.predict, self.x, batch)
        elif name == "kernels":
            self._call = self._kernels()
        elif name == "onnxruntime":
            self._call = self._session()
        else:
            self._call = self._module(name, case)

    def _kernels(self) -> Callable[[], Any]:
        """A call of the kernels of a prediction, on memory of their own, which gives the outputs that are there."""
        from minicnn.backends.numba.executable import NumbaExecutable
        from minicnn.backends.numba.threads import KernelList, pool

        run = self.model.backend.compile(self.model.program("predict", batch_size=self._batch))
        if not isinstance(run, NumbaExecutable):
            raise TypeError(f"A prediction runs in kernels of numba. Received: {run!r}.")
        results = list(run({"x": self.x, **self.model.get_weights()}).values())
        lists = [segment for segment in run.segments if isinstance(segment, KernelList)]

        def call(_: Any = run) -> list[Any]:  # kernels are freed with it
            for segment in lists:
                pool(run.threads).run(segment)
            return results

        return call

    def _session(self) -> Callable[[], Any]:
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            self.model.export(path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return partial(session.run, None, {session.get_inputs()[0].name: self.x})

    def _module(self, name: str, case: str) -> Callable[[], Any]:
        import torch

        from minicnn.measure import torch_networks

        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(False)
        H, W, C = CASES[case].image
        module = torch_networks.build(
            case, (H, W, C), CASES[case].classes, self.model.get_weights(), torch.float32
        ).eval()  # fmt: skip
        order = torch.channels_last if "channels-last" in name else torch.contiguous_format
        images = torch.from_numpy(self.x).permute(0, 3, 1, 2).contiguous(memory_format=order)
        module = module.to(memory_format=order)
        return partial(torch.compile(module) if name == "torch.compile" else module, images)

    def outputs(self) -> Any:
        """The outputs for all images."""
        result = self._call()
        return np.asarray(result[0] if isinstance(result, list) else result)

    def seconds(self) -> float:
        """Seconds of a call."""
        stopwatch(self._call, least_s=AWAKE_S)
        return stopwatch(self._call, least_s=LEAST_S)


def measure(case: str, batch: int, threads: int, rounds: int, contenders: Sequence[str]) -> dict[str, Spread]:
    """Microseconds by contender, once all have given minicnn's outputs."""
    with Comparison(contenders, Contender, case, batch, threads, reference=None) as comparison:
        outputs = comparison.prepare("outputs")
        for name, output in outputs.items():
            error = np.abs(output - outputs["minicnn"]).max() / np.abs(outputs["minicnn"]).max()
            if not error <= RTOL:
                raise RuntimeError(f"{case}: all contenders compute the same. Received: {name}, error {error}.")
        seconds = comparison.time("seconds", rounds=rounds)
        if comparison.out:
            raise RuntimeError(f"{case}: all contenders run. Received: {comparison.out}.")
    return {name: Spread.of(each, 1e6) for name, each in seconds.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Results as a Markdown table, in microseconds."""
    names = list(rows[0]["us"])
    lines = [
        f"| case, batch | {' | '.join(names)} | ONNX Runtime's time against minicnn's |",
        "| --- |" + " ---: |" * (len(names) + 1),
    ]
    for row in rows:
        us = {name: spread["median"] for name, spread in row["us"].items()}
        cells = " | ".join(f"{us[name]:,.0f}" for name in names)
        lines.append(f"| `{row['case']}`, {row['batch']} | {cells} | {us['onnxruntime'] / us['minicnn']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print a line for each case and batch size, and all of them as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases; {', '.join(SHOWN)} if none is named")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too, which needs a C++ compiler")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    contenders = [name for name in CONTENDERS if chosen.compiled or name != "torch.compile"]
    for case in chosen.cases or SHOWN:
        for batch in chosen.batches:
            spreads = measure(case, batch, chosen.threads, chosen.rounds, contenders)
            us = {name: {"median": s.median, "low": s.low, "high": s.high} for name, s in spreads.items()}
            rows.append({"case": case, "batch": batch, "us": us})
            shown = (f"{name} {s.median:.1f} ({s.low:.1f} to {s.high:.1f})" for name, s in spreads.items())
            print(case, batch, ", ".join(shown), flush=True)
            if chosen.json:
                facts = {"machine": machine.facts(), "threads": chosen.threads, "precision": "float32"}
                chosen.json.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
