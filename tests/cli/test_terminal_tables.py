"""What a terminal of 80 columns shows: no table is cut or broken in a word, help is whole, and the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from minicnn.cli import cli
from support.command_line import done
from support.terminal import pseudo_terminal, screen

SCALING = ["predict-scaling", "lenet_3x3", "--device", "h200", "--ranks", "1,4"]


def shown(args: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a command on a terminal of 80 columns."""
    with pseudo_terminal(monkeypatch, "stdout") as written:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit, match="0"):
            cli.main(args)
    return screen(written[0])


@pytest.mark.parametrize(
    ("args", "heads"),
    [
        (SCALING, ["ranks", "strategy", "step", "speed-up", "waits", "sends", "how"]),
        (["info"], ["backend", "data set"]),
    ],
    ids=["predict-scaling", "info"],
)
def test_tables_fit(args: list[str], heads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(args, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert all(any(head in line for line in lines) for head in heads)


def test_columns_of_a_prediction_are_chosen() -> None:
    def heads(*columns: str) -> list[str]:
        lines = done(*SCALING, "--columns", ",".join(columns)).stdout.splitlines()
        return next(line.split() for line in lines if line.startswith("ranks "))

    assert heads("hidden", "memory") == ["ranks", "strategy", "hidden", "memory"]
    assert heads("all")[-1] == "how"
    assert len(heads("all")) == 11


def test_help_is_not_cut() -> None:
    said = " ".join(done("--help").stdout.split())
    assert "..." not in said.replace("[ARGS]...", "")
    assert "Predict how the training of NETWORK scales over ranks (processes) that need not be there." in said


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("minicnn pl", "plan"), ("minicnn plan two", "two_convs"), ("minicnn train mlp --optimizer ada", "adamw")],
)
def test_the_shell_completes(words: str, wanted: str) -> None:
    environment = {
        **os.environ, "_MINICNN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    code = "import sys; sys.argv[0] = 'minicnn'; from minicnn.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert f"plain,{wanted}" in run.stdout.splitlines(), run.stderr
