"""The reference studies: one module each, which ends with `STUDY = Study(...)`, found by its name."""

from __future__ import annotations

import importlib
import pkgutil

from minicnn.measure.study import Study

# The order in which they are carried out; one that is not named here comes after these.
ORDER = ("mlp", "platforms", "convolution", "kernels", "roofline")


def names() -> list[str]:
    """Names of the studies."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return sorted(modules, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def get_study(name: str) -> Study:
    """A study by its name.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in names():
        raise ValueError(f"A study is one of {', '.join(names())}. Received: {name!r}.")
    study: Study = importlib.import_module(f"{__name__}.{name}").STUDY
    return study
