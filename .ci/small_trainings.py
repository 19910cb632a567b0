"""Small trainings, evaluations and predictions on the cupy backend, and steps on many rows; for `.ci/sanitize`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

from backends.cupy.dense import dense_network, step
from backends.cupy.networks import NETWORKS, data
from minicnn.backends._gpu.options import NAIVE, Options
from minicnn.backends.cupy.backend import CupyBackend

x, y = data()
for name, network in NETWORKS.items():
    for options in (Options(graph=False), NAIVE, Options(resident=False)):
        model = network(CupyBackend(options=options))
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        model.evaluate(x, y, batch_size=16)
        model.predict(x, batch_size=16)
        print(name, options, flush=True)
for dtype in ("uint8", "float32"):
    program, given = step(dense_network(96, [10], 10, dtype=dtype), 5000, 96, 10)
    backend = CupyBackend(strict=True)
    made = backend.compile(program())({k: backend.asarray(v) for k, v in given.items()})
    if not all(np.isfinite(backend.to_numpy(v)).all() for v in made.values()):
        sys.exit(f"Results of a step on many rows are finite. Received others on rows of {dtype}.")
    print("rows of", dtype, flush=True)
