"""From a Program to kernels: which node runs as what, on which buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minicnn.backends.numba import movement, weights
from minicnn.backends.numba.kernel import Source
from minicnn.backends.numba.vector import BYTES, LANES
from minicnn.program.graph import ITEMSIZE, Node, Program, Value

PLAIN, BLOCKED = "plain", "blocked"
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
        order: Buffers as the source names them.
    """

    node: Node | None
    reads: list[Key]
    writes: list[Key]
    source: Source | None = None
    items: int = 1

    @property
    def order(self) -> list[Key]:
        """Buffers as the source names them."""
        return [*self.reads, *(k for k in self.writes if k not in self.reads)]


Rule = Callable[["Lowering", Node], "str | None"]


class Lowering:
    """Lowers one Program.

    Values that have one entry a sample are blocked: (N, ...) becomes (B, ..., 16) with B = ceil(N / 16); what is in
    lanes beyond the last sample means nothing, and kernels that add samples up have them cleared first. Everything
    else is plain. A blocked bool is 0 or 1 in float32.

    Attributes:
        tasks: What runs, in order.
        sizes: Bytes of each buffer.
        how: For each node the name of its kernel, or the reason why its reference runs.
        indices: Inputs that pick rows, and how many rows there are.
    """

    def __init__(self, program: Program, threads: int) -> None:
        self.program, self.threads = program, threads
        self.tasks: list[Task] = []
        self.sizes: dict[Key, int] = {}
        self.how: dict[int, str] = {}
        self._place: dict[int, Key] = {}  # where a value was made
        self._also: dict[tuple[int, str], Key] = {}  # where a copy of it is in another form
        self._cleared: set[Key] = set()
        self.indices: list[tuple[Value, int]] = []
        self.samples = _samples(program)
        self.blocks = -(-self.samples // LANES)
        self.carries: set[int] = set()
        for value in program.inputs:
            self._place[id(value)] = (value.name, PLAIN)
            if value.kind == "input" and value.shape[:1] == (self.samples,):
                self.carries.add(id(value))
        for value in program.constants:
            self._place[id(value)] = constant_key(value)

    def run(self) -> Lowering:
        """Lower all nodes."""
        from minicnn.backends.numba import grouping, rules

        self.mark()
        grouping.group(self)
        self.mark()
        for node in self.program.nodes:
            rule = rules.RULES.get(node.op.name)
            reason = "no kernel yet" if rule is None else self._reason(node) or rule(self, node)
            if reason:
                self._reference(node, str(reason))
        for value in self.program.results:
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
            for value in node.outputs[:1] if node.op.name.startswith("normalize") else node.outputs:
                same_axis = node.op.name in _RESHAPING or value.ndim == ndim
                if value.shape[:1] == (self.samples,) and (draws or same_axis):
                    self.carries.add(id(value))

    def is_blocked(self, value: Value) -> bool:
        """Whether a value has the blocked form: one entry a sample, of floats or bools."""
        return id(value) in self.carries and value.ndim > 1 and value.dtype in ("float32", "bool")

    def _reason(self, node: Node) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value.dtype in ("float64", "bfloat16", "float16"):
                return f"kernels are float32, not {value.dtype}"
        return None

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

    def form(self, value: Value) -> str:
        """The form in which a value was made."""
        return self._place[id(value)][1]

    def scratch(self, node: Node, what: str, nbytes: int) -> Key:
        """Declare memory for one node."""
        key = (f"{node.outputs[0].name}.{what}", "scratch")
        self.sizes[key] = nbytes
        return key

    def _bytes(self, value: Value, form: str) -> int:
        if form == BLOCKED:
            return self.blocks * math.prod(value.shape[1:]) * BYTES
        return value.size * ITEMSIZE[value.dtype]

    def need(self, value: Value, form: str) -> Key:
        """Where a value is in a form, converted if it has to be."""
        made = self._place[id(value)]
        if made[1] == form:
            return made
        if (id(value), form) in self._also:
            return self._also[id(value), form]
        key = (value.name, form)
        self.sizes[key] = self._bytes(value, form)
        elements = math.prod(value.shape[1:])
        if form == BLOCKED:
            source = movement.enter(samples=self.samples, elements=elements, dtype=value.dtype, gathered=False)
        else:
            source = movement.leave(samples=self.samples, elements=elements, dtype=value.dtype)
        self.tasks.append(Task(None, [made], [key], source, self.blocks))
        self._also[id(value), form] = key
        return key

    def clean(self, value: Value) -> Key:
        """Where a value is blocked with zeros in lanes beyond the last sample."""
        key = self.need(value, BLOCKED)
        if self.samples % LANES and key not in self._cleared:
            self._cleared.add(key)
            source = movement.clear(samples=self.samples, elements=math.prod(value.shape[1:]))
            self.tasks.append(Task(None, [key], [key], source))
        return key

    # Tasks --------------------------------------------------------------------------------------

    def add(self, node: Node, source: Source, reads: Sequence[Key], writes: Sequence[Key], items: int | None = None,
            *, name: str | None = None) -> None:  # fmt: skip
        """Run a kernel whose buffers are the reads, then the writes."""
        self.tasks.append(Task(node, list(reads), list(writes), source, self.blocks if items is None else items))
        self.how[id(node)] = name or source.name

    def join(self, node: Node, key: Key, size: int, parts: Key, *, divisor: int = 1) -> None:
        """Add the threads' parts of a sum over the batch."""
        source = weights.join_parts(size, self.threads, divisor=divisor)
        self.tasks.append(Task(node, [parts], [key], source, -(-size // LANES)))

    def parts(self, node: Node, what: str, size: int) -> Key:
        """Memory for the threads' parts of sums of that many elements."""
        return self.scratch(node, what, weights.part_bytes(size) * self.threads)

    def _reference(self, node: Node, reason: str) -> None:
        reads = [self.need(v, PLAIN) for v in node.inputs]
        self.tasks.append(Task(node, reads, [self.buffer(v, PLAIN) for v in node.outputs]))
        self.how[id(node)] = f"reference: {reason}"


def constant_key(value: Value) -> Key:
    """The buffer of a constant; names of constants need not be unique."""
    return (f"constant {value.name} {id(value)}", PLAIN)


def _samples(program: Program) -> int:
    """N: the length of the index of a gathered batch, or of the first input array."""
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
    if node.op.name == "matmul":
        return bool(node.attrs["transpose_a"])
    if node.op.name in ("sum", "mean", "max", "argmax"):
        axes = node.attrs["axis"] if node.op.name == "argmax" else node.attrs["axes"]
        ndim = node.inputs[0].ndim
        return axes is None or 0 in (a % ndim for a in ((axes,) if isinstance(axes, int) else axes))
    if node.op.name == "permute":
        return node.attrs["axes"][0] != 0
    if node.op.name == "reshape":
        return node.inputs[0].shape[:1] != node.outputs[0].shape[:1]
    if node.op.name in ("concat", "repeat"):
        return node.attrs["axis"] % node.inputs[0].ndim == 0
    return node.op.name.endswith("weight_gradient") or node.op.name.endswith("update")
