"""Instructions of LLVM, as NVVM takes them: numbers, memory, blocks; written as text, one line each."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# LLVM's types of kinds of numbers. An integer's instructions know whether it has a sign, not its type.
TYPES = {
    "bool": "i1", **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float", "float64": "double",
}  # fmt: skip
FLOATS = ("float32", "float64")
GENERIC, SHARED = 0, 3  # address spaces

_ARITHMETIC = {"+": ("add", "fadd"), "-": ("sub", "fsub"), "*": ("mul", "fmul")}
_BITS = {"&": "and", "|": "or", "^": "xor"}
_FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
_INTEGER_TESTS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_FLOAT_TESTS = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}


@dataclass(frozen=True)
class Number:
    """A number: its kind, a dtype's name, and what stands for it in LLVM.

    Attributes:
        constant: Its value, if that is known.
        natural: True of an integer that is known not to be negative.
    """

    kind: str
    text: str
    constant: Any = None
    natural: bool = False

    @property
    def typed(self) -> str:
        """Type and text, as an operand."""
        return f"{TYPES[self.kind]} {self.text}"

    @property
    def is_float(self) -> bool:
        """True of a floating-point number."""
        return self.kind in FLOATS


@dataclass(frozen=True)
class Memory:
    """An array, or where one begins.

    Attributes:
        kind: Kind of its elements.
        pointer: The pointer.
        space: Its address space.
        shape: Sizes of its axes, if it has any.
        settled: Whether nobody writes there while the kernel is in place.
    """

    kind: str
    pointer: str
    space: int = GENERIC
    shape: tuple[int, ...] = ()
    settled: bool = False

    @property
    def type(self) -> str:
        """LLVM's type of the pointer."""
        return f"{TYPES[self.kind]}{f' addrspace({self.space})' if self.space else ''}*"


def constant(value: Any, kind: str = "") -> Number:
    """A number that is known: of NumPy's kind, or of 64 bits as Python's are."""
    if not kind:
        kind = str(value.dtype) if isinstance(value, np.generic) else ""
        kind = kind or {bool: "bool", int: "int64", float: "float64"}[type(value)]
    if kind == "bool":
        return Number(kind, "true" if value else "false", bool(value))
    if kind in FLOATS:
        value = float(np.dtype(kind).type(value))
        return Number(kind, f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}", value)
    bits = 8 * np.dtype(kind).itemsize
    value = int(value) & ((1 << bits) - 1)
    if kind[0] != "u" and value >> (bits - 1):
        value -= 1 << bits
    return Number(kind, str(value), value, value >= 0)


def common(kinds: Sequence[str]) -> str:
    """The kind that numbers of several kinds become where they meet: Numba's rule, in which integers become wide."""
    if len(set(kinds)) == 1:
        return kinds[0]
    floats = [kind for kind in kinds if kind in FLOATS]
    if floats:
        return "float32" if set(kinds) <= {"float32", "bool"} else "float64"
    return "uint64" if all(kind[0] == "u" or kind == "bool" for kind in kinds) else "int64"


class Instructions:
    """Writes instructions into the block that is open.

    Attributes:
        block: Name of that block.
        lines: Where the next instruction goes.
        entry: What stands at the beginning of the function: places of arrays and variables.
        declared: Functions and shared arrays, as the module declares them.
    """

    def __init__(self) -> None:
        self.block, self.lines = "first", list[str]()
        self.entry: list[str] = []
        self.declared: dict[str, str] = {}
        self._shared: dict[Any, str] = {}
        self._registers: dict[str, str] = {}
        self._count = 0
        # Results of instructions without effects, by their text, as far as they are known in the block that is open.
        self.known: dict[str, str] = {}

    def name(self, letter: str = "v") -> str:
        """A name that nothing has."""
        self._count += 1
        return f"{letter}{self._count}"

    def emit(self, text: str) -> str:
        """Write an instruction; what its result is called."""
        name = f"%{self.name()}"
        self.lines.append(f"{name} = {text}")
        return name

    def pure(self, text: str) -> str:
        """Write an instruction without effects, unless its result is there."""
        name = self.known.get(text)
        if name is None:
            name = self.known[text] = self.emit(text)
        return name

    def register(self, name: str) -> Number:
        """A register of the device that tells a thread where it is: read once."""
        text = f"call i32 @llvm.nvvm.read.ptx.sreg.{name}()"
        if text not in self._registers:
            self.declared[name] = f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}() readnone nounwind"
            self._registers[text] = f"%{self.name()}"
            self.entry.append(f"{self._registers[text]} = {text}")
        return Number("int32", self._registers[text], natural=True)

    def open(self, block: str) -> None:
        """Begin a block."""
        self.lines.append(f"{block}:")
        self.block = block

    def jump(self, block: str) -> None:
        """Leave the block for another."""
        self.lines.append(f"br label %{block}")

    def branch(self, condition: Number, yes: str, no: str) -> None:
        """Leave the block for one of two."""
        self.lines.append(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def call(self, function: str, result: str, arguments: Sequence[Number], pure: bool = True) -> str:
        """Call a function of the module's declarations; `result` is LLVM's type, void for none."""
        types = ", ".join(TYPES[a.kind] for a in arguments)
        self.declared[function] = f"declare {result} @{function}({types}){' readnone' if pure else ''} nounwind"
        text = f"call {result} @{function}({', '.join(a.typed for a in arguments)})"
        if result == "void":
            self.lines.append(text)
            return ""
        return self.emit(text)

    # Numbers ------------------------------------------------------------------------------------

    def cast(self, x: Number, kind: str) -> Number:
        """A number as one of another kind."""
        if x.kind == kind:
            return x
        if kind == "bool":
            return self.compare("!=", x, constant(0, x.kind))
        if x.constant is not None and not (x.is_float and kind not in FLOATS):
            return constant(x.constant, kind)
        old, new = TYPES[x.kind], TYPES[kind]
        if old == new:
            return Number(kind, x.text, natural=x.natural and x.kind[0] != "u")
        unsigned = x.kind == "bool" or x.kind[0] == "u"
        if x.is_float and kind in FLOATS:
            word = "fpext" if new == "double" else "fptrunc"
        elif x.is_float:
            word = "fptoui" if kind[0] == "u" else "fptosi"
        elif kind in FLOATS:
            word = "uitofp" if unsigned else "sitofp"
        elif int(old[1:]) > int(new[1:]):
            word = "trunc"
        else:
            word = "zext" if unsigned or x.natural else "sext"
        return Number(kind, self.pure(f"{word} {x.typed} to {new}"), natural=word == "zext")

    def alike(self, *numbers: Number) -> list[Number]:
        """Numbers as numbers of their common kind."""
        kind = common([x.kind for x in numbers])
        return [self.cast(x, kind) for x in numbers]

    def binary(self, sign: str, x: Number, y: Number) -> Number:
        """The result of an operator on two numbers."""
        if sign == "/" and not (x.is_float or y.is_float):
            x, y = self.cast(x, "float64"), self.cast(y, "float64")
        kind = common([x.kind, y.kind])
        if kind not in FLOATS and not (kind == "bool" and sign in _BITS):
            # As Numba: what an operator makes of integers has 64 bits.
            left = x.kind if sign in ("<<", ">>") else kind
            kind = "uint64" if left[0] == "u" else "int64"
        known = x.constant is not None and y.constant is not None and not (sign in ("//", "%") and y.constant == 0)
        if known and kind not in FLOATS and sign in _FOLDED:
            return constant(_FOLDED[sign](x.constant, y.constant), kind)
        x, y = self.cast(x, kind), self.cast(y, kind)
        if kind in FLOATS:
            word = "fdiv" if sign == "/" else _ARITHMETIC[sign][1]
        elif sign in ("//", "%"):
            return self._divided(sign, x, y)
        elif sign in ("<<", ">>"):
            word = "shl" if sign == "<<" else "lshr" if kind == "uint64" else "ashr"
        else:
            word = _BITS.get(sign) or _ARITHMETIC[sign][0] + (" nsw" if kind == "int64" else "")
        natural = kind == "int64" and sign in ("+", "*", ">>", "&", "|") and x.natural and y.natural
        return Number(kind, self.pure(f"{word} {x.typed}, {y.text}"), natural=natural)

    def _divided(self, sign: str, x: Number, y: Number) -> Number:
        """Quotient, rounded down, or the remainder that belongs to it; 0 for a divisor that is 0."""
        zero, kind = constant(0, x.kind), x.kind
        nothing = self.compare("==", y, zero)
        divisor = y if y.constant else self.select(nothing, constant(1, kind), y)
        word, natural = ("div" if sign == "//" else "rem"), kind == "uint64" or (x.natural and y.natural)
        if natural:
            result = Number(kind, self.pure(f"u{word} {x.typed}, {divisor.text}"), natural=True)
        else:
            rest = Number(kind, self.pure(f"srem {x.typed}, {divisor.text}"))
            other = Number(kind, self.pure(f"xor {rest.typed}, {divisor.text}"))
            # The device rounds towards zero: where signs differ and something is left, the quotient is one less.
            differ = self.binary("&", self.compare("!=", rest, zero), self.compare("<", other, zero))
            if sign == "//":
                quotient = Number(kind, self.pure(f"sdiv {x.typed}, {divisor.text}"))
                result = self.binary("-", quotient, differ)
            else:
                result = self.binary("+", rest, self.select(differ, divisor, zero))
                result = Number(kind, result.text, natural=y.natural)
        return result if y.constant else self.select(nothing, zero, result)

    def compare(self, sign: str, x: Number, y: Number) -> Number:
        """Whether two numbers compare so."""
        kinds = {x.kind, y.kind}
        if "uint64" in kinds and common([x.kind, y.kind]) == "int64":
            known = x if x.kind != "uint64" else y
            if known.constant is None or known.constant < 0:
                raise TypeError(f"A number of 64 bits is compared with one of its sign. Received: {x.kind}, {y.kind}.")
            x, y = self.cast(x, "uint64"), self.cast(y, "uint64")
        x, y = self.alike(x, y)
        if x.constant is not None and y.constant is not None:
            return constant(bool(_FOLDED[sign](x.constant, y.constant)))
        if x.is_float:
            return Number("bool", self.pure(f"fcmp {_FLOAT_TESTS[sign]} {x.typed}, {y.text}"))
        order = {"==": "eq", "!=": "ne"}.get(sign) or ("u" if x.kind[0] in "ub" else "s") + _INTEGER_TESTS[sign]
        return Number("bool", self.pure(f"icmp {order} {x.typed}, {y.text}"))

    def select(self, condition: Number, yes: Number, no: Number) -> Number:
        """One of two numbers, both of which are there."""
        yes, no = self.alike(yes, no)
        if condition.constant is not None:
            return yes if condition.constant else no
        natural = yes.natural and no.natural
        return Number(yes.kind, self.pure(f"select {condition.typed}, {yes.typed}, {no.typed}"), natural=natural)

    def negated(self, x: Number) -> Number:
        """-x."""
        if x.constant is not None:
            return constant(-x.constant, x.kind)
        if x.is_float:
            return Number(x.kind, self.pure(f"fsub {TYPES[x.kind]} -0.0, {x.text}"))
        return self.binary("-", constant(0), x)

    # Memory -------------------------------------------------------------------------------------

    def place(self, array: Memory, where: Sequence[Number]) -> str:
        """Pointer to an element of an array."""
        at = where[0]
        for size, one in zip(array.shape[1:], where[1:], strict=True):
            at = self.binary("+", self.binary("*", at, constant(size)), one)
        at = self.cast(at, "uint64" if at.kind[0] == "u" else "int64")
        return self.pure(f"getelementptr inbounds {TYPES[array.kind]}, {array.type} {array.pointer}, {at.typed}")

    def load(self, array: Memory, where: Sequence[Number]) -> Number:
        """An element of an array."""
        return Number(array.kind, self.emit(f"load {TYPES[array.kind]}, {array.type} {self.place(array, where)}"))

    def store(self, array: Memory, where: Sequence[Number], value: Number) -> None:
        """Give an element of an array a value."""
        place = self.place(array, where)
        self.lines.append(f"store {self.cast(value, array.kind).typed}, {array.type} {place}")

    def read(self, array: Memory, at: Number, count: int = 1, kind: str = "") -> list[Number]:
        """Neighbours of memory that the kernel does not write, by one load, as numbers of a kind."""
        kind = kind or array.kind
        place, each = self.place(array, [self.cast(at, "uint64")]), TYPES[kind]
        type_ = each if count == 1 else f"<{count} x {each}>"
        if type_ != TYPES[array.kind]:
            place = self.pure(f"bitcast {array.type} {place} to {type_}*")
        align = min(16, count * np.dtype(kind).itemsize)
        # Invariant loads go through the read-only cache, and may come ahead of waiting for the kernel ahead.
        invariant = ", !invariant.load !0" * array.settled
        value = self.emit(f"load {type_}, {type_}* {place}, align {align}{invariant}")
        if count == 1:
            return [Number(kind, value)]
        return [Number(kind, self.emit(f"extractelement {type_} {value}, i32 {k}")) for k in range(count)]

    def local(self, kind: str, count: int) -> Memory:
        """An array of the thread."""
        array = f"[{count} x {TYPES[kind]}]"
        whole, first = (f"%{self.name('a')}" for _ in range(2))
        self.entry.append(f"{whole} = alloca {array}")
        self.entry.append(f"{first} = getelementptr inbounds {array}, {array}* {whole}, i32 0, i32 0")
        return Memory(kind, first)

    def variable(self, kind: str) -> Memory:
        """Memory of one number."""
        name = f"%{self.name('a')}"
        self.entry.append(f"{name} = alloca {TYPES[kind]}")
        return Memory(kind, name)

    def load_variable(self, memory: Memory) -> Number:
        """The number that a variable has."""
        return Number(memory.kind, self.emit(f"load {TYPES[memory.kind]}, {memory.type} {memory.pointer}"))

    def shared(self, key: Any, kind: str, shape: tuple[int, ...]) -> Memory:
        """An array of the block, the same for the same key; of no elements what the launch asks for."""
        count = int(np.prod(shape))
        if count == 0:  # all such arrays begin at the same place, so that they are one
            name, array, text = "dynamic", "[0 x i8]", "external addrspace(3) global [0 x i8], align 16"
        else:
            key = key, kind, shape
            name = self._shared.setdefault(key, f"shared{len(self._shared)}")
            array = f"[{count} x {TYPES[kind]}]"
            text = f"internal addrspace(3) global {array} undef, align 16"
        self.declared[name] = f"@{name} = {text}"
        memory = Memory(kind, "", SHARED, shape)
        pointer = self.pure(f"bitcast {array} addrspace(3)* @{name} to {memory.type}")
        return Memory(kind, pointer, SHARED, shape)
