"""Constraints under which pip installs the lowest version of each package that pyproject.toml allows.

    python lowest.py EXTRA ...

Those of other extras are left out, as two of them may contradict each other. Packages that these need in turn come in
their newest versions, as for a user of today who holds one back.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text("utf-8"))["project"]


def requirements(extra: str) -> list[str]:
    """Those of an extra, and of the extras that it names."""
    listed = []
    for requirement in project["optional-dependencies"][extra]:
        if named := re.match(rf"{project['name']}\[(.*)\]", requirement):
            listed += [line for name in named[1].split(",") for line in requirements(name)]
        else:
            listed.append(requirement)
    return listed


bounds = {}
for requirement in [*project["dependencies"], *(line for extra in sys.argv[1:] for line in requirements(extra))]:
    if bound := re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement):
        bounds[bound[1]] = bound[2]
print("\n".join(f"{name}=={version}" for name, version in sorted(bounds.items())))
