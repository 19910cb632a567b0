"""Network: layers between inputs and outputs, with weights on a backend, and the Programs that they make."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_args

import numpy as np

from minicnn.backends.base import Backend
from minicnn.data.forms import host, numeric
from minicnn.distribution import DataParallel, Shard
from minicnn.initializers import Initializer, generator
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer, Shape
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.layers.weight import Weight
from minicnn.loop.executor import Engine
from minicnn.loop.objective import Objective
from minicnn.loop.tracing import PRECISIONS, Feed, StepKind, trace_step
from minicnn.names import known_name
from minicnn.ops.checks import as_integer
from minicnn.optimizers import Optimizer
from minicnn.program.graph import Program, Spec
from minicnn.states import check_range
from minicnn.summary import Explanation, page, summary


class Network(Graph):
    """A model as far as it needs no training: weights, Programs, tables; see `Model`."""

    described_as = "Model"  # which class a file names

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor],
        outputs: SymbolicTensor | Sequence[SymbolicTensor],
        *,
        backend: str | Backend | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        Layer.__init__(self, name=name)
        self._set_up(backend, seed)
        self._connect(inputs, outputs)

    def _set_up(self, backend: str | Backend | None, seed: int) -> None:
        """Set what does not depend on the layers."""
        self.seed = check_seed(seed)
        self.optimizer: Optimizer | None = None
        self.precision = "float32"
        self._objective: Objective | None = None
        self._draws = 0  # batches predicted so far
        self._engine = self._new_engine(backend)
        self._paths: dict[Weight, str] = {}
        # Whether each layer was trainable when the model was compiled; None is the model, which else would hold itself.
        self._noted: dict[Layer | None, bool] = {}

    def _new_engine(self, backend: str | Backend | None) -> Engine:
        known = weakref.ref(self)  # else the model would live, with its memory, until Python looks for cycles
        return Engine(lambda *step: cast(Network, known())._program_of(*step)[0], backend)

    def _connect(self, inputs: Any, outputs: Any) -> None:
        self._wire(inputs, outputs)
        self._weights: dict[str, Weight]
        self._paths.clear()
        _, self._weights = self._program_of("predict", self._feed(1))
        for path, weight in self._weights.items():
            if weight.cell.value is None:  # else another model made of the layer has numbers for it
                weight.cell.put(partial(_first, weight.initializer, weight.shape, self.seed, path))
        self._engine.reset(self._engine.dtype, ())  # of a Sequential that had fewer or more layers
        self._engine.adopt({path: weight.cell for path, weight in self._weights.items()})
        self.built = True
        if self._objective is not None:
            self._note_trainable()

    # Copies -------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and pickle: plain data and NumPy arrays; compiled steps are made again."""
        weights, engine = vars(self).get("_weights", {}), self._engine
        own = {name: engine.get(name) for name in engine.names() if name not in weights}
        backend = engine.backend if engine.decided else None
        kept = backend, engine.dtype, engine.steps_taken, own, engine.distribution
        return super().__getstate__() | {"_engine": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        backend, dtype, steps_taken, own, distribution = state.pop("_engine")
        super().__setstate__(state)
        self._engine = self._new_engine(backend)
        self._engine.dtype, self._engine.steps_taken, self._engine.distribution = dtype, steps_taken, distribution
        if "_weights" in state:
            self._engine.adopt({path: weight.cell for path, weight in self._weights.items()})
        self._engine.set(own)

    # Backend and weights ------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The backend; decided when first needed."""
        return self._engine.backend

    @property
    def distribution(self) -> DataParallel | None:
        """How training and evaluation are shared out; see `compile`."""
        return self._engine.distribution

    @property
    def chief(self) -> bool:
        """Whether this process prints, logs and writes files: of several ranks only the first does."""
        return self.distribution is None or self.distribution.rank == 0

    def join(self) -> None:
        """Put together the kernels of which each rank has a part: all ranks call it at the same time.

        What reads weights does it by itself; where one rank alone is to read them, all call this before.
        """
        self._engine.join()

    @property
    def input_shape(self) -> Shape | list[Shape]:
        """Shape of the input, its batch axis None; a list for several."""
        shapes = [t.shape for t in self._inputs]
        return shapes[0] if self._one_input else shapes

    @property
    def output_shape(self) -> Shape | list[Shape]:
        """Shape of the output, its batch axis None; a list for several."""
        shapes = [t.shape for t in self._outputs]
        return shapes[0] if self._one_output else shapes

    def count_params(self, *, trainable: bool | None = None) -> int:
        """Number of weights: all, or those that are (not) trainable; those of frozen layers are not.

        Raises:
            RuntimeError: If the model is not built.
        """
        trained = self._trainable_paths() if trainable is not None else []
        return sum(math.prod(w.shape) for p, w in self._weights.items() if trainable in (None, p in trained))

    def _trainable_paths(self) -> list[str]:
        """Paths of the weights that training changes, once the model is compiled as it is now."""
        return [v.name for v in self._program_of("predict", self._feed(1))[0].inputs if v.kind == "parameter"]

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all weights by path, such as "conv2d/kernel"; `set_weights` takes them."""
        return {path: self._engine.get(path) for path in self._weights}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace weights by path; those not named stay.

        Raises:
            ValueError: If a path is unknown or a shape differs; then nothing is changed.
            TypeError: If it is no mapping, or an array is on another device or does not hold numbers; then nothing is
                changed.
        """
        if not isinstance(weights, Mapping):
            raise TypeError(
                "set_weights of a model takes a dictionary of arrays by path, as get_weights gives it. Received: "
                f"{type(weights).__name__}. dict(zip(model.get_weights(), arrays)) makes one of arrays in the model's "
                "order; a layer's set_weights takes a list."
            )
        new = {path: self._host(numeric(array, "Weights"), path) for path, array in weights.items()}
        for path, array in new.items():
            if path not in self._weights or array.shape != self._weights[path].shape:
                expected = {p: w.shape for p, w in self._weights.items()}.get(path, "no weight of that name")
                raise ValueError(
                    f"set_weights takes arrays by weight path, each of its weight's shape. Received: {path!r} with "
                    f"shape {array.shape}; the model has {expected}. Paths: {', '.join(self._weights)}."
                )
        self._engine.set(new)

    def _host(self, array: Any, path: str) -> np.ndarray[Any, Any]:
        """A weight on the host, in the model's floating-point type."""
        own = self._engine.decided and self.backend.owns(array)
        there = self.backend.to_numpy(array) if own else host(array)
        check_range(there, self._engine.dtype, path)
        return there.astype(self._engine.dtype)

    def _forget(self) -> None:
        """Begin anew: with first weights, as if nothing had been compiled or trained."""
        self.optimizer, self._objective = None, None
        self._noted.clear()
        weights: dict[str, Weight] = vars(self).get("_weights", {})
        self._engine.reset("float32", weights)
        self.precision = "float32"
        for path, weight in weights.items():
            weight.cell.put(partial(_first, weight.initializer, weight.shape, self.seed, path))

    # Programs -----------------------------------------------------------------------------------

    def _feed(self, batch: int) -> Feed:
        x = tuple(Spec((batch, *t.trial()), t.dtype) for t in self._inputs)
        y: tuple[Spec, ...] = ()
        if self._objective is not None:
            y = tuple(
                Spec((batch, *t.trial()[:-1]), "int32") if loss.integer_labels
                else Spec((batch, *t.trial()), self._engine.dtype)
                for t, loss in zip(self._outputs, self._objective.losses, strict=True)
            )  # fmt: skip
        return Feed(batch, x, y)

    def _note_trainable(self) -> None:
        """Remember which layers are trainable when the model is compiled; of a compiled model, those that are new."""
        now = {None if layer is self else layer: layer.trainable for layer in self._with_sublayers()}
        self._noted = now | self._noted

    def _check_trainable(self) -> None:
        """Raise a RuntimeError if `trainable` of a layer was changed since the model was compiled."""
        noted = ((self if layer is None else layer, trainable) for layer, trainable in self._noted.items())
        different = [layer for layer, trainable in noted if layer._trainable is not trainable]
        if different:
            raise RuntimeError(
                "trainable is taken up by compile, as in Keras. Received: a model compiled before it was set, on "
                f"{', '.join(sorted(map(repr, different))):.200}. Call compile() again, which begins with new "
                "optimizer state."
            )

    def _program_of(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> tuple[Program, dict[str, Weight]]:
        distribution = self.distribution
        if shard is None and distribution is not None and not distribution.alone and kind != "predict":
            feed, shard = distribution.part(feed)
        return self._traced(kind, feed, shard)

    def _traced(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> tuple[Program, dict[str, Weight]]:
        """The Program of a shard; without one that of a batch which nobody shares."""
        return trace_step(
            kind, self, feed, paths=self._paths, seed=self.seed, precision=PRECISIONS[self.precision],
            objective=None if kind == "predict" else self._compiled()[0], optimizer=self.optimizer, shard=shard,
        )  # fmt: skip

    def program(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Program:
        """The Program of one step.

        Args:
            kind: "train", "evaluate" or "predict"; "train" if None and the model is compiled.
            batch_size: Samples in the step.

        Raises:
            RuntimeError: If the model is not compiled, unless the kind is "predict".
        """
        if kind is None:
            kind = "predict" if self._objective is None else "train"
        known_name("kind", kind, get_args(StepKind))
        (batch_size,) = check_counts(batch_size=batch_size)
        feed, distribution = self._feed(batch_size), self.distribution
        if distribution is None or distribution.alone or kind == "predict":
            return self._traced(kind, feed)[0]
        return distribution.program(lambda *part: self._traced(kind, *part)[0], feed)

    def explain(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Explanation:
        """Which kernel of the backend runs each node, or why its reference does."""
        return Explanation(self.backend.explain(self.program(kind, batch_size=batch_size)))

    def summary(self, print_fn: Callable[[str], Any] | None = print, *, batch_size: int = 1) -> str | None:
        """Table of the layers: output shape, weights, FLOPs of the forward pass for a batch.

        Args:
            print_fn: Takes the text; if None it is returned.
            batch_size: Samples that the FLOPs are for.
        """
        text = summary(self, batch_size)
        if print_fn is None:
            return text
        print_fn(text)  # and nothing is returned, which a notebook would show once more
        return None

    def _repr_html_(self) -> str:
        return page(self)

    def __repr__(self) -> str:
        known = f"{len(self.layers)} layers, {self.count_params():,} weights" if self.built else "not built yet"
        return f"<{type(self).__name__} {self.name!r}: {known}>"

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: those of the layers that make them, numbered where one comes again."""
        names: list[str] = []
        for tensor in self._outputs:
            base = self.layer_name(tensor.source.layer) if tensor.source else tensor.name or "output"
            numbered = (f"{base}_{number}" for number in itertools.count(1))
            names.append(next(name for name in (base, *itertools.islice(numbered, len(names))) if name not in names))
        return names

    def _compiled(self) -> tuple[Objective, Optimizer]:
        if self._objective is None or self.optimizer is None:
            raise RuntimeError(
                "A model is trained or evaluated after compile(). Received: a model without. Call it first."
            )
        return self._objective, self.optimizer


def _first(initializer: Initializer, shape: tuple[int, ...], seed: int, path: str) -> np.ndarray[Any, Any]:
    """Initial values of a weight."""
    return initializer(shape, generator(seed, path))


def check_counts(least: int = 1, **given: Any) -> list[int]:
    """The arguments, in their order; a ValueError if one is no integer of at least `least`."""
    counts = []
    for name, value in given.items():
        count = as_integer(value)
        if count is None or count < least:
            raise ValueError(f"{name} is an integer of at least {least}. Received: {name}={value!r}.")
        counts.append(count)
    return counts


def check_optional(**given: Any) -> list[Any]:
    """The arguments, in their order, of which each is None or an integer of at least 1."""
    return [None if value is None else check_counts(**{name: value})[0] for name, value in given.items()]


def check_seed(seed: Any) -> int:
    """The seed; a ValueError if it is none."""
    number = as_integer(seed)
    if number is None or not 0 <= number < 2**64:
        raise ValueError(f"seed is an integer from 0 to 2**64 - 1. Received: seed={seed!r}.")
    return number
