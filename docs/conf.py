"""Settings of the documentation; build it with `sphinx-build -W -b html docs docs/_build`."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import Signature
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import directives
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import stringify_signature

import minicnn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import written  # noqa: E402

LEVELS = 2  # of pages: those of a study are below the studies
TREES: dict[Any, str] = {}  # of pages of source code, which are in no tree, all of the same depth have the same links
TITLES: dict[str, nodes.Element] = {}  # of pages

project = "minicnn"
author = "The minicnn developers"
project_copyright = author
release = version = minicnn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
# Whether the site has pages of source code: two thirds of all, in which nothing can be wrong that the gate looks for.
CODE = not tags.has("without_code")  # type: ignore[name-defined]  # noqa: F821  # Sphinx gives it to this file
if CODE:
    extensions.append("sphinx.ext.viewcode")
exclude_patterns = ["_build", "studies/notes"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autosummary_generate = False
suppress_warnings = ["ref.python"]  # classes of one name in two modules: an annotation says which it is by its module
napoleon_custom_sections = ["Input shape", "Output shape"]
default_role = "literal"  # docstrings write `code` with single backticks

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]
html_title = f"minicnn {version}"


# Whether the site has a page that trains in a browser tab: it needs onnxruntime-web from npm, in the folder
# node_modules that MINICNN_NODE_MODULES names, and onnx and onnxruntime.
TAB = "MINICNN_NODE_MODULES" in os.environ and all(map(find_spec, ("onnx", "onnxruntime")))
if TAB:
    tags.add("tab")  # type: ignore[name-defined]  # noqa: F821  # Sphinx gives it to this file


class Api(SphinxDirective):
    """A table of a package's public classes and functions, and then an entry for each.

    `.. api:: minicnn.layers pooling core` takes those that are defined in these modules of the package, without modules
    all. Data, such as a table of names, have no entry.
    """

    required_arguments, optional_arguments, final_argument_whitespace = 1, 1, True
    option_spec: ClassVar = {"without": directives.unchanged, "exclude-members": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """See docutils."""
        name, *modules = " ".join(self.arguments).split()
        package, without = importlib.import_module(name), self.options.get("without", "").split(", ")
        homes = [f"{name}.{module}" for module in modules]
        things = {n: getattr(package, n) for n in package.__all__ if n not in without}
        kinds = {
            n: "class" if inspect.isclass(thing) else "function"
            for n, thing in things.items()
            if callable(thing) and (not homes or getattr(thing, "__module__", "") in homes)
        }
        own = [n for n in kinds if getattr(things[n], "__name__", n) == n]  # aliases have an entry alone
        lines = [".. autosummary::", "   :nosignatures:", "", *(f"   ~{name}.{n}" for n in own)]
        for n, kind in kinds.items():
            lines += ["", f".. auto{kind}:: {name}.{n}"]
            lines += ["   :members:"] if kind == "class" else []
            if kind == "class" and "exclude-members" in self.options:
                lines.append(f"   :exclude-members: {self.options['exclude-members']}")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


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


def written_by_pages(app: Any, failed: Exception | None) -> None:
    """The files that the first blocks of pages write, put beside the pages, so that readers get just them."""
    if failed or app.builder.format != "html":
        return
    for page, name in written.FILES.items():
        source, file = ROOT / "docs" / page, Path(app.outdir) / name
        if not written.is_current(file, [source, *(ROOT / "src").rglob("*.py")]):
            file.write_text(written.made_by(source.read_text("utf-8"), name), "utf-8")


def trained_in_a_tab(app: Any, failed: Exception | None) -> None:
    """The page that trains a network in a tab: see `TAB`."""
    if TAB and not failed and app.builder.format == "html":
        folder = Path(app.outdir) / "train"
        subprocess.run([sys.executable, str(ROOT / "examples/browser/build.py"), str(folder)], check=True)
        parts = Path(os.environ["MINICNN_NODE_MODULES"]) / "onnxruntime-web" / "dist"
        runtime = folder / "node_modules" / "onnxruntime-web" / "dist"
        runtime.mkdir(parents=True, exist_ok=True)
        for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            shutil.copy(parts / name, runtime)


def pages_with_entries(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages with entries for the search, which Sphinx forgets in a build that does not read them."""
    entries = env.domaindata["index"].get("entries", {}) if added | changed | removed else {}  # none in a first build
    return [page for page in entries if entries[page] and not page.startswith("api/")]


def titles(toc: nodes.Element) -> nodes.Element:
    """Of a page's table of contents its title and what is below it in the tree of pages."""
    made = toc.deepcopy()
    for item in made.children:
        below = list(item.findall(addnodes.toctree))
        item[1:] = [nodes.bullet_list("", *below)] if below else []
    return made


def pages_of_the_tree(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Furo's tree of pages, for which Sphinx would copy each section and each name of the API, to leave them out."""
    whole, env = context["toctree"], app.env

    def tree(**options: Any) -> str:
        options["maxdepth"] = LEVELS
        place = page if page in env.all_docs else page.count("/"), *sorted(options.items())
        if place not in TREES:
            TITLES.update({name: titles(toc) for name, toc in env.tocs.items() if name not in TITLES})
            with mock.patch.object(env, "tocs", TITLES):
                TREES[place] = str(whole(**options))
        return TREES[place]

    context["toctree"] = tree


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_directive("api", Api)
    app.connect("build-finished", written_by_pages)
    app.connect("build-finished", trained_in_a_tab)
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon, which writes markup
    app.connect("autodoc-process-signature", written_out)
    app.connect("doctree-resolved", link_to_source_pages)
    app.connect("env-get-outdated", pages_with_entries)
    if CODE:
        app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", pages_of_the_tree, priority=400)  # before Furo, which asks for it
