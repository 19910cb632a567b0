"""Inspectable: name, weights and calls of a layer, and the layer as plain data."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from minicnn import html
from minicnn.configured import Config, Configured, CustomObjects, encode
from minicnn.layers.weight import Weight
from minicnn.names import snake_case
from minicnn.states import check_range

# What the first layer of a Sequential may be told in place of an Input before it; the Input is what is saved.
STARTS = ("input_shape", "input_dim", "batch_input_shape")

HostArray = np.ndarray[Any, Any]


class Inspectable(Configured):
    """A layer as far as it is asked, not computed with; see `Layer`."""

    # Weights with a regularizer and a constraint, each with the word that the names of these arguments begin with.
    _limited: tuple[tuple[str, str], ...] = ()
    _of_the_run: tuple[str, ...] = STARTS
    _trainable: bool
    _name: str | None = None  # as given
    _found_as: str | None = None  # in the first model made of it
    _array_calls = 0  # on arrays, each of which draws numbers of its own
    _start: tuple[int | None, ...] | None = None  # shape of a sample, where it is the first of a Sequential
    _callers: tuple[weakref.ref[Any], ...] = ()  # its calls on symbolic tensors

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember what is given, because a constructor may take it as `**kwargs` and hand it on."""
        new = super().__new__(cls)
        new._constructed_with = len(args), tuple(name for name in options if name not in cls._of_the_run)
        return new

    @property
    def name(self) -> str:
        """The name that was given, else that in the first model made of the layer, else that of its class.

        Models number layers of one class each for itself: see `Graph.layer_name`.
        """
        return self._name or self._found_as or self._default_name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    @property
    def _default_name(self) -> str:
        """The name of a layer that was given none; models number them from the second on."""
        return snake_case(type(self).__name__)

    # As plain data ------------------------------------------------------------------------------

    @classmethod
    def _limit_names(cls) -> list[str]:
        """Names of the arguments for regularizers and constraints: "kernel_regularizer" ..."""
        return [f"{word}_{kind}" for _, word in cls._limited for kind in ("regularizer", "constraint")]

    def get_config(self) -> Config:
        """Arguments of the constructor as plain data: the attributes that bear the arguments' names.

        Those that it takes as `**kwargs` are those of them that were given, and `trainable` where it is False.

        Raises:
            TypeError: If one is not kept or no plain data, or was taken as `*args`, so that it has no name.
        """
        config = super().get_config()
        config.pop("trainable", None)
        limits = {name: getattr(self, name, None) for name in self._limit_names()}
        config |= {name: encode(v, f"{name} of {type(self).__name__}") for name, v in limits.items() if v is not None}
        return config if self._trainable else config | {"trainable": False}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = None) -> Self:
        """A layer with the arguments that `get_config` gave: see `Configured`."""
        layer = super().from_config({k: v for k, v in config.items() if k != "trainable"}, custom_objects)
        layer._trainable = checked_bool(config.get("trainable", True))  # which a constructor need not take
        return layer

    def _arguments(self) -> list[tuple[inspect.Parameter, Any]]:
        limits = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in self._limit_names()]
        return super()._arguments() + [(limit, getattr(self, limit.name, None)) for limit in limits]

    # A layer of the caller's need know nothing of `trainable`.

    def _encoded(self) -> Config:
        encoded = super()._encoded()
        return encoded if self._trainable else {**encoded, "config": {**encoded["config"], "trainable": False}}

    @classmethod
    def _decoded(cls, config: Config, custom_objects: CustomObjects) -> Self:
        frozen = config.pop("trainable", True) is False
        layer = super()._decoded(config, custom_objects)
        layer._trainable = layer._trainable and not frozen  # of this layer: those within have their own
        return layer

    # Weights ------------------------------------------------------------------------------------

    @property
    def weights(self) -> list[Weight]:
        """The weights of the layer, then those of the layers within; those of a layer that train come first."""
        return list(self._weights_within(self._trainable))

    @property
    def trainable_weights(self) -> list[Weight]:
        """The weights that training changes."""
        return [weight for weight, trained in self._weights_within(self._trainable).items() if trained]

    @property
    def non_trainable_weights(self) -> list[Weight]:
        """The weights that training does not change, or that the layer assigns itself."""
        return [weight for weight, trained in self._weights_within(self._trainable).items() if not trained]

    # By the names that Keras 3 has for them.
    variables = weights
    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    def _weights_within(self, trainable: bool) -> dict[Weight, bool]:
        """Each weight, and whether training changes it."""
        held = list(_flat(self._held()))
        declared = [part for part in held if isinstance(part, Weight)]
        trained_first = sorted(declared, key=lambda weight: not weight.trainable)
        trained_by_weight = {weight: trainable and weight.trainable for weight in trained_first}
        for layer in held:
            if isinstance(layer, Inspectable):
                for weight, trained in layer._weights_within(trainable and layer._trainable).items():
                    trained_by_weight[weight] = trained_by_weight.get(weight, False) or trained
        return trained_by_weight

    def _held(self) -> list[Any]:
        """Attributes among which sublayers and weights may be."""
        return list(vars(self).values())

    def count_params(self) -> int:
        """Number of weights."""
        return sum(math.prod(weight.shape) for weight in self.weights)

    def get_weights(self) -> Any:
        """Copies of the numbers of all `weights`, in their order, as in Keras; a model gives them by path."""
        return [weight.numpy() for weight in self.weights]

    def set_weights(self, weights: Any) -> None:
        """Replace the numbers of all `weights`, in their order, in every model made of the layer.

        Raises:
            TypeError: If it is no list of arrays.
            ValueError: If their number or a shape differs; then nothing is changed.
        """
        if not isinstance(weights, Sequence) or isinstance(weights, str):
            raise TypeError(
                "set_weights of a layer takes a list of arrays, in the order of its weights. Received: "
                f"{type(weights).__name__}. A model takes a dictionary by path."
            )
        if any(isinstance(array, np.ma.MaskedArray) for array in weights):
            raise TypeError("Weights are arrays without a mask. Received: a masked array. Call filled(value).")
        arrays, declared = [np.asarray(array) for array in weights], self.weights
        if [array.shape for array in arrays] != [weight.shape for weight in declared]:
            raise ValueError(
                f"set_weights of a layer takes an array of each weight's shape: "
                f"{', '.join(f'{w.name} {w.shape}' for w in declared) or 'none, as it has no weights yet'}. Received: "
                f"{', '.join(str(array.shape) for array in arrays) or 'none'}."
            )
        for weight, array in zip(declared, arrays, strict=True):
            check_range(array, weight.dtype, weight.name)
        for weight, array in zip(declared, arrays, strict=True):
            weight.put(array)

    # Calls --------------------------------------------------------------------------------------

    @property
    def input(self) -> Any:
        """The symbolic tensor, or the list of them, that the layer was called on.

        Raises:
            AttributeError: If it was called on none, or more than once.
        """
        call = self._only_call("input")
        return call.inputs if call.as_list else call.inputs[0]

    @property
    def output(self) -> Any:
        """The symbolic tensor that the layer made, or the list of them: where other layers may go on.

        Raises:
            AttributeError: If it was called on none, or more than once.
        """
        return self._only_call("output").result

    def _only_call(self, what: str) -> Any:
        calls = [call for call in (known() for known in self._callers) if call is not None]
        if len(calls) != 1:
            raise AttributeError(
                f"{what} is that of the one call of a layer on symbolic tensors. Received: {len(calls)} calls of "
                f"{self.name!r}. Keep the tensor that the call gives."
            )
        return calls[0]

    def _repr_html_(self) -> str:
        try:
            config = self.get_config()
        except TypeError:  # of a layer that cannot be saved
            config = {}
        rows = [(name, value) for name, value in config.items() if value is not None]
        rows += [(f"weight {w.name}", w.shape) for w in self.weights]
        return html.block(f"{type(self).__name__} {self.name!r}", html.table(("argument", "value"), rows))

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and pickle: calls belong to the models that were made of them."""
        return {key: value for key, value in vars(self).items() if key != "_callers"}


def _flat(held: Any) -> Iterator[Any]:
    """The parts of lists, tuples and dictionaries, at any depth."""
    for part in held.values() if isinstance(held, Mapping) else held:
        if isinstance(part, list | tuple | dict):
            yield from _flat(part)
        else:
            yield part


def checked_bool(trainable: bool) -> bool:
    """Raise a ValueError unless it is a bool; returns it."""
    if not isinstance(trainable, bool):
        raise ValueError(f"trainable is True or False. Received: trainable={trainable!r}.")
    return trainable
