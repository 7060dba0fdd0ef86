"""The host memory that --async-save takes, compared with what each node has before the first step.

On a GPU it is taken unasked where each node has it, since training then waits for a copy instead of a disk; a node that has too
little is named, and checkpoints are written while training waits. On a CPU it is taken when it is asked for: the writer would
share the processor with training.

On a GPU a rank keeps its part of a checkpoint in host memory: of 2.8 billion parameters in bf16 39 GB, on a node of eight ranks 5
each. On a CPU what is not written when the next update begins is copied: at most as much again (shards/late_staging.py).
"""

import socket
from typing import Any

import torch
from megatron.core import parallel_state

from lt_shared import memory
from lt_shared.console import BadConfig, note
from lt_train.config.settings.parallelism import Parallelism
from lt_train.parallel.ddp import Chunk
from lt_train.process import agreement
from lt_train.process.interruption import Echo

# Of what a node has: the page cache, data loaders and batches have the rest.
USABLE_SHARE = 0.8
GIB = 2**30


def local_checkpoint_bytes(
    chunks: list[Chunk], parameter_bytes: tuple[int, int], parallelism: Parallelism, fully_sharded: bool
) -> int:
    """About what this rank writes of a checkpoint, with so many bytes of a parameter for the weight and for the optimizer.

    The first of its data-parallel ranks has the weights, and all share the optimizer's state where it is sharded.
    """
    parameters = sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())
    ranks = parallelism.data
    is_first = parallel_state.get_data_parallel_rank() == 0
    weight, optimizer = parameter_bytes
    weights = parameters * weight * (1 / ranks if fully_sharded else is_first)
    shares = 1 / ranks if parallelism.distributed_optimizer or fully_sharded else is_first
    return int(1.01 * (weights + parameters * optimizer * shares))


def allows_async_save(requested: bool | None, local_bytes: int, is_on_gpu: bool) -> bool:
    """Whether checkpoints are written beside training, the same on all ranks, which all call it. `own` is what this rank needs.

    Raises BadConfig when it is asked for, and a node has too little for its ranks.
    """
    if not (is_on_gpu if requested is None else requested):
        return False
    shortage = _shortage(agreement.gather_objects([socket.gethostname(), local_bytes, memory.available_bytes()]))
    if shortage is None:
        return True
    if requested is None:
        if not torch.distributed.get_rank():
            note(f"training waits for checkpoints, as with --no-async-save: {shortage}")
        return False
    if torch.distributed.get_rank():
        raise Echo(shortage)
    raise BadConfig(f"--async-save: {shortage}", "drop --async-save, or use more nodes")


def _shortage(ranks: list[list[Any]]) -> str | None:
    """In words, of the node that has the least for what its ranks need; None where all have enough."""
    for host in sorted({host for host, _, _ in ranks}):
        host_bytes = sum(rank_bytes for name, rank_bytes, _ in ranks if name == host)
        free = min(available for name, _, available in ranks if name == host)
        if host_bytes > USABLE_SHARE * free:
            return (
                f"its part of a checkpoint takes {host_bytes / GIB:,.1f} GiB of host memory on {host}, {free / GIB:,.1f} are free"
            )
    return None
