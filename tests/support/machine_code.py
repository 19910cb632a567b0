"""Machine code in words, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator


def inner_loops(text: str, jump: str) -> Iterator[list[str]]:
    """Lines of the blocks of machine code that end by going to where they begin."""
    label, lines = "", []
    for line in text.splitlines():
        if match := re.match(r"(\S+):", line):
            label, lines = match[1], []
        else:
            lines.append(line)
            to = re.search(jump, line)
            if to and to[1] == label:
                yield lines
