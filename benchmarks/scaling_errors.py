"""The model of times beside steps that local ranks took together, to which it was not fitted.

    python benchmarks/scaling_errors.py [--ranks 2,3,4] [--networks alexnet:64,64,3:64 ...]
        [--budget S]

For each number of ranks they compute by themselves but all at once, sum arrays of several sizes, and train together;
rates and the network are fitted to the first two, as by `minicnn predict-scaling --calibrate`.
"""

from __future__ import annotations

import argparse

from minicnn import machine
from minicnn.distribution import prediction
from minicnn.measure import local_ranks


def main() -> None:
    """Measure, fit, and print what was not fitted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--networks", nargs="+", default=["alexnet:64,64,3:64", "platforms:28,28,1:512"])
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each number of ranks, beside compiling")
    given = parser.parse_args()
    runs = []
    for network, image, batch in (text.split(":") for text in given.networks):
        shape = tuple(map(int, image.split(",")))
        runs.append({"network": network, "image": shape, "classes": 10, "batch": int(batch), "backend": given.backend})
    for ranks in map(int, given.ranks.split(",")):
        found = local_ranks.measure(runs, ranks=ranks, budget_s=given.budget)
        for point in prediction.calibrate(found, local_ranks.trace).points:
            if not point.fitted:
                print(
                    f"{point.what}: {point.measured * 1e3:.1f} ms measured, {point.predicted * 1e3:.1f} predicted, "
                    f"{point.error:+.0%}",
                    flush=True,
                )


if __name__ == "__main__":
    machine.prepare()
    main()
