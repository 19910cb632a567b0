"""Operations that the code of kernels can name: their types, and how each writes its instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.cpus import Target

LANES = 16
BYTES = 4 * LANES  # of one vector

BOOL, BYTE, HALF, INT32, INT = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, VOID = ir.FloatType(), ir.VoidType()
VECTOR = ir.VectorType(FLOAT, LANES)
MASK = ir.VectorType(BOOL, LANES)


@dataclass(frozen=True)
class Operation:
    """Instructions that code calls by a name.

    Attributes:
        name: The name.
        result: LLVM's type of the result.
        arguments: Those of the arguments.
        emit: Writes the instructions: `emit(builder, *arguments)` is the result.
    """

    name: str
    result: Any
    arguments: tuple[Any, ...]
    emit: Callable[..., Any]


def operation(name: str, result: Any, arguments: Sequence[Any], emit: Callable[..., Any]) -> Operation:
    """See `Operation`."""
    return Operation(name, result, tuple(arguments), emit)


def target_of(builder: Any) -> Target:
    """The CPU that a builder's module is for."""
    target: Target = builder.module.target
    return target


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """The pointer to what is at an address in bytes."""
    return builder.inttoptr(address, kind.as_pointer())


def external(builder: Any, name: str, result: Any, kinds: Sequence[Any], values: Sequence[Any]) -> Any:
    """Call a function of LLVM or of the operating system."""
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(result, kinds), name)
    return builder.call(function, values)


def variable(builder: Any, kind: Any) -> Any:
    """A place on the stack, of which LLVM makes a register where it can."""
    # In the entry block it is allocated once, and not in every round of a loop.
    with builder.goto_entry_block():
        return builder.alloca(kind)


@contextmanager
def loop(builder: Any, start: Any, stop: Any, step: Any) -> Iterator[Any]:
    """A loop over integers from start while they are less than stop; the builder is in its body."""
    place = variable(builder, INT)
    builder.store(start, place)
    test, body, end = (builder.append_basic_block(name) for name in ("test", "body", "end"))
    builder.branch(test)
    builder.position_at_end(test)
    counter = builder.load(place)
    builder.cbranch(builder.icmp_signed("<", counter, stop), body, end)
    builder.position_at_end(body)
    yield counter
    builder.store(builder.add(counter, step, flags=["nsw"]), place)
    builder.branch(test)
    builder.position_at_end(end)
