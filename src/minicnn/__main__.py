"""The command `minicnn`, also as `python -m minicnn`."""

import sys

from minicnn import machine
from minicnn.extras import install


def main() -> None:
    """Run the command line. It makes its settings first, because libraries read them when they are loaded."""
    machine.prepare()
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        print(f"error: The command line needs {error.name}: {install('cli')}", file=sys.stderr)
        raise SystemExit(1) from None
    from minicnn.cli import cli

    cli.main(prog_name="minicnn")


if __name__ == "__main__":
    main()
