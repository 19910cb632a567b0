"""Judge the installed wheel of minicnn or minicnn-core: what it brings, its size, its import time, that it trains.

With the argument `commands`: that the command line of minicnn-core says what is not there, and trains.
"""

import importlib
import json
import statistics
import subprocess
import sys
import time
from importlib.metadata import distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory

CORE = "minicnn-core"
LIMIT_MB = 3.0  # of minicnn-core and array-api-compat, byte code included
ABSENT = ("cupy", "numba", "numba_cuda")
LIMIT_SECONDS = 0.06
REPEATS = 11
COMMAND = (sys.executable, "-I", "-m", "minicnn")


def main() -> None:
    """Check everything; the first rule that is broken ends the program."""
    names = {d.name.lower().replace("_", "-") for d in distributions()}
    ours = names & {"minicnn", CORE}
    check(len(ours) == 1, f"One of minicnn and {CORE} is installed", sorted(names))
    check(
        names <= {*ours, "numpy", "array-api-compat", "pip", "setuptools"},
        "The wheel needs NumPy and array-api-compat only",
        sorted(names),
    )

    files = [Path(str(f.locate())) for d in (*ours, "array-api-compat") for f in distribution(d).files or ()]
    check(any(f.name == "py.typed" for f in files), "The wheel has the marker py.typed", "none")
    megabytes = sum(f.stat().st_size for f in files if f.exists()) / 1e6
    if CORE in ours:
        check(megabytes <= LIMIT_MB, f"{CORE} and array-api-compat take {LIMIT_MB} MB", f"{megabytes:.2f} MB")
        for part in ("bench", "studies", *(f"backends.{name}" for name in ABSENT)):
            check("pip install minicnn" in failure(part), f"{CORE} says where minicnn.{part} is", failure(part))

    alone, both = [], []
    for _ in range(REPEATS):
        alone.append(seconds("import numpy"))
        both.append(seconds("import numpy, minicnn"))
    added = statistics.median(both) - statistics.median(alone)
    check(added <= LIMIT_SECONDS, f"import minicnn adds {LIMIT_SECONDS} s to import numpy at most", f"{added:.3f} s")

    before, after = train()
    check(after < before, "The wheel trains: the loss falls", f"{before:.3f} to {after:.3f}")
    size = f"{', '.join(ours)}: {megabytes:.2f} MB with array-api-compat"
    print(f"{size}, import {added * 1e3:+.0f} ms, loss {before:.3f} to {after:.3f}")


def commands() -> None:
    """Check the command line of minicnn-core."""
    info = subprocess.run([*COMMAND, "info", "--json"], capture_output=True, text=True, check=True)
    backends = json.loads(info.stdout)["backends"]
    there = [name for name in ABSENT if "pip install minicnn" not in (backends[name]["remedy"] or "")]
    check(not there, f"minicnn info lists {', '.join(ABSENT)} as absent from {CORE}", there)
    study = subprocess.run([*COMMAND, "study", "mlp", "--quick"], capture_output=True, text=True, check=False)
    check(study.returncode == 1 and "pip install minicnn" in study.stderr, "study says what to install", study.stderr)
    with TemporaryDirectory() as folder:
        options = ["--samples", "256", "--batch-size", "64", "--epochs", "1", "--out"]
        subprocess.run([*COMMAND, "train", "platforms", *options, f"{folder}/train"], check=True)
        subprocess.run([*COMMAND, "compare", "platforms", *options, f"{folder}/compare"], check=True)


def failure(part: str) -> str:
    """What importing a part says."""
    try:
        importlib.import_module(f"minicnn.{part}")
    except ImportError as error:
        return str(error)
    return ""


def check(holds: bool, rule: str, received: object) -> None:
    """End the program unless a rule holds."""
    if not holds:
        sys.exit(f"{rule}. Received: {received}.")


def seconds(code: str) -> float:
    """Wall time of a new interpreter that runs the code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    return time.perf_counter() - start


def train() -> tuple[float, float]:
    """Loss of the first and the third epoch of a small network."""
    from minicnn import Sequential, data
    from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling

    digits = data.load("synthetic_digits", n_train=500, n_test=10)
    layers = [Rescaling(1 / 255), Conv2D(8, 3, activation="relu"), MaxPooling2D(), Flatten(), Dense(10, "softmax")]
    model = Sequential([Input((28, 28, 1), dtype="uint8"), *layers])
    model.compile("adam", "sparse_categorical_crossentropy")
    losses = model.fit(digits.x_train, digits.y_train, epochs=3, verbose=0).history["loss"]
    return losses[0], losses[-1]


if __name__ == "__main__":
    commands() if sys.argv[1:] == ["commands"] else main()
