"""PyTorch's training step on a GPU at its best, also as a CUDA graph, for `gpu_peers.py` and `step_kernels.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.measure.cases import CASES
from minicnn.measure.torch_peer import TorchTrainer
from minicnn.measure.trainer import Row, Work


class GraphTrainer(TorchTrainer):
    """PyTorch's own modules at their best on a GPU: eager, compiled, or the whole step in a CUDA graph.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        work: See `Trainer`; images are from 0 to 1.
        kind: "eager", "compile", "graph" or "compile graph".
        precision: "float32", "tf32", "bfloat16" or "float16".
        options: See `TorchTrainer`.
    """

    def __init__(self, name: str, settings: Settings, work: Work, *, kind: str, precision: str, **options: Any) -> None:
        import torch

        super().__init__(name, settings, work, **options)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self._short = getattr(torch, precision) if precision.endswith("16") else None
        # float16 needs the gradients scaled; by a constant, which is less work than PyTorch's own scaler.
        self._scale = 1024.0 if precision == "float16" else 1.0
        self._parameters = list(self._model.parameters())
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.SGD(self._parameters, settings.learning_rate, settings.momentum, fused=fused)
        x, y = self.data("train")
        whole = self._batch == self._count
        steps = self._count // self._batch
        self._index = torch.zeros((steps, self._batch * (not whole)), dtype=torch.int64, device=self.device)
        self._number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._total = torch.zeros((), device=self.device)
        best = "max-autotune" if CASES[settings.network].deep else "reduce-overhead"
        mode = {"compile": best, "compile graph": "default"}.get(kind)
        loss = self._scaled_loss if mode is None else torch.compile(self._scaled_loss, mode=mode, dynamic=False)

        def step() -> None:
            if whole:
                batch = x, y
            else:
                chosen = self._index.index_select(0, self._number)[0]
                batch = x.index_select(0, chosen), y.index_select(0, chosen)
            self.optimizer.zero_grad(set_to_none=True)
            value = loss(*batch)
            value.backward()
            if self._scale != 1:
                torch._foreach_mul_([p.grad for p in self._parameters], 1 / self._scale)
            self.optimizer.step()
            self._total += value.detach() / self._scale
            self._number += 1

        self._replay = self._captured(step) if "graph" in kind else step

    def _scaled_loss(self, x: Any, y: Any) -> Any:
        import torch

        with torch.autocast(self.device.type, self._short, enabled=self._short is not None):
            logits = self._model(x)
        return torch.nn.functional.cross_entropy(logits.float(), y) * self._scale

    def _captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """A step as a CUDA graph, once it has run; afterwards all is what it was."""
        import torch

        first = [p.detach().clone() for p in self._parameters]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(5):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self._number.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        with torch.no_grad():
            for parameter, value in zip(self._parameters, first, strict=True):
                parameter.copy_(value)
                velocity = self.optimizer.state[parameter].get("momentum_buffer")
                if velocity is not None:
                    velocity.zero_()
        return graph.replay

    def _replayed(self, rows: Sequence[np.ndarray[Any, Any]], steps: int) -> Row:
        import torch

        start = time.perf_counter()
        if rows:
            self._index.copy_(torch.from_numpy(np.stack(rows).astype(np.int64)))
        self._total.zero_()
        self._number.zero_()
        for _ in range(steps):
            self._replay()
        loss = float(self._total) / steps  # waits for the device
        taken = time.perf_counter() - start
        return {"loss": loss, "time_s": taken, "samples_per_s": steps * self._batch / taken}

    def _epoch(self) -> Row:
        if self._batch == self._count:
            return self._whole(1)
        rows = job.batches(self.settings, self._count, self.epoch)
        return self._replayed(rows, len(rows))

    def _whole(self, steps: int) -> Row:
        return self._replayed((), steps)
