"""Callbacks: code that runs at set points of training."""

from minicnn.callbacks.backup import BackupAndRestore
from minicnn.callbacks.base import Callback, Callbacks, History, LambdaCallback
from minicnn.callbacks.checkpoint import ModelCheckpoint
from minicnn.callbacks.display import progress
from minicnn.callbacks.monitors import EarlyStopping, TerminateOnNaN
from minicnn.callbacks.rates import LearningRateScheduler, ReduceLROnPlateau
from minicnn.callbacks.records import CSVLogger, Timer
from minicnn.callbacks.trackers import MLflowLogger, TensorBoard, WandbLogger

__all__ = [
    "BackupAndRestore", "CSVLogger", "Callback", "Callbacks", "EarlyStopping", "History", "LambdaCallback",
    "LearningRateScheduler", "MLflowLogger", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard", "TerminateOnNaN",
    "Timer", "WandbLogger", "progress",
]  # fmt: skip
