"""Loaders on several ranks, which are threads here: whole batches, and those of which each makes its part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.callbacks import LambdaCallback
from minicnn.data import shard_rows
from minicnn.distribution import DataParallel, ModelParallel
from minicnn.utils import PyDataset
from support.distributed import SAMPLES, SHARDS, data, digest, normalized, on_ranks, trained
from support.ranks import ThreadRanks


def test_loaders_give_whole_batches_of_which_each_rank_takes_its_part() -> None:
    x, y = data()
    batches = [(x[i : i + 12], y[i : i + 12]) for i in range(0, SAMPLES, 12)]

    def work(distribution: DataParallel) -> str:
        model = normalized("numpy", distribution)
        model.fit(batches, epochs=2, verbose=0)
        return digest(model)

    assert len({made for count in (1, 3) for made in on_ranks(count, work)}) == 1


class Squares(PyDataset):
    """Batches by number, of which it makes a part; it counts what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = data()
        self.shard, self.made = (0, 1), 0

    def set_shard(self, index: int, count: int) -> None:
        self.shard = index, count

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        batch = slice(12 * index, 12 * index + 12)
        rows = shard_rows(len(self.x[batch]), *self.shard)
        self.made += len(self.y[batch][rows])
        return self.x[batch][rows] ** 2, self.y[batch][rows], np.ones(len(self.y[batch][rows]))


def test_a_loader_with_set_shard_makes_the_part_of_its_rank() -> None:
    """With the same bits, and of the last batch, of 2 samples, none on some ranks; where the cut allows for it."""

    def work(distribution: DataParallel) -> tuple[str, int]:
        model, loader = normalized("numpy", distribution), Squares()
        model.fit(loader, epochs=2, verbose=0)
        made, loader.made = loader.made, 0
        predicted = LambdaCallback(on_train_batch_end=lambda batch, logs: model.evaluate(loader, steps=1))
        model.fit(loader, epochs=3, initial_epoch=2, steps_per_epoch=7, verbose=0, callbacks=[predicted])
        assert len(model.predict(loader)) == SAMPLES
        assert loader.shard == (0, 1)
        return digest(model), made

    (alone, everything), *_ = on_ranks(1, work)
    assert everything == 2 * SAMPLES
    for count in (2, 4):
        made = on_ranks(count, work)
        assert {bits for bits, _ in made} == {alone}
        assert sum(rows for _, rows in made) == 2 * SAMPLES
    assert on_ranks(3, work) == [(alone, everything)] * 3  # 8 shards on 3 ranks are no equal parts


def test_loaders_and_transforms_on_ranks() -> None:
    alone = trained("loaded", "numpy", DataParallel(SHARDS), 2)
    for count in (2, 4, 8):
        assert on_ranks(count, lambda d: trained("loaded", "numpy", d, 2)) == [alone] * count
    made = ThreadRanks(2).run(lambda c: trained("loaded", "numpy", ModelParallel(2, communicator=c)))
    assert made == [trained("loaded", "numpy", ModelParallel(2))] * 2


def test_parts_that_do_not_belong_together_are_named() -> None:
    class Whole(Squares):
        def __getitem__(self, index: int) -> Any:
            return self.x, self.y

    def work(distribution: DataParallel) -> None:
        loader = Whole()
        some = slice(5 - 2 * distribution.rank)
        loader.x, loader.y = loader.x[some], loader.y[some]
        normalized("numpy", distribution).fit(loader, verbose=0)

    with pytest.raises(ValueError, match=r"Received: 5, 3 samples on ranks 0 to 1, where 4, 4 belong together\."):
        on_ranks(2, work)
