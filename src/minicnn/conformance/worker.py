"""A process that checks a namespace: orders come in as JSON, and each result goes out as a line of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings
from types import ModuleType
from typing import Any

from minicnn.backends import NamespaceBackend


def main(namespace: str, shim: str) -> None:
    """Make the checks that standard input names."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints
    warnings.simplefilter("ignore")
    for kind, name in json.load(sys.stdin):
        print(json.dumps(_result(namespace, shim, kind, name)), file=out, flush=True)


def _result(namespace: str, shim: str, kind: str, name: str) -> dict[str, Any]:
    result: dict[str, Any] = {"error": "", "missing": None}
    try:
        backend = NamespaceBackend(namespace, _module(shim) if shim else None, eager=kind == "times")
        if kind == "version":
            return result | {"version": _version(namespace)}
        from minicnn.conformance.checks import check

        result["seconds"] = check(backend, kind, name)
    except Exception as error:  # a library may raise anything
        result["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
            result["missing"] = error.name
    return result


def _module(shim: str) -> ModuleType | str:
    """A shim by the path of its file, or the name of a module as it is."""
    if not shim.endswith(".py"):
        return shim
    spec = importlib.util.spec_from_file_location("shim", shim)
    if spec is None or spec.loader is None or not os.path.exists(shim):
        raise ImportError(f"there is no file {shim!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _version(namespace: str) -> str:
    library = namespace.removeprefix("array_api_compat.").partition(".")[0]
    try:
        return importlib.metadata.version(importlib.metadata.packages_distributions()[library][0])
    except (KeyError, importlib.metadata.PackageNotFoundError):
        return str(getattr(sys.modules[namespace], "__version__", "unknown"))


if __name__ == "__main__":
    main(*sys.argv[1:])
