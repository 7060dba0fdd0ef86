"""The process groups of a run's ranks, formed before anything is built."""

import datetime
from typing import Any

import torch
from megatron.core import parallel_state

from lt_train.config.settings.faults import Faults
from lt_train.config.settings.memory import Memory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.runtime import device, rendezvous
from lt_train.runtime.rank_environment import RankEnvironment

# That of megatron-core's groups.
TIMEOUT = datetime.timedelta(minutes=30)
# Of the ranks of this rank's pipeline.
_gradient_group: Any = None


def form(
    parallelism: Parallelism,
    expert_tensor_parallel: int,
    memory: Memory,
    faults: Faults,
    rank_environment: RankEnvironment,
    where: torch.device,
) -> None:
    """Meet the other ranks, and form megatron-core's groups and that of the pipeline's gradients."""
    rendezvous.join(rank_environment, where, faults.timeout_seconds)
    with rendezvous.connecting_when_used(), rendezvous.sharing_gloo_devices():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallelism.tensor,
            pipeline_model_parallel_size=parallelism.pipeline,
            virtual_pipeline_model_parallel_size=parallelism.interleaving,
            context_parallel_size=parallelism.context,
            expert_model_parallel_size=parallelism.expert,
            expert_tensor_parallel_size=expert_tensor_parallel,
            num_distributed_optimizer_instances=memory.replicas,
        )
        _form_gradient_group(parallelism, where)


def gradient_group() -> Any:
    """The pipeline ranks' group in which gradients go back, beside that in which activations go on.

    NCCL matches what two ranks exchange in one group by its order in both directions together: a rank that first sends would wait
    for one that first sends, too. gloo matches it by direction.
    """
    return _gradient_group or parallel_state.get_pipeline_model_parallel_group()


def _form_gradient_group(parallelism: Parallelism, where: torch.device) -> None:
    global _gradient_group
    _gradient_group = None
    if where.type != device.CUDA or parallelism.pipeline == 1:
        return
    own = torch.distributed.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    world = parallelism.world_size
    stride = world // parallelism.pipeline
    # All ranks make all groups, in the same order.
    for first in range(stride):
        ranks = list(range(first, world, stride))
        group = torch.distributed.new_group(ranks, timeout=TIMEOUT)
        if ranks == own:
            _gradient_group = group
    assert _gradient_group is not None
