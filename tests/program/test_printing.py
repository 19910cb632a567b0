"""A Program as text and as a drawing."""

from __future__ import annotations

import html
import re

import pytest

from minicnn import ops
from minicnn.program import Program, gradients
from minicnn.program.printing import engineering


def _program() -> Program:
    program = Program("train")
    x, w = program.input("x", (8, 3)), program.input("dense/kernel", (3, 2), kind="parameter")
    with program.scope("dense"):
        y = ops.leaky_relu(x @ w, negative_slope=0.25)
    with program.scope("loss"):
        loss = ops.mean(y * y)
    (dw,) = gradients(program, loss, [w])
    program.outputs["loss"] = loss
    with program.scope("sgd", "update"):
        program.updates["dense/kernel"] = w - dw * 0.5
    return program


TABLE = """\
Program 'train'
  input x: float32[8,3]
  parameter dense/kernel: float32[3,2]
result  operation                             shape         FLOPs  bytes  phase     scope
v1      matmul(x, dense/kernel)               float32[8,2]    96     184  forward   dense
v2      leaky_relu(v1, negative_slope=0.25)   float32[8,2]    32     128  forward   dense
v3      multiply(v2, v2)                      float32[8,2]    16     192  forward   loss
v4      mean(v3)                              float32[]       16      68  forward   loss
v5      multiply(1.0, 0.0625)                 float32[]        1      12  backward  loss
v6      reshape(v5, shape=(1,1))              float32[1,1]     0       8  backward  loss
v7      broadcast_to(v6, shape=(8,2))         float32[8,2]     0      68  backward  loss
"""


def test_table_is_stable() -> None:
    text = str(_program())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in TABLE.splitlines():
        assert " ".join(line.split()) in lines
    assert "output loss = v4" in lines
    assert re.match(r"update dense/kernel <- v\d+", lines[-2])
    assert re.match(r"\d+ nodes, \d+ FLOP, [\d.]+ kB moved", lines[-1])
    assert text == str(_program())


def test_array_constants_show_their_shape() -> None:
    import numpy as np

    program = Program()
    program.outputs["y"] = program.input("x", (2, 3)) + np.ones(3, "float32")
    assert "add(x, c1:float32[3])" in str(program)


def test_several_results_share_a_line() -> None:
    program = Program()
    x, s = program.input("x", (4, 3)), program.input("s", (3,))
    ops.normalize(x, s, s, axes=(0,), epsilon=1e-3)
    (line,) = (row for row in str(program).splitlines() if "normalize" in row)
    assert line.split()[:6] == ["v1,", "v2,", "v3", "normalize(x,", "s,", "s,"]
    assert "axes=(0,), epsilon=0.001" in line or "axes=(0,),epsilon=0.001" in line.replace(", ", ",")
    assert "float32[4,3], float32[1,3], float32[1,3]" in line


def test_empty_program() -> None:
    assert str(Program()).splitlines()[-1] == "0 nodes, 0 FLOP, 0 B moved"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 "), (999, "999 "), (999.4, "999 "), (999.6, "1 k"), (1000, "1 k"), (1234, "1.23 k"), (999_400, "999 k"),
     (999_600, "1 M"), (2.5e9, "2.5 G"), (7.25e12, "7.25 T"), (5e15, "5e+03 T")],
)  # fmt: skip
def test_engineering(n: float, text: str) -> None:
    assert engineering(n) == text


def test_mermaid() -> None:
    lines = _program().to_mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert '  i0(["x<br/>float32[8,3]"])' in lines
    assert '  i1(["dense/kernel<br/>float32[3,2]"])' in lines
    assert '  subgraph g0 ["dense (forward)"]' in lines
    assert '    n0["matmul<br/>float32[8,2]"]' in lines
    assert "  i0 --> n0" in lines
    assert "  n0 --> n1" in lines
    assert sum(line.startswith("  subgraph") for line in lines) == lines.count("  end")


def test_dot() -> None:
    text = _program().to_dot()
    lines = text.splitlines()
    assert lines[0] == "digraph program {"
    assert lines[-1] == "}"
    assert text.count("{") == text.count("}")
    assert '  i0 [shape=ellipse, label="x\\nfloat32[8,3]"];' in lines
    assert '    n0 [label="matmul\\nfloat32[8,2]"];' in lines
    assert "  i0 -> n0;" in lines


@pytest.mark.parametrize("kind", ["to_mermaid", "to_dot"])
def test_drawings_keep_every_node_and_edge_apart(kind: str) -> None:
    """Whatever inputs are called: like a result, like each other but for punctuation, or with signs of a syntax."""
    program = Program()
    names = ["v1", "a/b", "a_b", 'say "x"']
    values = [program.input(n, (2,)) for n in names]
    total = values[0] + values[1] + values[2] + values[3]
    program.input("unread", (2,))
    program.outputs["y"] = total * 2.0
    text = getattr(program, kind)()
    arrow = " --> " if kind == "to_mermaid" else " -> "
    edges = [line.strip(" ;").split(arrow) for line in text.splitlines() if arrow in line]
    assert sorted(edges) == sorted([["i0", "n0"], ["i1", "n0"], ["n0", "n1"], ["i2", "n1"], ["n1", "n2"], ["i3", "n2"],
                                    ["n2", "n3"]])  # fmt: skip
    assert "unread" not in text
    assert 'say "x"' not in text
    assert ("say #34;x#34;" if kind == "to_mermaid" else r"say \"x\"") in text


HOSTILE = [
    "<script>alert(1)</script>", "<b>", "a > b", "#quot;", "#60;", "`code`", '`"]', "x]", "[x", '"]:::red', "x --> y",
    "%%{init: {'theme': 'dark'}}%%", "end", "a;b", "style a fill:#f00;", "1. one", "*bold*", "a\nb", "a\\nb", "a\\",
    "&lt;i&gt;", "|x|", "{{x}}", "$$x$$", "\u202ereversed", "\x00\x1b[31m", "click n0 href", "Ünïcode 数",
]  # fmt: skip


def shown_by_mermaid(label: str) -> str:
    """What Mermaid shows for a label: it takes numbers of characters between # and ; for these."""
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label)


@pytest.mark.parametrize("name", HOSTILE)
def test_mermaid_takes_names_for_text(name: str) -> None:
    """A name has no sign of Mermaid, Markdown or HTML, stays on its line, and is shown as it is."""
    program = Program()
    x = program.input(name, (2,))
    with program.scope(name):
        program.outputs["y"] = x * 2.0
    lines = program.to_mermaid().splitlines()
    _, drawn, group, *_ = lines
    for line, start, end in (
        (drawn, '  i0(["', '<br/>float32[2]"])'), (group, '  subgraph g0 ["', ' (forward)"]')
    ):  # fmt: skip
        label = line[len(start) : -len(end)]
        assert (line[: len(start)], line[-len(end) :]) == (start, end)
        assert not set(label) & set('<>"`[]{}%&|\\$*:.-~\n\x00\x1b\u202e')
        assert "#" not in re.sub(r"#\d+;", "", label)
        assert shown_by_mermaid(label) == name
    assert lines[3:] == ['    n0["multiply<br/>float32[2]"]', "  end", "  i0 --> n0"]


@pytest.mark.parametrize("name", HOSTILE)
def test_dot_takes_names_for_text(name: str) -> None:
    program = Program()
    program.outputs["y"] = program.input(name, (2,)) * 2.0
    line = next(line for line in program.to_dot().splitlines() if "ellipse" in line)
    label = re.fullmatch(r'  i0 \[shape=ellipse, label="((?:[^"\\]|\\.)*)"\];', line)
    assert label is not None, line
    signs = {"n": "\n"}
    shown = re.sub(r"\\(.)", lambda match: signs.get(match[1], match[1]), label[1])
    assert html.unescape(shown) == f"{name}\nfloat32[2]"
