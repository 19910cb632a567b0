"""Training on several processes: shards of a batch, and the Programs of several shards as one."""

from minicnn.distribution.merging import merge
from minicnn.ops.groups import Communicator, Group

__all__ = ["Communicator", "Group", "merge"]
