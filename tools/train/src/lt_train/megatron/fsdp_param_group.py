"""`torch.distributed.fsdp._fully_shard._fsdp_param_group`: gather weights by copy engines, on a node's GPUs.

torch casts a unit's shards, gathers them with NCCL, whose kernels take multiprocessors from the GEMMs, and copies the result to
the weights. `lt_train.parallel.shard_gathering` copies the shards from other ranks' memory directly to the weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from lt_train.megatron.upstream import TORCH, Upstream

UPSTREAM = Upstream(
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={"FSDPParamGroup.unshard": "(self, async_op=False)", "FSDPParamGroup.wait_for_unshard": "(self)"},
)


def replace_gathering(group: Any, gather: Callable[[Any], None], wait: Callable[[Any], None]) -> None:
    """Call `gather` with `group`, an `FSDPParamGroup`, when FSDP starts to gather its weights, and `wait` when it needs them."""
    group.unshard = partial(_unshard, gather, group)
    group.wait_for_unshard = partial(_wait_for_unshard, wait, group)


def _unshard(gather: Callable[[Any], None], group: Any, async_op: bool = False, *unknown: Any, **unknown_named: Any) -> None:
    # `async_op` chooses the stream of the collective; the copies are asynchronous anyway.
    UPSTREAM.refuse_unknown("FSDPParamGroup.unshard", unknown, unknown_named)
    gather(group)


def _wait_for_unshard(wait: Callable[[Any], None], group: Any, *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown("FSDPParamGroup.wait_for_unshard", unknown, unknown_named)
    wait(group)
