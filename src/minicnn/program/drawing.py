"""A Program as a drawing: Mermaid or Graphviz text, one box for each node, grouped by scope and phase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minicnn.program.graph import Node, Program, Value


def mermaid(program: Program) -> str:
    """Drawing as Mermaid flowchart text, which GitHub and Sphinx render."""
    ids = _ids(program)
    lines = ["flowchart TD"]
    lines += [f'  {ids[id(v)]}(["{_for_mermaid(v.name)}<br/>{v.spec}"])' for v in _external(program)]
    for i, (title, nodes) in enumerate(_groups(program)):
        lines.append(f'  subgraph g{i} ["{_for_mermaid(title)}"]')
        lines += [f'    {ids[id(n.outputs[0])]}["{n.op.name}<br/>{_specs(n.outputs)}"]' for n in nodes]
        lines.append("  end")
    lines += [f"  {a} --> {b}" for a, b in _edges(program, ids)]
    return "\n".join(lines) + "\n"


def dot(program: Program) -> str:
    """Drawing as Graphviz text; `dot -Tsvg` renders it."""
    ids = _ids(program)
    lines = ["digraph program {", "  rankdir=TB;", '  node [shape=box, fontname="Helvetica"];']
    for value in _external(program):
        label = f"{_for_dot(value.name)}\\n{value.spec}"
        lines.append(f'  {ids[id(value)]} [shape=ellipse, label="{label}"];')
    for i, (title, nodes) in enumerate(_groups(program)):
        lines.append(f'  subgraph cluster_{i} {{ label="{_for_dot(title)}";')
        lines += [f'    {ids[id(n.outputs[0])]} [label="{n.op.name}\\n{_specs(n.outputs)}"];' for n in nodes]
        lines.append("  }")
    lines += [f"  {a} -> {b};" for a, b in _edges(program, ids)]
    return "\n".join([*lines, "}"]) + "\n"


def _for_mermaid(text: str) -> str:
    """A name as Mermaid shows it: only letters, digits and what no syntax of its, of Markdown or of HTML uses stay."""
    return re.sub(r"[^\w /,()=]", lambda match: f"#{ord(match[0])};", text)


def _for_dot(text: str) -> str:
    """A name within quotes as Graphviz shows it, which knows escapes and entities of HTML."""
    for sign, escaped in (("&", "&amp;"), ("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(sign, escaped)
    return text


def _specs(values: Sequence[Value]) -> str:
    return ", ".join(str(v.spec) for v in values)


def _groups(program: Program) -> list[tuple[str, list[Node]]]:
    groups: dict[str, list[Node]] = {}
    for node in program.nodes:
        groups.setdefault(f"{node.scope or program.name} ({node.phase})", []).append(node)
    return list(groups.items())


def _external(program: Program) -> list[Value]:
    """Inputs that some node reads; scalar constants would only clutter the drawing."""
    read = {id(v) for node in program.nodes for v in node.inputs}
    return [v for v in program.inputs if id(v) in read]


def _ids(program: Program) -> dict[int, str]:
    """Names in the drawing of inputs and nodes; a node is named after its first result."""
    ids = {id(value): f"i{i}" for i, value in enumerate(program.inputs)}
    return ids | {id(node.outputs[0]): f"n{i}" for i, node in enumerate(program.nodes)}


def _edges(program: Program, ids: dict[int, str]) -> Iterator[tuple[str, str]]:
    for node in program.nodes:
        for value in node.inputs:
            if value.kind != "constant":
                source = value.node.outputs[0] if value.node else value
                yield ids[id(source)], ids[id(node.outputs[0])]
