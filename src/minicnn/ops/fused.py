"""Several operations as one: a node whose attribute is a small Program of its own.

A backend that has one kernel for a group of nodes merges them into a `fused` node (see
`minicnn.program.fusion`). Its reference runs the group node by node, so that every fused kernel has an oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicnn.ops.primitive import Array, Cost, Namespace, Primitive, primitive
from minicnn.program.graph import Node, Program, Spec


@dataclass(frozen=True)
class FusedOperation:
    """One operation of a body.

    Attributes:
        op: The primitive.
        inputs: Places of its inputs: first the body's inputs are numbered, then each operation's results.
        attrs: Static attributes.
        results: Number of results.
    """

    op: Primitive
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    results: int = 1

    def __hash__(self) -> int:
        return hash((self.op.name, self.inputs, repr(sorted(self.attrs.items()))))


@dataclass(frozen=True)
class Body:
    """Operations that run as one.

    Attributes:
        name: Name of the pattern, by which a backend knows its kernel.
        inputs: Number of inputs.
        operations: Each after those it depends on.
        outputs: Places that are handed back.
    """

    name: str
    inputs: int
    operations: tuple[FusedOperation, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}[{'+'.join(o.op.name for o in self.operations)}]"


@primitive
def fused(*arrays: Array, body: Body, xp: Namespace) -> Array | tuple[Array, ...]:
    """The results of a body of operations, run one after the other.

    Args:
        arrays: Inputs of the body.
        body: The operations.
    """
    values: list[Array] = list(arrays)
    for operation in body.operations:
        outcome = operation.op.reference(*[values[i] for i in operation.inputs], xp=xp, **operation.attrs)
        values.extend(outcome if operation.results > 1 else (outcome,))
    results = tuple(values[i] for i in body.outputs)
    return results if len(results) > 1 else results[0]


def body_specs(body: Body, inputs: tuple[Spec, ...]) -> list[Spec]:
    """Specs of all places of a body."""
    if len(inputs) != body.inputs:
        raise ValueError(
            f"A body takes as many arrays as it has inputs. Received: {len(inputs)} for {body.inputs} of {body}."
        )
    specs = list(inputs)
    for operation in body.operations:
        specs.extend(operation.op.result_specs(tuple(specs[i] for i in operation.inputs), operation.attrs))
    return specs


@fused.shape
def _(*specs: Spec, body: Body) -> tuple[Spec, ...]:
    every = body_specs(body, specs)
    return tuple(every[i] for i in body.outputs)


@fused.cost
def _(node: Node) -> Cost:
    """The work of all operations; only what enters and leaves the group is moved."""
    inner = Program("body")
    values = [inner.input(f"x{i}", v.shape, v.dtype) for i, v in enumerate(node.inputs)]
    for operation in node.attrs["body"].operations:
        values.extend(inner.emit(operation.op, [values[i] for i in operation.inputs], operation.attrs).outputs)
    costs = [n.cost for n in inner.nodes]
    # What stays within the group is never written: that is the point of it.
    moved = sum(value.nbytes for value in (*node.inputs, *node.outputs))
    return Cost(sum(c.flops for c in costs), moved, max(c.workspace for c in costs))
