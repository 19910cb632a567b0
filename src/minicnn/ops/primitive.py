"""The primitive operation: reference, shape rule, gradient rule and cost, side by side."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from minicnn.arguments import plain
from minicnn.program.graph import Node, Program, Spec, Value

Array = Any  # an array of any library that follows the Python Array API
Namespace = Any  # such a library's namespace

ShapeRule = Callable[..., "Spec | tuple[Spec, ...]"]
GradientRule = Callable[..., "Sequence[Value | None] | Value | None"]
CostRule = Callable[[Node], "Cost | int"]

REGISTRY: dict[str, Primitive] = {}


@dataclass(frozen=True)
class Cost:
    """Work of one node.

    Attributes:
        flops: Floating-point operations; a multiply-add counts as two.
        bytes: Bytes read and written, each input and output once.
        workspace: Scratch bytes that the reference needs beside inputs and outputs.
        sent: Bytes sent to other ranks.
    """

    flops: int
    bytes: int
    workspace: int = 0
    sent: int = 0


class Primitive:
    """One operation, defined once for every array library.

    Calling a primitive with Values emits a node into their Program; Python scalars and NumPy arrays
    among the arguments become constants. `reference(*arrays, xp=namespace, **attrs)` computes it on
    arrays of any conforming library.

    Attributes:
        name: Name of the operation, unique in the library.
        reference: Pure function on arrays: never changes its inputs nor returns a view of them.
        elementwise: True where each result element depends on the input elements at its own
            (broadcast) place only.
    """

    def __init__(self, reference: Callable[..., Any], *, elementwise: bool = False, flops: int = 0) -> None:
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self.reference = reference
        self.elementwise = elementwise
        parameters = inspect.signature(reference).parameters.values()
        self.array_names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.attr_names = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "xp")
        self.attr_defaults = {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name != "xp" and p.default is not p.empty
        }
        self._attr_set = set(self.attr_names)
        self._shape: ShapeRule | None = None
        self._gradient: GradientRule | None = None
        self._cost: CostRule = lambda node: flops * sum(v.size for v in node.outputs)

    # Definition ---------------------------------------------------------------------------------

    def shape(self, rule: ShapeRule) -> ShapeRule:
        """Decorator: `rule(*specs, **attrs)` checks the inputs and returns the result's Spec or Specs."""
        self._shape = rule
        return rule

    def gradient(self, rule: GradientRule) -> GradientRule:
        """Decorator: `rule(node, *output_gradients)` emits and returns one gradient (or None) per input.

        The gradient of an output that nothing differentiable reads is None.
        """
        self._gradient = rule
        return rule

    def cost(self, rule: CostRule) -> CostRule:
        """Decorator: `rule(node)` returns the node's FLOPs, or a whole Cost."""
        self._cost = rule
        return rule

    # Use ----------------------------------------------------------------------------------------

    @property
    def differentiable(self) -> bool:
        """True if a gradient rule exists."""
        return self._gradient is not None

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        """Emit one node; returns its Value, or a tuple of Values if there are several results."""
        if not self.variadic and len(args) != len(self.array_names):
            raise TypeError(
                f"{self.name} takes {len(self.array_names)} arrays ({', '.join(self.array_names)}). "
                f"Received: {len(args)}."
            )
        # One spelling inside, so that equal nodes are equal and are computed once.
        if "axis" in attrs and "axes" in self._attr_set:  # Keras's word
            attrs["axes"] = attrs.pop("axis")
        settings = {**self.attr_defaults, **{name: plain(value) for name, value in attrs.items()}}
        if settings.keys() != self._attr_set:
            unknown, missing = sorted(settings.keys() - self._attr_set), sorted(self._attr_set - settings.keys())
            raise TypeError(
                f"{self.name} takes the keyword arguments {list(self.attr_names)}. "
                f"Received: {sorted(attrs)} (unknown: {unknown}, missing: {missing})."
            )
        symbolic = next((a for a in args if hasattr(a, "apply_primitive")), None)
        if symbolic is not None:
            return symbolic.apply_primitive(self.name, args, attrs)
        program = next((a.program for a in args if isinstance(a, Value)), None)
        if program is None:
            raise TypeError(
                f"{self.name} builds a Program, so at least one argument is a Value. Received: "
                f"{', '.join(type(a).__name__ for a in args)}. To compute on arrays call "
                f"{self.name}.reference(..., xp=namespace)."
            )
        node = program.emit(self, self._as_values(program, args), settings)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def _as_values(self, program: Program, args: Sequence[Any]) -> list[Value]:
        # A Python scalar takes the dtype of the first floating-point Value beside it, else of the first.
        dtypes = [a.dtype for a in args if isinstance(a, Value)]
        dtype = next((d for d in dtypes if "float" in d), dtypes[0])
        return [a if isinstance(a, Value) else program.constant(a, self._constant_dtype(a, dtype)) for a in args]

    def _constant_dtype(self, data: Any, beside: str) -> str | None:
        if not isinstance(data, bool | int | float):
            return None
        if not isinstance(data, bool) and (beside == "bool" or (isinstance(data, float) and "float" not in beside)):
            raise TypeError(
                f"A Python scalar takes the dtype of the Values beside it. {self.name} received: {data!r} beside "
                f"{beside}. Convert the Value first with ops.cast, or pass a NumPy array, which keeps its dtype."
            )
        return beside

    def result_specs(self, specs: tuple[Spec, ...], attrs: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Specs of the results, or an error that names the rule that the inputs break."""
        if self._shape is None:
            raise TypeError(
                f"Every primitive has a shape rule. Received: {self.name} without one. Add @{self.name}.shape."
            )
        result = self._shape(*specs, **attrs)
        return result if isinstance(result, tuple) else (result,)

    def emit_gradient(self, node: Node, gradients: Sequence[Value | None]) -> list[Value | None]:
        """Gradients for each input of `node`, given those of its outputs."""
        if self._gradient is None:
            return [None] * len(node.inputs)
        result = self._gradient(node, *gradients)
        return [result] if result is None or isinstance(result, Value) else list(result)

    def cost_of(self, node: Node) -> Cost:
        """FLOPs, bytes and workspace of a node of this primitive."""
        # By default every array goes through memory once: the least that any implementation can move.
        cost = self._cost(node)
        if isinstance(cost, Cost):
            return cost
        return Cost(cost, sum(v.nbytes for v in (*node.inputs, *node.outputs)))

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


@overload
def primitive(reference: Callable[..., Any]) -> Primitive: ...
@overload
def primitive(*, elementwise: bool = ..., flops: int = ...) -> Callable[[Callable[..., Any]], Primitive]: ...
def primitive(
    reference: Callable[..., Any] | None = None, *, elementwise: bool = False, flops: int = 0
) -> Primitive | Callable[[Callable[..., Any]], Primitive]:
    """Decorator that makes a primitive of its reference.

    Args:
        reference: Function `(*arrays, xp, **attrs)`. Parameters before the `*` are arrays, those
            after it static attributes; `xp` is the arrays' namespace.
        elementwise: See `Primitive`.
        flops: Floating-point operations per result element, unless a cost rule says more.
    """

    def define(function: Callable[..., Any]) -> Primitive:
        if function.__name__ in REGISTRY and REGISTRY[function.__name__].__module__ != function.__module__:
            raise ValueError(
                f"Primitive names are unique. Received: {function.__name__!r} of {function.__module__}, which "
                f"{REGISTRY[function.__name__].__module__} defines already. Choose another name."
            )
        op = Primitive(function, elementwise=elementwise, flops=flops)
        REGISTRY[op.name] = op
        return op

    return define if reference is None else define(reference)
