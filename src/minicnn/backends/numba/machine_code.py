"""Machine code of LLVM's modules, for this CPU or another."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

from minicnn.backends.numba.cpus import Target

# LLVM's passes are for loops that it has to make faster. Kernels say themselves what is a vector and what is unrolled.
SPEED_LEVEL = 2


@cache
def _initialized() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target) -> Any:
    _initialized()
    # As Numba compiles: code is put anywhere in memory, far from the functions of libraries that it calls.
    reloc = "static" if target.architecture == "x86_64" else "default"
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=SPEED_LEVEL, reloc=reloc, codemodel="jitdefault", jit=True
    )


def _optimized(module: Any) -> tuple[Any, Any]:
    machine = _machine(module.target)
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed, machine


def object_code(module: Any) -> bytes:
    """An object file."""
    parsed, machine = _optimized(module)
    code: bytes = machine.emit_object(parsed)
    return code


def assembly(module: Any) -> str:
    """Machine code in words."""
    parsed, machine = _optimized(module)
    text: str = machine.emit_assembly(parsed)
    return text


def loaded(symbol: str, code: bytes) -> tuple[int, Any]:
    """Address of a function in object code for this CPU, and its owner, which frees the memory."""
    # A loader (an execution engine of LLVM) for each file, since names may be equal in several.
    machine = _machine(Target(llvm.get_process_triple(), ""))
    loader = llvm.create_mcjit_compiler(llvm.parse_assembly(f'target triple = "{machine.triple}"'), machine)
    loader.add_object_file(llvm.ObjectFileRef.from_data(code))
    loader.finalize_object()
    return loader.get_function_address(symbol), loader
