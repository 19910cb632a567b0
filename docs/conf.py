"""Settings of the documentation; build it with `sphinx-build -W -b html docs docs/_build`."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from inspect import Signature
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes
from sphinx.util.inspect import stringify_signature

import minicnn

ROOT = Path(__file__).resolve().parents[1]
LEVELS = 2  # of pages: those of a study are below the studies

project = "minicnn"
author = "The minicnn developers"
project_copyright = author
release = version = minicnn.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "studies/notes"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
suppress_warnings = ["ref.python"]  # classes of one name in two modules: an annotation says which it is by its module
napoleon_custom_sections = ["Input shape", "Output shape"]
default_role = "literal"  # docstrings write `code` with single backticks

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]
html_title = f"minicnn {version}"


def plain_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in it: `N * H` is no emphasis and `|x|` no substitution."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            lines[i] = re.sub(r"(`[^`]*`)|([*|])", lambda m: m[1] or "\\" + m[2], line)


def written_out(app: Any, what: str, name: str, thing: Any, *_: Any) -> tuple[str, str] | None:
    """The signature of a class that hands on `**options`, what aliases stand for in place of their names."""
    if what != "class" or not isinstance(getattr(thing, "__signature__", None), Signature):
        return None
    signature = thing.__signature__
    known = {
        name: value for c in reversed(thing.__mro__[:-1]) for name, value in vars(sys.modules[c.__module__]).items()
    }
    parameters = [p.replace(annotation=eval(p.annotation, known)) for p in signature.parameters.values()]
    evaluated = signature.replace(parameters=parameters)
    return stringify_signature(evaluated, show_return_annotation=False, unqualified_typehints=True), ""


def source_page(path: Path) -> str:
    """Name of the page that shows a Python file of the repository."""
    return f"source/{path.relative_to(ROOT).with_suffix('').as_posix()}"


def link_to_source_pages(app: Any, doctree: Any, docname: str) -> None:
    """Links to Python files, which would be downloads, lead to pages that show them, at the name that is their text."""
    for node in list(doctree.findall(addnodes.download_reference)):
        path = (Path(app.env.doc2path(docname)).parent / node["reftarget"]).resolve()
        if path.suffix == ".py":
            text = path.read_text("utf-8")
            found = re.search(rf"^(?:class |def )?{re.escape(node.astext())}\b", text, re.M)
            line = text.count("\n", 0, found.start()) + 1 if found else 1
            uri = f"{app.builder.get_relative_uri(docname, source_page(path))}#line-{line}"
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def source_pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """Those pages, of all Python files to which there is a link."""
    for path in sorted((ROOT / "docs" / name).resolve() for name in app.env.dlfiles):
        if path.suffix == ".py":
            title = path.relative_to(ROOT).as_posix()
            code = highlight(path.read_text("utf-8"), PythonLexer(), HtmlFormatter(lineanchors="line"))
            yield source_page(path), {"title": title, "body": f"<h2>{title}</h2>{code}"}, "page.html"


def written_by_a_page(app: Any, failed: Exception | None) -> None:
    """The file that the first blocks of a page write, put beside the page, so that it is what readers get as well."""
    if failed or app.builder.format != "html":
        return
    text, here = (ROOT / "docs" / "read-a-training-step.md").read_text("utf-8"), Path.cwd()
    namespace: dict[str, Any] = {"__name__": "page"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
                with contextlib.redirect_stdout(None):
                    exec(block, namespace)
                if (written := Path("step.html")).exists():
                    (Path(app.outdir) / written.name).write_text(written.read_text("utf-8"), "utf-8")
                    return
        finally:
            os.chdir(here)
    raise RuntimeError("A block of read-a-training-step.md writes step.html. Received: none that does.")


def pages_of_the_tree(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Furo's tree of pages, for which Sphinx would copy each section and each name of the API, to leave them out."""
    whole = context["toctree"]
    context["toctree"] = lambda **options: whole(**{**options, "maxdepth": LEVELS})


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", written_by_a_page)
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon, which writes markup
    app.connect("autodoc-process-signature", written_out)
    app.connect("doctree-resolved", link_to_source_pages)
    app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", pages_of_the_tree, priority=400)  # before Furo, which asks for it
