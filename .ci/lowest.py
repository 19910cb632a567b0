"""Constraints under which pip installs the lowest version of each package that pyproject.toml allows.

Packages that these need in turn come in their newest versions, as for a user of today who holds one back.
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
bounds = {}
for requirements in (project["dependencies"], *project["optional-dependencies"].values()):
    for requirement in requirements:
        if found := re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement):
            bounds[found[1]] = found[2]
print("\n".join(f"{name}=={version}" for name, version in sorted(bounds.items())))
