"""PyTorch arrays on CPU, CUDA or MPS: the namespace and a device. The references run on it, not torch.nn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from minicnn.backends.base import Array, Backend, Executable
from minicnn.machine import local_rank
from minicnn.program.graph import Program
from minicnn.program.layout import batch_last


class TorchBackend(Backend):
    """Runs the references on PyTorch tensors."""

    name = "torch"
    xp = xp
    devices = ("cpu", "cuda", "mps")
    precisions = ("float32", "float64", "mixed_bfloat16")
    survives_fork = False

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        super().__init__(device, reference_only=reference_only, strict=strict)
        available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not available[self.device.split(":")[0]]:
            raise RuntimeError(
                f"PyTorch must see the device that is asked for. Received: {self.device!r}, found: "
                f"{', '.join(d for d, ok in available.items() if ok)}. Install a PyTorch build for it, or use "
                "torch:cpu."
            )
        if self.device == "cuda" and 0 < local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())  # of several processes on a machine each has a GPU of its own

    def rewrite(self, program: Program) -> Program:
        """On the CPU images have the batch last, as on NumPy: twice as fast for few channels."""
        return batch_last(program) if self.device == "cpu" else program

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        wanted = getattr(torch, dtype) if dtype else None
        if isinstance(data, torch.Tensor):
            if data.device != torch.empty(0, device=self.device).device:
                raise ValueError(
                    f"Arrays are on the model's device. Received: a tensor on {data.device}, the model is on "
                    f"{self.device}. Move it with tensor.to({self.device!r})."
                )
            return data.to(wanted) if wanted else data
        # A copy: NumPy arrays may be read-only or have negative strides, which tensors cannot.
        array = np.asarray(data, order="C")
        if min(array.strides, default=0) < 0:  # of an axis of length 1, which is contiguous all the same
            array = array.copy()
        return torch.tensor(array, dtype=wanted, device=self.device)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        host = array.detach().cpu()
        result: np.ndarray[Any, Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
        return result

    def owns(self, array: Any) -> bool:
        return isinstance(array, torch.Tensor)

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        elif self.device == "mps":
            torch.mps.synchronize()

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; no autograd tape is kept."""
        run = super().compile(program)

        def without_tape(arrays: Mapping[str, Array]) -> dict[str, Array]:
            with torch.no_grad():
                return run(arrays)

        return without_tape

    def memory(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self.device)) if self.device.startswith("cuda") else None

    @classmethod
    def describe(cls) -> dict[str, str]:
        facts = {"torch": torch.__version__, "threads": str(torch.get_num_threads())}
        if torch.cuda.is_available():
            facts["cuda"] = torch.cuda.get_device_name(0)
        if torch.backends.mps.is_available():
            facts["mps"] = "available"
        return facts
