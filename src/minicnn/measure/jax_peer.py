"""A peer to compare with: the studies' networks in plain JAX, as its users write them: functions of arrays, jitted.

It shares the first weights, the order of the samples and the settings with minicnn, and none of its code for training.
On a GPU a whole epoch is one jitted scan; on a CPU a step is jitted, as XLA runs convolutions within loops on one core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.measure.cases import CASES, TrainingCase
from minicnn.measure.model_trainer import first_weights
from minicnn.measure.parity import Probe
from minicnn.measure.trainer import Row, Trainer, Work
from minicnn.zoo import STUDIES


def logits(case: TrainingCase, weights: Any, x: Any) -> Any:
    """The network of a case: pairs of kernel and bias, images (N, H, W, C) from 0 to 1, to logits (N, classes)."""
    import jax
    from jax import lax

    pairs = list(weights)
    for one in case.convolutions:
        kernel, bias = pairs.pop(0)
        strides, window = (one.stride, one.stride), (1, one.pool, one.pool, 1)
        x = lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + bias)
        x = lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID") if one.pool else x
    x = x.reshape(len(x), -1)
    for i, (kernel, bias) in enumerate(pairs, start=1):
        x = x @ kernel + bias
        x = jax.nn.relu(x) if i < len(pairs) else x
    return x


class JaxTrainer(Trainer):
    """A training by plain JAX; see the module.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        work: See `Trainer`.
        precision: "highest", with which float32 means float32 on a GPU, too, or None for JAX's own choice there: TF32.
    """

    def __init__(self, name: str, settings: Settings, work: Work, *, precision: str | None = "highest") -> None:
        import jax

        super().__init__(name, settings, work)
        jax.config.update("jax_default_matmul_precision", precision)
        self._device = jax.devices(self.backend.device)[0]
        self._first = self._first_weights()
        self.reset()
        self._count = len(self.samples["x_train"])
        self._batch = self.settings.batch_size or self._count
        put = partial(jax.device_put, device=self._device)
        parts = ("train", "val", *(["test"] if self.samples.held_out else []))
        self._data = {p: (put(self.samples[f"x_{p}"]), put(self.samples[f"y_{p}"])) for p in parts}
        self._scan = self.backend.device != "cpu"
        self._compile()

    def _first_weights(self) -> Mapping[str, Any]:
        """First weights by path, in the order in which `network` takes them."""
        return first_weights(self.settings, self.samples, self.work)

    def reset(self, batch: int | None = None) -> None:
        """See `Trainer.reset`."""
        import jax
        import jax.numpy as jnp

        arrays = [jax.device_put(np.array(w), self._device) for w in self._first.values()]
        self._weights = self._arranged(arrays)
        self._velocity = jax.tree.map(jnp.zeros_like, self._weights)

    def _arranged(self, arrays: list[Any]) -> Any:
        """Weights as `network` takes them: pairs of kernel and bias."""
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def network(self, weights: Any, x: Any) -> Any:
        """Logits of images from 0 to 1."""
        return logits(CASES[STUDIES.get(self.settings.network, self.settings.network)], weights, x)

    def _compile(self) -> None:
        import jax
        import jax.numpy as jnp

        rate, momentum = self.settings.learning_rate, self.settings.momentum

        def loss_and_hits(weights: Any, x: Any, y: Any, *, accuracy: bool = True) -> tuple[Any, Any]:
            out = self.network(weights, x if x.dtype == jnp.float32 else x.astype(jnp.float32) / 255)
            chosen = jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], axis=1)
            return -chosen.mean(), (out.argmax(1) == y).sum() if accuracy else jnp.zeros((), jnp.int32)

        in_training = partial(loss_and_hits, accuracy=self.work.accuracy)
        differentiate = jax.value_and_grad(in_training, has_aux=True)

        def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
            weights, velocity, loss_sum, hits_sum = state
            (loss, hits), gradients = differentiate(weights, x, y)
            velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradients)
            weights = jax.tree.map(lambda w, v: w - rate * v, weights, velocity)
            return (weights, velocity, loss_sum + loss * len(y), hits_sum + hits), None

        def picked(state: Any, x: Any, y: Any, index: Any) -> tuple[Any, Any]:
            return step(state, x[index], y[index])

        def epoch(state: Any, x: Any, y: Any, indices: Any) -> Any:
            return jax.lax.scan(lambda s, index: picked(s, x, y, index), state, indices)[0]

        def times(state: Any, x: Any, y: Any, count: int) -> Any:
            return jax.lax.fori_loop(0, count, lambda _, s: step(s, x, y)[0], state)

        self._differentiate = jax.jit(differentiate)
        self._judge = jax.jit(loss_and_hits)
        self._pass = jax.jit(in_training)
        self._step = jax.jit(step, donate_argnums=0)
        self._picked = jax.jit(picked, donate_argnums=0)
        self._whole_epoch = jax.jit(epoch, donate_argnums=0)
        self._times = jax.jit(times, donate_argnums=0)

    def _epoch(self) -> Row:
        batches = job.batches(self.settings, self._count, self.epoch)
        even = [b for b in batches if len(b) == self._batch]
        x, y = self._data["train"]
        start = time.perf_counter()
        state = self._state()
        if self._scan:
            state = self._whole_epoch(state, x, y, np.stack(even))
        for index in batches[len(even) if self._scan else 0 :]:
            state, _ = self._picked(state, x, y, index)
        return self._keep(state, sum(map(len, batches)), start)

    def _whole(self, steps: int) -> Row:
        x, y = self._data["train"]
        start = time.perf_counter()
        state = self._state()
        if self._scan:
            state = self._times(state, x, y, steps)
        else:
            for _ in range(steps):
                state, _ = self._step(state, x, y)
        return self._keep(state, steps * self._count, start)

    def _state(self) -> Any:
        import jax.numpy as jnp

        zeros = (jnp.zeros((), jnp.float32, device=self._device), jnp.zeros((), jnp.int32, device=self._device))
        return (self._weights, self._velocity, *zeros)

    def _keep(self, state: Any, seen: int, start: float) -> Row:
        self._weights, self._velocity, loss, hits = state
        values = {"loss": float(loss) / seen}  # waits for the device
        values |= {"accuracy": int(hits) / seen} if self.work.accuracy else {}
        taken = time.perf_counter() - start
        return {**values, "time_s": taken, "samples_per_s": seen / taken}

    def _forward(self, passes: int) -> tuple[float, int]:
        """Mean loss and number of hits, computed several times and read once.

        A loop within JAX would compute it once, since nothing changes from one time to the next.
        """
        for _ in range(passes):
            loss, hits = self._pass(self._weights, *self._data["train"])
        return float(loss), int(hits)

    def _evaluate(self, part: str) -> dict[str, float]:
        x, y = self._data[part if part in self._data else "val"]
        loss, hits = 0.0, 0
        for at in range(0, len(y), self._batch):
            images, labels = x[at : at + self._batch], y[at : at + self._batch]
            mean, right = self._judge(self._weights, images, labels)
            loss, hits = loss + float(mean) * len(labels), hits + int(right)
        return {"loss": loss / len(y), "accuracy": hits / len(y)}

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`."""
        import jax

        (x, y), index = self._data["train"], job.probed(self.settings, self._count, epoch)
        (loss, _), gradients = self._differentiate(self._weights, x[index], y[index])
        return Probe(float(loss), dict(zip(self._first, map(np.asarray, jax.tree.leaves(gradients)), strict=True)), {})
