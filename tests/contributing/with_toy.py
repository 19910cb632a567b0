"""A pytest plugin that puts the folder of the toy backend beside those of minicnn's."""

from __future__ import annotations

from pathlib import Path

import minicnn.backends

minicnn.backends.__path__.append(str(Path(__file__).parent / "backends"))
