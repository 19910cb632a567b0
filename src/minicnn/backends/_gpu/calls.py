"""Calls that compute nodes without a kernel: the communicator of a collective, else the node's reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minicnn.backends._gpu.runtime import Launch
from minicnn.backends.base import Array
from minicnn.ops.groups import Group
from minicnn.program.graph import Node

if TYPE_CHECKING:
    from minicnn.backends._gpu.backend import GpuBackend


def collective(node: Node) -> Any:
    """The communicator that puts a node into the stream, if it is a collective between GPUs."""
    group = node.attrs.get("group")
    communicator = group.communicator if isinstance(group, Group) else None
    return communicator if hasattr(communicator, "enqueue") else None


def call(
    node: Node,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    queues: Mapping[int, Array],
    cursor: Array,
    backend: GpuBackend,
) -> Launch:
    """Call that computes a node.

    Args:
        node: The node.
        inputs: Its operands.
        outputs: Arrays for its results.
        queues: Operands of which there is one row a step, by number.
        cursor: Number of the step.
        backend: The backend of the arrays.
    """
    communicator = collective(node)
    if communicator is not None:
        return partial(communicator.enqueue, node.op.name, inputs[0], outputs[0], backend.runtime)
    return partial(_reference, partial(node.op.reference, xp=backend.xp, **node.attrs), inputs, queues, cursor, outputs)


def _reference(
    function: Callable[..., Any],
    inputs: Sequence[Array],
    queues: Mapping[int, Array],
    cursor: Array,
    outputs: Sequence[Array],
) -> None:
    """Run a node's reference, on rows of those of its inputs that are queues, and put the results into its outputs."""
    # Which row it is only the device knows, once the launches before have run.
    operands = [queues[k][int(cursor[0])] if k in queues else operand for k, operand in enumerate(inputs)]
    results = function(*operands)
    for target, array in zip(outputs, results if len(outputs) > 1 else (results,), strict=True):
        target[...] = array
