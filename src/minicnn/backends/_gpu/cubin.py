"""Resources of a kernel, read from its machine code: registers, declared shared memory, spilled bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Attributes of the section .nv.info, as NVIDIA's cuobjdump names them, each followed by a symbol and a number.
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_SYSTEM = 1024  # bytes of shared memory of each block that the system has for itself
_SIZED = 4  # an attribute with a size and as many bytes; the others have two bytes


@dataclass(frozen=True)
class Resources:
    """Resources of a multiprocessor that a kernel of a cubin takes.

    Attributes:
        registers: Registers of a thread.
        shared: Bytes of shared memory that its text declares.
        stack: Bytes of local memory of a thread, to which registers are spilled.
    """

    registers: int
    shared: int
    stack: int


def resources(cubin: bytes, kernel: str = "kernel") -> Resources:
    """Read the resources of a kernel from a cubin, which is an ELF file of 64 bits.

    Raises:
        ValueError: If these bytes are no cubin with such a kernel.
    """
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise ValueError(
            f"Machine code is an ELF file of 64 bits. Received: {cubin[:5]!r}. Compile for an sm_ architecture."
        )
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    # Name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + k * size) for k in range(count)]

    def name(strings: int, at: int) -> str:
        begin = headers[strings][4] + at
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    sections = {name(names_at, header[0]): header for header in headers}
    table = sections[".symtab"]
    symbols = [struct.unpack_from("<I", cubin, table[4] + 24 * k)[0] for k in range(table[5] // 24)]
    own_symbols = {k for k, at in enumerate(symbols) if name(table[6], at) == kernel}
    if not own_symbols:
        raise ValueError(f"The machine code has a kernel {kernel!r}. Received: none of that name.")
    attributes = _attributes(cubin, sections[".nv.info"][4], sections[".nv.info"][5], own_symbols)
    shared = sections.get(f".nv.shared.{kernel}")
    system = _SYSTEM if ".nv.shared.reserved.0" in sections else 0  # from capability 9.0 on it is counted in
    return Resources(attributes[_REGCOUNT], max(0, shared[5] - system) if shared else 0, attributes.get(_FRAME_SIZE, 0))


def _attributes(cubin: bytes, at: int, size: int, symbols: set[int]) -> dict[int, int]:
    """Numbers that attributes give for symbols."""
    attributes: dict[int, int] = {}
    end = at + size
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == _SIZED:
            if length == 8:
                symbol, number = struct.unpack_from("<II", cubin, at)
                attributes |= {attribute: number} if symbol in symbols else {}
            at += length
    return attributes
