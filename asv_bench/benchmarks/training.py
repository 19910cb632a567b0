"""Training, evaluation and prediction through the public methods: what a user waits for."""

from __future__ import annotations

from typing import Any

from .common import BACKENDS, DEEP, NETWORKS, ON_GPU, SMALL, backend_or_skip, network, samples


class _Runs:
    """A network that has trained a little already, and the samples of a timed run, which are on the device."""

    version = "samples on the device"  # asv shows results together that have the same
    timeout = 600
    warmup_time = 0  # setup has run everything that is timed
    rounds = 2

    def setup(self, name: str, backend: str) -> None:
        """Compile the network and train a run."""
        if name in DEEP and backend == "numpy":
            message = "takes minutes on NumPy"
            raise NotImplementedError(message)
        self.backend = backend_or_skip(backend)
        self.model = network(name, self.backend)
        self.batch = NETWORKS[name][2]
        on_gpu = self.backend.device != "cpu"
        self.x, self.y = samples(name, ON_GPU if on_gpu else 1)
        if on_gpu:
            self.x, self.y = self.backend.asarray(self.x), self.backend.asarray(self.y)
        self.time_training(name, backend)

    def time_training(self, *_: Any) -> None:
        """Steps of `fit`: see `common.NETWORKS`; on a GPU ten times as many."""
        self.model.fit(self.x, self.y, batch_size=self.batch, epochs=1, shuffle=False, verbose=0)
        self.backend.synchronize()


class SmallNetworks(_Runs):
    """The reference studies' networks, and variations of them."""

    params = (SMALL, BACKENDS)
    param_names = ("network", "backend")

    def time_evaluation(self, *_: Any) -> None:
        """`evaluate` on the samples of a run."""
        self.model.evaluate(self.x, self.y, batch_size=self.batch, verbose=0)
        self.backend.synchronize()

    def time_prediction(self, *_: Any) -> None:
        """`predict` on the samples of a run."""
        self.model.predict(self.x, batch_size=self.batch)
        self.backend.synchronize()

    # They have not run yet, and need not when only the training is timed.
    time_evaluation.warmup_time = time_prediction.warmup_time = 0.1  # type: ignore[attr-defined]


class DeepNetworks(_Runs):
    """The networks of the roofline study, 64 x 64 pixels, batch 32."""

    params = (DEEP, BACKENDS)
    param_names = ("network", "backend")
