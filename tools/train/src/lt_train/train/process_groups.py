"""Create the process groups of a run, before the model is built."""

import contextlib
import datetime
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state

from lt_train.config.settings.faults import Faults
from lt_train.config.settings.memory import Memory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.parallel import query_groups
from lt_train.process import device, rendezvous
from lt_train.process.rank_environment import RankEnvironment

# megatron-core's default timeout.
TIMEOUT = datetime.timedelta(minutes=30)
# The ranks of this rank's pipeline; `create` sets it.
_gradient_group: Any = None


def create(
    parallelism: Parallelism,
    expert_tensor_parallel: int,
    groups_of_queries: int,
    memory: Memory,
    faults: Faults,
    rank_environment: RankEnvironment,
    rank_device: torch.device,
    digests: Mapping[str, str],
) -> None:
    """Join the rendezvous, then create megatron-core's groups and two of lt-train's own.

    lt-train's groups send gradients in the pipeline, and exchange the heads of shared query groups.
    `digests` are hashes of the run's configuration, which must be equal on all ranks. Raises as `rendezvous.join`, and Echo.
    """
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(rendezvous.interruptible_waits(rank_environment))
        rendezvous.join(rank_environment, rank_device, faults.timeout_seconds, digests)
        contexts.enter_context(rendezvous.connect_when_used())
        contexts.enter_context(rendezvous.share_gloo_devices())
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallelism.tensor,
            pipeline_model_parallel_size=parallelism.pipeline,
            virtual_pipeline_model_parallel_size=parallelism.interleaving,
            context_parallel_size=parallelism.context,
            expert_model_parallel_size=parallelism.expert,
            expert_tensor_parallel_size=expert_tensor_parallel,
            num_distributed_optimizer_instances=memory.replicas,
        )
        _create_gradient_group(parallelism, rank_device)
        query_groups.create_group(parallelism.tensor, groups_of_queries, parallelism.world_size, TIMEOUT)


def gradient_group() -> Any:
    """Return the group that sends gradients backward between pipeline stages; activations have megatron-core's pipeline group.

    Within one group, NCCL matches the sends and receives of two ranks by their order, both directions counted together: two
    neighbours that both send first would deadlock. gloo matches each direction separately and needs no second group.
    """
    return _gradient_group or parallel_state.get_pipeline_model_parallel_group()


def _create_gradient_group(parallelism: Parallelism, rank_device: torch.device) -> None:
    global _gradient_group
    _gradient_group = None
    if rank_device.type != device.CUDA or parallelism.pipeline == 1:
        return
    local_ranks = torch.distributed.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    world = parallelism.world_size
    stride = world // parallelism.pipeline
    # new_group is a collective of the whole world: all ranks must create all groups in the same order.
    for first in range(stride):
        ranks = list(range(first, world, stride))
        group = torch.distributed.new_group(ranks, timeout=TIMEOUT)
        if ranks == local_ranks:
            _gradient_group = group
    assert _gradient_group is not None
