"""The process groups of a rank that makes one model after another: `leave_groups` closes them.

Each group of gloo has three threads, of which one wakes up a hundred times a second until the group is closed, which
megatron-core does not do: of a rank that has made thirty models they took more processor time than the models.
"""

import gc


def leave_groups() -> None:
    """Close all groups but that of all ranks, which call this at the same time."""
    # A rank that trains imports it after its device is prepared.
    import torch
    from megatron.core import parallel_state
    from torch.distributed import distributed_c10d

    parallel_state.destroy_model_parallel()
    torch.distributed.barrier()
    for group in list(distributed_c10d._world.pg_map):
        if group is not torch.distributed.group.WORLD:
            torch.distributed.destroy_process_group(group)
    # A model has its groups, and is in circles.
    gc.collect()
