"""BackupAndRestore: an interrupted training goes on as if nothing had happened."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from minicnn.callbacks.base import Callback, Logs
from minicnn.callbacks.checkpoint import SaveFrequency, check_save_freq
from minicnn.description import check_model_state, describe
from minicnn.files import UNFINISHED, SavedModelError, Tensors, read_tensors, write_tensors, writing
from minicnn.states import anything, check_state, dict_of

_KIND, _FORMAT = "back-up of a training", 2


class BackupAndRestore(Callback):
    """Backs up the whole state of training; `fit` with it goes on from the back-up that it finds.

    The same program, run again after it was interrupted in whatever way, ends with the same bits in every
    weight as one that was not interrupted: weights, optimizer state, the metrics of the epoch under way, the
    learning rate, the position in the data and the state of all callbacks are restored, and shuffles and
    random layers depend on the seed, the epoch and the step alone. A loader takes part if it gives the same
    batches for the same `set_epoch(epoch)`.

    Args:
        backup_dir: Folder for the back-up, used by one training only; made if missing.
        save_freq: "epoch", or a number of batches.
        delete_checkpoint: Whether the back-up is deleted when training has ended.

    Raises:
        ValueError: If save_freq is out of range; when training begins, if the back-up is of another model,
            optimizer or order of the data, or damaged.
        OSError: During training, if the file cannot be written.
        ImportError: When training begins, if safetensors is missing.
    """

    runs_last = True  # the others' states belong into the back-up

    def __init__(
        self, backup_dir: str | os.PathLike[str], save_freq: SaveFrequency = "epoch", delete_checkpoint: bool = True
    ) -> None:
        check_save_freq(save_freq)
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.every_batch = save_freq != "epoch"
        self.delete_checkpoint = delete_checkpoint
        self._batches = 0
        self._about: Any = None
        self._unfinished_epoch: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """The file that holds the back-up."""
        return os.path.join(self.backup_dir, "backup.safetensors")

    def on_train_begin(self, logs: Logs) -> None:
        """See `Callback`; restores the back-up, if there is one."""
        self._batches, self._unfinished_epoch = 0, None
        self._about = self._describe()
        with writing(self.backup_dir):
            os.makedirs(self.backup_dir, exist_ok=True)
        # The same program, started again, finds its back-up: nobody has to pass a flag.
        if os.path.exists(self.path):
            self._restore()

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """See `Callback`; what callbacks do at the start of an epoch has been done where it is resumed."""
        if self._unfinished_epoch is not None:
            # Set again at the epoch's begin, since other callbacks reset their counts there.
            state, self._unfinished_epoch = self._unfinished_epoch, None
            self.model.set_state(state["model"])
            self.group.set_state(state["callbacks"])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if self.save_freq == "epoch":
            self._save()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._batches += 1
        if self.save_freq != "epoch" and self._batches % self.save_freq == 0:
            self._save()

    def on_train_end(self, logs: Logs) -> None:
        """See `Callback`; deletes the back-up if asked to, and the folder if nothing else is in it."""
        if not self.chief or not self.delete_checkpoint or not os.path.exists(self.backup_dir):
            return
        try:
            for name in os.listdir(self.backup_dir):
                # Only what is ours: the folder is the user's, and may hold more.
                if name == os.path.basename(self.path) or name.endswith(UNFINISHED):
                    os.unlink(os.path.join(self.backup_dir, name))
        except OSError as error:  # what has been trained must not be lost for that
            message = (
                f"A back-up is deleted when training has ended. Received: {error}. Delete {self.path!r}, or the next "
                "training with it ends before it begins."
            )
            warnings.warn(message, stacklevel=2)
        with suppress(OSError):
            os.rmdir(self.backup_dir)

    def _describe(self) -> dict[str, Any]:
        """Description of what must be the same for a training to go on, as plain data."""
        about = describe(self.model, by_name=True)
        optimizer = about["compile"]["optimizer"]["config"]
        if not isinstance(optimizer.get("learning_rate"), dict):
            optimizer["learning_rate"] = None  # callbacks may set it: it is a part of the state
        order = {k: self.params[k] for k in ("steps", "batch_size", "shuffle", "seed", "last_batch")}
        cut = self.model.distribution
        return {**about, "fit": order, **({} if cut is None else cut.describe())}

    def _save(self) -> None:
        # Steps may still be under way on the device; on all ranks, as the state is put together from them.
        self.model.join()
        if not self.chief:
            return
        tensors: Tensors = {}
        state = {"model": self.model.get_state(), "callbacks": self.group.get_state()}
        cut, arrays = self.model.distribution, state["model"]["arrays"].values()
        if cut is not None and cut.ranks > 1 and not all(np.isfinite(array).all() for array in arrays):
            return  # the loss of the next step will end the training
        packed = _pack(state, "", tensors)
        about = {"kind": _KIND, "format": _FORMAT, "about": self._about, "state": packed}
        write_tensors(self.path, tensors, about)

    def _restore(self) -> None:
        tensors, backup = read_tensors(self.path)
        if backup.get("kind") != _KIND:
            raise SavedModelError(self.path, f"it is no {_KIND}", "Choose another backup_dir")
        if backup.get("format") != _FORMAT:
            wrong = f"it has format {backup.get('format')!r:.40}, this version of minicnn reads {_FORMAT}"
            raise SavedModelError(
                self.path, wrong, "Go on with the version that wrote it, or choose another backup_dir"
            )
        different = next(_differences(backup.get("about"), self._about, ""), None)
        if different is not None:
            raise SavedModelError(
                self.path,
                f"it is of another training: {different}",
                "Go on with what it was made with; to start afresh delete it or choose another backup_dir",
            )
        try:
            state = _unpack(backup.get("state"), tensors)
            self._check(state)
        except ValueError as error:
            remedy = "Delete it to start afresh, or choose another backup_dir"
            raise SavedModelError(self.path, f"its state is none of a training ({error})", remedy) from error
        known = self.group.get_state().keys()
        if known != state["callbacks"].keys():
            message = (
                "A training is resumed with the callbacks that it was begun with. Received: a back-up with "
                f"states for {sorted(state['callbacks'])}, callbacks with states {sorted(known)}. "
                "Those that the back-up does not know start anew."
            )
            warnings.warn(message, stacklevel=2)
        self._set_callbacks(state["callbacks"])
        self.model.set_state(state["model"])
        if state["model"]["position"][1]:
            self._unfinished_epoch = state

    def _check(self, state: Any) -> None:
        """Raise a ValueError unless the state fits this training; callbacks check their own when they get it."""
        check_state(self, state, model=anything, callbacks=dict_of(dict_of(anything)))
        check_model_state(self.model, state["model"])
        batch, steps = state["model"]["position"][1], self.params["steps"]
        if batch > steps:
            raise ValueError(f"An epoch has {steps} batches. Received: a position after {batch}. Use its own back-up")

    def _set_callbacks(self, states: Mapping[str, Any]) -> None:
        """Hand out the callbacks' states; if one refuses its own, all stay as they are."""
        # A state that one of them refuses must leave the others as they were.
        before = [(callback, dict(vars(callback))) for callback in self.group.callbacks]
        try:
            self.group.set_state(states)
        except Exception as error:  # callbacks may be anybody's
            for callback, attributes in before:
                vars(callback).clear()
                vars(callback).update(attributes)
            wrong = f"a callback does not take its state ({type(error).__name__}: {error})"
            remedy = "Delete it to start afresh, or choose another backup_dir"
            raise SavedModelError(self.path, wrong, remedy) from error


def _pack(value: Any, name: str, tensors: Tensors) -> Any:
    """A tree of plain data and arrays as JSON data; the arrays go into `tensors`, named by their place."""
    if isinstance(value, np.ndarray):
        while name in tensors:  # keys may have slashes of their own
            name += "'"
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        # JSON has no NaN and no infinity.
        return {"$float": repr(value)}
    if isinstance(value, Mapping):
        return {k: _pack(v, f"{name}/{k}" if name else k, tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]
    return value


def _unpack(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$tensor"}:
            return _known(tensors, value["$tensor"])
        if value.keys() == {"$float"}:
            return _known({"nan": math.nan, "inf": math.inf, "-inf": -math.inf}, value["$float"])
        return {k: _unpack(v, tensors) for k, v in value.items()}
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    return value


def _known(values: Mapping[str, Any], name: Any) -> Any:
    if not isinstance(name, str) or name not in values:
        raise ValueError(f"there is no {name!r:.40} among {', '.join(values)}")
    return values[name]


def _differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """Differences of two trees of plain data, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}" if place else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _differences(a, b, f"{place}[{i}]")
    elif old != new:
        yield f"{place} was {old!r:.60}, is {new!r:.60}"
