"""The model of times beside what two hosts take on a shaped link: all-reduces, and whole steps.

    python benchmarks/shaped_links.py [--rates 100,1000] [--units 400,1000] [--runs N]

The hosts are network namespaces of this machine, as in tests/distribution/test_hosts.py, for which one must be root;
the ranks talk through MPI. Nothing is fitted: the link is what it is shaped to, and a step is predicted as that of a
rank by itself and the sum of what it sends. Of each run the least time of several counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from minicnn.distribution.prediction import Interconnect
from support import namespaces

SIZES = (215_000, 1_000_000, 4_000_000, 25_000_000)  # bytes of all-reduces
PAYLOAD = 1448 / 1514  # of a packet


def main() -> None:
    """Measure, predict, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,1000", help="Mbit/s")
    parser.add_argument("--units", default="400,1000", help="of the layers of a dense network")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    why_not = namespaces.not_permitted()
    if why_not is not None:
        raise SystemExit(why_not)
    print(
        "| Mbit/s | what | measured ms: median (least to most) | predicted ms | error |\n"
        "| ---: | --- | --- | ---: | ---: |"
    )
    for megabits in map(int, given.rates.split(",")):
        link = Interconnect("shaped", 5e-5, megabits * 125_000 * PAYLOAD)
        measured, predicted = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for _ in range(given.runs):
            for number, units in enumerate(given.units.split(",")):
                wanted = ["numpy", units, "10", "300", *map(str, SIZES if number == 0 else ())]
                with namespaces.hosts(megabits) as hosts, tempfile.TemporaryDirectory() as folder:
                    found = namespaces.result(hosts.start("mpi", "support.rank_link", *wanted, FOLDER=folder))
                for nbytes, seconds in found["all_reduce"].items():
                    what = f"all-reduce of {int(nbytes) / 1e3:,.0f} kB"
                    measured[what].append(seconds)
                    predicted[what].append(link.all_reduce(float(nbytes), 2, "fixed"))
                what = f"step that sends {found['sent'] / 1e3:,.0f} kB"
                measured[what].append(found["step"])
                predicted[what].append(found["alone"] + link.all_reduce(found["sent"], 2, "fixed"))
        for what, times in measured.items():
            typical, model = statistics.median(times), statistics.median(predicted[what])
            spread = f"{typical * 1e3:.1f} ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})"
            print(f"| {megabits:,} | {what} | {spread} | {model * 1e3:.1f} | {model / typical - 1:+.0%} |")


if __name__ == "__main__":
    main()
