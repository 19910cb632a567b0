"""The command `minicnn`, also as `python -m minicnn`."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line. It makes its settings first, because libraries read them when they are loaded."""
    for name in ("stdin", "stdout", "stderr"):  # None without a console, as under pythonw
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115 - stays open
    heeded = signal.getsignal(signal.SIGINT) == signal.default_int_handler  # else Ctrl-C is ignored, as behind nohup
    if heeded:
        signal.signal(signal.SIGINT, _interrupted)
    from minicnn import machine
    from minicnn.extras import install

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
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main(prog_name="minicnn")


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C while modules are imported, where an exception might be caught, or taken for a missing library."""
    print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(130)  # `minicnn.cli.errors` may not be there yet


if __name__ == "__main__":
    main()
