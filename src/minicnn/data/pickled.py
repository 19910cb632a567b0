"""The pickles that CIFAR-10 comes in, read without running them.

A pickle is a program for a stack machine that may call any function there is. This reads the opcodes with
`pickletools` and carries out by hand the few that a dictionary of a NumPy byte array, lists and texts needs.
Everything else, any other function above all, is an error.
"""

from __future__ import annotations

import enum
import pickletools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.data.dataset import DataError
from minicnn.data.files import fail

MAX_OPCODES = 1_000_000  # a CIFAR-10 batch has about 50,000


class _Global(enum.Enum):
    RECONSTRUCT = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    ENCODE = enum.auto()


GLOBALS = {
    "numpy.core.multiarray _reconstruct": _Global.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _Global.RECONSTRUCT,
    "numpy ndarray": _Global.NDARRAY,
    "numpy dtype": _Global.DTYPE,
    "_codecs encode": _Global.ENCODE,
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING",
    "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _ByteType:
    """Stands for `numpy.dtype("u1")`."""


class _ByteArray:
    """Stands for an array until its state is known."""

    value: np.ndarray[Any, np.dtype[np.uint8]] | None = None


def read_batch(data: bytes | bytearray, path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of texts, numbers, lists and uint8 arrays.

    Args:
        data: The pickle.
        path: Named in errors.

    Returns:
        The dictionary; its keys are texts.

    Raises:
        DataError: If the pickle is damaged, or asks for anything that such a dictionary does not need.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # pickletools decodes texts of opcodes refused here
            result = _Machine(bytes(data)).run()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise fail(
            path,
            "a CIFAR-10 pickle holds a dictionary of a byte array, lists and texts, and is not allowed more",
            str(error) or type(error).__name__,
            "Fetch the file again from the data set's own page.",
        ) from error
    return result


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def run(self) -> dict[str, Any]:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(self.data)):
            if count >= MAX_OPCODES:
                message = f"more than {MAX_OPCODES:,} opcodes"
                raise DataError(message)
            if opcode.name == "STOP":
                break
            self.step(opcode.name, argument)
        (result,) = self.stack
        if not isinstance(result, dict):
            message = f"a {type(result).__name__}"
            raise DataError(message)
        return {key: value.value if isinstance(value, _ByteArray) else value for key, value in result.items()}

    def step(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        match name:
            case "PROTO" | "FRAME":
                pass
            case _ if name in LITERALS:
                stack.append(argument)
            case _ if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "MARK":
                self.marks.append(len(stack))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case _ if name in TUPLES:
                size = TUPLES[name]
                if len(stack) < size:
                    message = "too short a stack"
                    raise DataError(message)
                stack[-size:] = [tuple(stack[-size:])]
            case "TUPLE":
                stack.append(tuple(self.pop_mark()))
            case "APPEND":
                item = stack.pop()
                _expect(stack[-1], list).append(item)
            case "APPENDS":
                items = self.pop_mark()
                _expect(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self.pop_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                target = _expect(stack[-1], dict)
                for key, value in zip(items[::2], items[1::2], strict=True):
                    target[_text(key)] = value
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                self.push_global(argument)
            case "STACK_GLOBAL":
                attribute, module = _expect(stack.pop(), str), _expect(stack.pop(), str)
                self.push_global(f"{module} {attribute}")
            case "REDUCE":
                arguments = _expect(stack.pop(), tuple)
                stack.append(self.call(stack.pop(), arguments))
            case "BUILD":
                state = _expect(stack.pop(), tuple)
                self.build(stack[-1], state)
            case _:
                message = f"the opcode {name}"
                raise DataError(message)

    def pop_mark(self) -> list[Any]:
        """Pop what lies above the topmost mark, and the mark."""
        place = self.marks.pop()
        items = self.stack[place:]
        del self.stack[place:]
        return items

    def push_global(self, name: str) -> None:
        if name not in GLOBALS:
            message = f"a call for {name.replace(' ', '.')!r:.80}"
            raise DataError(message)
        self.stack.append(GLOBALS[name])

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        if function is _Global.ENCODE and arguments[1:] == ("latin1",):
            result = _expect(arguments[0], str).encode("latin-1")
            self.encoded += len(result)
            if self.encoded > len(self.data):  # one text may be encoded time and again
                message = "more bytes than the file has"
                raise DataError(message)
            return result
        if function is _Global.DTYPE and _text(arguments[0]) == "u1":
            return _ByteType()
        if function is _Global.RECONSTRUCT and arguments[0] is _Global.NDARRAY:
            return _ByteArray()
        message = "a call that a byte array does not need"
        raise DataError(message)

    def build(self, target: Any, state: tuple[Any, ...]) -> None:
        if isinstance(target, _ByteType):
            return  # byte order and the like: nothing that bytes have
        if not isinstance(target, _ByteArray):
            message = f"a state for a {type(target).__name__}"
            raise DataError(message)
        _, shape, dtype, fortran, content = state
        if isinstance(content, str):
            content = content.encode("latin-1")
        if not isinstance(dtype, _ByteType) or not isinstance(content, bytes) or fortran:
            message = "an array that is not of bytes in row-major order"
            raise DataError(message)
        rows, columns = (_expect(side, int) for side in _expect(shape, tuple))
        if rows < 0 or rows * columns != len(content):
            message = f"an array of shape ({rows}, {columns}) with {len(content)} bytes"
            raise DataError(message)
        target.value = np.frombuffer(content, np.uint8).reshape(rows, columns)


def _expect(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        message = f"a {type(value).__name__} in place of a {kind.__name__}"
        raise DataError(message)
    return value


def _text(value: Any) -> str:
    """Python 2 wrote texts as bytes."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    text: str = _expect(value, str)
    return text
