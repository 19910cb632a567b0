"""The command `minicnn`, also as `python -m minicnn`."""

import os
import sys

from minicnn import machine
from minicnn.extras import install


def main() -> None:
    """Run the command line. It makes its settings first, because libraries read them when they are loaded."""
    for name in ("stdin", "stdout", "stderr"):  # None without a console, as under pythonw
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115 - stays open
    machine.prepare()
    try:
        import click  # noqa: F401 - whether it is there
        import rich  # noqa: F401
    except ImportError as error:
        print(f"error: The command line needs {error.name}: {install('cli')}", file=sys.stderr)
        raise SystemExit(1) from None
    from minicnn.cli import cli
    from minicnn.cli.errors import heed_termination

    heed_termination()
    cli.main(prog_name="minicnn")


if __name__ == "__main__":
    main()
