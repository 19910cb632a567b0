"""Judge an installed wheel: what it brings, how large it is, how long it takes to import, and that it trains."""

import statistics
import subprocess
import sys
import time
from importlib.metadata import distribution, distributions
from pathlib import Path

LIMIT_MB = 3.0
# Parts that are of no use without an extra: installed with the rest, counted apart.
EXTRA = ("backends/numba/", "backends/_cuda/", "backends/cupy/", "backends/numba_cuda/", "bench/", "studies/")
LIMIT_SECONDS = 0.06
REPEATS = 11


def main() -> None:
    """Check everything; the first rule that is broken ends the program."""
    names = {d.name.lower().replace("_", "-") for d in distributions()}
    check(
        names <= {"minicnn", "numpy", "array-api-compat", "pip", "setuptools"},
        "The core needs NumPy and array-api-compat only",
        sorted(names),
    )

    files = [Path(str(f.locate())) for d in ("minicnn", "array-api-compat") for f in distribution(d).files or ()]
    check(any(f.name == "py.typed" for f in files), "The wheel has the marker py.typed", "none")
    sizes = {f.as_posix(): f.stat().st_size / 1e6 for f in files if f.exists()}  # byte code included
    extra = sum(size for name, size in sizes.items() if any(f"minicnn/{part}" in name for part in EXTRA))
    megabytes = sum(sizes.values()) - extra
    check(megabytes <= LIMIT_MB, f"The core and array-api-compat take {LIMIT_MB} MB at most", f"{megabytes:.2f} MB")

    alone, both = [], []
    for _ in range(REPEATS):
        alone.append(seconds("import numpy"))
        both.append(seconds("import numpy, minicnn"))
    added = statistics.median(both) - statistics.median(alone)
    check(added <= LIMIT_SECONDS, f"import minicnn adds {LIMIT_SECONDS} s to import numpy at most", f"{added:.3f} s")

    before, after = train()
    check(after < before, "The wheel trains: the loss falls", f"{before:.3f} to {after:.3f}")
    sizes_text = f"{megabytes:.2f} MB and {extra:.2f} MB of parts for extras"
    print(f"{sizes_text}, import {added * 1e3:+.0f} ms, loss {before:.3f} to {after:.3f}")


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
    main()
