"""Files that blocks of the documentation's pages write, such as a Program that one can explore."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILES = {"read-a-training-step.md": "step.html", "gallery.md": "draw.html"}  # by page


def is_current(file: Path, sources: Iterable[Path]) -> bool:
    """Whether a file is newer than all that it follows from: then no network needs to be trained for it."""
    return file.exists() and file.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def made_by(text: str, name: str) -> str:
    """The file of a name that the first blocks of a page write."""
    here, namespace = Path.cwd(), dict[str, Any]({"__name__": "page"})
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
                with contextlib.redirect_stdout(None):
                    exec(block, namespace)
                if Path(name).exists():
                    return Path(name).read_text("utf-8")
        finally:
            os.chdir(here)
    raise RuntimeError(f"A block of a page writes {name}. Received: none that does.")
