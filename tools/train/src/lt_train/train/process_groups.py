"""The process groups of a run's ranks, formed before anything is built."""

import torch
from megatron.core import parallel_state

from lt_train.config.run_config import RunConfig
from lt_train.runtime import rendezvous
from lt_train.runtime.rank_environment import RankEnvironment


def form(config: RunConfig, rank_environment: RankEnvironment, where: torch.device) -> None:
    """Meet the other ranks, and form megatron-core's groups."""
    rendezvous.join(rank_environment, where, config.faults.timeout_seconds)
    with rendezvous.connecting_when_used():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.parallelism.tensor,
            pipeline_model_parallel_size=config.parallelism.pipeline,
            virtual_pipeline_model_parallel_size=config.parallelism.interleaving,
            context_parallel_size=config.parallelism.context,
            expert_model_parallel_size=config.parallelism.expert,
            expert_tensor_parallel_size=config.expert_tensor_parallel,
            num_distributed_optimizer_instances=config.memory.replicas,
        )
