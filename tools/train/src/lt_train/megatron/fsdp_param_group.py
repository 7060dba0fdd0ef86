"""`torch.distributed.fsdp._fully_shard._fsdp_param_group`: gather weights by copy engines, on GPUs of one node.

torch gathers a unit's shards with NCCL, whose kernels take multiprocessors from the GEMMs, after it has cast them, and copies
what arrives to the weights. `lt_train.parallel.shard_gathering` copies the shards from other ranks' memory to the weights.
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
    """Call `gather` and `wait` with `group`, an `FSDPParamGroup`, when FSDP gathers its weights and when it needs them."""
    group.unshard = partial(_unshard, gather, group)
    group.wait_for_unshard = partial(_wait_for_unshard, wait, group)


def _unshard(gather: Callable[[Any], None], group: Any, async_op: bool = False, *unknown: Any, **unknown_named: Any) -> None:
    # Copies are asynchronous anyway: `async_op` asks for a collective on the stream that computes, or on another.
    UPSTREAM.refuse_unknown("FSDPParamGroup.unshard", unknown, unknown_named)
    gather(group)


def _wait_for_unshard(wait: Callable[[Any], None], group: Any, *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown("FSDPParamGroup.wait_for_unshard", unknown, unknown_named)
    wait(group)
