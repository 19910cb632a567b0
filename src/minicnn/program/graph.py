"""Value, Node and Program: one training step as a flat list of primitive operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from minicnn.program.drawing import dot, mermaid
from minicnn.program.explorer import explorer
from minicnn.program.memory import MemoryPlan, plan
from minicnn.program.operators import Operators
from minicnn.program.printing import page, table
from minicnn.program.spec import ITEMSIZE as ITEMSIZE
from minicnn.program.spec import Shaped
from minicnn.program.spec import Spec as Spec

if TYPE_CHECKING:
    from minicnn.ops.primitive import Cost, Primitive
    from minicnn.trace import TracedValue

Kind = Literal[
    "input", "parameter", "statistic", "optimizer", "counter", "metric", "constant", "activation", "gradient", "update"
]  # fmt: skip
Phase = Literal["forward", "backward", "update"]

# More nodes than this are a mistake, such as a pooling to an output of 300,000 places: ResNet-152 trains with 3,000.
MOST_NODES = 50_000
MOST_CONSTANT_BYTES = 1 << 28  # of all constants together

# What a node's results are, by the phase that computes them.
_KIND_OF_PHASE: dict[Phase, Kind] = {"forward": "activation", "backward": "gradient", "update": "update"}


class Value(Shaped, Operators):
    """One array of a Program: an input, a constant, or a result of a node.

    Values support Python's arithmetic operators and static indexing; each emits a node into the
    Program that owns the value.
    """

    __slots__ = ("data", "kind", "name", "node", "program", "spec")

    def __init__(
        self,
        program: Program,
        name: str,
        spec: Spec,
        kind: Kind,
        node: Node | None = None,
        data: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.program = program
        self.name = name
        self.spec = spec
        self.kind = kind
        self.node = node
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]  # it changes with its spec alone
        """Lengths of the axes."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.spec.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.spec}>"

    def __iter__(self) -> Iterator[Value]:
        raise TypeError("A Value is an array of a Program, not a sequence: index it with static slices instead.")

    def __bool__(self) -> bool:
        raise TypeError(
            f"The elements of {self!r} are not known while the Program is traced, so it has no truth value. "
            "Use ops.where for an elementwise choice."
        )

    def __float__(self) -> float:
        raise TypeError(
            f"The elements of {self!r} are not known while the Program is traced, so it is no number of Python. "
            "Compute with it by minicnn.ops; what a step returns is read from the logs."
        )

    __int__ = __index__ = __float__  # none of them returns

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"A Value without axes has no length. Received: {self!r}.")
        return self.shape[0]


@dataclass(eq=False)
class Node:
    """One primitive operation: its inputs, outputs and static attributes.

    Attributes:
        op: The primitive.
        inputs: Values read.
        outputs: Values made.
        attrs: Keyword arguments of the primitive; plain Python data, known when traced.
        scope: Path of the layer, loss or optimizer that emitted the node.
        phase: "forward", "backward" or "update".
    """

    op: Primitive
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    phase: Phase = "forward"

    @property
    def cost(self) -> Cost:
        """Floating-point operations, bytes moved and scratch bytes, as the primitive states them."""
        return self.op.cost_of(self)

    def __repr__(self) -> str:
        results = ", ".join(v.name for v in self.outputs)
        return f"{results} = {self.op.name}({', '.join(v.name for v in self.inputs)})"


class Program:
    """A pure function of arrays, written as a flat list of nodes.

    Attributes:
        name: What the Program computes, such as "train" or "predict".
        inputs: Values that come from outside, in order.
        nodes: Operations in an order in which every value is made before it is read.
        outputs: Values handed back, by name.
        updates: For an input that is carried from step to step (a parameter, a running statistic, a
            counter): the value that replaces it. Keys are names of inputs.
        constant_bytes: Bytes of all constants that were made.
        samples: Samples of the batch, where no input says so: of a part of a step.
        parts: Names of carried inputs that are one of several parts of an array, cut along the last axis, and how many
            there are.
        counted: Most that one step adds to a count among the updates.
        tracing: The `Trace` of which it is the Program, for those who hold a Value alone; None without.
        stopped: Ids of Values that are constants for gradients: see `minicnn.ops.stop_gradient`.
    """

    def __init__(self, name: str = "program", *, most_nodes: int = MOST_NODES) -> None:
        self.name = name
        self._most_nodes = most_nodes
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.updates: dict[str, Value] = {}
        self._by_name: dict[str, Value] = {}
        self._scope: tuple[str, ...] = ()
        self._phase: Phase = "forward"
        self._count = self.constant_bytes = 0
        self.samples: int | None = None
        self.parts: dict[str, int] = {}
        self.counted = 0
        self.tracing: Any = None
        self.stopped: set[int] = set()

    # Building -----------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", *, kind: Kind = "input") -> Value:
        """Declare an array that comes from outside."""
        if name in self._by_name:
            raise ValueError(f"Input names of a Program are unique. Received: {name!r} twice. Rename one of them.")
        value = Value(self, name, Spec(tuple(int(n) for n in shape), dtype), kind)
        self.inputs.append(value)
        self._by_name[name] = value
        return value

    def constant(self, data: Any, dtype: str | None = None) -> Value:
        """An array known when the Program is traced: a Python scalar or a NumPy array, which is copied."""
        # NumPy has no bfloat16: such a constant is held in float32, and rounded by the backend.
        array = np.array(data, dtype="float32" if dtype == "bfloat16" else dtype)
        # Passes and backends share it.
        array.flags.writeable = False
        self.constant_bytes += array.nbytes
        if self.constant_bytes > MOST_CONSTANT_BYTES:
            raise ValueError(
                f"Constants of a Program take at most {MOST_CONSTANT_BYTES >> 20} MB together. Received: "
                f"{self.constant_bytes >> 20} MB in {self.name!r}. Declare large arrays as weights or inputs."
            )
        name = str(array[()]) if array.ndim == 0 else f"c{self._next()}"
        return Value(self, name, Spec(array.shape, dtype or array.dtype.name), "constant", data=array)

    def emit(self, op: Primitive, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Node:
        """Append one node; the primitive's shape rule checks the inputs and gives the results."""
        for value in inputs:
            if value.program is not self:
                raise ValueError(
                    f"All inputs of a node belong to one Program. Received: {op.name} in {self.name!r} with "
                    f"{value!r} of {value.program.name!r}. Do not keep Values between calls of a layer."
                )
        return self.append(op, inputs, op.result_specs(tuple(v.spec for v in inputs), attrs), attrs)

    def append(self, op: Primitive, inputs: Sequence[Value], specs: Sequence[Spec], attrs: Mapping[str, Any]) -> Node:
        """Append one node whose results are said to have these specs: for operations without a shape rule."""
        if len(self.nodes) >= self._most_nodes:
            raise ValueError(
                f"A Program has at most {MOST_NODES:,} nodes, the layers of a saved graph fewer. Received: one more, "
                f"{op.name}, in {self.name!r}. Use fewer layers, or smaller sizes where a layer makes a node for each "
                "element of its output."
            )
        node = Node(op, tuple(inputs), (), dict(attrs), "/".join(self._scope), self._phase)
        kind = _KIND_OF_PHASE[self._phase]
        node.outputs = tuple(Value(self, f"v{self._next()}", spec, kind, node) for spec in specs)
        self.nodes.append(node)
        return node

    def _next(self) -> int:
        self._count += 1
        return self._count

    def scope(self, name: str, phase: Phase | None = None) -> AbstractContextManager[None]:
        """Nodes emitted inside carry `name` as a further part of their scope."""
        return self._within(self._scope + ((name,) if name else ()), phase or self._phase)

    def scope_of(self, node: Node, phase: Phase) -> AbstractContextManager[None]:
        """Nodes emitted inside carry the scope of `node` and the given phase."""
        return self._within((node.scope,) if node.scope else (), phase)

    @contextmanager
    def _within(self, scope: tuple[str, ...], phase: Phase) -> Iterator[None]:
        old = self._scope, self._phase
        self._scope, self._phase = scope, phase
        try:
            yield
        finally:
            self._scope, self._phase = old

    def copy(self) -> Program:
        """The same nodes on values of a Program of its own, which can be changed without changing this one."""
        copied, new = Program(self.name), dict[int, Value]()
        copied._count, copied.samples = self._count, self.samples
        copied.parts, copied.counted = dict(self.parts), self.counted

        def value(old: Value) -> Value:
            if id(old) not in new:  # a constant; all else was made before it is read
                new[id(old)] = Value(copied, old.name, old.spec, old.kind, data=old.data)
            return new[id(old)]

        for old_input in self.inputs:
            new[id(old_input)] = copied.input(old_input.name, old_input.shape, old_input.dtype, kind=old_input.kind)
        for old in self.nodes:
            node = Node(old.op, tuple(map(value, old.inputs)), (), dict(old.attrs), old.scope, old.phase)
            node.outputs = tuple(Value(copied, v.name, v.spec, v.kind, node) for v in old.outputs)
            new |= {id(v): w for v, w in zip(old.outputs, node.outputs, strict=True)}
            copied.nodes.append(node)
        copied.outputs = {name: value(v) for name, v in self.outputs.items()}
        copied.updates = {name: value(v) for name, v in self.updates.items()}
        return copied

    # Rewriting ----------------------------------------------------------------------------------

    def rebuild(self) -> Iterator[Node]:
        """Each node in turn, with its scope and phase set; the Program is then the nodes that were appended since."""
        nodes, self.nodes = self.nodes, []
        with self._within(self._scope, self._phase):
            for node in nodes:
                self._scope, self._phase = (node.scope,) if node.scope else (), node.phase
                yield node

    def replace(self, rule: Callable[[Node], Sequence[Value] | None]) -> int:
        """Put new nodes in the place of old ones; returns how many were replaced.

        Args:
            rule: Emits the new nodes, and returns the Values that take the place of the node's results, or None to
                keep the node.
        """
        new: dict[int, Value] = {}
        replaced = 0
        for node in self.rebuild():
            # Before the rule sees it, so that rules match on what earlier ones have made.
            if new:
                node.inputs = tuple([new.get(id(v), v) for v in node.inputs])
            replacements = rule(node)
            if replacements is None:
                self.nodes.append(node)
            else:
                replaced += 1
                new |= {id(old): value for old, value in zip(node.outputs, replacements, strict=True)}
        self.substitute(new)
        return replaced

    def substitute(self, new: Mapping[int, Value]) -> None:
        """Read and hand back other Values than those with the given ids."""
        if not new:
            return
        for node in self.nodes:
            node.inputs = tuple([new.get(id(v), v) for v in node.inputs])
        self.outputs = {name: new.get(id(v), v) for name, v in self.outputs.items()}
        self.updates = {name: new.get(id(v), v) for name, v in self.updates.items()}

    # Reading ------------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """The input of that name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(
                f"The Program has no input of that name. Received: {name!r}. Inputs: {', '.join(self._by_name)}."
            ) from None

    @property
    def constants(self) -> list[Value]:
        """Constants that some node reads or the Program returns, each once."""
        seen: dict[int, Value] = {}
        for value in [*(v for n in self.nodes for v in n.inputs), *self.results]:
            if value.kind == "constant":
                seen[id(value)] = value
        return list(seen.values())

    @property
    def results(self) -> list[Value]:
        """Everything that the Program returns: outputs, then updates."""
        return [*self.outputs.values(), *self.updates.values()]

    @property
    def flops(self) -> int:
        """Floating-point operations of one run."""
        return sum(node.cost.flops for node in self.nodes)

    @property
    def bytes_moved(self) -> int:
        """Bytes that all nodes read and write in one run, if nothing stays in a cache."""
        return sum(node.cost.bytes for node in self.nodes)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank sends to others in one run."""
        return sum(node.cost.sent for node in self.nodes)

    def memory(self) -> MemoryPlan:
        """The memory plan: see `minicnn.program.memory.plan`."""
        return plan(self)

    def to_mermaid(self) -> str:
        """Drawing as Mermaid text."""
        return mermaid(self)

    def to_dot(self) -> str:
        """Drawing as Graphviz text."""
        return dot(self)

    def to_html(
        self, *, run_by: Iterable[tuple[Node, str]] = (), trace: Mapping[str, TracedValue] | None = None
    ) -> str:
        """A page to explore: nodes as a list and as a drawing, with what there is to know of each; it needs no network.

        Args:
            run_by: What runs each node, as `Backend.explain` says.
            trace: Values by their names in the Program, for statistics and pictures: `StepTrace.to_html` gives them.
        """
        return explorer(self, run_by, trace)

    def __str__(self) -> str:
        return table(self)

    def _repr_html_(self) -> str:
        return page(self)

    def __repr__(self) -> str:
        return f"<Program {self.name!r}: {len(self.inputs)} inputs, {len(self.nodes)} nodes>"
