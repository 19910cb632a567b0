from __future__ import annotations

import os
import pickle
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from minicnn.data import DataError
from minicnn.data.pickled import read_batch
from support.datafiles import cifar_python2, photos, planes

PATH = Path("data_batch_1")
GLOBAL_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"


class Attack:
    """Unpickled, it would call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Plain:
    pass


def test_a_batch_of_real_size_is_quick():
    x, y = photos(10_000)
    data = cifar_python2(x, y)
    start = time.perf_counter()
    batch = read_batch(data, PATH)
    assert time.perf_counter() - start < 3
    assert np.array_equal(batch["data"], planes(x))
    assert batch["labels"] == y.tolist()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "function", [os.system, eval, exec, __import__, getattr, open, np.load], ids=lambda f: f.__name__
)
def test_no_function_is_called(tmp_path, protocol, function):
    witness = tmp_path / "witness"
    argument = f"touch {witness}" if function is os.system else f"open({str(witness)!r}, 'w')"
    data = pickle.dumps({"data": Attack(function, argument), "labels": [1]}, protocol)
    with pytest.raises(DataError, match="not allowed more"):
        read_batch(data, PATH)
    assert not witness.exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        Plain(), Plain, 1.5, {1}, frozenset({1}), complex(1), range(3), bytearray(3),
        np.array([None]), np.array(["a"]), np.float32(1), np.zeros(3, [("a", "u1")]),
        np.zeros((2, 2, 2), np.uint8),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_other_types_are_refused(protocol, value):
    with pytest.raises(DataError):
        read_batch(pickle.dumps({"data": value}, protocol), PATH)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not allowed more"),
        (b".", "not allowed more"),
        (b"}", "exhausted before seeing STOP"),
        (b"K\x01.", "Received: a int"),
        (b"}}.", "too many values"),
        (b"cos\nsystem\n(U\x02lstR.", "a call for 'os.system'"),
        (b"(U\x02lsios\nsystem\n.", "the opcode INST"),
        (b"cbuiltins\neval\n.", "a call for 'builtins.eval'"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "a call for 'builtins.eval'"),
        (b"\x80\x04K\x01\x8c\x04eval\x93.", "a int in place of a str"),
        (b"cnumpy\nload\n.", "numpy.load"),
        (b"cnumpy\ndtype\nU\x01O\x85R.", "a call that a byte array does not need"),
        (b"cnumpy\nndarray\n)R.", "a call that a byte array does not need"),
        (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\n\x85R.", "does not need"),
        (b"})R.", "does not need"),
        (b"cnumpy\ndtype\n)R.", "out of range"),
        (b"}(K\x01K\x02u.", "a int in place of a str"),
        (b"}(U\x01au.", "shorter|longer"),
        (b"](K\x01u.", "a list in place of a dict"),
        (b"}K\x01a.", "a dict in place of a list"),
        (b"u.", "pop from empty list"),
        (b"K\x01\x86.", "too short a stack"),
        (b"h\x05.", "5"),
        (b"}})b.", "a dict in place of a tuple|a state for a dict"),
        (b"})b.", "a state for a dict"),
        (b"r\xff\xff\xff\xff.", "index out of range"),
        (b"\x80\x04\x82\x01.", "the opcode EXT1"),
        (b"P123\n.", "the opcode PERSID"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.", "bytes"),
        (b"T\xff\xff\xff\x7f.", "bytes"),
        (b"S'\\z'\n.", "the opcode STRING"),
    ],
)
def test_bad_pickles(data, match):
    with pytest.raises(DataError, match=match) as info:
        read_batch(data, PATH)
    assert str(info.value).startswith("data_batch_1: a CIFAR-10 pickle")


def array_state(shape: bytes, content: bytes, dtype: bytes = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R") -> bytes:
    length = struct.pack("<i", len(content))
    return b"}U\x04data" + GLOBAL_ARRAY + b"(K\x01" + shape + dtype + b"\x89T" + length + content + b"tbs."


def test_array_state():
    good = read_batch(array_state(b"K\x02K\x03\x86", b"abcdef"), PATH)
    assert good["data"].tolist() == [[97, 98, 99], [100, 101, 102]]
    huge = b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"
    negative = b"J\xff\xff\xff\xffJ\xfa\xff\xff\xff\x86"
    for shape in (b"K\x02K\x04\x86", huge, negative, b"K\x06\x85", b"K\x01K\x02K\x03\x87", b"](K\x02K\x03e"):
        with pytest.raises(DataError):
            read_batch(array_state(shape, b"abcdef"), PATH)
    with pytest.raises(DataError, match="not of bytes"):
        read_batch(array_state(b"K\x02K\x03\x86", b"abcdef", b"N"), PATH)


@pytest.mark.parametrize(
    "data",
    [
        b"]" * 1_100_000 + b".",
        b"K\x01" * 700_000 + b"(t" * 100_000 + b".",
        b")" + b"\x85" * 500_000 + b".",
    ],
    ids=["too many opcodes", "marks over a tall stack", "deep nesting"],
)
def test_no_time_is_wasted(data):
    start = time.perf_counter()
    with pytest.raises(DataError):
        read_batch(data, PATH)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    "data",
    [
        b"}}" + b"r\xff\xff\xff\xff" * 10_000 + b".",
        b"X" + struct.pack("<i", 500_000) + b"a" * 500_000 + b"q\x00"
        + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 1000 + b".",
    ],
    ids=["large memo index", "one text many times"],
)  # fmt: skip
def test_no_memory_is_wasted(data):
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_batch(data, PATH)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
