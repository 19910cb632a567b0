"""Times of ranks on this machine: steps by themselves but all at once, all-reduces, and steps together.

`measure` starts the ranks by mpiexec; each is this module, run as a program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from minicnn import machine, zoo
from minicnn.distribution import DataParallel, MPICommunicator, OneProcess
from minicnn.distribution.launchers import OPEN_MPI, mpiexec
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.timing import interleaved
from minicnn.models import Model
from minicnn.ops.collectives import all_reduce
from minicnn.ops.groups import Communicator, Group
from minicnn.optimizers import SGD
from minicnn.program.graph import Program

SIZES = (54_000, 2_000_000, 25_000_000)  # bytes of all-reduces, beside those of gradients
MOST = 60  # rounds
DEADLINE_S = 300.0  # beside the budget, for starting and compiling
Run = Mapping[str, Any]
Host = np.ndarray[Any, Any]


def trace(run: Run, batch: int) -> Program:
    """The Program of a training step of what a run trains: its "network", "image" and "classes"."""
    image = run.get("image")
    return _traced(
        run["network"], image if image is None else tuple(image), run.get("classes"), run.get("backend"), batch
    )


@lru_cache(maxsize=64)  # a page asks for the same steps in its figures, its tables and its text
def _traced(
    network: str, image: tuple[int, ...] | None, classes: int | None, backend: str | None, batch: int
) -> Program:
    model = _model({"network": network, "image": image, "classes": classes, "backend": backend})
    return model.program("train", batch_size=batch)


def _model(run: Run, distribution: DataParallel | None = None) -> Model:
    arguments = {"num_classes": run.get("classes"), "input_shape": run.get("image"), "backend": run.get("backend")}
    model = zoo.get_model(run["network"], **{k: v for k, v in arguments.items() if v is not None})
    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), distribution=distribution)
    return model


def measure(runs: Sequence[Run], *, ranks: int = 0, budget_s: float = 30.0) -> dict[str, Any]:
    """Measure on this machine; in some `budget_s` seconds, beside what starting and compiling takes.

    Without MPI one process is measured, and no all-reduce.

    Args:
        runs: What is trained: "network", "image", "classes", "backend", and "batch", of all ranks together.
        ranks: Local ranks; two to four, as there are cores, if 0.
        budget_s: Seconds.

    Returns:
        "machine", its name; "facts" of it; "ranks"; "alone" that each rank takes by itself while the others do, of its
        share of the batch and of a quarter of that; "cut", likewise of its share in steps that sum gradients, but for
        what ranks give each other; "apart", likewise of all-reduces; "all_reduce"; "training", of steps together;
        "missing", why some were not measured, or None.
    """
    record: dict[str, Any] = {"machine": name(), "facts": machine.facts(), "missing": None}
    ranks = ranks or min(max(2, machine.cores()), 4)
    launcher = mpiexec()
    if launcher is None:
        ranks = 1
        record["missing"] = "no all-reduce was measured: that takes the extra mpi"
    wanted = json.dumps({"runs": [dict(r) for r in runs], "budget_s": budget_s, "mpi": launcher is not None})
    command = [*([launcher, "-n", str(ranks)] if launcher else []), sys.executable, "-m", __name__, wanted]
    threads = {"MINICNN_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=budget_s + DEADLINE_S,
            env={**OPEN_MPI, **os.environ, **threads, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"Ranks on this machine measure steps within {budget_s + DEADLINE_S:g} seconds. Received: "
            f"{', '.join(str(r['network']) for r in runs)}, which takes longer. Measure smaller batches or images."
        ) from error
    if done.returncode:
        raise RuntimeError(
            f"{ranks} ranks on this machine train and sum. Received: exit code {done.returncode}: "
            f"{done.stderr.strip()[-400:]} Mend that, or predict for a GPU."
        )
    return {**record, "ranks": ranks, **json.loads(done.stdout.strip().splitlines()[-1])}


def name() -> str:
    """The machine in a few words."""
    return f"{machine.processor().model}, {machine.cores()} cores"


# A rank ------------------------------------------------------------------------------------------


class Apart(OneProcess):
    """Ranks that do all that they do together but give each other arrays: what others would give is next to nothing."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.size = communicator.rank, communicator.size

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        self.gather(outgoing[self.rank], incoming)

    def gather(self, outgoing: Host, incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        for rank, array in enumerate(incoming):
            array[...] = outgoing if rank == self.rank else 1e-6  # but no 0: means are divided by sums

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        return [data] * self.size


class Together:
    """Agreement of ranks: when to begin, and how long the slowest took."""

    def __init__(self, communicator: Communicator | None) -> None:
        self.communicator = communicator

    def share(self, value: float) -> list[float]:
        """Everybody's number."""
        if self.communicator is None:
            return [value]
        return [json.loads(text) for text in self.communicator.share(json.dumps(value).encode())]

    def timed(self, call: Callable[[], object]) -> list[float]:
        """Seconds of a call on each rank, begun at the same time."""
        self.share(0.0)
        start = time.perf_counter()
        call()
        return self.share(time.perf_counter() - start)

    def clock(self) -> float:
        """Seconds, the same on all ranks."""
        return max(self.share(time.perf_counter()))


def _rank(wanted: Mapping[str, Any], communicator: Communicator | None) -> dict[str, Any]:
    """Times of this rank and the others; see `measure`."""
    together, ranks, runs = Together(communicator), communicator.size if communicator else 1, wanted["runs"]
    results: dict[str, Any] = {"alone": [], "cut": [], "apart": [], "all_reduce": [], "training": []}
    calls: list[Callable[[], object]] = []
    for run in runs:
        share = run["batch"] // ranks
        step = _trainer(run, DataParallel(1, communicator=OneProcess()))
        for batch in dict.fromkeys((share, max(1, share // 4))):
            results["alone"].append({**run, "batch": batch})
            calls.append(step(batch))
    if communicator is not None:
        for run in runs:
            results["cut"].append({**run, "batch": run["batch"] // ranks})
            calls.append(_trainer(run, DataParallel(ranks, communicator=Apart(communicator)))(run["batch"]))
        for kind, joined in (("apart", Apart(communicator)), ("all_reduce", communicator)):
            group = Group(ranks, communicator.rank, ranks, joined)
            for nbytes in sorted({*SIZES, *(_weights(run) for run in runs)}):
                results[kind].append({"bytes": nbytes})
                calls.append(partial(all_reduce.reference, np.ones(nbytes // 4, np.float32), group=group, xp=np))
        for run in runs:
            results["training"].append(dict(run))
            calls.append(_trainer(run, DataParallel(ranks, communicator=communicator))(run["batch"]))
    timed = {number: partial(together.timed, call) for number, call in enumerate(calls)}  # the first compiles
    taken = iter(interleaved(timed, rounds=MOST, budget_s=wanted["budget_s"], clock=together.clock).values())
    for kind, every in results.items():
        for one, times in zip(every, taken, strict=False):
            # Of what ranks do by themselves the times of each count, of what they do together those of the slowest.
            by_itself = kind in ("alone", "cut", "apart")
            one["seconds"] = [s for t in times for s in t] if by_itself else [max(t) for t in times]
    return results


def _weights(run: Run) -> int:
    """Bytes of the gradients of what a run trains."""
    return 4 * int(_model(run).count_params(trainable=True))


def _trainer(run: Run, distribution: DataParallel) -> Callable[[int], Callable[[], object]]:
    """Gives for a batch a function that trains a model on it."""
    model, rng = _model(run, distribution), np.random.default_rng(0)

    def step(batch: int) -> Callable[[], object]:
        x = rng.standard_normal((batch, *run["image"]), np.float32)
        y = rng.integers(0, run["classes"], batch).astype(np.int32)
        return lambda: model.train_on_batch(x, y)

    return step


def _main(text: str) -> None:
    wanted = json.loads(text)
    communicator = MPICommunicator(DEADLINE_S) if wanted["mpi"] else None
    times = _rank(wanted, communicator)
    if communicator is None or communicator.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    machine.prepare()
    _main(sys.argv[1])
