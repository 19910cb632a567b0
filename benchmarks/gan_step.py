"""A training step of a GAN, both networks and both optimizers, beside PyTorch eager and JAX jitted.

    taskset -c 0 python benchmarks/gan_step.py [--backend numba] [--device cpu] [--batch-size N] [--steps N]

The networks are those of examples/gan.py without dropout; all begin with the same weights and draw from the same noise,
and before anything is timed their losses of three steps must agree. Then each takes its steps in turn, on batches that
are where it computes, in float32 (no TF32). Milliseconds of a step: median of the rounds, and the least. On a GPU:
`--backend cupy --device cuda --steps 200`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
# JAX would take three quarters of a GPU's memory, which all share.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from gan import NOISE, critic, generator

from minicnn import Model, gradients
from minicnn.losses import BinaryCrossentropy
from minicnn.measure import interleaved, stopwatch
from minicnn.optimizers import Adam

RATE, BETA_1, EPSILON = 2e-4, 0.5, 1e-7
COMPARED = 3  # steps whose losses are looked at
Losses = list[tuple[float, float]]  # of critic and generator, step by step
Candidate = Callable[[int], Losses]  # takes so many steps


class Adversaries(Model):
    """The step; data are images and noise."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.generator, self.critic = generator(), critic(0.0)
        self.g_optimizer, self.c_optimizer = Adam(RATE, BETA_1), Adam(RATE, BETA_1)
        self.loss = BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One of each."""
        real, noise = data
        true = np.ones((real.shape[0], 1))
        weights = self.critic.trainable_weights
        fake = self.generator(noise, training=True)
        c_loss = self.loss(true, self.critic(real)) + self.loss(0 * true, self.critic(fake))
        self.c_optimizer.apply(gradients(c_loss, weights), weights)
        weights = self.generator.trainable_weights
        g_loss = self.loss(true, self.critic(self.generator(noise, training=True)))
        self.g_optimizer.apply(gradients(g_loss, weights), weights)
        return {"critic": c_loss, "generator": g_loss}


def of_minicnn(model: Adversaries, real: Any, noise: Any) -> Candidate:
    """Steps of `fit`, on a loader of one batch."""
    batch = model.backend.asarray(real), model.backend.asarray(noise)

    def steps(count: int) -> Losses:
        if count <= COMPARED:
            return [tuple(model.train_on_batch(*batch)) for _ in range(count)]
        model.fit([batch] * count, verbose=0)
        model.backend.synchronize()
        return []

    return steps


def of_torch(weights: dict[str, Any], real: Any, noise: Any, device: str) -> Candidate:
    """Eager PyTorch, images with the channels first as it has them."""
    import torch
    from torch import nn

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the fastest of its convolutions

    class Grid(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(-1, 7, 7, 64).permute(0, 3, 1, 2)

    class Flat(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.permute(0, 2, 3, 1).flatten(1)

    slope = partial(nn.LeakyReLU, 0.2)
    draws = nn.Sequential(
        nn.Linear(NOISE, 7 * 7 * 64, bias=False), nn.BatchNorm1d(7 * 7 * 64, eps=1e-3), slope(), Grid(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32, eps=1e-3), slope(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    judges = nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1), slope(), nn.Conv2d(32, 64, 4, 2, 1), slope(), Flat(), nn.Linear(7 * 7 * 64, 1)
    )
    for network, prefix in ((draws, "generator"), (judges, "critic")):
        own = [a for path, a in weights.items() if path.startswith(prefix) and "moving" not in path]
        for parameter, array in zip(network.parameters(), own, strict=True):
            turned = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
            parameter.data = torch.tensor(np.ascontiguousarray(turned))
        network.to(device)
    x, z = torch.tensor(real).permute(0, 3, 1, 2).contiguous().to(device), torch.tensor(noise).to(device)
    optimizers = [torch.optim.Adam(n.parameters(), RATE, (BETA_1, 0.999), EPSILON) for n in (draws, judges)]
    loss = nn.BCEWithLogitsLoss()
    one, zero = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)

    def step() -> Any:
        c_loss = loss(judges(x), one) + loss(judges(draws(z).detach()), zero)
        optimizers[1].zero_grad()
        c_loss.backward()
        optimizers[1].step()
        g_loss = loss(judges(draws(z)), one)
        optimizers[0].zero_grad()
        g_loss.backward()
        optimizers[0].step()
        return c_loss.detach(), g_loss.detach()

    def steps(count: int) -> Losses:
        losses = [step() for _ in range(count)]
        if device != "cpu":
            torch.cuda.synchronize()
        return [(c.item(), g.item()) for c, g in losses] if count <= COMPARED else []

    return steps


def of_jax(weights: dict[str, Any], real: Any, noise: Any) -> Candidate:
    """One jitted function that is given weights and the optimizers' state."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")  # on a GPU the default is TF32

    def convolution(x: Any, kernel: Any, dilated: bool = False) -> Any:
        if dilated:  # a transposed convolution: zeros between the pixels, the kernel turned
            kernel = jnp.transpose(kernel[::-1, ::-1], (0, 1, 3, 2))
        strides, around = ((1, 1), ((2, 2), (2, 2))) if dilated else ((2, 2), ((1, 1), (1, 1)))
        return lax.conv_general_dilated(
            x, kernel, strides, around, (2, 2) if dilated else None, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def normal(x: Any, gamma: Any, beta: Any) -> Any:
        axes = tuple(range(x.ndim - 1))
        mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
        return (x - mean) / jnp.sqrt(variance + 1e-3) * gamma + beta

    def slope(x: Any) -> Any:
        return jnp.where(x > 0, x, 0.2 * x)

    def drawn(w: list[Any], z: Any) -> Any:
        x = slope(normal(z @ w[0], w[1], w[2])).reshape(-1, 7, 7, 64)
        x = slope(normal(convolution(x, w[3], dilated=True), w[4], w[5]))
        return jnp.tanh(convolution(x, w[6], dilated=True) + w[7])

    def judged(w: list[Any], x: Any) -> Any:
        x = slope(convolution(x, w[0]) + w[1])
        x = slope(convolution(x, w[2]) + w[3])
        return x.reshape(len(x), -1) @ w[4] + w[5]

    def loss(logits: Any, truth: float) -> Any:
        return jnp.mean(jnp.maximum(logits, 0) - logits * truth + jnp.log1p(jnp.exp(-jnp.abs(logits))))

    def adam(w: list[Any], g: list[Any], state: Any) -> Any:
        t, m, v = state
        m = [BETA_1 * a + (1 - BETA_1) * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
        rate = RATE * jnp.sqrt(1 - 0.999 ** (t + 1.0)) / (1 - BETA_1 ** (t + 1.0))
        return [a - rate * b / (jnp.sqrt(c) + EPSILON) for a, b, c in zip(w, m, v, strict=True)], (t + 1, m, v)

    @jax.jit
    def step(draws: Any, judges: Any, states: Any, x: Any, z: Any) -> Any:
        def of_critic(w: Any) -> Any:
            return loss(judged(w, x), 1.0) + loss(judged(w, drawn(draws, z)), 0.0)

        c_loss, slopes = jax.value_and_grad(of_critic)(judges)
        judges, first = adam(judges, slopes, states[0])
        g_loss, slopes = jax.value_and_grad(lambda w: loss(judged(judges, drawn(w, z)), 1.0))(draws)
        draws, second = adam(draws, slopes, states[1])
        return draws, judges, (first, second), c_loss, g_loss

    parts = [[jnp.asarray(a) for path, a in weights.items() if path.startswith(prefix) and "moving" not in path]
             for prefix in ("generator", "critic")]  # fmt: skip
    zeros = [(0, [jnp.zeros_like(a) for a in part], [jnp.zeros_like(a) for a in part]) for part in parts[::-1]]
    at = [*parts, tuple(zeros)]
    x, z = jnp.asarray(real), jnp.asarray(noise)

    def steps(count: int) -> Losses:
        losses = []
        for _ in range(count):
            *at[:], c_loss, g_loss = step(*at, x, z)
            losses.append((c_loss, g_loss))
        jax.block_until_ready((losses, at))
        return [(float(c), float(g)) for c, g in losses] if count <= COMPARED else []

    return steps


def computes_jax_on() -> str:
    """Where JAX computes: "cpu" or "cuda"."""
    import jax

    return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())


def main() -> None:
    """Compare losses, then print a line for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--device", default="cpu", help='of PyTorch: "cpu" or "cuda"')
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help=f"of a round; more than {COMPARED}")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    real = np.tanh(rng.standard_normal((args.batch_size, 28, 28, 1))).astype("float32")
    noise = rng.standard_normal((args.batch_size, NOISE)).astype("float32")
    model = Adversaries(backend=args.backend)
    model.compile()
    weights = model.get_weights()
    candidates = {
        f"minicnn, {args.backend}": of_minicnn(model, real, noise),
        "PyTorch, eager": of_torch(weights, real, noise, args.device),
    }
    if args.device == computes_jax_on():
        candidates["JAX, jitted"] = of_jax(weights, real, noise)
    else:
        print(f"JAX is left out: it computes on {computes_jax_on()}.")
    losses = {name: np.array(steps(COMPARED)) for name, steps in candidates.items()}
    expected = losses["PyTorch, eager"]
    for name, pairs in losses.items():
        difference = float(np.max(np.abs(pairs / expected - 1)))
        print(f"{name}: losses {', '.join(f'{c:.5f} {g:.5f}' for c, g in pairs)}")
        if difference > 1e-3:
            raise SystemExit(f"{name} trains otherwise: its losses differ by {difference:.2%}. Nothing is timed.")

    def timed(steps: Candidate) -> float:
        return stopwatch(lambda: steps(args.steps)) / args.steps * 1e3

    times = interleaved({name: partial(timed, steps) for name, steps in candidates.items()}, rounds=args.rounds)
    least = min(statistics.median(t) for t in times.values())
    for name, several in times.items():
        middle = statistics.median(several)
        print(f"{name:<20} {middle:8.3f} ms a step, least {min(several):8.3f}, {middle / least:.2f} times the fastest")
    packages = ", ".join(f"{name} {sys.modules[name].__version__}" for name in ("minicnn", "numpy", "torch", "jax"))
    print(f"{args.batch_size} images, {model.backend!r}, {len(os.sched_getaffinity(0))} cores; {packages}")


if __name__ == "__main__":
    main()
