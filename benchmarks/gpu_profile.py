"""What the kernels of a training step on a GPU wait for, by Nsight Compute's counters.

    python benchmarks/gpu_profile.py [--precision NAME] [--logs FOLDER] [study ...]

Runs one step of each reference study under `ncu` (which has to be on the PATH and to be allowed to read counters),
launch by launch, and prints for each kernel: its time; how busy the multiprocessors' pipes, the tensor cores, the first
cache and shared memory, the second cache and the memory are, in percent of their peaks; resident warps, in percent;
issue slots that are used; the share of waits that were for instructions; and the commonest reason why a warp that
could not issue waited. Times are longer than those
within a graph, as each kernel runs alone with cold caches; percentages tell what limits it.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gpu_steps import SIZES, build

METRICS = {
    "us": "gpu__time_duration.sum",
    "pipes": "sm__inst_executed.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = (
    "barrier", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar",
    "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
PLAIN = {
    "long_scoreboard": "memory's answers", "short_scoreboard": "shared memory's answers", "wait": "fixed latency",
    "math_pipe_throttle": "arithmetic", "mio_throttle": "shared memory's queue", "lg_throttle": "memory's queue",
    "no_instruction": "instructions", "not_selected": "another warp's turn",
}  # fmt: skip


def step(study: str, precision: str) -> None:
    """Train three steps without graphs, the last of which is to be profiled."""
    import cupy

    from minicnn.backends._gpu.options import Options
    from minicnn.backends.cupy.backend import CupyBackend
    from minicnn.loop.totals import Totals

    batch, samples, _ = SIZES[study]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (samples, 28, 28, 1)).astype("uint8"), rng.integers(0, 10, samples).astype("int32")
    model = build(study, CupyBackend(strict=True, options=Options(graph=False)), precision)
    training = model._training
    source = training.source(x, y, None, batch, last_batch="pad")
    run = next(source.runs(shuffle=False, seed=0, epoch=0))
    for at in range(3):
        if at == 2:
            model.backend.synchronize()
            cupy.cuda.profiler.start()
        training.train(run, Totals())
    model.backend.synchronize()
    cupy.cuda.profiler.stop()
    executable = training.executor._compiled["train", run.feed].many.__self__
    for source in executable._sources:
        print("title", source.title, flush=True)


def kernels(text: str) -> Iterator[dict[str, float]]:
    """Counters of each launch of a generated kernel, from what ncu prints as CSV, in order."""
    rows = csv.DictReader(io.StringIO(text[text.index('"ID"') :]))
    next(rows)  # units
    for row in rows:
        if row["Kernel Name"] != "kernel":  # CuPy's own
            continue
        yield {name: float(value.replace(",", "")) for name, value in row.items() if _is_number(value)}


def _is_number(text: str | None) -> bool:
    try:
        float((text or "").replace(",", ""))
    except ValueError:
        return False
    return True


def table(study: str, found: list[dict[str, float]], titles: list[str]) -> str:
    """Counters as a Markdown table; what the engine launches beside the step's kernels comes last and is left out."""
    lines = [f"| `{study}` | {' | '.join(METRICS)} | code | waits for |"]
    lines.append("| --- |" + " ---: |" * (len(METRICS) + 1) + " --- |")
    for title, row in zip(titles, found, strict=False):
        values = [row.get(name, float("nan")) for name in METRICS.values()]
        values[0] /= 1000 if values[0] > 500 else 1  # nanoseconds
        stalls = {reason: row.get(STALL.format(reason), 0.0) for reason in REASONS}
        most = max(stalls, key=lambda reason: stalls[reason])
        waits = sum(stalls.values()) or 1
        share = stalls[most] / waits
        cells = [f"{values[0]:.1f}", *(f"{v:.0f}" for v in values[1:]), f"{100 * stalls['no_instruction'] / waits:.0f}"]
        lines.append(f"| {title} | {' | '.join(cells)} | {PLAIN.get(most, most)} ({share:.0%}) |")
    return "\n".join(lines)


def main() -> None:
    """Profile the studies named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="study", help=f"some of {', '.join(SIZES)}; all if none is named")
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    parser.add_argument("--logs", type=Path, default=Path("gpu_profile_logs"), help="folder for what ncu prints")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if unknown := set(chosen.studies) - set(SIZES):
        parser.error(f"the studies are {', '.join(SIZES)}. Received: {', '.join(sorted(unknown))}.")
    if chosen.step:
        step(chosen.studies[0], chosen.precision)
        return
    if shutil.which("ncu") is None:
        sys.exit("Profiling needs Nsight Compute's ncu on the PATH. Received: none. Install it with the CUDA toolkit.")
    counters = ",".join([*METRICS.values(), *map(STALL.format, REASONS)])
    for study in chosen.studies or SIZES:
        log = chosen.logs / f"{study}.csv"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--log-file", str(log), "--force-overwrite", "--metrics", counters]
        command += [sys.executable, __file__, "--step", "--precision", chosen.precision, study]
        done = subprocess.run(command, capture_output=True, text=True)
        said = log.read_text("utf-8") if log.exists() else ""
        if done.returncode or '"ID"' not in said:
            sys.exit(f"ncu profiles {study}. Received: {(said + done.stderr)[-1500:]}")
        titles = [line.removeprefix("title ") for line in done.stdout.splitlines() if line.startswith("title ")]
        print(table(study, list(kernels(said)), titles), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
