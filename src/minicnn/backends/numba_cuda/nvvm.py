"""NVVM, CUDA's compiler of LLVM's language: modules of kernels, and their PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from minicnn.backends.numba_cuda.instructions import TYPES, Instructions, Memory, Number
from minicnn.backends.numba_cuda.translation import Translation

_LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-v16:16:16-v32:32:32-"
    "v64:64:64-v128:128:128-n16:32:64"
)


@cache
def version() -> tuple[int, ...]:
    """Versions of NVVM's language, and of its debug information."""
    from cuda.bindings import nvvm

    return tuple(nvvm.ir_version())


@cache
def _library() -> bytes:
    """Elementary functions of the device."""
    from cuda.pathfinder import find_bitcode_lib

    return Path(find_bitcode_lib("device")).read_bytes()


def module_of(
    function: Callable[..., Any], kinds: Sequence[str], threads: int, versions: Sequence[int], *, overlaps: bool = True
) -> str:
    """The module with one kernel, of the name "kernel".

    Args:
        function: What the kernel does.
        kinds: Kinds of its arguments: see `KernelText.signature`.
        threads: Most threads of a block that it is launched with.
        versions: See `version`.
        overlaps: Whether it may be in place while the kernel ahead of it writes.

    Raises:
        UnknownWordError: If the function has words that are not translated.
    """
    out = Instructions()
    arguments: list[Any] = []
    for k, text in enumerate(kinds):
        kind = text.removeprefix("const ").rstrip("*").replace("bool", "uint8")
        settled = text.startswith("const") or not overlaps
        arguments.append(Memory(kind, f"%p{k}", settled=settled) if text.endswith("*") else Number(kind, f"%p{k}"))
    Translation(out, function).run(arguments)
    types = [a.type if isinstance(a, Memory) else TYPES[a.kind] for a in arguments]
    parameters = ", ".join(f"{kind} %p{k}" for k, kind in enumerate(types))
    body = "\n".join([*out.entry, "br label %first", "first:", *out.lines])
    kernel = f"void ({', '.join(types)})* @kernel"
    numbers = ", ".join(f"i32 {number}" for number in versions)
    return "\n".join([
        'target triple = "nvptx64-nvidia-cuda"',
        f'target datalayout = "{_LAYOUT}"',
        *out.declared.values(),
        f"define void @kernel({parameters}) {{\nentry:\n{body}\nret void\n}}",
        f'!nvvm.annotations = !{{!1, !2}}\n!nvvmir.version = !{{!3}}\n!0 = !{{}}\n!1 = !{{{kernel}, !"kernel", i32 1}}',
        f'!2 = !{{{kernel}, !"maxntidx", i32 {threads}}}\n!3 = !{{{numbers}}}\n',
    ])  # fmt: skip


def compile_module(text: str, capability: tuple[int, int]) -> str:
    """PTX of a module.

    Raises:
        RuntimeError: If NVVM does not take it, with what it says.
    """
    from cuda.bindings import nvvm

    options = ["-opt=3", f"-arch=compute_{capability[0]}{capability[1]}"]
    program = nvvm.create_program()
    try:
        code, library = text.encode(), _library()
        nvvm.add_module_to_program(program, code, len(code), "kernel")
        if "@__nv_" in text:
            nvvm.lazy_add_module_to_program(program, library, len(library), "libdevice")
        try:
            nvvm.compile_program(program, len(options), options)
        except nvvm.nvvmError as error:
            log = bytearray(nvvm.get_program_log_size(program))
            nvvm.get_program_log(program, log)
            raise RuntimeError(f"NVVM takes the modules of kernels. Received: {log.decode()}") from error
        result = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, result)
        return result.decode().rstrip(chr(0))
    finally:
        nvvm.destroy_program(program)
