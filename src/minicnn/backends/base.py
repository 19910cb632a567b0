"""The backend: a namespace of arrays, perhaps kernels, and a way to run a Program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from minicnn.program.graph import Node, Program, Spec

if TYPE_CHECKING:
    from minicnn.distribution.schedule import RankSchedule
    from minicnn.ops.groups import Communicator

Array = Any
Kernel = Callable[..., Any]

EACH_STEP = ("index", "learning_rate")


def is_new_each_step(name: str) -> bool:
    """True for inputs that are new in each step where many run at once: rows to take, and each optimizer's rate.

    All others are the same in all of these steps. An optimizer with a name has its rate under that name.
    """
    return name.rpartition("/")[2] in EACH_STEP


class State(dict[str, Array]):
    """Arrays by name that stay the same from step to step: where one becomes another, a new State is made.

    So who has looked at a State need not look again, and who remembers one does so by a weak reference.
    """

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class Span:
    """Span of time in which a rank does one thing.

    Attributes:
        name: What it is, such as a kernel's operations.
        lane: What does it: "computing", or "sums" beside it.
        start: Seconds since some moment of this process.
        seconds: How long it takes.
        between: Whether it is between ranks, and ends on all of them at one moment.
    """

    name: str
    lane: str
    start: float
    seconds: float
    between: bool = False


class Executable(Protocol):
    """A compiled Program. A plain function is one; what else it can do is in `_executables`.

    Inputs that the Program updates are donated: their arrays may be overwritten, or given back, and only the array that
    is returned under the same name may be used from then on. So nobody else may hold a donated array, and the same
    array may not be given under two names. All other inputs are only read. Outputs are the caller's own.
    """

    def __call__(self, arrays: Mapping[str, Array], /) -> dict[str, Array]:
        """Outputs and updates by name, from inputs by name; may return before they are computed."""


class Stage:
    """Arrays on a device in a few slots: one is computed on while the next are filled from the host.

    A slot is filled, begun and ended, and then filled again.

    Attributes:
        specs: Shape and dtype of one row of each array.
        rows: Rows of a slot.
        arrays: Arrays by name; those of slot s are rows s * rows to (s + 1) * rows, unless what comes is kept.
    """

    slots: ClassVar[int] = 3
    specs: Mapping[str, Spec]
    rows: int
    arrays: dict[str, Array]

    def fill(self, slot: int, rows: int, write: Callable[[Mapping[str, Any]], None], first: int | None = None) -> None:
        """Have `write` put so many rows into host arrays by name, and begin to copy them; from any one thread.

        They are kept where they go if that is another row than the slot's, `first`.
        """
        raise NotImplementedError

    def begin(self, slot: int) -> None:
        """Let what is computed from now on read the slot: it waits for the copy."""

    def end(self, slot: int) -> None:
        """Say that nothing that is computed from now on reads the slot."""

    def close(self) -> None:
        """Wait for copies under way."""

    def release(self) -> None:
        """Say that nobody reads what was kept any more."""


class Backend:
    """Runs Programs on the arrays of one library.

    A backend with no kernels is a namespace and a conversion from NumPy: see `minicnn.backends.numpy`.
    One with kernels overrides `kernel`; one that compiles whole steps overrides `compile`.

    Attributes:
        name: Name of the backend, which is the name of its module.
        xp: Array API namespace in which the references run, within `active()`, as all else that is done with arrays.
        device: Name of the device, such as "cpu" or "cuda:0".
        precisions: Precision policies that it can carry out.
        steps_at_once: How many training or evaluation steps it likes to be given together.
        predictions_at_once: The same for predictions; if it is more than 1, its Executables are `ManySteps`.
        stage_bytes: Size of a slot of its stages; 0 if it has none, and each batch is copied when it comes.
        survives_fork: Whether a process that is forked off after it was used may use it.
        reference_only: Whether every kernel is switched off.
        strict: Whether a node without a kernel is an error.
    """

    name: str
    precisions: tuple[str, ...] = ("float32", "float64")
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    steps_at_once = 1
    predictions_at_once = 1
    stage_bytes = 0
    survives_fork: bool = True
    xp: Any

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        self.device = self.devices[0] if device is None else device
        if self.device.split(":")[0] not in self.devices:
            raise ValueError(
                f"The {self.name} backend runs on {' or '.join(self.devices)}. Received: device {device!r}. "
                f"Name one as {self.name}:{self.devices[0]}."
            )
        self.reference_only = reference_only
        self.strict = strict

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # it holds nothing of a model: copies of one share it

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __reduce__(self) -> Any:
        """For pickle: made anew from what its constructor was given."""
        return partial(type(self), **{k: getattr(self, k) for k in inspect.signature(type(self)).parameters}), ()

    def enable(self, precision: str) -> None:
        """Switch on what the library needs for a precision policy of this backend and leaves off by itself."""

    # Arrays -------------------------------------------------------------------------------------

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """An array of this backend with the elements of a NumPy or host array, copied unless it is one already."""
        raise NotImplementedError

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """A NumPy array with the elements of an array of this backend; waits for them. bfloat16 becomes float32."""
        raise NotImplementedError

    def owns(self, array: Any) -> bool:
        """True if an array is of this backend's library."""
        raise NotImplementedError

    def over(self, array: Any) -> Array:
        """An array of this backend over the memory of another library's array on a GPU.

        What this backend computes from it comes after what fills it, whatever the streams. A backend that does not
        compute there returns the array as it is.
        """
        return array

    def keeps(self, nbytes: int) -> bool:
        """True if a data set of so many bytes is to stay where the backend computes."""
        return True

    def stage(self, specs: Mapping[str, Spec], rows: int, total: int = 0) -> Stage:
        """A stage for batches from the host, where `stage_bytes` says that there are any.

        Args:
            specs: Shape and dtype of one row of each array.
            rows: Rows of a slot.
            total: Rows of its arrays, if all that comes is kept there.
        """
        raise NotImplementedError

    def active(self) -> AbstractContextManager[Any]:
        """Context in which this backend's device is the thread's current one, where its library has such a thing."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait until all work that was handed to the device is done."""

    # Programs -----------------------------------------------------------------------------------

    def rewrite(self, program: Program) -> Program:
        """Passes that suit this backend, on top of those that suit all; may change the Program in place."""
        return program

    def kernel(self, node: Node) -> Kernel | str:
        """The kernel for a node, or the reason why there is none."""
        return f"the {self.name} backend has no kernels"

    def explain(self, program: Program) -> list[tuple[Node, str]]:
        """For each node the kernel that runs it, or "reference: " and the reason."""
        rows = []
        for node in self.rewrite(program).nodes:
            chosen = self._choose(node)
            rows.append((node, f"reference: {chosen}" if isinstance(chosen, str) else self._title(chosen)))
        return rows

    def _choose(self, node: Node) -> Kernel | str:
        return "reference_only is set" if self.reference_only else self.kernel(node)

    def _title(self, kernel: Any) -> str:
        inner = kernel.func if isinstance(kernel, partial) else kernel
        return f"kernel: {getattr(inner, '__name__', type(inner).__name__)}"

    def functions(self, program: Program) -> list[Kernel]:
        """One function of arrays for each node: its kernel, else its reference.

        Raises:
            RuntimeError: If `strict` is set and a node has no kernel.
        """
        result: list[Kernel] = []
        missing: list[tuple[Node, str]] = []
        for node in program.nodes:
            chosen = self._choose(node)
            if isinstance(chosen, str):
                missing.append((node, chosen))
                chosen = partial(node.op.reference, xp=self.xp, **node.attrs)
            result.append(chosen)
        self.check_strict(missing, program)
        return result

    def check_strict(self, missing: Sequence[tuple[Node, str]], program: Program) -> None:
        """Check that every node has a kernel, if `strict` is set.

        Args:
            missing: Nodes without one, each with the reason.
            program: The Program.

        Raises:
            RuntimeError: If there are any.
        """
        if self.strict and missing:
            node, reason = missing[0]
            raise RuntimeError(
                f"strict=True: every node needs a kernel of the {self.name} backend. Received {len(missing)} without "
                f"one, first {node!r} in {node.scope or program.name}: {reason}. Use strict=False to run their "
                "references; model.explain() lists them."
            )

    def compile(self, program: Program) -> Executable:
        """A function from the Program's inputs by name to its outputs and updates by name."""
        program = self.rewrite(program)
        return node_by_node(program, self.functions(program), self.asarray)

    def compile_each(self, programs: Sequence[Program]) -> list[Executable]:
        """`compile` of several Programs, side by side where that is faster."""
        return [self.compile(program) for program in programs]

    # Ranks --------------------------------------------------------------------------------------

    def connected(self, communicator: Communicator) -> Communicator:
        """The communicator of several ranks that compute with this backend, made of that of the launcher.

        Raises:
            ImportError: If what connects them is missing.
        """
        return communicator

    def rank_step(self, schedule: RankSchedule, run: Callable[[RankSchedule, Self], Executable]) -> Executable:
        """A rank's step, which is a list of pieces and collectives.

        Args:
            schedule: The list.
            run: Gives an Executable that goes through a list; a backend may run it as a whole instead.
        """
        return run(schedule, self)

    # Machine ------------------------------------------------------------------------------------

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Versions and devices, for `minicnn info`."""
        return {}

    def memory(self) -> int | None:
        """Bytes of device memory in use, or None where that is the process's own memory."""
        return None

    def __repr__(self) -> str:
        flags = "".join(f", {f}=True" for f in ("reference_only", "strict") if getattr(self, f))
        return f"<backend {self.name}:{self.device}{flags}>"


def check_results(program: Program) -> None:
    """Check that outputs and updates can be told apart, and that updates are like the inputs they replace.

    Raises:
        ValueError: If they cannot, or are not.
        KeyError: If an update has the name of no input.
    """
    both = sorted(program.outputs.keys() & program.updates.keys())
    if both:
        raise ValueError(f"Outputs and updates of a Program have different names. Received twice: {', '.join(both)}.")
    for name, value in program.updates.items():
        old = program.value(name)
        if old.spec != value.spec:
            raise ValueError(
                "An update has the shape and dtype of the input that it replaces. "
                f"Received: {value!r} for {old!r}. Convert it with ops.cast or ops.reshape."
            )


def node_by_node(program: Program, functions: Iterable[Kernel], asarray: Callable[..., Array]) -> Executable:
    """Runs the nodes one after the other, letting go of each array after its last reader; overwrites no input."""
    check_results(program)
    slots: dict[int, int] = {}

    def slot(value: Any) -> int:
        return slots.setdefault(id(value), len(slots))

    names = {value.name: slot(value) for value in program.inputs}
    constants = {slot(value): asarray(value.data, value.dtype) for value in program.constants}
    results = [(name, slot(value)) for name, value in (program.outputs | program.updates).items()]
    keep = {at for _, at in results} | set(constants)
    last: dict[int, int] = {}
    for i, node in enumerate(program.nodes):
        for value in (*node.inputs, *node.outputs):
            last[slot(value)] = i
    steps = []
    for i, (node, function) in enumerate(zip(program.nodes, functions, strict=True)):
        ins = tuple(slot(v) for v in node.inputs)
        outs = tuple(slot(v) for v in node.outputs)
        done = tuple(at for at in {*ins, *outs} if last[at] == i and at not in keep)
        steps.append((function, ins, outs, done))
    count = len(slots)

    def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
        cells: list[Any] = [None] * count
        for name, at in names.items():
            cells[at] = arrays[name]
        for at, array in constants.items():
            cells[at] = array
        for function, ins, outs, done in steps:
            values = function(*[cells[at] for at in ins])
            for at, array in zip(outs, values if len(outs) > 1 else (values,), strict=True):
                cells[at] = array
            values = array = None  # else they would hold the memory after its last reader
            for at in done:
                cells[at] = None
        return {name: cells[at] for name, at in results}

    return run
