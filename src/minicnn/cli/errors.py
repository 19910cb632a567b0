"""Errors of the command line: one line, and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

DEBUG = "MINICNN_DEBUG"
FAILURE, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

# Errors whose message is written for the user; any other kind is named.
_EXPECTED = (ValueError, TypeError, RuntimeError, OSError, ImportError, MemoryError)


class Commands(click.Group):
    """A group whose commands end with one line on stderr and an exit code, never with a traceback."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`; the first sentence of each command is whole, not cut to a line."""
        named = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in named if command is not None
                and not command.hidden]  # fmt: skip
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:
        """See `click.Group.main`; leaves by SystemExit."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except (click.Abort, KeyboardInterrupt) as error:  # click makes an Abort of Ctrl-C
            terminated = (error.__cause__ or error).args == (TERMINATED,)
            _say("terminated" if terminated else "interrupted")
            sys.exit(TERMINATED if terminated else INTERRUPTED)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(USAGE)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else self.name
            _say(f"{one_line(error.format_message())} See {path} --help.")
            sys.exit(USAGE)
        except click.ClickException as error:
            _say(one_line(error.format_message()))
            sys.exit(error.exit_code)
        except BrokenPipeError:
            # The reader of a pipe has gone; Python's own last flush must not fail, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILURE)
        except Exception as error:
            if os.environ.get(DEBUG, "0") not in ("", "0"):
                raise
            if not getattr(error, "reported", False):  # by the rank that failed
                _say(describe(error))
            sys.exit(FAILURE)
        sys.exit(code if isinstance(code, int) else 0)


def heed_termination() -> None:
    """Let SIGTERM do what Ctrl-C does, unless the parent process set it to be ignored."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: Any) -> None:
    raise KeyboardInterrupt(TERMINATED)


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if not isinstance(error, _EXPECTED) or not text.strip():
        text = f"{type(error).__name__}: {text} ({DEBUG}=1 shows where)"
    return one_line(text)


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())


def _say(text: str) -> None:
    click.echo(f"error: {text}", err=True)
