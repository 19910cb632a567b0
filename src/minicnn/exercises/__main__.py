"""The process in which a submission is judged: it writes one line of JSON for each check into a file."""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from minicnn import machine
from minicnn.exercises.exercise import Check, WrongError
from minicnn.exercises.table import EXERCISES

MOST = 400  # characters of an error


def main(order: dict[str, Any]) -> None:
    """Judge as the order says: exercise, path of the submission, backends, and the file for the results."""
    exercise, path = EXERCISES[order["exercise"]], Path(order["path"])
    with Path(order["results"]).open("w", encoding="utf-8") as results:

        def tell(**facts: Any) -> None:
            print(json.dumps(facts), file=results, flush=True)

        try:
            given = load(path)
        except (Exception, SystemExit) as error:
            tell(refused=f"can be imported. Received: {path}: {why(error, path)}. Mend it.")
            return
        missing = [name for name in exercise.functions if not hasattr(given, name)]
        if missing:
            names = f"defines {' and '.join(exercise.functions)}. Received: {path} without {' and '.join(missing)}."
            tell(refused=f"{names} Begin with the skeleton: minicnn grade --start {order['exercise']} FOLDER.")
            return
        for check in exercise.checks:
            points, text = judged(check, given, order["backends"], path)
            tell(name=check.name, points=points, of=check.points, text=text)


def load(path: Path) -> ModuleType:
    """Import a file."""
    spec = importlib.util.spec_from_file_location("submission", path)
    if spec is None or spec.loader is None:
        raise ImportError("its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module


def judged(check: Check, given: ModuleType, backends: Sequence[str] | None, path: Path) -> tuple[int, str]:
    """Points of a check, and what was found."""
    try:
        return check.points, check.judge(given, backends)
    except (Exception, SystemExit) as error:
        return 0, why(error, path)


def why(error: BaseException, path: Path) -> str:
    """An error in one line, with the line of the submission that it comes from."""
    if isinstance(error, NotImplementedError):
        return "the blank is not filled in yet"
    text = str(error)
    if not isinstance(error, WrongError):
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MOST]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        text += f" (line {lines[-1]})" if lines else ""
    said = " ".join([text, *getattr(error, "__notes__", [])])
    return said.strip().encode(errors="backslashreplace").decode()  # it may hold half a character


if __name__ == "__main__":
    machine.keep_freed_memory()  # as the command does: new memory at each call would be timed, too
    main(json.loads(sys.argv[1]))
