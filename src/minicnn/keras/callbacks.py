"""Callbacks: minicnn's own."""

from minicnn import callbacks as _callbacks
from minicnn.callbacks import *  # noqa: F403
from minicnn.keras.dispatch import Made as _Made
from minicnn.keras.models import file_of as _file_of

ModelCheckpoint = _Made(  # type: ignore[misc,assignment]
    _callbacks.ModelCheckpoint,
    lambda filepath, *args, **options: _callbacks.ModelCheckpoint(_file_of(filepath), *args, **options),
)
