"""Restore the copies in the nodes' memory that a run goes on from after ranks were lost."""

from typing import Any

import torch

from lt_shared.console import IoFailure
from lt_train.checkpoint import host_memory
from lt_train.checkpoint.memory import keeper, rank_state
from lt_train.checkpoint.memory.copier import Copier
from lt_train.checkpoint.memory.segment import Segment
from lt_train.checkpoint.training_state import TrainingState
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.planner.checkpoint_size import COPIES
from lt_train.process import agreement, device
from lt_train.process.interruption import Echo

# Stands in the log in the place of a checkpoint's directory.
PLACE = "the nodes' memory"


def agree(settings: Checkpointing, rank_device: torch.device) -> int:
    """Return the step of the copies that all ranks can restore, 0 if there is none. All ranks call it."""
    if settings.replicate_interval is None:
        return 0
    present = keeper.present()
    # The maximum of the negative numbers is the smallest step.
    return -agreement.reduce_maximum(-(present.stored_step if present else 0), rank_device)


def restore(step: int, state: TrainingState, rank_device: torch.device) -> None:
    """Set `state` to the copies of `step`. All ranks call it. Raises IoFailure if a rank cannot read its copy."""
    present, segment, problem = keeper.present(), None, None
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    try:
        assert present
        segment = Segment.attach(present.fetch())
        if segment.step != step:
            raise ValueError(f"it has the step {segment.step}, not {step}")
        tensors, numbers = segment.read()
        problem = rank_state.describe_difference(rank_state.live_tensors(state), tensors)
    except (ValueError, KeyError, TypeError, IoFailure) as error:
        problem = str(error)
    if agreement.reduce_maximum(problem is not None, rank_device):
        if problem is None:
            raise Echo("another rank cannot read its copy")
        raise IoFailure(f"the copy of iteration {step} in memory cannot be restored: {problem}", "the next start is from SAVE")
    rank_state.restore(state, tensors, numbers)
    if segment:
        tensors.clear()
        segment.close()


def copier(state: TrainingState, settings: Checkpointing, rank_device: torch.device, nodes: int) -> Copier | None:
    """Return what copies `state` to the launcher's memory, None without --replicate-interval. All ranks call it.

    Raises BadConfig if a node has too little memory.
    """
    present = keeper.present()
    if present is None or settings.replicate_interval is None:
        return None
    local_copier = Copier(state, present, device.host_copies(rank_device))
    host_memory.check_memory_copies(local_copier.size_bytes, COPIES if nodes == 1 else 2 * COPIES)
    return local_copier
