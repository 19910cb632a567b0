"""Stretches of large buffers: apart while somebody has them, together again when nobody does."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np

from minicnn.backends._gpu.slabs import FIRST, UNIT, Memory, Pieces, Slabs


def test_stretches_never_overlap_and_are_whole_again_in_the_end() -> None:
    created: list[int] = []

    def create(nbytes: int) -> int:
        created.append(nbytes)
        return len(created)

    slabs, rng = Slabs(create, 1 << 26), np.random.default_rng(0)
    held: list[tuple[Memory, int]] = []
    for _ in range(300):
        if held and rng.random() < 0.45:
            held.pop(rng.integers(len(held)))
        else:
            nbytes = int(rng.integers(0, 1 << 22))
            held.append((Memory(None, slabs, nbytes), nbytes))
        gc.collect(0)
        taken = sorted((m.slab.buffer, m.first, m.first + max(n, 1)) for m, n in held)
        assert all(first % UNIT == 0 for _, first, _ in taken)
        for (buffer, _, end), (other, first, _) in pairwise(taken):
            assert buffer != other or end <= first
        assert slabs.used == sum(-(-max(n, 1) // UNIT) * UNIT for _, n in held)
    assert created[0] == FIRST
    held.clear()
    gc.collect()
    assert slabs.used == 0
    count = len(created)
    whole = [Memory(None, slabs, n) for n in created]
    assert len(created) == count, "each slab is one stretch again"
    assert len({m.slab.buffer for m in whole}) == count


def test_memory_beyond_the_largest_slab_comes_in_pieces() -> None:
    slabs = Slabs(lambda n: n, 1024)
    pieces = Pieces(None, slabs, 2500)
    assert len(pieces.pieces) == 3
    assert len({m.slab for m in pieces.pieces}) == 3
    assert slabs.used == 1024 + 1024 + 512
