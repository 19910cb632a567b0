"""Optional libraries: the words that say how to install them."""

from __future__ import annotations

# The package index has another project's package under the import name.
DISTRIBUTION = "minicnn-arrays"


def install(extra: str) -> str:
    """The commands that install minicnn with an extra, such as "numba": from the package index, and in a clone."""
    return f'pip install "{DISTRIBUTION}[{extra}]" (in a clone: pip install ".[{extra}]")'
