"""Make the notebooks of the steps from their pages: examples/notebooks/*.ipynb.

    python docs/notebooks.py          # write the notebooks
    python docs/notebooks.py --run    # run the pages first, and write anew what they print where it has changed

A `python` block of a page is a cell of code, a `text` block right below it what the cell prints, and all else is text.
The first cell installs the library where it is missing. Cells say how they are slides: `jupyter nbconvert --to slides`.
A test compares notebooks and pages, and runs the cells. Numbers below `<!-- measured -->`, such as times, are those of
one run: others may differ from them in their numbers.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = sorted((DOCS / "steps").glob("*.md"))
NOTEBOOKS = DOCS.parent / "examples" / "notebooks"

INSTALL = """\
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("minicnn") is None:  # as on Colab and Binder
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "minicnn-arrays[numba]"], check=True)"""

BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[\w, ]+) -->\n)?(?P<measured>^<!-- measured -->\n)?"
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<prints>.*?)^```\n)?",
    re.M | re.S,
)
NUMBER = re.compile(r" *[\d.,]*\d")


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook.

    Attributes:
        text: Its text.
        code: Whether that is code.
        prints: What the code prints.
        needs: Packages that it needs.
        measured: Whether the numbers that it prints were measured.
    """

    text: str
    code: bool = False
    prints: str = ""
    needs: tuple[str, ...] = ()
    measured: bool = False


def cells(page: str) -> Iterator[Cell]:
    """The cells of a page."""
    done = 0
    for match in BLOCK.finditer(page):
        if page[done : match.start()].strip():
            yield Cell(page[done : match.start()].strip())
        needs = tuple(re.findall(r"\w+", match["needs"] or ""))
        yield Cell(match["code"].strip("\n"), True, match["prints"] or "", needs, bool(match["measured"]))
        done = match.end()
    yield Cell(page[done:].strip())


def notebook(page: Path) -> str:
    """The notebook of a page, as JSON (nbformat 4.5)."""
    made: list[dict[str, Any]] = []
    for number, cell in enumerate([Cell(INSTALL, True), *cells(page.read_text("utf-8"))]):
        slide = "skip" if number == 0 else "-" if cell.code else "slide"  # code stands below the text before it
        metadata = {"slideshow": {"slide_type": slide}} | ({"needs": cell.needs} if cell.needs else {})
        metadata |= {"measured": True} if cell.measured else {}
        common = {"id": f"cell-{number}", "metadata": metadata}
        if cell.code:
            stream = {"output_type": "stream", "name": "stdout", "text": lines(cell.prints)}
            outputs = [stream] if cell.prints else []
            code = {"cell_type": "code", "execution_count": None, "outputs": outputs, "source": lines(cell.text)}
            made.append(common | code)
        else:
            made.append(common | {"cell_type": "markdown", "source": lines(relinked(cell.text))})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def lines(text: str) -> list[str]:
    """Text as notebooks hold it."""
    return text.splitlines(keepends=True)


BOX = re.compile(r"^```\{admonition\} (.*)\n:class: \w+\n(.*?)^```$", re.M | re.S)


def relinked(text: str) -> str:
    """Text as a notebook shows it: boxes, which it has not, as what is in them; links from the notebooks' folder.

    That is as deep as the folder of the pages.
    """
    text = BOX.sub(r"**\1**\n\n\2", text)
    text = re.sub(r"\]\((\d\d-[\w-]+)\.md\)", r"](\1.ipynb)", text)
    return re.sub(r"\]\(\.\./(?!\.\./)", "](../../docs/", text)


def run(cell: Cell, namespace: dict[str, Any], name: str) -> str:
    """What a cell of code prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(cell.text, name, "exec"), namespace)  # the page is ours
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().rstrip().splitlines())


def same(printed: str, expected: str, *, measured: bool = False) -> bool:
    """Whether a cell prints what is expected of it; measured numbers may be others."""
    if measured:
        printed, expected = (NUMBER.sub(" #", text) for text in (printed, expected))
    return printed == expected


def refresh(page: Path) -> None:
    """Run a page, and write anew what it prints where that has changed."""
    namespace: dict[str, Any] = {"__name__": page.stem}

    def rerun(match: re.Match[str]) -> str:
        printed = run(Cell(match["code"]), namespace, page.name)
        if same(printed, match["prints"] or "", measured=bool(match["measured"])):
            return match[0]
        head = match[0].partition("\n\n```text\n")[0].rstrip("\n")
        return f"{head}\n\n```text\n{printed}```\n" if printed else f"{head}\n"

    page.write_text(BLOCK.sub(rerun, page.read_text("utf-8")), "utf-8")


def main() -> None:
    """See the module."""
    for page in PAGES:
        if "--run" in sys.argv:
            refresh(page)
        (NOTEBOOKS / f"{page.stem}.ipynb").write_text(notebook(page), "utf-8")


if __name__ == "__main__":
    main()
