"""Functions of Values that take symbolic tensors and arrays as well."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.configured import register
from minicnn.layers.calling import is_array
from minicnn.layers.layer import Layer
from minicnn.program.graph import Program, Value

FUNCTIONS: dict[str, Callable[..., Any]] = {}

# Parameters that are arrays: numbers and lists that are given for them are arrays, too.
ARRAYS = ("x", "x1", "x2", "inputs", "xs", "target", "output", "y_true", "y_pred", "condition", "images", "kernel")


def function(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a function of Values is also one of symbolic tensors, by a layer, and of arrays, at once."""
    signature = inspect.signature(definition)
    name = f"{definition.__module__.split('.')[2]}.{definition.__name__}"  # minicnn.keras.ops ...
    FUNCTIONS[name] = definition

    @functools.wraps(definition)
    def dispatched(*args: Any, **named: Any) -> Any:
        arguments = dict(signature.bind(*args, **named).arguments)
        arguments |= arguments.pop("options", {})
        tensors = [t for v in arguments.values() for t in (v if isinstance(v, list | tuple) else [v])]
        if any(isinstance(t, Value) for t in tensors):
            return definition(**arguments)
        if any(hasattr(t, "connect") for t in tensors):
            return _of_symbols(name, arguments)
        return on_arrays(definition, arguments)

    return dispatched


def on_arrays(definition: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """The result as NumPy arrays: a Program of its own is run on NumPy."""
    program = Program("arrays")
    arrays: dict[str, Any] = {}

    def value(array: Any) -> Value:
        name = f"x{len(arrays)}"
        host = np.asarray(array)
        arrays[name] = host if host.dtype != np.int64 else host.astype(np.int32)
        return program.input(name, host.shape, arrays[name].dtype.name)

    def entered(name: str, v: Any) -> Any:
        if name == "xs":
            return [value(part) for part in v]
        numbers = name in ARRAYS and not isinstance(v, str | bool | None)
        return value(v) if is_array(v) or numbers else v

    values = definition(**{name: entered(name, v) for name, v in arguments.items()})
    several = list(values) if isinstance(values, list | tuple) else [values]
    if not several or not all(isinstance(v, Value) for v in several):
        return values
    program.outputs = {str(i): v for i, v in enumerate(several)}
    backend = get_backend("numpy")
    outputs = backend.compile(program)({name: backend.asarray(array) for name, array in arrays.items()})
    results = [outputs[name] for name in program.outputs]
    return results if isinstance(values, list | tuple) else results[0]


class Function(Layer):
    """A function of `minicnn.keras` applied to its inputs.

    Args:
        function: Its module and name, as in "ops.reshape".
        tensors: Names of its parameters that the inputs stand for; None if the first takes them as a list.
        constants: Its other arguments, by name.

    Raises:
        ValueError: If there is no such function.
    """

    def __init__(
        self, function: str, tensors: Sequence[str] | None = None, constants: Mapping[str, Any] | None = None, *,
        name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name=name, trainable=trainable)
        if function not in FUNCTIONS:
            raise ValueError(f"A Function is one of minicnn.keras, such as 'ops.reshape'. Received: {function!r}.")
        self.function = function
        self.tensors = None if tensors is None else list(tensors)
        self.constants = dict(constants or {})

    @property
    def _default_name(self) -> str:
        return self.function.rpartition(".")[2]

    def call(self, inputs: Any) -> Any:
        """Apply the function."""
        several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        tensors = {"xs": several} if self.tensors is None else dict(zip(self.tensors, several, strict=True))
        dtype = next((v.dtype for v in several if "float" in v.dtype), None)
        constants = {k: np.asarray(v, dtype) if k in ARRAYS and isinstance(v, list | tuple) else v
                     for k, v in self.constants.items()}  # fmt: skip
        return FUNCTIONS[self.function](**tensors, **constants)


register(Function)


class Made:
    """A class of minicnn that is made in another way; for all else, also to derive from it, it is the class itself.

    Args:
        kind: The class.
        make: Called in its place.
    """

    def __init__(self, kind: type[Any], make: Callable[..., Any]) -> None:
        self.__wrapped__, self.__call = kind, make
        functools.update_wrapper(self, kind, updated=())

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Make one."""
        return self.__call(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.__wrapped__)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type[Any]]:
        return (self.__wrapped__,)


def _of_symbols(name: str, arguments: Mapping[str, Any]) -> Any:
    if "xs" in arguments:
        return Function(name, None, {k: v for k, v in arguments.items() if k != "xs"})(list(arguments["xs"]))
    tensors = {k: v for k, v in arguments.items() if hasattr(v, "connect")}
    constants = {k: v.tolist() if is_array(v) else v for k, v in arguments.items() if k not in tensors}
    values = list(tensors.values())
    return Function(name, list(tensors), constants)(values if len(values) > 1 else values[0])
