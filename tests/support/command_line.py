"""Running the command line in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result


def minicnn(*args: str, stdin: str | None = None) -> Result:
    """What a command ends with: exit_code, stdout, stderr."""
    from minicnn.cli import cli

    return CliRunner().invoke(cli, args, input=stdin)


def error_of(result: Result, code: int) -> str:
    """The one line of a command that must have failed with a code."""
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    return lines[0].removeprefix("error: ")
