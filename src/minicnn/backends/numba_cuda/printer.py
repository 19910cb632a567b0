"""Python of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from minicnn.backends._python import Python
from minicnn.kernels.elements import DTYPES
from minicnn.kernels.expressions import (
    DEVICE,
    INDEX,
    PLACE,
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
    Syntax,
    parts_of,
)  # fmt: skip
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    Copy,
    Let,
    Local,
    Loop,
    Procedure,
    Run,
    Shared,
    Statement,
    Store,
    Variable,
)  # fmt: skip
from minicnn.program.graph import ITEMSIZE, Value

# Functions of `kernels/` whose names are others; those in whose names a type stands.
NAMES = {
    "maximum": "larger", "minimum": "smaller", "power": "pow_", "abs": "absolute", "sign": "signum", "floor": "floor_",
}  # fmt: skip
_TYPED = frozenset((*FUNCTIONS, "erf", "erfc", "floor", "random_uniform"))

_WHOLE = {INDEX: "signed", PLACE: "index", WIDE_PLACE: "np.int64"}
TYPES = {**{dtype: f"np.{dtype}" for dtype in DTYPES}, "bool": "bool", T: T, **_WHOLE}
STORED = {**TYPES, "bool": "np.uint8"}  # arrays of bool are of bytes


def _is_wide(place: Expr) -> bool:
    """True if a place has 64 bits: the first of what is added up or multiplied says it."""
    while isinstance(place, Binary):
        place = place.left
    return isinstance(place, Cast) and place.dtype == WIDE_PLACE


def type_of(value: Value) -> str:
    """The type of a value's elements."""
    return TYPES[value.dtype]


class CudaPython(Python):
    """CUDA Python of expressions and statements; functions take a tuple p of all parameters first.

    Args:
        define: See `Printer`: expressions with statements become functions of their own.
    """

    types: ClassVar[Mapping[str, str]] = TYPES
    names: ClassVar[Mapping[str, str]] = {"block": "number", "thread": "cuda.threadIdx.x", "row": "p[-1]"}

    def __init__(self, define: Callable[[str], str] | None = None) -> None:
        super().__init__(define)
        self._within_function = False  # that is called for each round of a loop
        self._procedures: dict[str, str] = {}  # functions of procedures, by the names of these
        self._first: dict[str, int] = {}  # where arrays begin in the memory that the launch asks for, in elements

    def define(self, text: str) -> str:
        """Name of something new, whose definition has {name} where the name goes."""
        if self._define is None:
            raise TypeError(text)
        return self._define(text)

    def place(self, x: Expr) -> str:
        """Text of a place."""
        text = self.text(x)
        return text if isinstance(x, Name) or _is_wide(x) else f"index({text})"

    def _apply(self, x: Apply) -> tuple[str, int]:
        return f"{x.function}({', '.join(['p', *map(self.place, x.arguments)])})", 9

    def _load(self, x: Load) -> tuple[str, int]:
        if x.array.memory != DEVICE or x.array.written:
            return self._stored(self._at(x.array, x.place), x.array.dtype)
        # What the kernel does not write is read past the cache that is kept coherent, if nobody else writes it either.
        return self._stored(f"read({x.array.name}, {self.place(x.place)})", x.array.dtype)

    def _at(self, array: Array, place: Expr) -> str:
        """Text of an element of an array."""
        if array.memory == DEVICE:
            return f"{array.name}[{self.place(place)}]"
        # Places of 64 bits that differ by a constant share an address in shared memory.
        return f"{array.name}[slot({self.text(place + self._first.get(array.name, 0))})]"

    def _stored(self, text: str, dtype: str) -> tuple[str, int]:
        return (f"{text} != 0", 3) if dtype == "bool" else (text, 9)

    def _call(self, x: Call) -> tuple[str, int]:
        ending = f"_{x.dtype}" if x.function in _TYPED else ""
        return f"{NAMES.get(x.function, x.function)}{ending}({', '.join(map(self.text, x.arguments))})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        names = sorted(({n.name for n in parts_of(x, Name)} | _arrays((x,))) - _bound(x.statements) - self.names.keys())
        return f"{self.define(self.function([*map(Name, names)], x, x.dtype))}({', '.join(['p', *names])})", 9

    def function(self, parameters: Sequence[Name], result: Expr, dtype: str) -> str:
        """Definition of a function {name} of the device, which gives a number of a type."""
        body = ""
        if isinstance(result, Body):
            body, result = self.lines(result.statements, 1), result.result
        names = ", ".join(["p", *(p.name for p in parameters)])
        return f"@device\ndef {{name}}({names}):\n{body}    return {self.typed(result, dtype)}\n"

    # Statements ---------------------------------------------------------------------------------

    def _store(self, x: Store) -> str:
        value = self.text(x.value)
        value = f"np.uint8(1 if {value} else 0)" if x.array.dtype == "bool" else value  # bool as bytes
        if isinstance(x.value, Binary):
            value = self.changed(Load(x.array, x.place), x.value).removeprefix("= ")
        mark = "" if value.startswith("+= ") else "= "
        return f"{self._at(x.array, x.place)} {mark}{value}"

    def _loop(self, x: Loop) -> str:
        bound = _bound(x.body) | {x.variable.name}
        assigned = {one.name.name for one in parts_of(x.body, Assign)}
        if self._within_function or x.unroll <= 1 or x.rounds <= 1 or x.rounds % x.unroll or assigned - bound:
            return super()._loop(x)
        # The compiler unrolls short loops by itself, but not what is around them: a function is called for each round.
        free = {n.name for n in parts_of(x.body, Name)} | _arrays(x.body)
        free -= bound | self.names.keys()
        names = ", ".join(["", *sorted(free)])
        self._within_function = True
        body = self.lines(x.body, 1)
        self._within_function = False
        name = self.define(f"@block\ndef {{name}}(p, {x.variable.name}{names}):\n{body}")
        margin, variable = f"\n{self.INDENT * self._depth}", f"{x.variable.name}_"
        if x.unroll == x.rounds:
            return margin.join(f"{name}(p, index({k}){names})" for k in range(x.start, x.start + x.rounds))
        calls = (f"{self.INDENT}{name}(p, index({variable} + {k}){names})" for k in range(x.unroll))
        head = f"for {variable} in range({x.start}, {x.start + x.rounds}, {x.unroll}):"
        return margin.join([head, *calls])

    def _shared(self, x: Shared) -> str:
        array, count = x.array, x.array.size if x.first is None else 0
        self._first[array.name] = (x.first or 0) // ITEMSIZE[array.dtype]
        kind = array.dtype.replace("bool", "uint8")  # by Numba's name, from which the simulator takes the size
        return f"{array.name} = cuda.shared.array({count}, types.{kind}, ALIGNED)"

    def _local(self, x: Local) -> str:
        return f"{x.array.name} = cuda.local.array({x.array.size}, {STORED[x.array.dtype]})"

    def _copy(self, x: Copy) -> str:
        k, memory = Name("k0", PLACE), x.source if x.target.memory == THREAD else x.target
        if memory is x.source and memory.memory == DEVICE and not memory.written and x.count == 4:
            names = ", ".join(self._at(x.target, x.to + e) for e in range(4))
            return f"{names} = read_four({memory.name}, {self.place(x.begin)})"
        return self._loop(Loop(k, x.count, (Store(x.target, x.to + k, Load(x.source, x.begin + k)),)))

    def _procedure(self, x: Procedure) -> str:
        names = ", ".join(["p", *(p.name for p in x.parameters)])
        self._procedures[x.name] = self.define(f"@device\ndef {{name}}({names}):\n{self.lines(x.body, 1)}")
        return f"# {x.name} is {self._procedures[x.name]}"

    def _run(self, x: Run) -> str:
        return f"{self._procedures[x.procedure]}({', '.join(['p', *map(self.text, x.arguments)])})"

    def _barrier(self, x: Barrier) -> str:
        return "cuda.syncthreads()"


def _bound(body: Sequence[Statement]) -> set[str]:
    """Names that statements define."""
    lets = (one.name.name for one in parts_of(tuple(body), Let | Variable))
    loops = (one.variable.name for one in parts_of(tuple(body), Loop))
    return {*lets, *loops, *(one.array.name for one in parts_of(tuple(body), Local))}


def _arrays(body: tuple[Syntax, ...]) -> set[str]:
    """Names of arrays of a block or a thread that expressions and statements use."""
    arrays = [one.array for one in parts_of(body, Load | Store)]
    arrays += [a for one in parts_of(body, Copy) for a in (one.target, one.source)]
    return {a.name for a in arrays if a.memory != DEVICE}
