"""Limit of a training step, from figures alone: compute, memory, launches, the input, or none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {"compute": "compute", "memory": "memory", "launch": "launching operations", "input": "the input"}
NEAR = 0.5  # share of a ceiling from which something is near it, and of a step from which something limits it
NONE = "none"


@dataclass(frozen=True)
class Floor:
    """The least that a step could take if one thing alone held it back.

    Attributes:
        compute: Seconds of the operations that the peak limits, at the peak.
        memory: Seconds of the operations that the bandwidth limits, at the bandwidth of the memory.
        launch: Seconds of launching all operations.
        input: Seconds of making a batch.
    """

    compute: float
    memory: float
    launch: float
    input: float


def floor(
    nodes: Sequence[tuple[float, float]], peak: float, bandwidth: float, launches_s: float, input_s: float
) -> Floor:
    """Floors of a step.

    Args:
        nodes: FLOPs and bytes of each operation.
        peak: FLOP per second.
        bandwidth: Bytes per second.
        launches_s: Seconds of launching all that is launched.
        input_s: Seconds of making a batch.
    """
    compute = sum(f / peak for f, b in nodes if f / peak >= b / bandwidth)
    memory = sum(b / bandwidth for f, b in nodes if f / peak < b / bandwidth)
    return Floor(compute, memory, launches_s, input_s)


@dataclass(frozen=True)
class Verdict:
    """Limit of a step.

    Attributes:
        bottleneck: "compute", "memory", "launch" or "input"; "none" where the largest is less than half of the time.
        largest: The largest of them.
        share: Its share of the time.
    """

    bottleneck: str
    largest: str
    share: float


def judge(seconds: float, least: Floor) -> Verdict:
    """Name the bottleneck of a step: its largest floor, if that is at least half of the time.

    Args:
        seconds: Time of a step, its input included.
        least: Its floors.
    """
    largest = max(NAMES, key=lambda name: getattr(least, name))
    share = getattr(least, largest) / seconds
    return Verdict(largest if share >= NEAR else NONE, largest, share)


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of a step.

    Attributes:
        flops: FLOPs of all its operations.
        bytes_moved: Bytes that it reads from and writes to memory; what stays within it is not counted.
        seconds: Its own time.
    """

    flops: float
    bytes_moved: float
    seconds: float


def near(kernels: Sequence[TimedKernel], step_s: float, peak: float, bandwidth: float) -> dict[str, float]:
    """Shares of a step's time by what its kernels are near: "compute", "memory", "none", and "between" kernels.

    A kernel is near a ceiling if at it the kernel would need at least half of its time. Timed one by one, kernels can
    take longer in all than the step, in which one begins before the other ends.
    """
    whole = max(step_s, sum(kernel.seconds for kernel in kernels))
    shares = dict.fromkeys(("compute", "memory", NONE), 0.0)
    for kernel in kernels:
        needs = {"compute": kernel.flops / peak, "memory": kernel.bytes_moved / bandwidth}
        most = max(needs, key=lambda name: needs[name])
        shares[most if needs[most] >= NEAR * kernel.seconds else NONE] += kernel.seconds / whole
    return {**shares, "between": max(0.0, 1 - sum(shares.values()))}
