"""Compare the host memory that --async-save takes with every node's memory, before the first step.

On a GPU, --async-save is the default if each node has the memory, because training then waits for a copy instead of a disk. If a
node has too little, a note names it, and training waits while checkpoints are written. On a CPU it is off by default, because the
writer would share the processor with training.

On a GPU a rank keeps its part of a checkpoint in host memory: for 2.8 billion parameters in bf16 39 GB, on a node of eight ranks
5 each. On a CPU, tensors that are not written when the next update begins are copied: at most the same amount
(shards/late_staging.py).
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

# The usable share of available memory. The page cache, data loaders and batches need the remainder.
USABLE_SHARE = 0.8
GIB = 2**30


def local_checkpoint_bytes(
    chunks: list[Chunk], parameter_bytes: tuple[int, int], parallelism: Parallelism, fully_sharded: bool
) -> int:
    """Estimate the bytes that this rank writes, from the bytes per parameter of weight and optimizer state.

    The first data-parallel rank writes the weights. All data-parallel ranks share the optimizer state if it is sharded.
    """
    parameters = sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())
    ranks = parallelism.data
    is_first = parallel_state.get_data_parallel_rank() == 0
    weight, optimizer = parameter_bytes
    weights = parameters * weight * (1 / ranks if fully_sharded else is_first)
    shares = 1 / ranks if parallelism.distributed_optimizer or fully_sharded else is_first
    return int(1.01 * (weights + parameters * optimizer * shares))


def check_memory_copies(local_bytes: int, copies: int) -> None:
    """Raise BadConfig if a node has too little memory for `copies` copies of `local_bytes` for each of its ranks.

    All ranks call it.
    """
    shortage = _shortage(agreement.gather_objects([socket.gethostname(), copies * local_bytes, memory.available_bytes()]))
    if shortage is not None and torch.distributed.get_rank():
        raise Echo(shortage)
    if shortage is not None:
        reason = shortage.replace("its part of a checkpoint takes", "the copies of --replicate-interval take")
        raise BadConfig(reason, "drop --replicate-interval, or use more nodes")


def allows_async_save(requested: bool | None, local_bytes: int, is_on_gpu: bool) -> bool:
    """Return whether checkpoints are written beside training. All ranks call it with their `local_bytes`, and get the same
    answer.

    Raises BadConfig if --async-save is requested and a node has too little memory for its ranks.
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
    """Describe the first node that has too little memory for its ranks; None if all have enough."""
    for host in sorted({host for host, _, _ in ranks}):
        host_bytes = sum(rank_bytes for name, rank_bytes, _ in ranks if name == host)
        free = min(available for name, _, available in ranks if name == host)
        if host_bytes > USABLE_SHARE * free:
            return (
                f"its part of a checkpoint takes {host_bytes / GIB:,.1f} GiB of host memory on {host}, {free / GIB:,.1f} are free"
            )
    return None
