"""Messages between the grader and the process of a submission: JSON and the bytes of arrays, never pickle.

A message is two lengths, a tree of JSON, and bytes. An array in the tree stands as its dtype, its shape and where
in the bytes its elements begin. Stands alone, as the process of a submission loads it without the rest of the library.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, BinaryIO

import numpy as np

HEAD = struct.Struct("<QQ")  # bytes of the tree, and of the arrays
MOST = 1 << 23  # bytes of a message
KINDS = "biufc"  # of the dtypes of arrays: numbers


class WireError(Exception):
    """A message that cannot be sent or read."""


def packed(value: Any) -> bytes:
    """Bytes of a value: None, numbers, text, and lists, tuples and dicts of such, and arrays of numbers."""
    parts: list[bytes] = []
    try:
        tree = json.dumps(_tree(value, parts)).encode()
    except RecursionError:
        raise WireError("a value is nested too deeply") from None
    size = sum(map(len, parts))
    if len(tree) + size > MOST:
        raise WireError(f"a message of {len(tree) + size:,} bytes is longer than {MOST:,}")
    return b"".join([HEAD.pack(len(tree), size), tree, *parts])


def _tree(value: Any, parts: list[bytes]) -> Any:
    if value is None or isinstance(value, bool | int | str) or type(value) is float:
        return value
    if isinstance(value, tuple):
        return {"tuple": [_tree(v, parts) for v in value]}
    if isinstance(value, list):
        return [_tree(v, parts) for v in value]
    if isinstance(value, dict):
        return {"dict": [[_tree(k, parts), _tree(v, parts)] for k, v in value.items()]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in KINDS:
        place = sum(map(len, parts))
        parts.append(np.ascontiguousarray(value).tobytes())
        return {"array": [value.dtype.str, list(value.shape), place]}
    raise WireError(f"arrays of numbers, numbers, text, lists, tuples and dicts can be sent, and no {type(value)}")


def read(stream: BinaryIO, most: int = MOST) -> Any:
    """Read a message, whose sender need not be trusted.

    Raises:
        EOFError: If the stream ends.
        WireError: If it is too long, or no message.
    """
    lengths = HEAD.unpack(_exactly(stream, HEAD.size))
    if sum(lengths) > most:
        raise WireError(f"a message of {sum(lengths):,} bytes is longer than {most:,}")
    tree, data = (_exactly(stream, length) for length in lengths)
    try:
        return _value(json.loads(tree), data)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise WireError(f"a message cannot be read: {type(error).__name__}") from None


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _value(tree: Any, data: bytes) -> Any:
    if isinstance(tree, list):
        return [_value(v, data) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if "tuple" in tree:
        return tuple(_value(v, data) for v in tree["tuple"])
    if "dict" in tree:
        return {_value(k, data): _value(v, data) for k, v in tree["dict"]}
    name, shape, place = tree["array"]
    dtype = np.dtype(str(name))
    if dtype.kind not in KINDS or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(name)
    end = place + math.prod(shape) * dtype.itemsize
    if not 0 <= place <= end <= len(data):
        raise ValueError(shape)
    return np.frombuffer(data[place:end], dtype).reshape(shape).copy()
