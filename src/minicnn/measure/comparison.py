"""Candidates of one measurement: each in a process of its own, checked to compute the same, timed interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

from minicnn.measure.candidates import on_gpu
from minicnn.measure.parity import Probe, doubtful, loss_parity, parity
from minicnn.measure.timing import interleaved
from minicnn.measure.worker import CandidateError, Worker, together

REFERENCE = "numpy"
LOOKS = range(1, 8)  # epochs whose batches decide, one after the other, where the first left a doubt
REST_S = 0.1  # after a measurement on the CPU: threads of BLAS and OpenMP keep the next candidate's cores busy


class Comparison:
    """Context manager: an object for each candidate in a process of its own.

    A candidate that fails or is refused is out: it is called no more.

    Args:
        names: The candidates.
        make: Class or function of a module; `make(name, *args)` makes the object of a candidate in its process.
        args: Further arguments of it.
        environment: Variables of the environment that processes have in addition, by candidate.
        reference: Name of the candidate that is taken to be right, whether it takes part or not; the first candidate if
            None.
        patience: Seconds in which each object must be made, if there is a limit.

    Attributes:
        out: Why each candidate that is out is so: it failed, or it was refused.
        kinked: Those that differ on the first batch by chance, such as a ReLU at its kink, and on another one do not.
    """

    def __init__(
        self, names: Sequence[str], make: Callable[..., Any], *args: Any,
        environment: Mapping[str, Mapping[str, str]] = MappingProxyType({}), reference: str | None = REFERENCE,
        patience: float | None = None,
    ) -> None:  # fmt: skip
        self._names, self._make, self._args = names, make, args
        self._environment, self._reference, self._patience = environment, reference, patience
        self._workers: dict[str, Worker] = {}
        self._calls = 0
        self.out: dict[str, str] = {}
        self.kinked: set[str] = set()

    def __enter__(self) -> Comparison:
        workers = {
            name: Worker(name, self._make, name, *self._args, environment=self._environment.get(name))
            for name in self._names
        }
        self._together = together(workers, self._patience)
        self._workers, out = self._together.__enter__()
        self.out |= {name: f"failed: {why}" for name, why in out.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._together.__exit__(kind, error, trace)

    @property
    def names(self) -> list[str]:
        """Candidates that are not out, in order."""
        return [name for name in self._workers if name not in self.out]

    def prepare(self, method: str, *args: Any) -> dict[str, Any]:
        """Call a method of all candidates at the same time, for what is not timed; its results by name."""
        results = {}
        names = self.names
        for name in names:
            self._workers[name].send(method, *args)
        for name in names:
            try:
                results[name] = self._workers[name].receive()
            except CandidateError as error:
                self.out[name] = f"failed: {error.why}"
        return results

    def call(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call a method of each candidate, one after the other, another first each time; its results by name."""
        results = {}
        names = self.names
        first = self._calls % max(len(names), 1)
        self._calls += 1
        for name in names[first:] + names[:first]:
            try:
                results[name] = self._workers[name].call(method, *args, **kwargs)
            except CandidateError as error:
                self.out[name] = f"failed: {error.why}"
            self._rest(name)
        return {name: results[name] for name in self.names}

    def _rest(self, name: str) -> None:
        if len(self.names) > 1 and not on_gpu(name.partition(" / ")[0]):
            time.sleep(REST_S)

    def check(self, rtol: float, method: str = "probe", *, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Refuse candidates that do not compute what the reference does.

        Where only a few elements of an array differ, as at the kink of a ReLU, other batches decide: one is enough on
        which a candidate agrees, as a wrong kernel is wrong on all.

        Args:
            rtol: See `parity`.
            method: Method of the objects that returns the Probe of the first batch of an epoch.
            others: See `parity`.
        """
        missing = () if self._reference in (None, *self._names) else (str(self._reference),)
        with ExitStack() as stack:
            watchers = {name: Worker(name, self._make, name, *self._args) for name in missing}
            for watcher in watchers.values():
                watcher.start()
                stack.callback(watcher.close)

            def probes_of(epoch: int) -> dict[str, Probe]:
                probes: dict[str, Probe] = self.prepare(method, epoch)
                for watcher in watchers.values() if not epoch else ():
                    watcher.wait()
                return probes | {name: watcher.call(method, epoch) for name, watcher in watchers.items()}

            if not (probes := probes_of(0)):
                return
            # Where the reference itself has failed, there is nothing to compare with but the first.
            reference = self._reference if self._reference in probes else next(iter(probes))
            reasons = parity(probes, reference, rtol, others)
            unsure = {n for n in reasons if doubtful(probes[n], probes[reference], others.get(n, rtol))}
            doubted = set(unsure)
            for epoch in LOOKS:
                if unsure and reference in (probes := probes_of(epoch)):
                    later = parity(probes, reference, rtol, others)
                    reasons = {n: later.get(n, why) for n, why in reasons.items() if n not in unsure or n in later}
                    unsure &= later.keys()
            self.kinked |= doubted - reasons.keys()
            self.out |= reasons

    def losses(
        self, method: str, *args: Any, rtols: Sequence[float],
        others: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> tuple[dict[str, list[float]], dict[str, str]]:  # fmt: skip
        """Losses of some steps by name, and of candidates whose losses are not those of the reference what differs.

        Args:
            method: Method of the objects that returns losses.
            args: Its arguments.
            rtols: See `loss_parity`.
            others: See `loss_parity`.
        """
        losses: dict[str, list[float]] = self.prepare(method, *args)
        reference = self._reference if self._reference in losses else None
        reasons = loss_parity(losses, rtols, reference, others)
        return losses, {name: f"refused, because {why}" for name, why in reasons.items()}

    def check_losses(
        self, method: str, *args: Any, rtols: Sequence[float],
        others: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> dict[str, list[float]]:  # fmt: skip
        """Refuse candidates whose losses of some steps are not those of the reference: see `losses`."""
        losses, refused = self.losses(method, *args, rtols=rtols, others=others)
        self.out |= refused
        return losses

    def time(self, method: str, *args: Any, rounds: int, budget_s: float | None = None) -> dict[str, list[float]]:
        """Measure the candidates interleaved; seconds of each measurement by name.

        Args:
            method: Method of the objects that returns seconds.
            args: Its arguments.
            rounds: See `interleaved`.
            budget_s: See `interleaved`.
        """
        calls = {name: partial(self._timed, name, method, *args) for name in self.names}
        samples = interleaved(calls, rounds=rounds, budget_s=budget_s)
        return {name: times for name, times in samples.items() if name not in self.out}

    def _timed(self, name: str, method: str, *args: Any) -> float:
        if name in self.out:
            return 0.0
        try:
            seconds = float(self._workers[name].call(method, *args))
        except CandidateError as error:
            self.out[name] = f"failed: {error.why}"
            return 0.0
        self._rest(name)
        return seconds
