"""Settings of the documentation; build it with `sphinx-build -W -b html docs docs/_build`."""

import re
from typing import Any

import minicnn

project = "minicnn"
author = "The minicnn developers"
project_copyright = author
release = version = minicnn.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "studies/notes"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
napoleon_custom_sections = ["Input shape", "Output shape"]
default_role = "literal"  # docstrings write `code` with single backticks

html_theme = "furo"
html_title = f"minicnn {version}"


def plain_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in it: `N * H` is no emphasis and `|x|` no substitution."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            lines[i] = re.sub(r"(`[^`]*`)|([*|])", lambda m: m[1] or "\\" + m[2], line)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon, which writes markup
