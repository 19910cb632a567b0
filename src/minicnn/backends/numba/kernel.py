"""Kernels: generated source, compiled once, called by address with a table of buffers and numbers."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from minicnn.backends._helpers import compile_side_by_side, work_with
from minicnn.backends._progress import Progress
from minicnn.backends.numba import (
    channel_tiles,
    cpus,
    functions,
    interpreting,
    machine_code,
    matrix_tiles,
    panels,
    registers,
    short,
    short_tiles,
    store,
    vector,
    winograd_tiles,
)  # fmt: skip
from minicnn.backends.numba.cpus import Target
from minicnn.backends.numba.operations import Operation
from minicnn.backends.numba.translation import module_of


@dataclass(frozen=True)
class KernelCode:
    """Code of a kernel: `kernel(table, start, stop)` does the items from start to stop.

    Numbers that the code takes from the table, rather than having them written into it, let kernels of different
    shapes share one compiled function.

    Attributes:
        name: What it computes, for `explain`.
        buffers: Names of the buffers, in the order of their addresses in the table.
        body: Lines of Python with the buffers' addresses in variables of those names.
        numbers: Names and values of the numbers that follow the addresses.
        tiles: (rows, columns) of the tiles whose operations the code uses.
        pieces: Items of a block, where an item is a piece of a block.
        resumes: Whether a call may go on with sums that one for the items before has begun.
    """

    name: str
    buffers: tuple[str, ...]
    body: tuple[str, ...]
    numbers: tuple[tuple[str, int], ...] = ()
    tiles: tuple[tuple[int, int], ...] = ()
    pieces: int = 1
    resumes: bool = False

    @property
    def text(self) -> str:
        """The whole function."""
        head = ["def kernel(table, start, stop):"]
        names = [*self.buffers, *(name for name, _ in self.numbers)]
        head += [f"    {name} = aload(table + {8 * i})" for i, name in enumerate(names)]
        return "\n".join([*head, *(f"    {line}" for line in self.body)]) + "\n"


class Lines:
    """Collects the lines of a body with their indentation, and the numbers in it.

    Args:
        bake: Whether numbers are written into the code, which is faster where loops are short.
    """

    def __init__(self, *, bake: bool = False) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.bake = bake
        self.numbers: dict[str, int] = {}
        self.tiles: dict[tuple[int, int], None] = {}
        self.cut = 1
        self.resumes = False

    def __call__(self, *lines: str) -> None:
        """Add lines at the present depth."""
        self.lines += ["    " * self.depth + line for line in lines]

    def block(self, head: str) -> Lines:
        """Add a line that opens a block; use as a context manager."""
        self(head)
        return self

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    @contextmanager
    def nest(self, *heads: str) -> Iterator[None]:
        """Blocks in blocks."""
        depth = self.depth
        for head in heads:
            self(head)
            self.depth += 1
        yield
        self.depth = depth

    @contextmanager
    def pieces(self, count: int) -> Iterator[None]:
        """A loop over items, each a piece of a block: code within it knows `block` and shares of its loops."""
        self.cut = count
        if count == 1:  # as it mostly is: then loops have the lengths that they are given
            with self.block("for block in range(start, stop):"):
                yield
            return
        self.varying("pieces_", count)
        with self.block("for item in range(start, stop):"):
            self("block = item // pieces_", "piece = item % pieces_")
            yield

    @contextmanager
    def parts(self, count: int, blocks: int, each: int) -> Iterator[None]:
        """A loop over parts of what goes over all blocks, each of which is so many items.

        Code within it knows `part` and its items from `u0` to `u1`. A call may do some items of a part, and a later one
        what follows: the first of them is `fresh`.
        """
        self.cut, self.resumes = each, True
        self.varying("parts_", min(count, blocks * each))
        self.varying("items_", blocks * each)
        with self.block("for part in range(start * parts_ // items_, (stop - 1) * parts_ // items_ + 1):"):
            self("begin = (items_ * part + parts_ - 1) // parts_")  # as threads share items
            self("u0 = max(start, begin)", "u1 = min(stop, (items_ * (part + 1) + parts_ - 1) // parts_)")
            self("fresh = int64(u0 == begin)")
            yield

    def share(self, total: str) -> tuple[str, str]:
        """Text of the first and last round of a piece of a loop with so many rounds."""
        # No division where nothing is divided: it would be the most expensive instruction of a short loop.
        if self.cut == 1:
            return "0", total
        return f"{total} * piece // pieces_", f"{total} * (piece + 1) // pieces_"

    def rounds(self, total: str) -> str:
        """The range of what a piece does of so many rounds of a loop."""
        return "range({}, {})".format(*self.share(total))

    def number(self, name: str, value: int) -> str:
        """Text of a number: its digits if it is baked in, else its name."""
        if self.bake:
            return f"({value})"
        if self.numbers.setdefault(name, value) != value:
            raise ValueError(
                f"A number of a kernel has one value. Received: {name} as {self.numbers[name]} and {value}."
            )
        return name

    def varying(self, name: str, value: int) -> str:
        """A number that depends on the batch or the threads: never written into the code."""
        self.numbers[name] = value
        return name

    def constant(self, name: str, value: float) -> str:
        """The same for a float32, such as one over the number of samples."""
        # As its bits, in a table of integers; so another number does not mean another kernel.
        return f"fbits({self.varying(name, int(np.float32(value).view(np.int32)))})"

    def all_numbers(self, **values: int) -> list[str]:
        """Several numbers at once."""
        return [self.number(name, value) for name, value in values.items()]

    def tile(self, rows: int, columns: int) -> str:
        """Suffix of the operations on a tile."""
        self.tiles[rows, columns] = None
        return f"{rows}_{columns}"

    def source(self, name: str, *buffers: str) -> KernelCode:
        """The finished kernel."""
        return KernelCode(
            name, buffers, tuple(self.lines), tuple(self.numbers.items()), tuple(self.tiles), self.cut, self.resumes
        )


class LoadedCode:
    """A compiled kernel: its address, and what keeps the code there."""

    def __init__(self, address: int, owner: Any) -> None:
        self.address, self.owner = address, owner


# What steps use, by key; the last ones are kept for the next model. LLVM frees the code with its owner, which steps
# hold only while their model lives.
_COMPILED: MutableMapping[str, LoadedCode] = WeakValueDictionary()
_LATEST: deque[LoadedCode] = deque(maxlen=256)


def _key(source: KernelCode) -> str:
    return store.key(source.text) + ("-interpreted" if interpreting.SWITCHED_ON else "")


def compile_source(source: KernelCode) -> LoadedCode:
    """The compiled function: from memory, from the disk, else compiled now."""
    key = _key(source)
    code = _COMPILED.get(key) or (_interpreted if interpreting.SWITCHED_ON else _native)(source, key)
    return _COMPILED.setdefault(key, code)  # another thread may have been faster, and its address in use


def _stored(key: str) -> LoadedCode | None:
    code = None if interpreting.SWITCHED_ON else store.load(key)
    return None if code is None else _kept(*code)


def _native(source: KernelCode, key: str) -> LoadedCode:
    if loaded := _stored(key):
        return loaded
    symbol = f"minicnn_{key[:16]}"
    code = machine_code.object_code(module_of(source.text, _operations(source), symbol, cpus.host()))
    store.save(key, symbol, code)
    return _kept(*machine_code.loaded(symbol, code))


def _interpreted(source: KernelCode, key: str) -> LoadedCode:
    function = _function(source, key)
    return _kept(interpreting.address_of(function), function)


def _kept(address: int, owner: Any) -> LoadedCode:
    code = LoadedCode(address, owner)
    _LATEST.append(code)
    return code


def callable_of(source: KernelCode) -> Callable[[int, int, int], None]:
    """The compiled function to be called from Python; it holds no lock of the interpreter."""
    code = compile_source(source)
    if interpreting.SWITCHED_ON:
        return interpreting.function_at(code.address)
    function: Any = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.address)
    function.owner = code
    return function


def assembly(source: KernelCode, target: Target | None = None) -> str:
    """A kernel's machine code in words, for this CPU or another; compiles it."""
    return machine_code.assembly(module_of(source.text, _operations(source), "kernel", target or cpus.host()))


def compile_all(sources: Sequence[KernelCode], processes: int = 1) -> list[LoadedCode]:
    """Several kernels, with a line on the terminal if that takes long.

    Args:
        sources: The kernels; several may have the same text.
        processes: How many may compile what is not on the disk.
    """
    distinct = {_key(source): source for source in sources}
    loaded = {key: code for key in distinct if (code := _COMPILED.get(key) or _stored(key))}
    missing = sorted((s for k, s in distinct.items() if k not in loaded), key=lambda s: len(s.text), reverse=True)
    kept = not interpreting.SWITCHED_ON and bool(missing) and store.place("") is not None
    with Progress(len(missing)) as progress:
        compile_side_by_side(
            [asdict(source) for source in missing], _compile_job, __name__, processes=processes if kept else 1,
            told=lambda job, left: progress.next(job["name"], left),
        )  # fmt: skip
        loaded |= {_key(source): compile_source(source) for source in missing}
    return [_COMPILED.setdefault(key, loaded[key]) for key in map(_key, sources)]


def _compile_job(job: Mapping[str, Any]) -> None:
    numbers, tiles = (tuple((a, b) for a, b in job[name]) for name in ("numbers", "tiles"))
    compile_source(KernelCode(job["name"], tuple(job["buffers"]), tuple(job["body"]), numbers, tiles, job["pieces"]))


def work() -> None:
    """Compile what another process asks for: see `compile_side_by_side`."""
    work_with(_compile_job)


def _function(source: KernelCode, key: str) -> Any:
    """The kernel as Python."""
    scope = {name: interpreting.interpreted(one.emit) for name, one in _operations(source).items()}
    scope |= interpreting.NAMES
    exec(compile(source.text, f"<minicnn {source.name} {key[:8]}>", "exec"), scope)
    return scope["kernel"]


def _operations(source: KernelCode) -> dict[str, Operation]:
    """The operations that the code of a kernel can name."""
    operations = dict(_ALL)
    for shape in source.tiles:
        for module in (registers, short_tiles, channel_tiles, matrix_tiles):
            operations |= module.operations(*shape)
    return operations


_ALL = {
    one.name: one
    for module in (vector, functions, panels, short, matrix_tiles)
    for one in vars(module).values()
    if isinstance(one, Operation)
} | winograd_tiles.OPERATIONS


def even_tile(total: int, most: int) -> int:
    """Tile width of at most `most` that splits the total into tiles as equal as possible."""
    return -(-total // -(-total // most))
