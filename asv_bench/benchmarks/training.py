"""Training, evaluation and prediction through the public methods: what a user waits for."""

from __future__ import annotations

from typing import Any

from .common import BACKENDS, DEEP, NETWORKS, SMALL, backend_or_skip, network, samples


class _Runs:
    """A network that has trained a little already, and the samples of a timed run."""

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
        self.x, self.y = samples(name)
        self.batch = NETWORKS[name][2]
        self.time_training(name, backend)

    def time_training(self, *_: Any) -> None:
        """A few steps of `fit`: see `common.NETWORKS`."""
        self.model.fit(self.x, self.y, batch_size=self.batch, epochs=1, shuffle=False, verbose=0)
        self.backend.synchronize()


class SmallNetworks(_Runs):
    """The reference studies' networks, and variations of them."""

    params = (SMALL, BACKENDS)
    param_names = ("network", "backend")

    def setup(self, name: str, backend: str) -> None:
        """Evaluate and predict once, too."""
        super().setup(name, backend)
        self.time_evaluation()
        self.time_prediction()

    def time_evaluation(self, *_: Any) -> None:
        """`evaluate` on the samples of a run."""
        self.model.evaluate(self.x, self.y, batch_size=self.batch, verbose=0)
        self.backend.synchronize()

    def time_prediction(self, *_: Any) -> None:
        """`predict` on the samples of a run."""
        self.model.predict(self.x, batch_size=self.batch)
        self.backend.synchronize()


class DeepNetworks(_Runs):
    """The networks of the roofline study, 64 x 64 pixels, batch 32."""

    params = (DEEP, BACKENDS)
    param_names = ("network", "backend")
