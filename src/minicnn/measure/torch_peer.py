"""The peer: the studies' networks in PyTorch's own modules and optimizer, as anybody would write them.

It shares the first weights, the order of the samples and the settings with minicnn, and none of its code for training.
On a GPU it runs at its best: cuDNN times its algorithms, and images are in the faster of PyTorch's two orders of axes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.measure.model_trainer import first_weights
from minicnn.measure.parity import Probe
from minicnn.measure.timing import stopwatch
from minicnn.measure.trainer import Batch, Row, Trainer, Work
from minicnn.zoo import ALIASES, STUDIES

NETWORKS = ("mlp", *ALIASES, *STUDIES)  # those for which `minicnn compare` has a peer
PRECISIONS = ("float32", "float64")

TRIED_ON, TRIALS = "cuda", 3  # where orders of axes are tried, and how often each


def at_its_best() -> None:
    """Set what makes PyTorch fast on a GPU; float32 means float32 there, too, where PyTorch lets cuDNN take TF32."""
    import torch

    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False


def on_device(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], device: Any, order: Any) -> tuple[Any, Any]:
    """Images (N, H, W, C) as (N, C, H, W) in an order of axes, and classes as int64, on a device."""
    import torch

    images = torch.from_numpy(x).permute(0, 3, 1, 2).to(device)
    return images.contiguous(memory_format=order), torch.from_numpy(y).long().to(device)


def faster_order(module: Any, x: Any, y: Any) -> Any:
    """In which order of axes a module trains faster: `torch.channels_last` or `torch.contiguous_format`.

    It is tried on a GPU of NVIDIA's. Elsewhere it is channels last, which on a CPU takes from 53 to 97 % of the other's
    time for the studies' networks.

    Args:
        module: A module that takes images (N, C, H, W) and returns logits; it is not changed.
        x: Images that it takes, on its device.
        y: Their classes.
    """
    import torch

    if x.device.type != TRIED_ON or not any(p.ndim == x.ndim for p in module.parameters()):
        return torch.channels_last

    def seconds(order: Any) -> float:
        network, images = copy.deepcopy(module).to(memory_format=order), x.contiguous(memory_format=order)

        def step() -> None:
            torch.nn.functional.cross_entropy(network(images), y).backward()

        step()  # cuDNN times its algorithms
        return min(stopwatch(step, torch.cuda.synchronize) for _ in range(TRIALS))

    faster = min((torch.channels_last, torch.contiguous_format), key=seconds)
    torch.cuda.reset_peak_memory_stats()  # the trials' memory is not the training's
    return faster


def takes_part(settings: Settings) -> bool:
    """True if there is a peer for a training."""
    return settings.network in NETWORKS and settings.precision in PRECISIONS


class TorchTrainer(Trainer):
    """A training by PyTorch: eager, the data on the device.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        work: See `Trainer`.
        channels_last: Whether images are in this order of axes; None for the faster one.
        autocast: Whether products are in bfloat16, by `torch.autocast`.
        compiled: Whether the network runs through `torch.compile`.
    """

    def __init__(
        self, name: str, settings: Settings, work: Work, *, channels_last: bool | None = None, autocast: bool = False,
        compiled: bool = False,
    ) -> None:  # fmt: skip
        import torch

        super().__init__(name, settings, work)
        at_its_best()
        self._channels_last, self._autocast, self._compiled = channels_last, autocast, compiled
        self._first = first_weights(self.settings, self.samples, work)
        self.device = torch.device(self.backend.device)
        self._dtype = getattr(torch, settings.precision)
        self._count = len(self.samples["x_train"])
        self._batch = self.settings.batch_size or self._count
        self._orders: dict[int, Any] = {}  # of the axes of images, by batch size
        self._data: dict[str, tuple[Any, Any]] = {}
        self.reset()

    def reset(self, batch: int | None = None) -> None:
        """See `Trainer.reset`."""
        import torch

        from minicnn.measure import torch_networks

        H, W, C = self.samples.input_shape
        name, classes = self.settings.network, self.samples.num_classes
        model = torch_networks.build(name, (H, W, C), classes, self._first, self._dtype)
        flat = torch_networks.image_before_dense(model, torch.zeros(1, C, H, W, dtype=self._dtype))
        self._arrays = partial(torch_networks.in_minicnn_order, paths=list(self._first), image=flat)
        model = model.train().to(self.device)
        self._order = self._orders[batch or self._batch] = self._order_of(model, batch or self._batch)
        self._data.clear()
        self._model = model.to(memory_format=self._order)
        self._network = torch.compile(self._model) if self._compiled else self._model
        self.optimizer = torch.optim.SGD(self._model.parameters(), self.settings.learning_rate, self.settings.momentum)

    def _order_of(self, model: Any, batch: int) -> Any:
        """The order of axes for batches of a size."""
        import torch

        if self._channels_last is not None:
            return torch.channels_last if self._channels_last else torch.contiguous_format
        if batch in self._orders:
            return self._orders[batch]
        self._order = torch.contiguous_format
        x, y = self.place(np.arange(batch) % self._count)
        return faster_order(model, self._floating(x), y)

    def place(self, rows: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """See `Trainer.place`: images (N, C, H, W) in the module's order of axes, and labels."""
        return on_device(self.samples["x_train"][rows], self.samples["y_train"][rows], self.device, self._order)

    def data(self, part: str) -> tuple[Any, Any]:
        """All samples of a part, likewise; they stay on the device."""
        part = "val" if part == "test" and not self.samples.held_out else part
        if part not in self._data:
            x, y = (self.samples[f"{axis}_{part}"].copy() for axis in "xy")
            self._data[part] = on_device(x, y, self.device, self._order)
        return self._data[part]

    def _floating(self, x: Any) -> Any:
        return x if x.is_floating_point() else x.to(self._dtype) / 255

    def loss(self, x: Any, y: Any) -> Any:
        """Mean loss of a batch on the device."""
        return self._judged(x, y, accuracy=False)[0]

    def accuracy(self, batch: Batch) -> float:
        """See `Trainer.accuracy`."""
        import torch

        with torch.no_grad():
            return float(self._judged(*batch)[1]) / len(batch[1])

    def logits(self, batch: int) -> np.ndarray[Any, Any]:
        """See `Trainer.logits`."""
        import torch

        x, _ = self.data("test")
        self._model.eval()
        with torch.no_grad():
            parts = [self._model(self._floating(part)).cpu() for part in x.split(batch)]
        self._model.train()
        return torch.cat(parts).numpy()

    def _judged(self, x: Any, y: Any, *, accuracy: bool = True) -> tuple[Any, Any]:
        """Mean loss and number of hits; 0 hits if they are not counted."""
        import torch
        from torch import nn

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            logits = self._network(self._floating(x))
        logits = logits.to(self._dtype)
        return nn.functional.cross_entropy(logits, y), (logits.argmax(1) == y).sum() if accuracy else 0

    def chosen(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Batches (x, y) of an epoch."""
        import torch

        x, y = self.data("train")
        batches = job.batches(self.settings, self._count, epoch)
        order = torch.from_numpy(np.concatenate(batches)).to(self.device)  # one copy an epoch
        for rows in order.split([len(batch) for batch in batches]):
            yield x[rows], y[rows]

    def step(self, batch: Batch) -> float:
        """See `Trainer.step`."""
        return float(self._step(*batch)[0])

    def _step(self, x: Any, y: Any) -> tuple[Any, Any]:
        """One training step; mean loss and number of hits before it."""
        loss, hits = self._judged(x, y, accuracy=self.work.accuracy)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), hits

    def _epoch(self) -> Row:
        return self._train(self.chosen(self.epoch))

    def _whole(self, steps: int) -> Row:
        return self._train(repeat(self.data("train"), steps))

    def _train(self, batches: Iterable[Batch]) -> Row:
        """Train on batches: "loss", "accuracy" if it is counted, "time_s" and "samples_per_s"."""
        import torch

        start = time.perf_counter()
        loss_sum = torch.zeros((), dtype=self._dtype, device=self.device)
        hits_sum = torch.zeros((), dtype=torch.int64, device=self.device)
        seen = 0
        for x, y in batches:
            loss, hits = self._step(x, y)
            loss_sum += loss * len(y)
            if self.work.accuracy:
                hits_sum += hits
            seen += len(y)
        values = {"loss": float(loss_sum) / seen}  # waits for the device
        values |= {"accuracy": int(hits_sum) / seen} if self.work.accuracy else {}
        taken = time.perf_counter() - start
        return {**values, "time_s": taken, "samples_per_s": seen / taken}

    def _forward(self, passes: int) -> tuple[float, int]:
        """Mean loss and number of hits, computed several times and read once."""
        import torch

        with torch.no_grad():
            for x, y in repeat(self.data("train"), passes):
                loss, hits = self._judged(x, y, accuracy=self.work.accuracy)
        return float(loss), int(hits)

    def _evaluate(self, part: str) -> dict[str, float]:
        import torch

        x, y = self.data(part)
        with torch.no_grad():
            parts = [
                (len(b), *self._judged(a, b)) for a, b in zip(x.split(self._batch), y.split(self._batch), strict=True)
            ]
        loss = sum(n * float(v) for n, v, _ in parts) / len(y)
        return {"loss": loss, "accuracy": sum(int(hits) for *_, hits in parts) / len(y)}

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`; the batch comes as in training, through the loader if there is one."""
        if epoch and self._batch == self._count:
            x, y = self.place(job.probed(self.settings, self._count, epoch))
        else:
            x, y = next(self.chosen(epoch))
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        return Probe(float(loss.detach()), self._arrays(self._model, of=lambda weight: weight.grad), {})


class LoaderTrainer(TorchTrainer):
    """The same with images that a `torch.utils.data.DataLoader` makes one by one, as tutorials have it.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        work: See `Trainer`.
        workers: Processes of the loader; 0 loads in the training's own.
        pinned: Whether batches are in memory that a GPU can copy from by itself.
    """

    def __init__(self, name: str, settings: Settings, work: Work, *, workers: int = 0, pinned: bool = False) -> None:
        super().__init__(name, settings, work)
        from torch.utils.data import DataLoader

        images = Images(self.samples["x_train"], self.samples["y_train"], settings.precision)
        self._next: list[list[int]] = []  # indices of the batches of the epoch that comes
        self._loader = DataLoader(
            images, batch_sampler=self._next, num_workers=workers, pin_memory=pinned, persistent_workers=workers > 0
        )

    def chosen(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """See `TorchTrainer.chosen`; the workers live from epoch to epoch."""
        self._next[:] = [index.tolist() for index in job.batches(self.settings, self._count, epoch)]
        for x, y in self._loader:
            x = x.to(self.device, memory_format=self._order, non_blocking=True)
            yield x, y.to(self.device, non_blocking=True)


class Images:
    """A data set for PyTorch's loader: single images, turned into tensors from 0 to 1 one by one.

    Args:
        x: Images (N, H, W, C), uint8 or scaled.
        y: Class numbers (N,).
        precision: Name of the floating-point type.
    """

    def __init__(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], precision: str) -> None:
        self._x, self._y, self._precision = x, y, precision

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        image = torch.tensor(self._x[index]).permute(2, 0, 1)
        image = image if image.is_floating_point() else image.to(getattr(torch, self._precision)) / 255
        return image, int(self._y[index])
