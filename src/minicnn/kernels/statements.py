"""Statements of a kernel, its functions, and the whole, in no language.

All threads of a block run the statements of their part; between two barriers no thread reads what another one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from minicnn.kernels.expressions import INDEX, Array, Expr, Name, Number, Syntax, both


class Statement(Syntax):
    """A statement."""


@dataclass(frozen=True)
class Let(Statement):
    """A name, of the type that it states, for an expression."""

    name: Name
    value: Expr


@dataclass(frozen=True)
class Variable(Statement):
    """A variable with its first value, which may be assigned another."""

    name: Name
    value: Expr


@dataclass(frozen=True)
class Assign(Statement):
    """Another value for a variable."""

    name: Name
    value: Expr


@dataclass(frozen=True)
class If(Statement):
    """Statements for the case that a condition holds, which is the same for neighbours."""

    condition: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Loop(Statement):
    """Statements for each value of a variable from `start` to before `stop`, which may depend on the thread.

    Attributes:
        unroll: How many rounds are written one after the other, as far as a language can say so; 0 if that is left to
            its compiler.
    """

    variable: Name
    stop: int | Expr
    body: tuple[Statement, ...]
    unroll: int = 0
    start: int = 0

    @property
    def rounds(self) -> int:
        """How often they run; 0 if that depends on the thread."""
        return self.stop - self.start if isinstance(self.stop, int) else 0


@dataclass(frozen=True)
class Store(Statement):
    """An element of an array at a place."""

    array: Array
    place: Expr
    value: Expr


@dataclass(frozen=True)
class Block(Statement):
    """Statements whose names are known nowhere else."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Shared(Statement):
    """An array in the shared memory of a block.

    Attributes:
        first: Byte of the memory that a launch asks for at which it begins, where several may lie one over the other;
            None if it has memory of its own.
    """

    array: Array
    first: int | None = None


@dataclass(frozen=True)
class Local(Statement):
    """An array of a thread alone, in registers: loops over its places are unrolled."""

    array: Array


@dataclass(frozen=True)
class Copy(Statement):
    """Neighbours copied from one array to another, of which one is a thread's own.

    In the other one they begin at a multiple of their bytes, up to 16, which one load or store takes.

    Attributes:
        count: How many.
        target: Where they go.
        to: The first place there.
        source: Where they come from.
        begin: The first place there.
    """

    count: int
    target: Array
    to: Expr
    source: Array
    begin: Expr


@dataclass(frozen=True)
class Barrier(Statement):
    """Each thread of the block waits here for all others."""


@dataclass(frozen=True)
class Join(Statement):
    """Reduction over threads: the values that some threads of a warp have in a variable become their sum or maximum.

    All threads of the block get there. They share theirs with those whose numbers differ in bits alone that are worth
    `near` and more, but less than `far`, which are powers of two.

    Attributes:
        join: "sum" or "max".
    """

    variable: Name
    join: str
    far: int
    near: int = 1


@dataclass(frozen=True)
class Step(Statement):
    """Step of a template of an engine.

    Attributes:
        title: What is done, for people.
        text: Text in the engine's language, with {0}, {1} ... for the arguments.
        arguments: Values that it takes.
    """

    title: str
    text: str
    arguments: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Procedure(Statement):
    """Statements that others run by name; they know their parameters, and no other names from around them."""

    name: str
    parameters: tuple[Name, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Run(Statement):
    """The statements of a procedure, for some values of its parameters."""

    procedure: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True)
class Template(Statement):
    """Kernel code that an engine has as a template: a tile on tensor cores, or what is done on its way out.

    Attributes:
        name: The operation.
        tile: The kind of tile that computes it; empty on the way out of one.
        fields: What was chosen for it, by name.
        operands: The functions or arrays that it reads.
        result: The variable that holds a finished element i.
        finish: What is done to each.
    """

    name: str
    tile: str
    fields: tuple[tuple[str, object], ...]
    operands: tuple[str, ...]
    result: Name
    finish: tuple[Statement, ...]


@dataclass(frozen=True)
class Function(Syntax):
    """A function of places that a kernel defines.

    Attributes:
        name: Its name.
        parameters: Its parameters.
        result: What it gives.
        dtype: The type of that.
        title: What it is, for people.
    """

    name: str
    parameters: tuple[Name, ...]
    result: Expr
    dtype: str
    title: str = ""


@dataclass
class Part:
    """Part of a kernel: the operations of some of its blocks.

    Attributes:
        title: The operations.
        blocks: Blocks.
        width: Neighbouring elements that a thread computes at once: see `expressions`.
        functions: Functions that its statements call, each after those that it calls itself.
        statements: What each thread does, which knows its `block` among those of the part, and its `thread`.
    """

    title: str
    blocks: int
    width: int = 1
    functions: list[Function] = field(default_factory=list)
    statements: Sequence[Statement] = ()


@dataclass
class Kernel:
    """A kernel: all that one launch does.

    Attributes:
        title: The operations.
        threads: Threads of a block.
        arrays: The arrays that it gets, in order.
        parts: What its blocks do, in the order of their numbers.
        queued: Whether it also gets the number of a `row`, of arrays that have one for each step.
    """

    title: str
    threads: int
    arrays: list[Array]
    parts: list[Part]
    queued: bool = False


def loop(
    variable: Name, stop: int, body: Callable[[Expr], Iterable[Statement]], unroll: int = 0, start: int = 0
) -> tuple[Statement, ...]:
    """A loop over an index; what it does, if it does that once."""
    if stop <= start:
        return ()
    if stop - start == 1:
        # A loop of one round is written without one, so that numbers stay constants and indices fold.
        only: dict[Expr, Expr] = {variable: Number(start, INDEX)}
        return replaced(tuple(body(only[variable])), only)
    return (Loop(variable, stop, tuple(body(variable)), unroll, start),)


def replaced(body: Sequence[Statement], pairs: Mapping[Expr, Expr]) -> tuple[Statement, ...]:
    """Statements with some of their expressions replaced, the largest first."""
    return tuple(statement.replaced(pairs) for statement in body)


def when(conditions: Sequence[Expr], body: Iterable[Statement]) -> tuple[Statement, ...]:
    """Statements for the case that conditions hold; there may be no conditions, and no statements."""
    statements = tuple(body)
    return (If(reduce(both, conditions), statements),) if conditions and statements else statements
