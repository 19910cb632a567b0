"""Callbacks: minicnn's own."""

from typing import Any

from minicnn import callbacks as _callbacks
from minicnn.callbacks import *  # noqa: F403
from minicnn.keras.models import file_of as _file_of


class ModelCheckpoint(_callbacks.ModelCheckpoint):
    """`minicnn.callbacks.ModelCheckpoint`, for whose files see `keras.models.file_of`."""

    def __init__(self, filepath: Any, *args: Any, **options: Any) -> None:
        super().__init__(_file_of(filepath), *args, **options)
