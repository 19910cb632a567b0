"""Judge the installed wheel: what it brings, its import time, that it trains, and what it says of what is not there."""

import statistics
import subprocess
import sys
import time
from importlib.metadata import distribution, distributions

NAME = "minicnn-arrays"
LIMIT_SECONDS = 0.06
REPEATS = 11
COMMAND = (sys.executable, "-I", "-m", "minicnn", "train", "mlp")


def main() -> None:
    """Check everything; the first rule that is broken ends the program."""
    names = {d.name.lower().replace("_", "-") for d in distributions()}
    needed = {NAME, "numpy", "array-api-compat"}
    check(needed <= names <= needed | {"pip", "setuptools"}, f"{NAME} needs nothing but {needed}", sorted(names))
    files = distribution(NAME).files or ()
    check(any(f.name == "py.typed" for f in files), "The wheel has the marker py.typed", "none")

    alone, both = [], []
    for _ in range(REPEATS):
        alone.append(seconds("import numpy"))
        both.append(seconds("import numpy, minicnn"))
    added = statistics.median(both) - statistics.median(alone)
    check(added <= LIMIT_SECONDS, f"import minicnn adds {LIMIT_SECONDS} s to import numpy at most", f"{added:.3f} s")

    before, after = train()
    check(after < before, "The wheel trains: the loss falls", f"{before:.3f} to {after:.3f}")

    check(f"{NAME}[numba]" in failure(), "A backend without its library says what to install", failure())
    said = subprocess.run(COMMAND, capture_output=True, text=True, check=False).stderr
    check(f"{NAME}[cli]" in said, "The command without its libraries says what to install", said)
    print(f"{NAME}: import {added * 1e3:+.0f} ms, loss {before:.3f} to {after:.3f}")


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


def failure() -> str:
    """What asking for the numba backend says."""
    from minicnn import get_backend

    try:
        get_backend("numba")
    except ImportError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
