"""NCCL that is made up, in the memory of the host: for one rank, and for ranks that another communicator connects."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from minicnn.ops.groups import Communicator

PTR = 1234  # of a communicator


class UniqueId:
    """As of nccl4py: 128 bytes, which are no other object's."""

    def __init__(self, data: bytes) -> None:
        assert len(data) == 128
        self.data = data

    def __bytes__(self) -> bytes:
        return self.data

    @staticmethod
    def from_bytes(data: bytes) -> UniqueId:
        return UniqueId(data)


class MadeUp:
    """What the package `nccl` of nccl4py 0.6 offers and takes, for one rank: as strict, in memory of the host."""

    SUM, FLOAT32 = 0, 7
    UniqueId = UniqueId

    def __init__(self, libnccl: str | None = "2.28") -> None:
        self.calls: list[str] = []
        self.destroyed = 0
        self.failure: Exception | None = None  # of those who connect
        self.libnccl = libnccl
        self.core = self.bindings = self.nccl = self.NcclDataType = self

    # nccl.core

    def get_version(self) -> MadeUp:
        return self

    def get_unique_id(self) -> UniqueId:
        return UniqueId(bytes(range(128)))

    def from_numpy_dtype(self, dtype: np.dtype[Any]) -> int:
        assert isinstance(dtype, np.dtype)
        assert dtype == "float32"
        return self.FLOAT32

    @property
    def Communicator(self) -> Any:  # noqa: N802  # as there
        library = self

        class Communicator:
            ptr = PTR

            @classmethod
            def init(cls, nranks: int, rank: int, unique_id: UniqueId, config: None = None) -> Communicator:
                assert isinstance(unique_id, UniqueId)
                assert 0 <= rank < nranks
                if library.failure is not None:
                    raise library.failure
                return cls()

            def destroy(self) -> None:
                library.destroyed += 1

        return Communicator

    # nccl.bindings.nccl, whose functions are given addresses

    class Comm:
        def __init__(self, handle: int = 0) -> None:
            assert handle == PTR

    def all_reduce(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, comm: Comm, stream: int
    ) -> None:
        assert type(op) is int
        assert op == self.SUM
        self._copy("all_reduce", sendbuff, recvbuff, count, datatype, comm, stream)

    def all_gather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: Comm, stream: int) -> None:
        self._copy("all_gather", sendbuff, recvbuff, sendcount, datatype, comm, stream)

    def allto_all(self, sendbuff: int, recvbuff: int, count: int, datatype: int, comm: Comm, stream: int) -> None:
        self._copy("all_to_all", sendbuff, recvbuff, count, datatype, comm, stream)

    def _copy(self, name: str, given: int, made: int, count: int, datatype: int, comm: Comm, stream: int) -> None:
        assert [type(number) for number in (given, made, count, datatype, stream)] == [int] * 5
        assert isinstance(comm, self.Comm)
        assert datatype == self.FLOAT32
        self.calls.append(name)
        ctypes.memmove(made, given, count * 4)


class Late(MadeUp):
    """Likewise in the order of an emulated stream, which may be one that is captured."""

    def __init__(self, runtime: Any) -> None:
        super().__init__()
        self.runtime = runtime

    def _copy(self, *given: Any) -> None:
        assert given[-1] == self.runtime.current()
        self.runtime.do(partial(super()._copy, *given))


class Between(Late):
    """Likewise between several ranks, which another communicator connects."""

    def __init__(self, runtime: Any, host: Communicator) -> None:
        super().__init__(runtime)
        self.host = host

    def _copy(self, name: str, given: int, made: int, count: int, *rest: Any) -> None:
        self.calls.append(name)
        self.runtime.do(partial(self._move, name, given, made, count))

    def _move(self, name: str, given: int, made: int, count: int) -> None:
        ranks = self.host.size
        outgoing = _floats(given, count * (ranks if name == "all_to_all" else 1))
        incoming = _floats(made, count * (1 if name == "all_reduce" else ranks))
        if name == "all_reduce":
            incoming[...] = outgoing
            self.host.add(incoming)
        elif name == "all_gather":
            self.host.gather(outgoing.copy(), np.split(incoming, ranks))
        else:
            self.host.exchange(np.split(outgoing, ranks), np.split(incoming, ranks))


def _floats(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
