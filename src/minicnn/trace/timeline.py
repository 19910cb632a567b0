"""The timeline of a training step: what each rank does when, from `Model.timeline`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minicnn.backends.base import Span
from minicnn.files import write_file


@dataclass(frozen=True)
class Timeline:
    """The parts of a training step on each rank.

    Attributes:
        ranks: Of each rank its spans, in the order in which they begin; `start` is in seconds of each rank's own clock.
    """

    ranks: Sequence[Sequence[Span]]

    @classmethod
    def of(cls, told: Sequence[bytes]) -> Timeline:
        """The timeline from what the ranks have told each other: see `told`."""
        return cls([[Span(**each) for each in json.loads(spans)] for spans in told])

    @staticmethod
    def told(spans: Sequence[Span]) -> bytes:
        """A rank's spans for the others."""
        return json.dumps([asdict(span) for span in spans]).encode()

    def events(self) -> list[dict[str, Any]]:
        """Events of Chrome's trace format: a process for each rank, with a thread for each lane.

        Clocks of ranks differ: they are set by the first span between ranks, which ends on all of them at one moment.
        Without any they are set by the first span. (Trace Event Format, Google, 2016: "X" has begin and duration in
        microseconds, "M" names.)
        """
        events: list[dict[str, Any]] = []
        for rank, spans in enumerate(self.ranks):
            lanes = list(dict.fromkeys(["computing", *(span.lane for span in spans)]))
            names = [("process_name", 0, f"rank {rank}"), *(("thread_name", k, lane) for k, lane in enumerate(lanes))]
            events += [{"ph": "M", "name": n, "pid": rank, "tid": k, "args": {"name": is_}} for n, k, is_ in names]
            zero = self._zero(spans)
            events += [
                {"ph": "X", "name": span.name, "cat": "between ranks" if span.between else "computing", "pid": rank,
                 "tid": lanes.index(span.lane), "ts": round((span.start - zero) * 1e6, 3),
                 "dur": round(span.seconds * 1e6, 3)} for span in spans
            ]  # fmt: skip
        earliest = min((e["ts"] for e in events if e["ph"] == "X"), default=0.0)
        return [e | {"ts": round(e["ts"] - earliest, 3)} if e["ph"] == "X" else e for e in events]

    def _zero(self, spans: Sequence[Span]) -> float:
        """The moment of a rank's clock that is one moment for all."""
        common = next((span for span in spans if span.between), None)
        if common is not None:
            return common.start + common.seconds
        return spans[0].start if spans else 0.0

    def write(self, path: str | Path) -> None:
        """Write a file that Perfetto (ui.perfetto.dev) and Chrome's chrome://tracing show."""
        text = json.dumps({"displayTimeUnit": "ms", "traceEvents": self.events()}, indent=0)
        write_file(Path(path), text.encode())

    def __str__(self) -> str:
        lines = []
        for rank, spans in enumerate(self.ranks):
            whole = max((s.start + s.seconds for s in spans), default=0.0) - min((s.start for s in spans), default=0.0)
            lanes = dict.fromkeys(span.lane for span in spans)
            taken = {lane: sum(s.seconds for s in spans if s.lane == lane) for lane in lanes}
            between = sum(s.seconds for s in spans if s.between)
            parts = [f"{lane} {1e3 * seconds:.3f} ms" for lane, seconds in taken.items()]
            lines.append(f"rank {rank}: {1e3 * whole:.3f} ms, {', '.join(parts)}, between ranks {1e3 * between:.3f} ms")
        return "\n".join(lines)
