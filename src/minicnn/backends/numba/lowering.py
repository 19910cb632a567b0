"""From a Program to kernels: which node runs as what, on which buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from minicnn.backends.numba import movement, weights
from minicnn.backends.numba.kernel import KernelCode
from minicnn.backends.numba.operations import LANES
from minicnn.backends.numba.short import SHORT, bytes_of
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import ITEMSIZE, Node, Program, Spec, Value

PLAIN, BLOCKED = "plain", "blocked"
_DTYPES = ("float32", "int32", "uint8", "bool", SHORT)
Key = tuple[str, str]  # name of a value or of scratch memory, and its form


@dataclass
class Task:
    """One kernel on its buffers, or a node that runs its reference.

    Attributes:
        node: The node that it is part of; None for conversions.
        reads: Buffers read.
        writes: Buffers written.
        source: The kernel; None for a reference.
        items: Pieces of work that threads share.
        in_blocks: Whether items are pieces of the blocks of samples, and a call may do those of some blocks.
    """

    node: Node | None
    reads: list[Key]
    writes: list[Key]
    source: KernelCode | None = None
    items: int = 1
    in_blocks: bool = False

    @property
    def order(self) -> list[Key]:
        """Buffers as the source names them."""
        return [*self.reads, *(k for k in self.writes if k not in self.reads)]


@dataclass(frozen=True)
class StoredRows:
    """A value that is rows of a plain array times a number: a product may read them where they are.

    Attributes:
        x: The array (N, ...) of uint8 or float32.
        index: Which of its rows; all in order if None.
        scale: The number.
    """

    x: Value
    index: Value | None = None
    scale: float = 1.0


class NoKernelError(Exception):
    """Why a node runs its reference."""


Rule = Callable[["Lowering", Node], None]  # adds what computes a node, or refuses it


class Lowering:
    """Lowers one Program.

    Values that have one entry a sample are blocked: (N, ...) becomes (B, ..., 16) with B = ceil(N / 16); what is in
    lanes beyond the last sample means nothing, and kernels that add samples up have them cleared first. Everything
    else is plain, unless a kernel wants the rows of some other array blocked. A blocked bool is 0 or 1 in float32, and
    bfloat16 has half the bytes of float32: see `widening`.

    Attributes:
        tasks: What runs, in order.
        sizes: Bytes of each buffer.
        how: For each node the name of its kernel, or the reason why its reference runs.
        indices: Inputs that pick rows, and how many rows there are.
        channels_in_lanes: Whether values with one entry a sample stay plain arrays, too; see `channel_lanes`.
        fixed: Ids of the values that weights alone determine, where these stay the same; see `keeping`.
    """

    def __init__(self, program: Program, threads: int, convolution: str | None = None) -> None:
        self.program, self.threads, self.convolution = program, threads, convolution
        self.tasks: list[Task] = []
        self.sizes: dict[Key, int] = {}
        self.how: dict[int, str] = {}
        self._place: dict[int, Key] = {}  # where a value was made
        self._also: dict[tuple[int, str], Key] = {}  # where a copy of it is in another form
        self._cleared: set[Key] = set()
        self._rows: dict[int, StoredRows] = {}
        # Lazy, because the only reader may take the rows as they lie, and then nothing was converted in vain.
        self._waiting: dict[int, Callable[[], None]] = {}  # what makes a value when somebody needs it
        self.indices: list[tuple[Value, int]] = []
        self.samples = _samples(program)
        self.channels_in_lanes = False
        self.fixed: set[int] = set()
        self.carries: set[int] = set()
        for value in program.inputs:
            self._place[id(value)] = (value.name, PLAIN)
            if value.kind == "input" and value.shape[:1] == (self.samples,):
                self.carries.add(id(value))
        for value in program.constants:
            self._place[id(value)] = constant_key(value)

    def run(self, rules: Mapping[str, Rule], general: Rule) -> Lowering:
        """Lower all nodes, by the names of their primitives; by the general rule where there is none of that name."""
        for node in self.program.nodes:
            try:
                for value in (*node.inputs, *node.outputs):
                    if value.dtype not in _DTYPES:
                        self.refuse(f"kernels are for {', '.join(_DTYPES)}, not {value.dtype}")
                rules.get(node.op.name, general)(self, node)
            # A rule refuses before it adds anything, so that the reference starts from the same state.
            except NoKernelError as reason:
                self._reference(node, str(reason))
        for value in self.program.results:
            # Results leave as ordinary arrays.
            self.need(value, PLAIN)
        return self

    # Facts --------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Find the values that have one entry a sample."""
        for node in self.program.nodes:
            ndim = max((v.ndim for v in node.inputs if id(v) in self.carries), default=0)
            draws = node.op.name in ("take", "random_uniform")
            if not (ndim or draws) or _joins_samples(node):
                continue
            for value in node.outputs:
                same_axis = node.op.name in _RESHAPING or value.ndim == ndim
                if value.shape[:1] == (self.samples,) and (draws or same_axis):
                    self.carries.add(id(value))

    def is_batch(self, value: Value) -> bool:
        """True if a value has one entry a sample, of floats or bools."""
        return id(value) in self.carries and value.ndim > 1 and value.dtype in ("float32", "bool", SHORT)

    def is_blocked(self, value: Value) -> bool:
        """True if a value has the blocked form."""
        return not self.channels_in_lanes and self.is_batch(value)

    @property
    def form_of_batch(self) -> str:
        """The form of values with one entry a sample."""
        return PLAIN if self.channels_in_lanes else BLOCKED

    def blocks(self, value: Value) -> int:
        """Samples of a value that kernels go through one by one, or its blocks of them."""
        return value.shape[0] if self.channels_in_lanes else blocks_of(value)

    def refuse(self, reason: str) -> NoReturn:
        """Have a node's reference run, before anything was added for it."""
        raise NoKernelError(reason)

    # Buffers ------------------------------------------------------------------------------------

    def buffer(self, value: Value, form: str) -> Key:
        """Declare where a node makes a value."""
        key = (value.name, form)
        self._place[id(value)] = key
        self.sizes[key] = self._bytes(value, form)
        return key

    def alias(self, value: Value, key: Key) -> None:
        """Declare that a value is what a buffer holds already."""
        self._place[id(value)] = key

    def later(self, value: Value, make: Callable[[], None], rows: StoredRows | None = None) -> None:
        """Declare what makes a value if a reader needs it, and does not take what it is made of: rows of an array."""
        if rows is not None:
            self._rows[id(value)] = rows
        self._waiting[id(value)] = make

    def rows(self, value: Value) -> StoredRows | None:
        """The plain rows that a value consists of, if it does."""
        if id(value) in self._rows:
            return self._rows[id(value)]
        if id(value) in self._waiting or value.dtype != "float32" or value.shape[:1] != (self.samples,):
            return None
        return StoredRows(value) if self._place[id(value)][1] == PLAIN else None

    def form(self, value: Value) -> str:
        """The form in which a value was made."""
        if id(value) in self._waiting:
            self._waiting.pop(id(value))()
        return self._place[id(value)][1]

    def scratch(self, node: Node, what: str, nbytes: int) -> Key:
        """Declare memory for one node."""
        key = (f"{node.outputs[0].name}.{what}", "scratch")
        self.sizes[key] = nbytes
        return key

    def _bytes(self, value: Value, form: str) -> int:
        if form == BLOCKED:
            return blocks_of(value) * math.prod(value.shape[1:]) * bytes_of(value.dtype)
        return value.size * ITEMSIZE[value.dtype]

    def need(self, value: Value, form: str) -> Key:
        """Key of a value in a form, converted if it has to be."""
        if self.form(value) == form:
            return self._place[id(value)]
        if (id(value), form) in self._also:
            return self._also[id(value), form]
        # Conversions are kept: the next reader in this form pays nothing.
        key = (value.name, form)
        self.sizes[key] = self._bytes(value, form)
        samples, elements = value.shape[0], math.prod(value.shape[1:])
        convert = partial(movement.pack, gathered=False) if form == BLOCKED else movement.unpack
        pieces = self.pieces(value, elements)
        source = convert(samples=samples, elements=elements, dtype=value.dtype, pieces=pieces)
        self.tasks.append(Task(None, [self._place[id(value)]], [key], source, blocks_of(value) * source.pieces, True))
        self._also[id(value), form] = key
        return key

    def clean(self, value: Value) -> Key:
        """Key of a value that is blocked with zeros in lanes beyond the last sample."""
        key = self.need(value, BLOCKED)
        # Full blocks have no lanes to clear; and once cleared, nobody dirties them again.
        if value.shape[0] % LANES and key not in self._cleared:
            self._cleared.add(key)
            elements = math.prod(value.shape[1:])
            source = movement.clear(samples=value.shape[0], elements=elements, dtype=value.dtype)
            self.tasks.append(Task(None, [key], [key], source))
        return key

    # Tasks --------------------------------------------------------------------------------------

    def add(self, node: Node, source: KernelCode, reads: Sequence[Key], writes: Sequence[Key], items: int | None = None,
            *, name: str | None = None) -> None:  # fmt: skip
        """Run a kernel on the buffers it reads, then writes; by default its items are pieces of the result's blocks."""
        count = blocks_of(node.outputs[0]) * source.pieces if items is None else items
        self.tasks.append(Task(node, list(reads), list(writes), source, count, items is None or source.resumes))
        self.how[id(node)] = name or source.name

    def pieces(self, value: Value, most: int) -> int:
        """Into how many pieces a value's blocks are cut, at most so many, for threads to have equally much to do."""
        blocks = self.blocks(value)
        # Few blocks are cut until all threads have equally much, or so many pieces that the difference is small.
        even = (n for n in range(1, most + 1) if blocks * n % self.threads == 0 or blocks * n >= 4 * self.threads)
        return next(even, max(most, 1))

    def join(
        self, node: Node, key: Key, size: int, parts: Key, count: int, *, divisor: int = 1, apart: bool = False
    ) -> None:
        """Add so many parts of a sum over the batch, whose lanes are apart or not."""
        source = weights.join(size, count, apart=apart, divisor=divisor)
        self.tasks.append(Task(node, [parts], [key], source, -(-size // LANES)))

    def sums(
        self, node: Node, source: KernelCode, reads: Sequence[Key], keys: Sequence[Key], size: int, blocks: int, *,
        divisor: int = 1, name: str | None = None,
    ) -> None:  # fmt: skip
        """Run a kernel that leaves each thread's parts of sums over blocks, of one size, and add these up."""
        items = blocks * source.pieces
        nbytes = weights.part_bytes(size) * self.threads
        parts = [self.scratch(node, f"parts{i or ''}", nbytes) for i in range(len(keys))]
        self.add(node, source, reads, parts, items, name=name)
        for key, part in zip(keys, parts, strict=True):
            # Lanes must agree with how the parts were left.
            self.join(node, key, size, part, min(self.threads, items), divisor=divisor, apart=weights.lanes_apart(size))

    def unrolled(self, node: Node) -> None:
        """Run a convolution as its reference does: unfolded, and a matrix product through BLAS."""
        self._reference(node, "")
        self.how[id(node)] = f"{node.op.name} unrolled, matrix product by BLAS"

    def _reference(self, node: Node, reason: str) -> None:
        for value in (*node.inputs, *node.outputs):
            if value.dtype == SHORT:
                raise NotImplementedError(
                    f"References compute with NumPy, which does not know {SHORT}. Received: {node.op.name} of "
                    f"{value!r}: {reason}. Cast to float32 before."
                )
        reads = [self.need(v, PLAIN) for v in node.inputs]
        self.tasks.append(Task(node, reads, [self.buffer(v, PLAIN) for v in node.outputs]))
        self.how[id(node)] = f"reference: {reason}"


def blocks_of(value: Value | Spec) -> int:
    """Blocks of 16 rows of a value."""
    return -(-value.shape[0] // LANES)


def constant_key(value: Value) -> Key:
    """The buffer of a constant; names of constants need not be unique."""
    # By its id as well, since two constants may share a name.
    return (f"constant {value.name} {id(value)}", PLAIN)


def _samples(program: Program) -> int:
    """N: the length of the index of a gathered batch, or of the first input array."""
    if program.samples is not None:
        return program.samples
    for name in ("index", "x", "x0"):
        for value in program.inputs:
            if value.name == name and value.ndim:
                return value.shape[0]
    return 0


# Operations whose results may have another number of axes and yet one entry a sample first.
_RESHAPING = frozenset({
    "reshape", "sum", "mean", "max", "argmax", "softmax_cross_entropy", "softmax_cross_entropy_gradient", "one_hot",
})  # fmt: skip


def _joins_samples(node: Node) -> bool:
    """Operations whose first result axis is not the batch although it may be as long."""
    if node.op.name == "fused":
        return node.attrs["body"].operations[-1].op.name in ("sum", "mean")
    if node.op.name == "matmul":
        return bool(node.attrs["transpose_a"])
    if node.op.name in ("sum", "mean", "max", "argmax"):
        axes = node.attrs["axis" if node.op.name == "argmax" else "axes"]
        return 0 in normalize_axes(node.op.name, axes, node.inputs[0].ndim)
    if node.op.name == "permute":
        return node.attrs["axes"][0] != 0
    if node.op.name == "reshape":
        return node.inputs[0].shape[:1] != node.outputs[0].shape[:1]
    if node.op.name in ("concat", "repeat"):
        return node.attrs["axis"] % node.inputs[0].ndim == 0
    return node.op.name.endswith("weight_gradient") or node.op.name.endswith("update")
