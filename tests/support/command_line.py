"""Running the command line in this process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from minicnn.jobs.settings import Settings


def minicnn(*args: str, stdin: str | None = None) -> Result:
    """What a command ends with: exit_code, stdout, stderr."""
    from minicnn.cli import cli

    return CliRunner().invoke(cli, args, input=stdin)


def settings_of(network: str = "mlp", **given: Any) -> Settings:
    """What a command trains with by these options, and the network's own where there is none."""
    names = ("data_dir", "epochs", "batch_size", "learning_rate", "momentum", "samples", "hold_out")
    default = {**dict.fromkeys(names), "data": "synthetic_digits", "precision": "float32", "seed": 0}
    return Settings.resolve(network, **{**default, **given})


def error_of(result: Result, code: int) -> str:
    """The one line of a command that must have failed with a code."""
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    return lines[0].removeprefix("error: ")
