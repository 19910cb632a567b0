"""Optional libraries: the words that say how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The package index has another project's package under the import name.
DISTRIBUTION = "minicnn-arrays"


def install(extra: str) -> str:
    """The commands that install minicnn with an extra, such as "numba": from the package index, and in a clone."""
    return f'pip install "{DISTRIBUTION}[{extra}]" (in a clone: pip install ".[{extra}]")'


@contextmanager
def needing(what: str, library: str, remedy: str = "", *, extra: str = "cli") -> Iterator[None]:
    """Context manager: where an import within fails, the error says what needs the library, and how to install it."""
    try:
        yield
    except ImportError as error:
        message = f"{what} {library}: {install(extra)}. {remedy}".strip()
        raise ImportError(message, name=library) from error
