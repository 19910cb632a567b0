"""The process in which a submission runs: it computes what it is asked for, and knows no answer.

Started by path, isolated from the user's packages: `python -I -S -u worker.py ORDER`. It finds the packages that the
order names and no others, confines itself, runs the submission, then answers messages on what was its standard input
and output. What the submission prints goes to the standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MOST = 400  # characters of an error
BLANK = "the blank is not filled in yet"


class Packages:
    """Finder of the packages that a submission may use.

    Args:
        places: The folder of each by its name; of all others under "*", where there is one.
    """

    def __init__(self, places: dict[str, list[str]]) -> None:
        self._places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; parts of packages are found by Python's own finder."""
        if name == "minicnn":
            raise ModuleNotFoundError(
                "A submission is graded without minicnn, which holds the answers. Received: import minicnn. "
                "Write it with the array library alone.",
                name=name,
            )
        places = self._places.get(name, self._places.get("*"))
        return None if places is None or path is not None else PathFinder.find_spec(name, places)


def main(order: dict[str, Any]) -> None:
    """Run the submission that the order names, and answer."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    import confinement  # type: ignore[import-not-found]  # found by path, as the library is not

    with open(order["path"], "rb") as file:
        text = file.read()
    standard = [path for path in sys.path[1:] if os.path.exists(path)]
    packages: dict[str, list[str]] = order["packages"]
    folders = [os.path.join(f, n) if n != "*" else f for n, fs in packages.items() for f in fs]
    folders += [f"{path}.libs" for path in folders if os.path.isdir(f"{path}.libs")]
    here = [os.path.join(folder, name) for name in ("wire.py", "simulator.py", "__pycache__")]
    listed = [place for result in packages.values() for place in result]
    confined = confinement.landlock([*standard, *folders, *here], listed, order["hidden"], os.getcwd())
    confinement.limit_resources()
    sys.meta_path.append(Packages(packages))
    import wire  # type: ignore[import-not-found]  # after the packages, as it needs NumPy

    library = Library(order["library"])
    simulator = importlib.import_module("simulator") if order["kernels"] else None
    sys.path.remove(folder)
    if not order["kernels"]:  # whose text has been checked
        confinement.audit([*standard, os.getcwd()], folders, order["hidden"][0])
    reply: dict[str, Any]
    try:
        if simulator is not None:
            module: Any = simulator.load(text.decode(), order["kernels"])
        else:
            module = ModuleType("submission")
            sys.modules["submission"] = module
            exec(compile(text, order["path"], "exec"), module.__dict__)
        reply = {"ready": [name for name in order["functions"] if callable(getattr(module, name, None))]}
    except BaseException as error:
        module, reply = None, why(error, order["path"])
    reply["confined"] = confined
    while True:
        try:
            message = wire.packed(reply)
        except wire.WireError as error:
            message = wire.packed({"error": f"a result cannot be read: {error}"})
        answers.write(message)
        answers.flush()
        try:
            function, arguments, options, looked_at = wire.read(requests)
        except EOFError:
            return
        reply = library.call(module, function, arguments, options, looked_at, order["path"])


class Library:
    """The array library of a submission: arrays of NumPy become arrays of it, and results arrays of NumPy.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        import numpy as np

        self._numpy, self._name = np, name
        self.xp = importlib.import_module({"jax": "jax.numpy", "torch": "array_api_compat.torch"}.get(name, name))

    def call(self, module: Any, function: str, arguments: Any, options: Any, looked_at: bool, path: str) -> Any:
        """Result of a function, or the error that it raised; where it is looked at, what became of its arguments."""
        try:
            values = [self.array(a) for a in arguments]
            if "xp" in options:
                options["xp"] = self.xp
            result = getattr(module, function)(*values, **options)
            if not looked_at:
                return {"result": self.plain(result)}
            changed = any(not self._same(a, self.plain(v)) for a, v in zip(arguments, values, strict=True))
            views = self._name == "numpy" and any(
                self._numpy.may_share_memory(a, r) for a in self._arrays(values) for r in self._arrays(result)
            )
            return {"result": self.plain(result), "changed": changed, "views": views}
        except BaseException as error:
            return why(error, path)

    def array(self, value: Any) -> Any:
        """A copy of an argument on the library's arrays, which the submission may change."""
        if isinstance(value, list | tuple):
            return type(value)(self.array(v) for v in value)
        if isinstance(value, dict):
            return {k: self.array(v) for k, v in value.items()}
        return self.xp.asarray(value.copy()) if isinstance(value, self._numpy.ndarray) else value

    def plain(self, value: Any) -> Any:
        """A result on NumPy's arrays."""
        if isinstance(value, list | tuple):
            return [self.plain(v) for v in value] if isinstance(value, list) else tuple(self.plain(v) for v in value)
        if isinstance(value, dict):
            return {k: self.plain(v) for k, v in value.items()}
        if isinstance(value, self._numpy.ndarray | self._numpy.generic) or not hasattr(value, "__dlpack__"):
            return value
        return self._numpy.from_dlpack(value.detach() if hasattr(value, "detach") else value)

    def _arrays(self, value: Any) -> list[Any]:
        if isinstance(value, list | tuple):
            return [a for v in value for a in self._arrays(v)]
        if isinstance(value, dict):
            return self._arrays(list(value.values()))
        return [value] if isinstance(value, self._numpy.ndarray) else []

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, self._numpy.ndarray):
            return bool(self._numpy.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(self._same(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict):
            return list(a) == list(b) and self._same(list(a.values()), list(b.values()))
        return bool(a == b)


def why(error: BaseException, path: str) -> dict[str, Any]:
    """An error in one line, with the line of the submission that it comes from."""
    if isinstance(error, NotImplementedError):
        return {"error": BLANK}
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MOST]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    except BaseException:
        return {"error": "an error that cannot be printed"}
    text += f" (line {lines[-1]})" if lines else ""
    return {"error": text.encode(errors="backslashreplace").decode()}  # it may hold half a character


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
