"""What limits a training step: compute, memory, launches or the input, from figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {"compute": "compute", "memory": "memory", "launch": "launching operations", "input": "the input"}


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
    """What limits a step.

    Attributes:
        bottleneck: "compute", "memory", "launch" or "input".
        share: Its share of the time.
        text: The reasoning.
    """

    bottleneck: str
    share: float
    text: str


def judge(seconds: float, least: Floor) -> Verdict:
    """Name the bottleneck of a step: the largest floor; and show the reasoning.

    Args:
        seconds: Time of a step, its input included.
        least: Its floors.
    """
    floors = {name: getattr(least, name) for name in NAMES}
    order = sorted(floors, key=lambda name: -floors[name])
    first, second = order[0], order[1]
    share = floors[first] / seconds
    explained = sum(floors.values()) / seconds
    listed = ", ".join(f"{NAMES[name]} {_ms(floors[name])}" for name in order)
    text = (
        f"A step takes {_ms(seconds)}. At the machine's ceilings it would need: {listed}. The largest is {NAMES[first]}"
        f" ({share:.0%} of the time), {_times(floors[first], floors[second])} {NAMES[second]}: the step is bound by "
        f"{NAMES[first]}. "
    )
    if least.compute > seconds:
        text += (
            "Compute alone exceeds the time: the candidate is faster than the peak. Either it multiplies less than is "
            "counted (Winograd) or on tensor cores, or the peak was measured too low, as on a busy machine."
        )
    elif least.launch > seconds:
        text += "Launching alone exceeds the time: launches overlap, or cost less than the one that was timed."
    elif explained > 1:
        text += (
            "Together they exceed the time: the candidate fuses operations or keeps data in caches, so that it moves "
            "less than operation by operation is counted."
        )
    else:
        text += f"Together they explain {explained:.0%}; the rest is what its kernels leave of the ceilings."
    return Verdict(first, share, text)


def _times(first: float, second: float) -> str:
    return f"{first / second:.1f} times as much as" if second > 0 else "ahead of"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
