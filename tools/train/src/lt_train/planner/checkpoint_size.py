"""The planned size of a checkpoint on disk; `checkpoint.disk_space` explains the bytes of a parameter."""

import dataclasses
from typing import Self

from lt_train.config.run_config import RunConfig
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.precision import Precision

# Copies of a rank's state in a node's memory: the newest, and the previous one until the newest is on all nodes.
COPIES = 2


def parameter_bytes(precision: Precision, optimization: Optimization, checkpointing: Checkpointing) -> tuple[int, int]:
    """Return the saved bytes of a parameter: its weight, and the optimizer state if saved.

    The state has a float32 copy of a 16-bit weight, two moments and, with --ema-decay, the average.
    """
    weight, state = (2, 12) if precision.half else (4, 8)
    state += 0 if optimization.ema_decay is None else 4
    return weight, 0 if checkpointing.no_save_optim else state


@dataclasses.dataclass(frozen=True)
class CheckpointSize:
    """The bytes of a checkpoint: its weights, and the optimizer's state, which data-parallel ranks may split.

    `copy` are the bytes of a copy of all ranks' states in memory: the float32 weights that they update, two moments and, with
    --ema-decay, the average.
    """

    weights: int
    state: int
    copy: int
    shards_optimizer: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        parameters = config.architecture.parameters(config.padded_vocab_size)
        weight, state = parameter_bytes(config.precision, config.optimization, config.checkpointing)
        in_memory = 12 if config.optimization.ema_decay is None else 16
        rank_groups = 1 if config.shards_optimizer else config.parallelism.data
        return cls(parameters * weight, parameters * state, parameters * in_memory * rank_groups, config.shards_optimizer)

    @property
    def total(self) -> int:
        return self.weights + self.state

    def memory_copies(self, nodes: int) -> int:
        """Return the bytes of host memory that --replicate-interval takes on each node.

        A node has the last two copies of its ranks and, if there are several nodes, of a second node's ranks.
        """
        return (COPIES if nodes == 1 else 2 * COPIES) * self.copy // nodes

    def local_set(self, nodes: int) -> int:
        """Return the largest size of a local checkpoint on a node: the node's shards, and a copy of its neighbour's shards.

        The first data-parallel ranks write the weights, and without the distributed optimizer also the optimizer's state, so that
        one node may hold everything.
        """
        if nodes == 1 or not self.shards_optimizer:
            return self.total
        return min(self.total, self.weights + 2 * self.state // nodes)
