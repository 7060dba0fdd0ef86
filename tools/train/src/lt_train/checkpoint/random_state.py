"""The state of the random generators of dropout in a checkpoint."""

import argparse
import random
from typing import Any

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.layers import Layers
from lt_train.config.settings.parallelism import Parallelism
from lt_train.process import device

KEY = "rng_state"


def request(layers: Layers, settings: Checkpointing, parallel: Parallelism) -> dict[str, Any]:
    """Request the state of dropout's generators if the model has dropout and the checkpoint has the same layout of ranks."""
    if not (layers.hidden_dropout or layers.attention_dropout) or (settings.no_load_rng and not settings.continues):
        return {}
    common = dist_checkpointing.load_common_state_dict(str(settings.start))
    stored_arguments = common.get("args", argparse.Namespace())
    sizes = (parallel.tensor, parallel.pipeline)
    same = (
        getattr(stored_arguments, "tensor_model_parallel_size", 0),
        getattr(stored_arguments, "pipeline_model_parallel_size", 0),
    ) == sizes
    if not same or getattr(stored_arguments, "no_save_rng", False):
        return {}
    return {KEY: sharded()}


def sharded() -> ShardedObject:
    """Return the state of this rank's random generators of dropout, to save it, or to request a saved state in its place.

    It has Megatron's form: an object per tensor-parallel and pipeline rank. Data-parallel ranks draw alike, so they share an
    object. The state fits a resume with the same tensor and pipeline parallel sizes. With other sizes, dropout starts again from
    the seed: the numbers are as random, but not the same.
    """
    states = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject(
        KEY,
        [states],
        (parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_world_size()),
        (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()),
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )


def restore(saved: list[dict[str, Any]], target_device: torch.device) -> None:
    """Set the generators to the `saved` state."""
    (states,) = saved
    random.setstate(states["random_rng_state"])
    np.random.set_state(states["np_rng_state"])
    torch.set_rng_state(states["torch_rng_state"])
    if target_device.type == device.CUDA:
        torch.cuda.set_rng_state(states["cuda_rng_state"], target_device)
    get_cuda_rng_tracker().set_states(states["rng_tracker_states"])
