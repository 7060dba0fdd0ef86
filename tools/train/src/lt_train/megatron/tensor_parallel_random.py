"""`megatron.core.tensor_parallel.random`: the random state tracker reads and sets the CPU's generator, on a CPU."""

from typing import Any

import torch

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.tensor_parallel.random",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={
        "_get_cuda_rng_state": "(device='cuda', clone=False, graph_safe=False)",
        "_set_cuda_rng_state": "(new_state, device=-1, graph_safe=False)",
    },
)


def use_cpu_generator() -> None:
    """Let the random state tracker use the CPU's generator."""
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = _get_cpu_rng_state
    random._set_cuda_rng_state = _set_cpu_rng_state


# There is one generator and no CUDA graph: every device, a clone and a graph-safe state are the same.
def _get_cpu_rng_state(
    device: object = None, clone: bool = False, graph_safe: bool = False, *unknown: Any, **unknown_named: Any
) -> torch.Tensor:
    UPSTREAM.refuse_unknown("_get_cuda_rng_state", unknown, unknown_named)
    return torch.get_rng_state()


def _set_cpu_rng_state(
    new_state: torch.Tensor, device: object = None, graph_safe: bool = False, *unknown: Any, **unknown_named: Any
) -> None:
    UPSTREAM.refuse_unknown("_set_cuda_rng_state", unknown, unknown_named)
    torch.set_rng_state(new_state)
