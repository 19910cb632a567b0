"""Kernels with their arguments: pipelines, bindings of slabs, and where numbers are given to a kernel."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native import ffi

from minicnn.backends._gpu.slabs import UNIT, Slab
from minicnn.backends.webgpu.adapters import module
from minicnn.backends.webgpu.arrays import Array

_WRITES = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
USES = {
    "storage": wgpu.BufferUsage.STORAGE | _WRITES, "uniform": wgpu.BufferUsage.UNIFORM | _WRITES,
    "times": wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC,
}  # fmt: skip


@dataclass(frozen=True)
class Dispatch:
    """A launch that has its arguments; calling it hands it over.

    Attributes:
        hand: Takes it.
        pipeline: The kernel.
        group: The memory that it is bound to.
        first: Where its arguments begin in their buffer.
        count: Blocks in x and y.
        slot: What holds the arguments.
        memories: Those of its arrays, which live as long.
    """

    hand: Callable[[Dispatch], None]
    pipeline: Any
    group: Any
    first: Any
    count: tuple[int, int]
    slot: Any
    memories: tuple[Any, ...]

    def __call__(self) -> None:
        """Hand it over."""
        self.hand(self)


class _Slot:
    """Place of a launch's arguments, held as long as they are needed."""


class Binder:
    """Makes launches of kernels and arrays.

    Args:
        device: wgpu's device.
        hand: Takes a launch that is called.
    """

    def __init__(self, device: Any, hand: Callable[[Dispatch], None]) -> None:
        self._device, self._hand = device, hand
        self._slots: list[tuple[Any, int]] = []  # of arguments
        self._layouts: dict[int, tuple[Any, Any]] = {}
        # By the page of arguments and the slabs, none of which is ever given back.
        self._groups: dict[tuple[Any, tuple[Slab, ...]], Any] = {}
        self._pipelines: dict[tuple[str, tuple[int, ...], int], Any] = {}

    def bound(self, text: str, blocks: int, arrays: Sequence[Array], numbers: Sequence[int]) -> Dispatch:
        """A launch of a kernel, whose memories m0, m1 ... are those of some arrays."""
        slabs = tuple(dict.fromkeys(a.memory.slab for a in arrays))
        pipeline, layout = self._pipeline(text, tuple(slabs.index(a.memory.slab) for a in arrays), len(slabs))
        words = np.zeros(-(-len(numbers) // 4) * 4, np.uint32)
        words[: len(numbers)] = np.array(numbers, np.int64).astype(np.uint32)
        size, slot = max(UNIT, words.nbytes), _Slot()
        buffer, first = self._slot(size)
        self._device.queue.write_buffer(buffer, first, words)
        group = self._groups.get((buffer, slabs))
        if group is None:
            sizes = [(buffer, size), *((slab.buffer, slab.buffer.size) for slab in slabs)]
            entries = [
                {"binding": k, "resource": {"buffer": b, "offset": 0, "size": n}} for k, (b, n) in enumerate(sizes)
            ]
            group = self._device.create_bind_group(layout=layout, entries=entries)
        if size <= UNIT:
            self._groups[buffer, slabs] = group
            weakref.finalize(slot, self._slots.append, (buffer, first))
        count = (blocks, 1) if blocks < 65536 else (65535, -(-blocks // 65535))
        offset = ffi.new("uint32_t[]", [first])
        return Dispatch(self._hand, pipeline, group, offset, count, slot, tuple(a.memory for a in arrays))

    def _slot(self, size: int) -> tuple[Any, int]:
        if size > UNIT:
            return self._device.create_buffer(size=size, usage=USES["uniform"]), 0
        if not self._slots:
            page = self._device.create_buffer(size=UNIT * 256, usage=USES["uniform"])
            self._slots.extend((page, UNIT * k) for k in range(256))
        return self._slots.pop()

    def _layout(self, count: int) -> tuple[Any, Any]:
        """Layouts of a group and of a pipeline with so many slabs."""
        if count > self._device.limits["max-storage-buffers-per-shader-stage"]:
            raise ValueError(f"A kernel's arrays lie in few slabs. Received: {count}. Use a smaller batch_size.")
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE,
             "buffer": {"type": kind, "has_dynamic_offset": kind == "uniform"}}
            for k, kind in enumerate(["uniform", *["storage"] * count])
        ]  # fmt: skip
        group = self._device.create_bind_group_layout(entries=entries)
        return group, self._device.create_pipeline_layout(bind_group_layouts=[group])

    def _pipeline(self, text: str, memories: tuple[int, ...], count: int) -> tuple[Any, Any]:
        """The pipeline of a kernel whose arrays lie in some of the bound slabs, and its group's layout."""
        if count not in self._layouts:
            self._layouts[count] = self._layout(count)
        group, layout = self._layouts[count]
        key = text, memories, count
        if key not in self._pipelines:
            kind = "array<atomic<u32>>" if "atomicLoad(&m" in text or "atomicStore(&m" in text else "array<u32>"
            declared = "\n".join(
                f"@group(0) @binding({k + 1}) var<storage, read_write> memory{k}: {kind};" for k in range(count)
            )
            text = text.replace("//memories", declared)
            code = re.sub(r"\bm(\d+)\[", lambda m: f"memory{memories[int(m[1])]}[", text)
            compute = {"module": module(self._device, code), "entry_point": "kernel"}
            self._pipelines[key] = self._device.create_compute_pipeline(layout=layout, compute=compute)
        return self._pipelines[key], group
