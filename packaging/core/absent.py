"""Stands in the place of a part of minicnn that minicnn-core leaves out, and says so."""

message = (
    f"{__name__} is a part of minicnn. Received: minicnn-core, which leaves it out. "
    "Remedy: pip uninstall minicnn-core, then pip install minicnn."
)
raise ImportError(message, name=__name__)
