"""Texts of kernels, which are run as Python and kept for the translation."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any

# Beside `linecache`, which tracebacks read: a user may clear that, and kernels are translated long after they are run.
_texts: dict[str, str] = {}


def define(text: str, names: dict[str, Any]) -> None:
    """Run a text of definitions, whose lines tracebacks and the translation find, and add what it defines to names."""
    file = f"<kernel {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    _texts[file] = text
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names)


def text_of(file: str) -> str:
    """The text that was run by such a name, or that of a file."""
    return _texts.get(file) or "".join(linecache.getlines(file))
