"""Trains the small networks of the tests on the cupy backend, evaluates, predicts; for `.ci/sanitize`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from backends.cupy.networks import NETWORKS, data
from minicnn.backends.cupy import NAIVE, CupyBackend, Options

x, y = data()
for name, network in NETWORKS.items():
    for options in (Options(graph=False), NAIVE, Options(resident=False)):
        model = network(CupyBackend(options=options))
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        model.evaluate(x, y, batch_size=16)
        model.predict(x, batch_size=16)
        print(name, options, flush=True)
