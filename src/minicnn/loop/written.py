"""Steps that a model's author has written: `train_step` and `test_step`, traced into Programs."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import minicnn
from minicnn.distribution.passes import Shard
from minicnn.layers.weight import Weight
from minicnn.loop.held import held_weights
from minicnn.loop.objective import read_logs
from minicnn.loop.step import Supervised
from minicnn.loop.tracing import PRECISIONS, Feed, StepKind, begin_trace, declare_data, finish_program
from minicnn.loop.written_trace import WrittenTrace
from minicnn.ops.random import SOURCE
from minicnn.optimizers import Optimizer
from minicnn.program.graph import Program, Value


@dataclass
class WrittenStep:
    """The step that `train_step` and `test_step` of a model are.

    Attributes:
        model: The model.
        supervised: What it was compiled for.
        adopt: Called with the weights by path that a trace has met.
        seen: What the latest step was given.
    """

    model: Any
    supervised: Supervised
    adopt: Callable[[Mapping[str, Weight]], None]
    seen: Feed | None = None
    readers: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def optimizers(self) -> dict[str, Optimizer]:
        """Optimizers by the names of the model's attributes that hold them, without that of `compile`."""
        compiled = self.supervised.optimizer
        held = vars(self.model).items()
        return {name: v for name, v in held if isinstance(v, Optimizer) and v is not compiled}

    def rates(self, taken: int, count: int) -> Mapping[str, Sequence[float]]:
        """See `Step`."""
        every = {"learning_rate": self.supervised.compiled()[1]} | self._further
        return {name: [optimizer.rate(taken + k) for k in range(count)] for name, optimizer in every.items()}

    @cached_property
    def _further(self) -> dict[str, Optimizer]:  # looked up once, as it is asked for in each step
        return {f"{name}/learning_rate": optimizer for name, optimizer in self.optimizers().items()}

    def logs(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """See `Step`."""
        return read_logs(totals, self.readers)

    def trace(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> Program:
        """See `Step`; predictions are those of the built-in step.

        Raises:
            TypeError: If the step does with a Value what only a number can, such as to choose a branch by it; a note
                says in which line.
        """
        if kind == "predict":
            return self.supervised.trace(kind, feed, shard)
        if shard is not None and shard.layout:
            raise ValueError(
                "A step of one's own is shared out by its data. Received: a distribution that splits kernels, too. Use "
                "DataParallel."
            )
        supervised, precision = self.supervised, PRECISIONS[self.supervised.precision]
        supervised.compiled()
        more: dict[str, Any] = {"supervised": supervised, "kind": kind, "shard": shard}
        trace = begin_trace(WrittenTrace, supervised, kind, feed, shard, supervised.trainable, **more)
        program = trace.program
        program.tracing = trace
        program.counted = feed.batch if shard is None else shard.batch
        x, y, weight = declare_data(program, feed, precision.dtype)
        declared = {v.name for v in program.inputs}
        trace.data = frozenset({"index", "rows"} if feed.gathered else declared | {"rows"})
        for held, path in held_weights(self.model):
            supervised.paths.setdefault(held, path)
        vars(self).pop("_further", None)  # there may be others than at the latest trace
        logs = self._run(trace, _as_given(x, y, weight))
        self.adopt(trace.declared)
        self.readers |= trace.finish(logs)
        program.tracing = None
        return finish_program(program, precision)

    def _run(self, trace: WrittenTrace, data: Any) -> Mapping[str, Any]:
        """Logs that the author's function returns."""
        bound = self.model._in_step(trace)
        name = "train_step" if trace.kind == "train" else "test_step"
        source = SOURCE.set(bound.random_uniform)
        try:
            logs = getattr(bound, name)(data)
        except (TypeError, ValueError, RuntimeError) as error:
            _note_line(error, f"{type(self.model).__name__}.{name}")
            raise
        finally:
            SOURCE.reset(source)
        if not isinstance(logs, Mapping):
            raise TypeError(
                f"{name} returns a dictionary of logs. Received: {type(logs).__name__} from that of "
                f"{type(self.model).__name__}. Return such as {{'loss': loss}}."
            )
        return logs


def _as_given(x: Sequence[Value], y: Sequence[Value], weight: Value | None) -> Any:
    """Data as Keras packs them: x alone, (x, y) or (x, y, weight), each of several arrays a list."""
    inputs, labels = (part[0] if len(part) == 1 else list(part) for part in (x, y))
    if weight is not None:
        return inputs, labels if y else None, weight
    return (inputs, labels) if y else inputs


def _note_line(error: BaseException, step: str) -> None:
    """Say which line of the author's it was."""
    home, line = Path(minicnn.__file__).parent, None
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if home not in Path(code.co_filename).parents:
            line = code.co_filename, place.tb_lineno
        place = place.tb_next
    text = f"In {step}"
    if line is not None:
        source = linecache.getline(*line).strip()
        text += f", {line[0]}, line {line[1]}" + (f": {source}" if source else "")
    error.add_note(f"{text}.")
