"""Elementwise kernels, one for each group of nodes: values pass from operation to operation in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.operations import LANES
from minicnn.backends.numba.printer import Vectors
from minicnn.backends.numba.short import SHORT, bytes_of, load_of, store_of
from minicnn.kernels.elements import ELEMENTS
from minicnn.kernels.strides import collapse, row_major
from minicnn.ops import REGISTRY
from minicnn.program.graph import Spec

CHUNK = 64  # vectors of an item of a plain kernel


_INTEGERS = frozenset(
    ("add", "subtract", "multiply", "greater", "greater_equal", "less", "less_equal", "equal", "broadcast_to")
)
# What there is code for, beside casts and updates.
_NAMES = (name for name, op in REGISTRY.items() if op.elementwise and name in ELEMENTS)
OPERATIONS = {name for name in _NAMES if name != "cast" and not name.endswith("_update")} | {"broadcast_to", "reshape"}

_AS_FLOAT = ("float32", "bool", "uint8")  # what is a float in a register
DTYPES = (*_AS_FLOAT, "int32")


def supported(name: str, inputs: Sequence[str], result: str) -> bool:
    """True if there is code for an operation on inputs of those dtypes."""
    if name == "cast" and {inputs[0], result} == {"float32", SHORT}:
        return True
    if any(d not in DTYPES for d in (*inputs, result)):
        return False
    # The other way is defined only within the range of a byte, which a vector's conversion does not check.
    if name == "cast":
        return (inputs[0], result) not in (("int32", "uint8"), ("float32", "uint8"))
    # Vectors of integers have few operations; all else would need a conversion that loses digits.
    if "int32" in inputs:
        return name in _INTEGERS and set(inputs) == {"int32"}
    arithmetic = result in ("float32", "bool") and "uint8" not in inputs
    return name in OPERATIONS and arithmetic


def code(name: str, registers: Sequence[str], dtypes: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Code of an operation on registers, whose inputs have those dtypes; of several results the "result"-th."""
    # The one table of elements wants a node; shapes do not matter for a register.
    specs = [Spec((), d) for d in (*dtypes, attrs.get("dtype", "float32"))]
    node: Any = SimpleNamespace(inputs=specs[:-1], outputs=specs[-1:], attrs=attrs)
    return Vectors(registers, dtypes).text(ELEMENTS[name](node, attrs.get("result", 0)))


@dataclass(frozen=True)
class Operand:
    """An input as its kernel reads it.

    Attributes:
        kind: "lanes" (blocked: a vector at each place), "one" (plain: one element at each place, for all lanes; in
            plain kernels the only element there is), "many" (plain kernels: elements of their own) or "constant".
        dtype: Type of its elements.
        strides: For each axis (of a sample in blocked kernels), elements between neighbours; 0 where the operand is
            broadcast.
        value: The constant's.
    """

    kind: str
    dtype: str = "float32"
    strides: tuple[int, ...] = ()
    value: float = 0


Steps = tuple[tuple[str, tuple[int, ...], Mapping[str, Any]], ...]


@dataclass(frozen=True)
class ElementwiseGroup:
    """Operations that run as one.

    Attributes:
        steps: (operation, places of its inputs, attributes): places count operands first, then results of steps.
        outputs: Places that are stored.
        dtypes: Type at each place.
    """

    steps: Steps
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def name(self) -> str:
        """For `explain`."""
        return "+".join(step[0] for step in self.steps)

    def write(self, out: Lines, operands: int) -> None:
        """The operations, from variables v0, v1 ..."""
        read = {place for _, places, _ in self.steps for place in places}
        for k, (name, places, attrs) in enumerate(self.steps):
            if self.dtypes[operands + k] == SHORT and operands + k not in read:
                # What is only stored is rounded there.
                out(f"v{operands + k} = v{places[0]}")
                continue
            text = code(name, [f"v{p}" for p in places], [self.dtypes[p] for p in places], attrs)
            out(f"v{operands + k} = {text}")


def constant(out: Lines, name: str, operand: Operand) -> str:
    """Code of a constant in all lanes."""
    if operand.dtype == "int32":
        return f"isplat(int32({out.varying(name, int(operand.value))}))"
    return f"splat({out.constant(name, operand.value)})"


def one(operand: Operand, at: str) -> str:
    """Code of one element in all lanes."""
    if operand.dtype in ("bool", "uint8"):
        return f"splat(float32(uload({at})))"
    return f"short_bload({at})" if operand.dtype == SHORT else f"bload({at})"


def _size(dtype: str) -> int:
    return {"bool": 1, "uint8": 1, SHORT: 2}.get(dtype, 4)


# Beginnings of the operations that load and store the first elements of a vector, by the bytes of one.
_SOME = {1: "bytes_", 2: "short_", 4: "v"}


def blocked(
    group: ElementwiseGroup,
    operands: Sequence[Operand],
    shape: Sequence[int],
    spans: Sequence[int],
    pieces: Callable[[int], int],
) -> KernelCode:
    """Kernel on blocked arrays; one item a piece of a block.

    Args:
        group: The operations.
        operands: How each input is read.
        shape: Of one sample of the results.
        spans: For each operand, elements of one sample of it.
        pieces: Into how many pieces a block is cut that has so many at most.
    """
    out = Lines()
    read = [i for i, o in enumerate(operands) if o.kind != "constant"]
    # Fewer axes mean fewer loops, and longer inner ones.
    sizes, strides = collapse(shape, [row_major(shape), *(operands[i].strides for i in read)])
    total = out.number("total", math.prod(shape))
    with out.pieces(pieces(sizes[0])):
        for i, o in enumerate(operands):
            if o.kind == "constant":
                out(f"v{i} = {constant(out, f'c{i}', o)}")
            elif o.kind == "lanes":
                out(f"p{i} = b{i} + block * {out.number(f'span{i}', spans[i] * bytes_of(o.dtype))}")
        dtypes = [group.dtypes[place] for place in group.outputs]
        out(*(f"q{k} = y{k} + block * {total} * {bytes_of(dtype)}" for k, dtype in enumerate(dtypes)))
        lengths = [out.number(f"n{axis}", n) for axis, n in enumerate(sizes)]
        ranges = [out.rounds(lengths[0]), *(f"range({n})" for n in lengths[1:])]
        with out.nest(*(f"for i{axis} in {one}:" for axis, one in enumerate(ranges))):
            for i, step in zip(read, strides[1:], strict=True):
                dtype, lanes = operands[i].dtype, operands[i].kind == "lanes"
                width = bytes_of(dtype) if lanes else _size(dtype)
                at = "".join(f" + i{a} * {out.number(f's{i}_{a}', s * width)}" for a, s in enumerate(step) if s)
                out(f"v{i} = {load_of(dtype)}(p{i}{at})" if lanes else f"v{i} = {one(operands[i], f'b{i}{at}')}")
            group.write(out, len(operands))
            at = " + ".join(f"i{a} * {out.number(f't{a}', s)}" for a, s in enumerate(strides[0]) if s) or "0"
            for k, (dtype, place) in enumerate(zip(dtypes, group.outputs, strict=True)):
                out(f"{store_of(dtype)}(q{k} + ({at}) * {bytes_of(dtype)}, v{place})")
    return out.source(group.name, *(f"b{i}" for i in read), *(f"y{k}" for k in range(len(group.outputs))))


def plain(group: ElementwiseGroup, operands: Sequence[Operand], shape: Sequence[int]) -> tuple[KernelCode, int]:
    """Kernel on plain arrays that are broadcast to one shape, and the number of items; one item a chunk of vectors.

    Args:
        group: The operations.
        operands: How each input is read; none has gaps, so the strides of the last axis are 1, or 0 if it is broadcast.
        shape: Of the results.
    """
    out = Lines()
    read = [i for i, o in enumerate(operands) if o.kind != "constant"]
    many = [i for i in read if operands[i].kind == "many"]
    sizes, strides = collapse(shape, [row_major(shape), *(operands[i].strides for i in many)])
    n, rows = out.number("elements", sizes[-1]), math.prod(sizes[:-1])
    chunks = items(sizes[-1])
    with out.block("for item in range(start, stop):"):
        for i, o in enumerate(operands):
            if o.kind != "many":
                out(f"v{i} = {constant(out, f'c{i}', o) if o.kind == 'constant' else one(o, f'b{i}')}")
        base = dict.fromkeys(many, "")
        if rows > 1:
            each = out.number("chunks", chunks)
            out(f"rest = item // {each}", f"first = item % {each} * {CHUNK * LANES}", f"row = rest * {n}")
            for axis in reversed(range(len(sizes) - 1)):
                length = out.number(f"n{axis}", sizes[axis])
                out(f"i{axis} = rest % {length}", f"rest = rest // {length}")
            for i, step in zip(many, strides[1:], strict=True):
                at = " + ".join(f"i{a} * {out.number(f's{i}_{a}', s)}" for a, s in enumerate(step[:-1]) if s) or "0"
                out(f"at{i} = {at}")
                base[i] = f"at{i} + "
        else:
            out(f"first = item * {CHUNK * LANES}", "row = 0")
        # Masked loads and stores: the last vector of a row ends where the row does.
        with out.block(f"for k in range(first, min(first + {CHUNK * LANES}, {n}), {LANES}):"):
            out(f"left = {n} - k")
            for i, step in zip(many, strides[1:], strict=True):
                size = _size(operands[i].dtype)
                place = f"b{i} + ({base[i]}{'k' if step[-1] else '0'}) * {size}"
                out(f"v{i} = {f'{_SOME[size]}load_some({place}, left)' if step[-1] else one(operands[i], place)}")
            group.write(out, len(operands))
            for j, result in enumerate(group.outputs):
                size = _size(group.dtypes[result])
                out(f"{_SOME[size]}store_some(y{j} + (row + k) * {size}, v{result}, left)")
    names = (*(f"b{i}" for i in read), *(f"y{j}" for j in range(len(group.outputs))))
    return out.source(group.name, *names), rows * chunks


def items(size: int) -> int:
    """Number of items of a plain kernel."""
    return -(-size // (LANES * CHUNK))
