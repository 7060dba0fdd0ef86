"""Tensor-parallel ranks that share a query group: more ranks than groups of key and value heads.

Megatron-LM shards the rows of the fused QKV projection evenly in this case, too. With G groups on T ranks, the rows of a group,
its queries before its key and its value, lie on T / G consecutive ranks, which each have a part of its queries to attend with.
These ranks all-gather the output of the projection, and each takes its queries and the key and value. Backward, a reduce-scatter
sums the gradients of the key and value over the ranks that used them. So a rank holds no weight that another holds: gradient
norms, optimizer states and checkpoints need no exception, and checkpoints are Megatron's.

megatron-core gathers over all T ranks, and receives G times as much.
"""

import datetime
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import all_gather_last_dim_from_tensor_parallel_region
from torch import Tensor

# The ranks that share this rank's query group; `create_group` sets it.
_group: Any = None


def create_group(tensor: int, query_groups: int, world: int, timeout: datetime.timedelta) -> None:
    """Create the process groups of `world` ranks; `tensor` consecutive ranks share layers with `query_groups` groups."""
    global _group
    _group = None
    sharing = tensor // query_groups
    if sharing <= 1:
        return
    if query_groups == 1:
        _group = parallel_state.get_tensor_model_parallel_group()
        return
    # new_group is a collective of the whole world: all ranks must create all groups in the same order.
    for first in range(0, world, sharing):
        group = torch.distributed.new_group(list(range(first, first + sharing)), timeout=timeout)
        if first <= torch.distributed.get_rank() < first + sharing:
            _group = group


def gather_group(mixed: Tensor, group_heads: int, head_size: int) -> Tensor:
    """Return the local queries, the key and the value [s, b, (queries + 2) x d] from the local rows `mixed` [s, b, rows].

    The shared group has `group_heads` heads of `head_size` channels; a rank has an equal part of them.
    """
    assert _group is not None
    whole = all_gather_last_dim_from_tensor_parallel_region(mixed, group=_group)
    channels = group_heads * head_size // _group.size()
    first = _group.rank() * channels
    # A copy, because views would keep all queries of the group for the backward pass.
    return torch.cat((whole[..., first : first + channels], whole[..., -2 * head_size :]), dim=-1)
