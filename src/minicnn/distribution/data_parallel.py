"""DataParallel: each rank computes some of the shards of every batch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.arguments import PlainArguments
from minicnn.distribution.communicators import OneProcess, RankError
from minicnn.distribution.gloo import TorchCommunicator
from minicnn.distribution.jax import JaxCommunicator
from minicnn.distribution.launchers import launched
from minicnn.distribution.mpi import MPICommunicator
from minicnn.distribution.passes import ADDED, FINITE, Layout, Shard
from minicnn.distribution.running import RankStep
from minicnn.distribution.schedule import RankSchedule
from minicnn.distribution.segments import Segments
from minicnn.distribution.sharding import sharded
from minicnn.distribution.writing import ProgramWriter
from minicnn.ops.groups import Communicator, Group, rows
from minicnn.program.graph import Program

if TYPE_CHECKING:
    from minicnn.backends.base import Backend, Executable
    from minicnn.loop.tracing import Feed

Array = Any
_METHODS = ("rank", "size", "exchange", "gather", "share", "fail")  # of every communicator


class DataParallel(metaclass=PlainArguments):
    """Training in which every batch is cut into shards, whose gradients are summed in one fixed order.

    The ranks of a job share the shards. Since the bits depend on the shards alone, weights are the same with any number
    of ranks, from one to as many as there are shards; a training may be resumed with another number. Without a launcher
    it is one rank that takes all shards one after the other, which is gradient accumulation.

    Bits also depend on the number of threads of a rank, as they do in one process: see the page "Train on several
    machines".

    Args:
        shards: Parts of each batch, at least as many as ranks. A multiple of the number of ranks shares them evenly.
        timeout: Seconds that a rank waits for the others before it ends the job with an error.
        communicator: What moves the arrays; that of the launcher which started the process if None.
        deterministic: Whether sums are taken in the fixed tree. If False an all-reduce of the library that
            connects the ranks takes them, which is faster: with one shard a rank nothing else is computed. Bits then
            depend on the number of ranks.

    Raises:
        ValueError: If an argument is out of range.
        ImportError: If a launcher has started the process, and what connects its processes is missing: mpi4py, for
            torchrun PyTorch.

    Example:
        >>> DataParallel(shards=8).ranks
        1
    """

    layout: Layout = ()  # of kernels that are split
    groups = 1  # of shards, in each of which they are

    def __init__(
        self, shards: int, *, timeout: float = 300.0, communicator: Communicator | None = None,
        deterministic: bool = True,
    ) -> None:  # fmt: skip
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise ValueError(f"shards is an integer of at least 1. Received: shards={shards!r}.")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0. Received: timeout={timeout!r}.")
        self.shards, self.timeout, self.deterministic = shards, timeout, deterministic
        lacks = [name for name in _METHODS if communicator is not None and not hasattr(communicator, name)]
        if lacks:
            raise ValueError(
                f"A communicator has {', '.join(_METHODS)}. Received: {type(communicator).__name__}, which lacks "
                f"{', '.join(lacks)}. Give one of minicnn.distribution, or leave it out for that of the launcher."
            )
        self.communicator = find(timeout) if communicator is None else communicator
        self._check_ranks()

    def _check_ranks(self) -> None:
        if self.ranks > self.shards:
            raise ValueError(
                f"Every rank computes at least one shard. Received: shards={self.shards} for {self.ranks} ranks. Give "
                "more shards, or start fewer processes."
            )

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self.communicator.rank

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.communicator.size

    @property
    def alone(self) -> bool:
        """True if there is nothing to share: steps are then those of no distribution."""
        return self.shards == 1 and isinstance(self.communicator, OneProcess)

    def __deepcopy__(self, memo: Any) -> DataParallel:
        return self  # it holds nothing of a model

    def __reduce__(self) -> Any:
        """For pickle: made anew, where it is loaded."""
        return partial(DataParallel, self.shards, timeout=self.timeout, deterministic=self.deterministic), ()

    def describe(self) -> dict[str, Any]:
        """Settings that decide about the bits of a training, as plain data."""
        return {"shards": self.shards, **({"layout": [list(entry) for entry in self.layout]} if self.layout else {})}

    def connect(self, backend: Backend) -> None:
        """Let a backend connect the ranks in its own way, if it has one: see `Backend.connected`."""
        # Only now is it known where arrays are.
        if self.ranks > 1:
            self.communicator = backend.connected(self.communicator)

    # Shards -------------------------------------------------------------------------------------

    def _group(self, batch: int) -> Group:
        """Group that assigns shards of a batch to ranks; a batch of fewer samples has fewer shards."""
        return Group(min(self.shards, batch), self.rank, self.ranks, self.communicator, self.deterministic)

    def _shards(self, batch: int) -> list[Shard]:
        """Those of this rank; where there is none for it, it does what the first one needs, and nobody counts it."""
        group = self._group(batch)
        # An idle rank takes part in all collectives, for which it needs arrays of some shard.
        cuts = [(s, rows(batch, group.shards, s)) for s in group.held() or (0,)]
        return [Shard(s, group.shards, cut.start, len(cut), batch, self.layout, self.groups) for s, cut in cuts]

    def part(self, feed: Feed) -> tuple[Feed, Shard]:
        """Feed of the step on this rank's first shard, and that shard."""
        shard = self._shards(feed.batch)[0]
        return _part(feed, shard.samples), shard

    def compile(self, trace: Callable[[Feed, Shard], Program], feed: Feed, backend: Backend) -> Executable:
        """The step of this rank.

        Args:
            trace: Gives the Program of a shard from what it is given.
            feed: What the whole step is given.
            backend: What runs it.
        """
        return backend.rank_step(self.schedule(trace, feed), RankStep)

    def program(self, trace: Callable[[Feed, Shard], Program], feed: Feed) -> Program:
        """This rank's step as one Program: the same list of pieces and collectives that `compile` runs."""
        return ProgramWriter(self.schedule(trace, feed)).write()

    def schedule(self, trace: Callable[[Feed, Shard], Program], feed: Feed) -> RankSchedule:
        """The list of pieces and collectives that is this rank's step; see `compile` for the arguments."""
        programs, cut = self._programs(trace, feed)
        group = self._group(feed.batch)
        every = {n: Segments(program, cut, n, group.shards) for n, program in programs.items()}
        return sharded(every, self._shards(feed.batch), group, cut)

    def weights(self, program: Program) -> int:
        """Number of weights that this rank trains, of those in its step's Program."""
        return sum(v.size for v in program.inputs if v.kind in ("parameter", "statistic"))

    def _programs(self, trace: Callable[[Feed, Shard], Program], feed: Feed) -> tuple[dict[int, Program], set[str]]:
        """For each number of samples that a shard has its Program, and names of the inputs that are cut for it."""
        group, programs = self._group(feed.batch), dict[int, Program]()
        for number in range(group.shards):
            cut = rows(feed.batch, group.shards, number)
            if len(cut) not in programs:
                shard = Shard(number, group.shards, cut.start, len(cut), feed.batch, self.layout, self.groups)
                programs[len(cut)] = trace(_part(feed, len(cut)), shard)
        # Of whole arrays, where there are any, each shard picks rows by its part of the index.
        data = {"index", "rows"} if feed.gathered else {*feed.names, "sample_weight", "rows"}
        return programs, data & {v.name for p in programs.values() for v in p.inputs}

    # Ranks together -----------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context of what all ranks do at once: where one fails, the others end too."""
        try:
            yield
        except BaseException as error:
            self.communicator.fail(error)
            raise

    def check_finite(self, results: Mapping[str, Array], step: int, backend: Backend) -> None:
        """End all ranks alike where the loss of a training step is no finite number any more.

        Args:
            results: What the step has made.
            step: Its number.
            backend: Whose arrays these are.

        Raises:
            RankError: If it is not, on all ranks with one text, which names those whose samples it comes from.
        """
        if self.ranks == 1 or math.isfinite(loss := float(np.reshape(backend.to_numpy(results["loss"]), ()))):
            return
        levels = [int(name[len(ADDED) :].split(".")[0]) for name, array in results.items()
                  if name.startswith(ADDED) and not np.isfinite(backend.to_numpy(array)).all()]  # fmt: skip
        told = [int(first or -1) for first in self.communicator.share(str(min(levels, default="")).encode())]
        first = min((level for level in told if level >= 0), default=None)
        culprits = [str(rank) for rank, level in enumerate(told) if level == first]
        whose = f"samples of rank {', '.join(culprits)}" if culprits else "samples that go through all ranks"
        whose = "all ranks, as where weights are not finite" if len(culprits) == self.ranks else whose
        message = (
            f"The loss of a training on several ranks is a finite number. Received in step {step}: {loss}, from "
            f"{whose}. Look for NaN and very large numbers in the data, take a smaller learning rate or clip the "
            "gradients, and resume from the last back-up, which is from before; callbacks.TerminateOnNaN() ends the "
            "training without an error."
        )
        raise RankError(message, reported=True)

    def check_each(self, results: Mapping[str, Array], first: int, backend: Backend) -> None:
        """Likewise after several steps, of which `results` tells what was finite: see `FINITE`.

        Args:
            results: What the steps have made.
            first: The number of the first.
            backend: Whose arrays these are.
        """
        if self.ranks == 1:
            return
        told = backend.to_numpy(results[FINITE])
        wrong = np.flatnonzero(~np.isfinite(told[:, 0]))
        if wrong.size:
            row = backend.asarray(told[wrong[0]])
            names = ["loss", *(name for name in results if name.startswith(ADDED))]
            self.check_finite({n: row[k : k + 1] for k, n in enumerate(names)}, first + int(wrong[0]), backend)

    @property
    def loads_parts(self) -> bool:
        """True if the rows of each rank are those that `minicnn.data.shard_rows` says, so that it needs no others."""
        return self._group(self.shards).ranks == self.ranks > 1 and self.shards % self.ranks == 0

    def whole_batch(self, samples: int) -> int:
        """Samples of a batch of which each rank has loaded its rows.

        Args:
            samples: Those of this rank.

        Raises:
            ValueError: If ranks have others; on all ranks.
        """
        told = [np.empty(1, np.int64) for _ in range(self.ranks)]
        self.communicator.gather(np.array([samples], np.int64), told)
        # All ranks compare all counts, so that all raise the same error, where one alone would leave the others
        # waiting.
        counts = [int(count[0]) for count in told]
        wanted = [len(rows(sum(counts), self.ranks, rank)) for rank in range(self.ranks)]
        if counts != wanted:
            raise ValueError(
                f"A loader with set_shard(index, count) gives the rows minicnn.data.shard_rows(samples, index, count) "
                f"of each batch. Received: {', '.join(map(str, counts))} samples on ranks 0 to {self.ranks - 1}, where "
                f"{', '.join(map(str, wanted))} belong together."
            )
        return sum(counts)

    def agree(self, about: Mapping[str, Any]) -> None:
        """Wait for all ranks, and check that they are about to do the same.

        Raises:
            ValueError: If they are not; names what differs.
        """
        if self.ranks == 1:
            return
        # What differs would show as other bits or as a rank that waits; a comparison before the first step costs one
        # message.
        everyone = [json.loads(text) for text in self.communicator.share(json.dumps(dict(about)).encode())]
        for what, value in everyone[0].items():
            different = [str(r) for r, other in enumerate(everyone) if other.get(what) != value]
            if different:
                other = everyone[int(different[0])].get(what)
                raise ValueError(
                    f"All ranks begin with the same {what}. Received: {value!r:.60} on rank 0, {other!r:.60} on rank "
                    f"{', '.join(different)}. Run the same program with the same arguments and versions on all ranks, "
                    "and keep data and back-ups in folders that all of them see."
                )

    def __repr__(self) -> str:
        mode = "" if self.deterministic else ", deterministic=False"
        return f"DataParallel(shards={self.shards}, timeout={self.timeout:g}{mode})"


def find(timeout: float, environment: Mapping[str, str] = os.environ) -> Communicator:
    """The communicator of the launcher that has started this process; without one, that of one process.

    Raises:
        ImportError: If a launcher has started it, and mpi4py, or for torchrun PyTorch, is missing.
    """
    launcher, _, _ = launched(environment)
    if launcher and "JAX_COORDINATOR_ADDRESS" in environment:
        return JaxCommunicator(timeout)
    if launcher == "mpi":
        return MPICommunicator(timeout)
    if launcher == "torchrun":
        return TorchCommunicator(timeout)
    return OneProcess()


def _part(feed: Feed, samples: int) -> Feed:
    """Feed of a step on so many samples of the batch."""
    return replace(feed, batch=samples) if feed.gathered else feed.of(samples)
