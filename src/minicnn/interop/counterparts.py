"""The error for what another library has and minicnn has not, or the other way round."""

from __future__ import annotations


class NoCounterpartError(ValueError):
    """A layer, an operator or an argument has no counterpart; says of what. Readers gather all, and then refuse."""
