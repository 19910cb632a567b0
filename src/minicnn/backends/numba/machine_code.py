"""Machine code of LLVM's modules, for this CPU or another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

# LLVM's passes are for loops that it has to make faster. Kernels say themselves what is a vector and what is unrolled.
SPEED_LEVEL = 2


@dataclass(frozen=True)
class Target:
    """A CPU that code is compiled for.

    Attributes:
        triple: Architecture and system, as "aarch64-unknown-linux-gnu".
        cpu: LLVM's name of it, as "x86-64-v3".
        features: What it has beyond that, or has not, as "+avx2,-avx512f".
    """

    triple: str
    cpu: str
    features: str = ""


@cache
def host() -> Target:
    """This CPU, or the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES describe."""
    cpu, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:  # as Numba has it: a name of another CPU alone says all
        features = llvm.get_host_cpu_features().flatten() if cpu in (None, llvm.get_host_cpu_name()) else ""
    return Target(llvm.get_process_triple(), cpu or llvm.get_host_cpu_name(), features)


@cache
def _initialized() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target) -> Any:
    _initialized()
    # Kernels are put anywhere in memory, and call functions of LLVM's and the system's libraries.
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=SPEED_LEVEL, reloc="pic", codemodel="default", jit=True
    )


def _optimized(module: Any, target: Target) -> tuple[Any, Any]:
    machine = _machine(target)
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed, machine


def object_code(module: Any, target: Target) -> bytes:
    """An object file."""
    parsed, machine = _optimized(module, target)
    code: bytes = machine.emit_object(parsed)
    return code


def assembly(module: Any, target: Target) -> str:
    """Machine code in words."""
    parsed, machine = _optimized(module, target)
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
