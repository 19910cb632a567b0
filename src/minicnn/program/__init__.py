"""The Program: a training step as a flat list of primitive operations, and the passes over it."""

from minicnn.program.autodiff import gradients
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.memory import MemoryPlan, plan
from minicnn.program.passes import fold_constants, optimize, remove_dead_nodes

__all__ = [
    "MemoryPlan", "Node", "Program", "Spec", "Value", "fold_constants", "gradients", "optimize", "plan",
    "remove_dead_nodes",
]  # fmt: skip
