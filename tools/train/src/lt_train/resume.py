"""Where a run starts from: decided before the ranks start, without importing torch."""

import dataclasses
from pathlib import Path

from lt_shared import checkpoint_layout
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import BadConfig, BadData, warn
from lt_train.plan import Plan
from lt_train.settings.data import check_same_tokenizer


def source(plan: Plan) -> Path | None:
    """The checkpoint to start from: the newest complete one of the run's own directory, else what --load names.

    Warns about incomplete ones that are passed over. Raises BadData when the run has checkpoints but no complete one.
    """
    save, load = plan.checkpointing.save, plan.checkpointing.load
    if save:
        candidates = checkpoint_layout.checkpoints(Path(save))
        for candidate in candidates:
            problem = checkpoint_layout.damage(candidate)
            if problem is None:
                return candidate
            warn(f"passing over an incomplete checkpoint: {problem}")
        if candidates:
            raise BadData(
                f"{save}: none of its checkpoints is complete",
                "move them away to start again from the beginning",
            )
    return checkpoint_layout.resolve(Path(load)) if load else None


def check_compatible(plan: Plan, directory: Path) -> None:
    """Raises BadConfig when the checkpoint is of another architecture or tokenizer than the plan's."""
    if not (directory / checkpoint_layout.RECORD).is_file():
        return
    saved = RunRecord.read(directory)
    check_same_tokenizer(plan.data.tokenizer, "the data", saved.tokenizer, str(directory))
    theirs_distributed = saved.distributed_optimizer
    if theirs_distributed not in (None, plan.shards_optimizer):
        how = "with" if theirs_distributed else "without"
        raise BadConfig(
            f"{directory}: its optimizer state was saved {how} --use-distributed-optimizer and fits no other",
            f"resume {how} it",
        )
    of_training = {"name": "", "init_std": 0.0, "moe_aux_loss_coeff": 0.0}
    ours = plan.architecture.to_record() | of_training
    theirs = saved.architecture.to_record() | of_training
    differing = [f"{field} {theirs[field]} there, {ours[field]} here" for field in ours if ours[field] != theirs[field]]
    if differing:
        raise BadConfig(f"{directory}: another architecture: {'; '.join(differing)}", "resume with the model it was saved from")


def is_finished(plan: Plan) -> bool:
    """Whether the plan starts from a checkpoint of its own run that has all its iterations."""
    save, start = plan.checkpointing.save, plan.checkpointing.start
    if save is None or start is None:
        return False
    iteration = checkpoint_layout.iteration_of(Path(start)) or 0
    return Path(start).parent == Path(save) and iteration >= plan.batches.train_iters
