"""Training on several processes: shards of a batch, the passes that sum over them, and what moves arrays."""

from minicnn.distribution.communicators import OneProcess, Planned, RankError
from minicnn.distribution.data_parallel import DataParallel
from minicnn.distribution.gloo import TorchCommunicator
from minicnn.distribution.jax import JaxCommunicator
from minicnn.distribution.model_parallel import ModelParallel
from minicnn.distribution.mpi import MPICommunicator
from minicnn.distribution.nccl import NcclCommunicator
from minicnn.distribution.passes import Shard
from minicnn.distribution.pipeline import Pipeline
from minicnn.distribution.writing import merge
from minicnn.ops.groups import Communicator, Group

__all__ = [
    "Communicator", "DataParallel", "Group", "JaxCommunicator", "MPICommunicator", "ModelParallel",
    "NcclCommunicator", "OneProcess", "Pipeline", "Planned", "RankError", "Shard", "TorchCommunicator", "merge",
]  # fmt: skip
