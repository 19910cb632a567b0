"""Builds minicnn-core from the sources of minicnn: its metadata, and its files less the parts that need an extra."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
CLONE = HERE.parent.parent
PACKAGE = CLONE / "src" / "minicnn"

# Folders that are left out. absent.py takes the place of each, but of those that
# only the others use.
ABSENT = ("backends/cupy", "backends/numba", "backends/numba_cuda", "bench", "studies")
UNUSED = ("backends/_gpu",)
# Extras that bring something here.
EXTRAS = ("cli", "torch", "jax")
SHARED = (
    "version", "description", "license", "requires-python", "authors", "keywords", "classifiers", "dependencies",
    "scripts",
)  # fmt: skip


class Metadata(MetadataHookInterface):
    """The metadata of minicnn under the name minicnn-core."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See `MetadataHookInterface.update`."""
        project = tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["project"]
        metadata.update({field: project[field] for field in SHARED})
        metadata["optional-dependencies"] = {name: project["optional-dependencies"][name] for name in EXTRAS}
        metadata["readme"] = {"content-type": "text/markdown", "text": (HERE / "README.md").read_text("utf-8")}


class Files(BuildHookInterface[Any]):
    """The files of minicnn, less some folders, and a word in the place of each."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See `BuildHookInterface.initialize`."""
        files = {CLONE / "LICENSE": f"{self.build_config.builder.project_id}.dist-info/licenses/LICENSE"}
        left_out = tuple(f"{folder}/" for folder in (*ABSENT, *UNUSED))
        for path in PACKAGE.rglob("*"):
            inside = path.relative_to(PACKAGE).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and not inside.startswith(left_out):
                files[path] = f"minicnn/{inside}"
        self._words = TemporaryDirectory()  # each file has one place only, so there is one for each
        for number, folder in enumerate(ABSENT):
            word = Path(self._words.name, f"{number}.py")
            shutil.copyfile(HERE / "absent.py", word)
            files[word] = f"minicnn/{folder}/__init__.py"
        build_data["force_include"].update({str(source): place for source, place in files.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See `BuildHookInterface.finalize`."""
        self._words.cleanup()
