"""Runs a kernel on NumPy arrays, thread by thread, and stops at what no kernel may do: the oracle without a GPU.

It stops where a thread reads or writes beyond an array, where several neighbours do not begin at a multiple of their
number, where one thread reads or overwrites what another has written without a barrier in between, where an element of
shared memory is read that nothing was written to, and where some threads of a block wait at a barrier that others do
not reach.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minicnn.kernels.expressions import (
    DEVICE,
    INDEX,
    PLACE,
    SHARED,
    THREAD,
    WIDE_PLACE,
    Apply,
    Array,
    Binary,
    Body,
    Call,
    Cast,
    Expr,
    Load,
    Name,
    Negative,
    Number,
    Select,
)
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    Block,
    Copy,
    Function,
    If,
    Join,
    Kernel,
    Let,
    Local,
    Loop,
    Part,
    Procedure,
    Run,
    Shared,
    Statement,
    Store,
    Variable,
)
from minicnn.ops.random import random_uniform
from minicnn.program.graph import ITEMSIZE

_Touch = tuple[int, int, int]  # by a thread of a block that has passed so many barriers
Names = dict[str, Any]  # values by name: whole numbers, or arrays of as many elements as a thread has neighbours
_LIMITS = {INDEX: (-(2**31), 2**31), PLACE: (0, 2**32), WIDE_PLACE: (0, 2**64)}
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "+": operator.add,
    "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def _random(i: int, step: Any, stream: int, low: int, high: int) -> Any:
    """Element i of random numbers: see the primitive."""
    seed = high << 32 | low
    return random_uniform.reference(np.int64(step), shape=(i + 1,), seed=seed, stream=stream, dtype="float32", xp=np)[
        -1
    ]


# Scalar functions that are not made of others.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "choose": lambda condition, yes, no: np.where(condition, yes, no), "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc), "power": np.power,
    "random_uniform": _random,
    **{name: getattr(np, name) for name in (
        "abs", "exp", "expm1", "floor", "log", "log1p", "maximum", "minimum", "sign", "sqrt", "tanh",
    )},
}  # fmt: skip


class KernelError(Exception):
    """Error for what no kernel may do: an access beyond an array, a race, a number that its type cannot hold."""


@dataclass
class _Memory:
    """An array, and who has touched an element last: the thread that wrote it, and those that read it."""

    array: Array
    data: Any
    shared: bool
    written: dict[int, _Touch] = field(default_factory=dict)
    read: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)


@dataclass
class _Joining:
    """A thread that waits for what others have."""

    statement: Join
    value: Any


@dataclass
class _Thread:
    """A thread of a block."""

    block: int
    number: int
    width: int
    names: Names
    rounds: int = 0  # barriers that it has passed
    kind: str = ""  # type of a scalar function that it computes
    arrays: dict[str, _Memory] = field(default_factory=dict)  # of its own


class Interpreter:
    """Runs a kernel.

    Args:
        kernel: The kernel.
        arrays: Its arrays by name, contiguous; those that it writes are changed.
        row: The row of arrays that have one for each step.
    """

    def __init__(self, kernel: Kernel, arrays: Mapping[str, Any], row: int = 0) -> None:
        self._kernel, self._row = kernel, row
        self._arrays: dict[str, _Memory] = {}
        for array in kernel.arrays:
            data = arrays[array.name].reshape(-1)
            # An update has the memory of what it replaces: whoever touches an element of one touches the other's.
            known = next((m for m in self._arrays.values() if np.may_share_memory(m.data, data)), None)
            touched = (known.written, known.read) if known else ({}, {})
            self._arrays[array.name] = _Memory(array, data, False, *touched)
        self._shared: dict[str, _Memory] = {}
        self._functions: dict[str, Function] = {}
        self._procedures: dict[str, Procedure] = {}

    def run(self) -> None:
        """Run all blocks.

        Raises:
            KernelError: If the kernel does what none may do; says where.
        """
        number = 0
        with np.errstate(all="ignore"):
            for part in self._kernel.parts:
                self._functions = {f.name: f for f in part.functions}
                for block in range(part.blocks):
                    self._block(part, block, number)
                    number += 1

    def _block(self, part: Part, block: int, number: int) -> None:
        self._shared = {}
        # Threads are generators that stop at barriers, so that all run up to one before any goes on, without threads of
        # the system.
        running = []
        for k in range(self._kernel.threads):
            thread = _Thread(number, k, part.width, {"block": block, "thread": k, "row": self._row})
            running.append((thread, self._statements(part.statements, thread)))
        while running:
            waiting = []
            stops = list[Barrier | _Joining]()
            for thread, run in running:
                if (stop := next(run, None)) is not None:
                    waiting.append((thread, run))
                    stops.append(stop)
            if waiting and len(waiting) < self._kernel.threads:
                raise KernelError(
                    f"All threads of a block reach a barrier. Received: {len(waiting)} of {self._kernel.threads} "
                    f"threads of block {number}. Move the barrier out of the condition."
                )
            if joining := [stop for stop in stops if isinstance(stop, _Joining)]:
                self._join(joining, number)
            else:
                for thread, _ in waiting:
                    thread.rounds += 1
            running = waiting

    def _join(self, joining: Sequence[_Joining], number: int) -> None:
        """Have threads join what they have, by pairs whose numbers differ in one bit."""
        one, values = joining[0].statement, [other.value for other in joining]
        if len(values) < self._kernel.threads or any(other.statement is not one for other in joining):
            raise KernelError(f"All threads of a block join what they have. Received: some of block {number}.")
        apart, function = one.near, np.maximum if one.join == "max" else np.add
        while apart < one.far:
            values = [function(value, values[k ^ apart]) for k, value in enumerate(values)]
            apart *= 2
        for other, value in zip(joining, values, strict=True):
            other.value = value

    # Statements ---------------------------------------------------------------------------------

    def _statements(self, statements: Iterable[Statement], thread: _Thread) -> Iterator[Barrier | _Joining]:
        names = thread.names
        for one in statements:
            match one:
                case Let(name, value) | Variable(name, value) | Assign(name, value):
                    names[name.name] = self._as(name.dtype or PLACE, self._value(value, thread), thread)
                case If(condition, body):
                    if self._holds(condition, thread):
                        yield from self._statements(body, thread)
                case Loop(variable, stop, body, _, start):
                    for k in range(start, stop if isinstance(stop, int) else int(self._value(stop, thread))):
                        names[variable.name] = k
                        yield from self._statements(body, thread)
                case Store(array, place, value):
                    at = self._as(PLACE, self._value(place, thread), thread)
                    self._write(array, at, self._as(array.dtype, self._value(value, thread), thread), thread)
                case Shared(array):
                    if array.name not in self._shared:
                        self._shared[array.name] = _Memory(array, np.zeros(array.size, array.dtype), shared=True)
                case Local(array):
                    thread.arrays[array.name] = _Memory(array, np.zeros(array.size, array.dtype), shared=True)
                case Copy():
                    self._copy(one, thread)
                case Barrier():
                    yield one
                case Block(body):
                    yield from self._statements(body, thread)
                case Join(variable):
                    joining = _Joining(one, names[variable.name])
                    yield joining
                    names[variable.name] = joining.value
                case Procedure(name):
                    self._procedures[name] = one
                case Run(name, arguments):
                    known = self._procedures[name]
                    yield from self._statements(known.body, self._inner(known.parameters, arguments, thread))
                case _:
                    kind = type(one).__name__
                    raise TypeError(f"{kind} is a template, which engines have. Interpret the statements around it.")

    def _copy(self, x: Copy, thread: _Thread) -> None:
        first = {}
        for array, place in ((x.source, x.begin), (x.target, x.to)):
            first[array.name] = self._as(PLACE, self._value(place, thread), thread)
            together = min(x.count, 16 // ITEMSIZE[array.dtype])
            if array.memory != THREAD and first[array.name] % together:
                raise KernelError(
                    f"Neighbours that are copied begin at a multiple of {together}. Received: element "
                    f"{first[array.name]} of {array.name}."
                )
        for k in range(x.count):
            value = self._read(x.source, first[x.source.name] + k, thread)
            self._write(x.target, first[x.target.name] + k, self._as(x.target.dtype, value, thread), thread)

    # Expressions --------------------------------------------------------------------------------

    def _value(self, x: Expr, thread: _Thread) -> Any:
        return _VALUES[type(x)](self, x, thread)

    def _name(self, x: Name, thread: _Thread) -> Any:
        return thread.names[x.name]

    def _number(self, x: Number, thread: _Thread) -> Any:
        return x.value if x.dtype is None or x.dtype in _LIMITS else self._as(x.dtype, x.value, thread)

    def _binary(self, x: Binary, thread: _Thread) -> Any:
        if x.symbol == "and":
            return self._holds(x.left, thread) and self._holds(x.right, thread)
        left, right = self._value(x.left, thread), self._value(x.right, thread)
        # C++ rounds to zero, Python down: a kernel that meets either is wrong in one of the languages.
        if x.symbol in ("//", "%") and (left < 0 or right <= 0):
            raise KernelError(f"Languages round negative quotients differently. Received: {left} {x.symbol} {right}.")
        return _OPERATIONS[x.symbol](left, right)

    def _negative(self, x: Negative, thread: _Thread) -> Any:
        return -self._value(x.x, thread)

    def _select(self, x: Select, thread: _Thread) -> Any:
        return self._value(x.yes if self._holds(x.condition, thread) else x.no, thread)

    def _cast(self, x: Cast, thread: _Thread) -> Any:
        return self._as(x.dtype, self._value(x.x, thread), thread)

    def _call(self, x: Call, thread: _Thread) -> Any:
        arguments = [self._value(a, thread) for a in x.arguments]
        dtype = thread.kind if x.dtype == T else x.dtype
        if x.function in FUNCTIONS:
            function = FUNCTIONS[x.function]
            inner = replace(thread, names=dict(zip(function.parameters, arguments, strict=True)), kind=dtype)
            for local, value in function.first.items():
                inner.names[local] = self._value(value, inner)
            return self._as(dtype, self._value(function.result, inner), thread)
        return self._as(dtype, _FUNCTIONS[x.function](*arguments), thread)

    def _apply(self, x: Apply, thread: _Thread) -> Any:
        function = self._functions[x.function]
        inner = self._inner(function.parameters, x.arguments, thread)
        return self._as(function.dtype, self._value(function.result, inner), inner)

    def _inner(self, parameters: Iterable[Name], arguments: Iterable[Expr], thread: _Thread) -> _Thread:
        """A thread that knows the values of parameters, and nothing else of where they are handed over."""
        inner = replace(thread, names={k: thread.names[k] for k in ("block", "thread", "row")})
        for parameter, value in zip(parameters, arguments, strict=True):
            inner.names[parameter.name] = self._as(parameter.dtype or PLACE, self._value(value, thread), thread)
        return inner

    def _load(self, x: Load, thread: _Thread) -> Any:
        return self._read(x.array, self._as(WIDE_PLACE, self._value(x.place, thread), thread), thread)

    def _body(self, x: Body, thread: _Thread) -> Any:
        inner = replace(thread, names=dict(thread.names))
        for _ in self._statements(x.statements, inner):
            raise KernelError("A barrier is a statement of all threads. Received: one within an expression.")
        return self._as(x.dtype, self._value(x.result, inner), inner)

    def _holds(self, x: Expr, thread: _Thread) -> bool:
        """True if a condition holds, which is the same for neighbours."""
        value = self._value(x, thread)
        if isinstance(value, np.ndarray):
            raise KernelError(f"A condition of statements is the same for neighbours. Received: {value}. Use `chosen`.")
        return bool(value)

    def _as(self, dtype: str, value: Any, thread: _Thread) -> Any:
        """A value as one of a type."""
        if dtype not in _LIMITS:
            number = np.asarray(value).astype(thread.kind if dtype == T else dtype)
            return number[()] if thread.width == 1 else np.broadcast_to(number, (thread.width,))
        if isinstance(value, np.ndarray):
            raise KernelError(f"A place or an index is the same for neighbours. Received: {value} as {dtype}.")
        whole, (least, limit) = int(value), _LIMITS[dtype]
        if not least <= whole < limit:
            raise KernelError(f"A number of type {dtype} is from {least} to {limit - 1}. Received: {whole}.")
        return whole

    # Memory -------------------------------------------------------------------------------------

    def _memory(self, array: Array, place: int, thread: _Thread, what: str) -> _Memory:
        """The memory of an array, of which a thread may touch an element and its neighbours."""
        arrays = {DEVICE: self._arrays, SHARED: self._shared, THREAD: thread.arrays}
        memory = arrays[array.memory][array.name]
        size = min(array.size, memory.data.size)
        who = f"thread {thread.number} of block {thread.block} {what} element {place} of {array.name}"
        if place + thread.width > size:
            raise KernelError(f"A kernel keeps to its arrays. Received: {who}, which has {size}.")
        if place % thread.width:
            raise KernelError(f"{thread.width} neighbours begin at a multiple of their number. Received: {who}.")
        return memory

    def _read(self, array: Array, place: int, thread: _Thread) -> Any:
        memory = self._memory(array, place, thread, "reads")
        if memory.shared or array.written:
            me = (thread.block, thread.number, thread.rounds)
            for k in range(place, place + thread.width):
                if memory.shared and k not in memory.written:
                    raise KernelError(
                        f"Shared memory is written before it is read. Received: element {k} of {array.name}."
                    )
                self._apart(memory, k, memory.written.get(k), me, "reads")
                memory.read.setdefault(k, {})[me[:2]] = me[2]
        return memory.data[place] if thread.width == 1 else memory.data[place : place + thread.width].copy()

    def _write(self, array: Array, place: int, value: Any, thread: _Thread) -> None:
        memory = self._memory(array, place, thread, "writes")
        if not (memory.shared or array.written):
            raise KernelError(f"A kernel writes arrays that say so. Received: {array.name}.")
        me = (thread.block, thread.number, thread.rounds)
        for k in range(place, place + thread.width):
            self._apart(memory, k, memory.written.get(k), me, "writes")
            for reader, rounds in memory.read.get(k, {}).items():
                self._apart(memory, k, (*reader, rounds), me, "writes")
            memory.written[k] = me
        memory.data[place : place + thread.width] = value

    @staticmethod
    def _apart(memory: _Memory, k: int, other: _Touch | None, me: _Touch, what: str) -> None:
        """Refuse a touch of an element that another thread has touched without a barrier in between."""
        if other is None or other[:2] == me[:2] or (other[0] == me[0] and other[2] < me[2]):
            return
        raise KernelError(
            "A barrier lies between a thread that writes and another that touches the same element. Received: thread "
            f"{me[1]} of block {me[0]} {what} element {k} of {memory.array.name}, which thread {other[1]} of block "
            f"{other[0]} touched."
        )


_VALUES: Mapping[type[Expr], Callable[[Interpreter, Any, _Thread], Any]] = {
    Name: Interpreter._name, Number: Interpreter._number, Binary: Interpreter._binary, Negative: Interpreter._negative,
    Select: Interpreter._select, Cast: Interpreter._cast, Call: Interpreter._call, Apply: Interpreter._apply,
    Load: Interpreter._load, Body: Interpreter._body,
}  # fmt: skip
