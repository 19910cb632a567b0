"""Where NVIDIA's libraries are found, on trees of files as wheels, conda and toolkits lay them out on both systems.

What answers is cuda-pathfinder's own search, told by its inner parts which system it is on; only the loader, which
needs libraries that load, is a stand-in.
"""

from __future__ import annotations

import ctypes
import site
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from minicnn.backends.cupy import nvidia, nvrtc

LAYOUTS = {
    "linux": {
        "wheel of CUDA 13": "site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        "wheel of CUDA 12": "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "conda": "conda/lib/libnvrtc.so.12",
        "loader": "usr/lib/libnvrtc.so.13",
        "toolkit": "toolkit/lib64/libnvrtc.so.13",
    },
    "windows": {
        "wheel of CUDA 13": "site-packages/nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
        "wheel of CUDA 12": "site-packages/nvidia/cuda_nvrtc/bin/nvrtc64_120_0.dll",
        "conda": "conda/Library/bin/nvrtc64_120_0.dll",
        "loader": "Windows/System32/nvrtc64_130_0.dll",
        "toolkit": "toolkit/bin/x64/nvrtc64_130_0.dll",
        "toolkit of CUDA 12": "toolkit/bin/nvrtc64_120_0.dll",
    },
}
# What lies beside NVRTC and is something else.
OTHERS = (
    "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12",
    "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
    "site-packages/nvidia/cuda_nvrtc/bin/nvrtc64_120_0.alt.dll",
    "site-packages/nvidia/cu13/bin/x86_64/nvrtc-builtins64_135.dll",
    "toolkit/bin/nvrtc-builtins64_129.dll",
)


@dataclass
class Loader:
    """Stand-in for the system's loader, which knows one folder."""

    folder: Path
    loaded: Callable[..., Any]

    def check_if_already_loaded_from_elsewhere(self, library: Any) -> None:
        """Nothing is loaded yet."""

    def load_with_system_search(self, library: Any) -> Any:
        found = [p for name in (*library.linux_sonames, *library.windows_dlls) if (p := self.folder / name).exists()]
        return self.load_with_abs_path(library, str(found[0]), "system-search") if found else None

    def load_with_abs_path(self, library: Any, path: str, via: str | None = None) -> Any:
        return self.loaded(path, False, 0, via)


@pytest.fixture(params=LAYOUTS)
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A system whose packages, conda environment, toolkit and libraries lie below the temporary folder."""
    inner = "cuda.pathfinder._dynamic_libs"
    search, platforms = import_module(f"{inner}.load_nvidia_dynamic_lib"), import_module(f"{inner}.search_platform")
    on_windows = request.param == "windows"
    platform = platforms.WindowsSearchPlatform("x64") if on_windows else platforms.LinuxSearchPlatform()
    folder = tmp_path / ("Windows/System32" if on_windows else "usr/lib")
    monkeypatch.setattr(search, "SearchContext", partial(search.SearchContext, platform=platform))
    monkeypatch.setattr(search, "LOADER", Loader(folder, search.LoadedDL))
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "site-packages")])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    monkeypatch.setattr(ctypes, "CDLL", Path)
    monkeypatch.setattr(nvidia, "load", nvidia.load.__wrapped__)
    monkeypatch.setattr(nvrtc, "load", nvidia.load)
    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", search.load_nvidia_dynamic_lib.__wrapped__)
    monkeypatch.setattr(
        "cuda.pathfinder._dynamic_libs.search_steps.get_cuda_path_or_home",
        import_module("cuda.pathfinder").get_cuda_path_or_home.__wrapped__,
    )
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return str(request.param)


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME"])
def test_nvrtc_is_found_wherever_it_may_be_installed(
    system: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv(variable, str(tmp_path / "toolkit"))
    for place in LAYOUTS[system].values():
        put(tmp_path, *OTHERS, place)
        assert nvidia.load("nvrtc", "missing") == tmp_path / place
        (tmp_path / place).unlink()


def test_packages_come_before_conda_the_loader_and_toolkits(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "toolkit"))
    places = list(LAYOUTS[system].values())
    put(tmp_path, *places)
    for place in places:
        assert nvidia.load("nvrtc", "missing") == tmp_path / place
        (tmp_path / place).unlink()


def test_where_there_is_none_the_error_says_what_to_install(system: str, tmp_path: Path) -> None:
    put(tmp_path, *OTHERS)
    with pytest.raises(ImportError, match=r'NVRTC\. Received: none .* pip install "minicnn-arrays\[cuda13\]"'):
        nvrtc.version()
