"""Errors are one line and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import minicnn as package
from minicnn.cli.errors import Commands
from minicnn.extras import install
from support.command_line import error_of, minicnn


def python(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["train"], "Missing argument 'NETWORK'"),
        (["train", "plattforms"], "Did you mean 'platforms'?"),
        (["train", "mlp", "--data", "minst"], "Did you mean 'mnist'?"),
        (["train", "mlp", "--backend", "nunpy"], "Did you mean 'numpy'?"),
        (["train", "mlp", "--epochs", "0"], "'--epochs'"),
        (["train", "mlp", "--batch-size", "x"], "'x' is not a valid integer"),
        (["train", "mlp", "--lr", "nan"], "not a finite number"),
        (["train", "mlp", "--lr", "-1"], "'--lr'"),
        (["train", "mlp", "--momentum", "1"], "'--momentum'"),
        (["train", "mlp", "--precision", "float8"], "'float8' is not one of"),
        (["train", "mlp", "--seed", "-1"], "'--seed'"),
        (["train", "mlp", "--data-dir", "nowhere"], "'nowhere' does not exist"),
        (["train", "mlp", "--unknown"], "No such option"),
        (["compare", "mlp", "--backends", "numpy,nunpy"], "Did you mean 'numpy'?"),
        (["compare", "mlp", "--backends", " ,"], "names at least one backend"),
        (["info", "--jason"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(args: list[str], said: str) -> None:
    line = error_of(minicnn(*args), 2)
    assert said in line
    assert "--help" in line
    assert not list(Path().iterdir())


def test_without_arguments_help_is_shown() -> None:
    result = minicnn()
    assert result.exit_code == 2
    assert "Usage:" in result.output
    assert all(command in result.output for command in ("info", "train", "compare"))
    assert "worker" not in result.output


def test_help_and_version() -> None:
    assert minicnn("--version").output.split() == ["minicnn,", "version", package.__version__]
    result = minicnn("train", "-h")
    assert result.exit_code == 0, result.output
    assert all(option in result.output for option in ("--data-dir", "--lr", "--hold-out", "--overwrite", "lenet_3x3"))


@click.group(cls=Commands)
def trouble() -> None:
    pass


ERRORS = {
    "value": ValueError("one\n  two"),
    "empty": RuntimeError(),
    "bug": KeyError("x"),
    "file": FileNotFoundError(2, "No such file or directory", "a/b"),
    "interrupt": KeyboardInterrupt(),
    "usage": click.BadParameter("bad"),
    "own": click.ClickException("own\ntext"),
}
ERRORS["value"].add_note("In layer 'x'.")


@trouble.command()
@click.argument("kind")
def meet(kind: str) -> None:
    raise ERRORS[kind]


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("value", 1, "one two In layer 'x'."),
        ("empty", 1, "RuntimeError: (MINICNN_DEBUG=1 shows where)"),
        ("bug", 1, "KeyError: 'x' (MINICNN_DEBUG=1 shows where)"),
        ("file", 1, "a/b: No such file or directory"),
        ("interrupt", 130, "interrupted"),
        ("usage", 2, "Invalid value: bad See trouble meet --help."),
        ("own", 1, "own text"),
    ],
)
def test_every_error_is_one_line(kind: str, code: int, line: str) -> None:
    result = CliRunner().invoke(trouble, ["meet", kind], prog_name="trouble")
    assert result.exit_code == code
    assert result.stderr.strip().removeprefix("error: ") == line


def test_debug_shows_where_an_error_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_DEBUG", "1")
    result = CliRunner().invoke(trouble, ["meet", "value"])
    assert result.exception is ERRORS["value"]
    monkeypatch.setenv("MINICNN_DEBUG", "0")
    assert CliRunner().invoke(trouble, ["meet", "value"]).stderr.startswith("error: ")


def test_the_module_runs_as_the_command() -> None:
    done = python("-m", "minicnn", "train", "nonsense")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_libraries_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from minicnn.__main__ import main; main()"
    done = python("-c", code)
    assert done.returncode == 1
    assert done.stderr == f"error: The command line needs {missing}: {install('cli')}\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as in POSIX")
def test_a_pipe_that_is_closed_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "minicnn", "train", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as in POSIX")
@pytest.mark.parametrize(
    ("number", "exit_code", "line"),
    [(signal.SIGINT, 130, "error: interrupted"), (signal.SIGTERM, 143, "error: terminated")],
)
def test_ctrl_c_and_a_termination_end_it_with_one_line_and_nothing_half_written(
    number: int, exit_code: int, line: str
) -> None:
    # Python heeds Ctrl-C only if it was not ignored where this process was started.
    code = "import signal; signal.signal(2, signal.default_int_handler); from minicnn.__main__ import main; main()"
    command = [sys.executable, "-c", code, "train", "mlp", "--samples", "200", "--epochs", "100000", "--out", "a/b"]
    # Not measured: a signal while coverage holds its lock would leave the process waiting for that lock for ever.
    env = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_PROCESS")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        while "Epoch 1/" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()  # leaving the block waits for it
    assert process.returncode == exit_code
    assert said.splitlines()[-1] == line
    assert "Traceback" not in said
    assert not Path("a").exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
@pytest.mark.parametrize("module", ["minicnn.machine", "rich", "numpy", "minicnn.cli.study"])
def test_ctrl_c_while_it_imports_is_one_line(module: str, handler: str) -> None:
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.{handler})
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        try:
            if name == {module!r}:
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as where C code imports NumPy
            raise ImportError("numpy._core.multiarray failed to import", name=name) from None
sys.meta_path.insert(0, Interrupting())
from minicnn.__main__ import main
main()
"""
    done = python("-c", code, "--version")
    ignored = handler == "SIG_IGN"
    assert (done.returncode, done.stderr) == ((0, "") if ignored else (130, "error: interrupted\n"))
    assert bool(done.stdout) == ignored


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as in POSIX")
def test_a_termination_that_is_ignored_stays_so() -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN); from minicnn.__main__ import main; import os, atexit; "
    code += "atexit.register(lambda: print(signal.getsignal(15) == signal.SIG_IGN)); main()"
    assert python("-c", code, "--version").stdout.splitlines()[-1] == "True"


@pytest.mark.skipif(os.name != "posix", reason="closes file descriptors")
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("plan", "mlp", "--gpu", "h200"), 0),
        (("train", "mlp", "--samples", "40", "--epochs", "1", "--out", "out"), 0),
        (("train", "nonsense"), 2),
    ],
)
def test_it_runs_without_a_console(args: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    """As under pythonw: sys.stdin, sys.stdout and sys.stderr are None."""
    script = "import sys; assert sys.stdout is None; from minicnn.__main__ import main; main()"
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script, *args]
    assert subprocess.run(shell, check=False).returncode == expected
    if "out" in args:
        assert "run.json" in os.listdir("out")
