"""A kernel's module in WGSL: its memory, the functions that read and write elements there, and its entry point."""

from __future__ import annotations

from importlib.resources import files

from minicnn.backends.webgpu.types import TYPES
from minicnn.kernels.expressions import Array, Name
from minicnn.kernels.statements import Kernel
from minicnn.program.graph import ITEMSIZE

_WORD = {"f32": "bitcast<f32>({0})", "i32": "bitcast<i32>({0})", "u32": "{0}", "bool": "({0} != 0u)"}
# An element among those of a word, {0}, at bit {1}; and the bits of one, {0}.
_PART = {
    "uint8": "({0} >> {1}) & 255u", "uint16": "({0} >> {1}) & 65535u", "bool": "(({0} >> {1}) & 255u) != 0u",
    "int8": "bitcast<i32>(({0} >> {1}) << 24u) >> 24u", "int16": "bitcast<i32>(({0} >> {1}) << 16u) >> 16u",
    "float16": "unpack2x16float({0} >> {1}).x",
}  # fmt: skip
_BITS = {
    "float16": "float16_bits({0})", "bool": "u32({0})",
    **dict.fromkeys(("int8", "int16"), "bitcast<u32>({0})"),
}  # fmt: skip
_FUNCTIONS = files(__package__).joinpath("functions.wgsl").read_text(encoding="utf-8")
_ENTRY = """@compute @workgroup_size({threads})
fn kernel(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
          @builtin(local_invocation_index) thread: u32) {{
    let number = id.x + id.y * count.x;
{row}{calls}
}}
"""


class Module:
    """Definitions of a kernel beside its statements.

    Its arrays are words of memories m0, m1 ..., which are those of slabs once it is known where arrays lie. Where each
    begins is an argument.

    Args:
        kernel: The kernel; its arrays are called p0, p1 ..., in order.

    Attributes:
        results: Types of what the kernel's functions give, by name.
        shared: Arrays in shared memory, by name: parts of a kernel use the same.
        procedures: Names and parameters of procedures' functions, by the procedures' names.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.results = {f.name: f.dtype for part in kernel.parts for f in part.functions}
        self.shared: dict[str, Array] = {}
        self.procedures: dict[str, tuple[str, tuple[Name, ...]]] = {}
        self._definitions: dict[str, str] = {}
        # Neighbours in a word are other threads': whoever writes one leaves the others' bits to them.
        self._atomic = any(a.written and ITEMSIZE[a.dtype] < 4 for a in kernel.arrays)

    def define(self, text: str) -> str:
        """Name of a function whose definition has {name} where the name goes: one for all that are alike."""
        return self._definitions.setdefault(text, f"of{len(self._definitions)}")

    def share(self, array: Array) -> None:
        """Have an array in shared memory, as large as the largest of its name."""
        self.shared[array.name] = max(self.shared.get(array.name, array), array, key=lambda a: a.size)

    def access(self, array: Array, *, stores: bool) -> str:
        """Name of the function that loads an element of an array in memory, or stores one."""
        k, size, kind = int(array.name[1:]), ITEMSIZE[array.dtype], TYPES[array.dtype]
        each, at, bit = 4 // size, _argument(k), f"(i % {4 // size}u) * {8 * size}u"
        place = f"m{k}[{at} + i]" if size == 4 else f"m{k}[{at} + i / {each}u]"
        word = f"atomicLoad(&{place})" if self._atomic else place
        if not stores:
            text = (_WORD[kind] if size == 4 else _PART[array.dtype]).format(word, bit)
            return self.define(f"fn {{name}}(i: u32) -> {kind} {{\n    return {text};\n}}\n")
        bits = _BITS.get(array.dtype, "{0}" if kind == "u32" else "bitcast<u32>({0})").format("x")
        if size == 4:
            text = f"atomicStore(&{place}, {bits});" if self._atomic else f"{place} = {bits};"
        else:
            mask = f"{2 ** (8 * size) - 1}u"
            text = f"let bit = {bit};\n    atomicAnd(&{place}, ~({mask} << bit));\n"
            text += f"    atomicOr(&{place}, ({bits} & {mask}) << bit);"
        return self.define(f"fn {{name}}(i: u32, x: {kind}) {{\n    {text}\n}}\n")

    def text(self, parts: list[str]) -> str:
        """The module, with functions part0, part1 ... of its parts."""
        kernel, calls, first = self._kernel, "", 0
        for number, part in enumerate(kernel.parts):
            start, first = first, first + part.blocks
            calls += (
                f"{' else' if start else '   '} if (number < {first}u) {{ part{number}(number - {start}u, thread); }}"
            )
        count = len(kernel.arrays)
        cursor = f"m{count}[{_argument(count)}]"
        loaded = f"atomicLoad(&{cursor})" if self._atomic else cursor
        row = f"    row = {loaded} + {_argument(count + 1)};\n" * kernel.queued
        shared = (f"var<workgroup> {a.name}: array<{TYPES[a.dtype]}, {a.size}>;\n" for a in self.shared.values())
        definitions = (text.replace("{name}", name) for text, name in self._definitions.items())
        words = -(-(count + 2 * kernel.queued) // 4)
        return (
            f"// {kernel.title}\n@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, {words}>;\n//memories\n"
            f"var<private> row: u32;\n{''.join(shared)}{_FUNCTIONS}\n{''.join(definitions)}{''.join(parts)}"
            f"{_ENTRY.format(threads=kernel.threads, row=row, calls=calls)}"
        )


def _argument(k: int) -> str:
    """Argument k of a kernel: the word with which array k begins, or a number."""
    return f"arguments[{k // 4}][{k % 4}]"
