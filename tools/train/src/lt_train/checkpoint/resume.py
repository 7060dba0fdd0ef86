"""Choose the checkpoint that a run starts from, and check that it fits the run, before the ranks start and without torch."""

import dataclasses
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lt_shared.console import BadConfig, BadData, note, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.files import ownership, storage
from lt_shared.models import megatron_arguments
from lt_shared.models.architecture import Architecture
from lt_train.checkpoint import remote_run
from lt_train.config.megatron_version import release
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import check_same_tokenizer
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.streaming import Streaming
from lt_train.data import dataset_versions


def choose_start(config: RunConfig, is_first: bool = True) -> RunConfig:
    """Return `config` with the checkpoint to start from: the newest complete checkpoint in SAVE, or else the one that --load
    names.

    The first rank warns about incomplete checkpoints that are skipped. Raises BadData if SAVE has checkpoints and none is
    complete, or if a checkpoint belongs to another user.
    """
    save, load = config.checkpointing.save, config.checkpointing.load
    run_start = None
    if save:
        run_start = remote_run.newest(save) if storage.is_remote(save) else _newest(save, is_first)
    if run_start is not None:
        return config.starting_at(run_start, continues=True)
    if load is None:
        return config
    is_remote = storage.is_remote(load)
    checkpoint = (
        remote_run.find_checkpoint(load) if is_remote else str(checkpoint_layout.resolve_checkpoint_directory(Path(load)))
    )
    return config.starting_at(checkpoint, continues=False)


def _newest(run: str, is_first: bool) -> str | None:
    candidates = checkpoint_layout.checkpoints(Path(run))
    for candidate in candidates:
        if other := ownership.belongs_to_other(os.lstat(candidate), candidate.parent):
            raise BadData(
                f"{candidate}: {other}, and a run goes on from its own checkpoints only",
                "choose another --save; --load takes over what another user has trained",
            )
        problem = checkpoint_layout.damage(candidate)
        if problem is None:
            return str(candidate)
        if is_first:
            warn(f"passing over an incomplete checkpoint: {problem}")
    if candidates:
        raise BadData(f"{run}: none of its checkpoints is complete", "move them away to start again from the beginning")
    return None


def record(checkpoint: str) -> RunRecord | None:
    """Read the record of the checkpoint at this path or URL. Return None if no lt tool has written the checkpoint."""
    if storage.is_remote(checkpoint):
        return remote_run.read_record(checkpoint)
    return RunRecord.read(Path(checkpoint)) if os.path.isfile(os.path.join(checkpoint, checkpoint_layout.RECORD)) else None


# Fields of an architecture that may differ from the checkpoint's, because no tensor's shape or meaning depends on them.
_TRAINING_FIELDS = {"name", "init_std", "moe_aux_loss_coeff"}
# Fields of the position embeddings. They may differ if a run begins anew with the weights: a longer context.
_POSITION_FIELDS = {"rotary_base", "rope_scaling", "max_position_embeddings"}
# Megatron-LM's arguments do not have the vocabulary before its padding, nor the number of positions of a model with RoPE.
_OPEN_IN_ARGUMENTS = {"vocab_size", "max_position_embeddings", "model_type"}


def check_compatible(config: RunConfig, checkpoint: str) -> None:
    """Raise BadConfig if the run cannot continue from `checkpoint`, for example with another architecture or tokenizer."""
    named = checkpoint_layout.iteration_of(Path(checkpoint)) or 0
    settings = config.checkpointing
    if named >= config.batches.train_iters and not settings.continues and not settings.finetune:
        raise BadConfig(
            f"{checkpoint}: {named} iterations are done, --train-iters {config.batches.train_iters} leaves none",
            "raise --train-iters, or begin at iteration 0 with its weights: --finetune",
        )
    saved = record(checkpoint)
    if saved is None:
        return
    if saved.iteration != named:
        local_directory = checkpoint_layout.iteration_directory(Path(checkpoint).parent, saved.iteration)
        raise BadConfig(
            f"{checkpoint}: is the checkpoint of iteration {saved.iteration}, which its name does not say",
            f"move it away: {local_directory} is there, too"
            if local_directory.exists()
            else f"name the directory {local_directory.name}",
        )
    _check_version(checkpoint, saved)
    check_same_tokenizer(config.data.tokenizer, "the data", saved.tokenizer, checkpoint)
    _check_optimizer(settings, checkpoint, saved)
    _compare_batches(config.batches, bool(config.schedule), settings.continues, saved)
    if named and saved.datasets and not (settings.finetune and not settings.continues):
        trained = dataset_versions.versions(config.data.datasets)
        evaluated = dataset_versions.versions((*config.data.validation_datasets, *config.data.test_datasets))
        dataset_versions.check_unchanged(checkpoint, saved.datasets, trained | evaluated)
        if not saved.streams and not config.data.streaming:
            dataset_versions.warn_of_others(checkpoint, saved.datasets, trained)
        _check_streams(config.data.streaming, settings.continues, checkpoint, saved)
    _check_architecture(config.architecture, config.schedule, settings, checkpoint, saved)


def _check_streams(streams: Streaming | None, continues: bool, checkpoint: str, saved: RunRecord) -> None:
    """Raise BadConfig if the remaining samples would come in another order than the samples before the checkpoint.

    The shards themselves are compared when they arrive.
    """
    present = [streams.window_tokens for place in streams.lists if place is not None] if streams else []
    before = [stream["window_tokens"] for stream in saved.streams or []]
    if len(before) != len(present):
        if not continues:
            # Another run, on other data.
            return
        raise BadConfig(
            f"{checkpoint}: was trained on {len(before)} stream(s) of data, and not on {len(present)}",
            "give the data as before: - or @FILE with the lines that lt-preprocess --stream prints, or prefixes",
        )
    if before != present:
        raise BadConfig(
            f"{checkpoint}: was trained with --shuffle-window {before[0]}, and not {present[0]}",
            "the samples that are left would come in another order: leave the window as it was",
        )


def _check_architecture(
    architecture: Architecture, schedule: Schedule, settings: Checkpointing, checkpoint: str, saved: RunRecord
) -> None:
    """Raise BadConfig for another model. A run that begins anew with the weights may have other position fields."""
    anew = settings.finetune and not settings.continues
    anew |= any(phase.architecture == saved.architecture for phase in schedule.phases)
    _check_same(architecture, saved.architecture, checkpoint, anew, _TRAINING_FIELDS)


def check_arguments(
    architecture: Architecture, arguments: Mapping[str, Any], settings: Checkpointing, checkpoint: str
) -> list[str]:
    """Raise BadConfig if Megatron-LM's `arguments` in a checkpoint describe another model, or a model that lt-train lacks.

    The shapes of the tensors do not show the rotary base or the epsilon of norms. Return remarks on unknown arguments. A
    checkpoint without a model's arguments, such as NeMo's and Megatron-Bridge's, is not checked.
    """
    if "num_layers" not in arguments or "hidden_size" not in arguments:
        return []
    stored_arguments = dict(arguments)
    if stored_arguments.get("vocab_size") is None:
        stored_arguments["vocab_size"] = stored_arguments.get("padded_vocab_size") or architecture.vocab_size
    try:
        theirs = megatron_arguments.from_arguments(stored_arguments, checkpoint)
    except TypeError as error:
        raise BadData(f"{checkpoint}: malformed Megatron arguments: {error}") from None
    anew = settings.finetune and not settings.continues
    _check_same(architecture, theirs, checkpoint, anew, _TRAINING_FIELDS | _OPEN_IN_ARGUMENTS)
    return megatron_arguments.remarks(stored_arguments)


def _check_same(architecture: Architecture, saved: Architecture, checkpoint: str, anew: bool, ignored: set[str]) -> None:
    """Raise BadConfig if fields differ that are not `ignored`. A run that begins `anew` may have other position fields."""
    ours, theirs = dataclasses.asdict(architecture), dataclasses.asdict(saved)
    differing = {field for field in ours if ours[field] != theirs[field]} - ignored
    extended = sorted(differing & _POSITION_FIELDS) if anew else []
    for field in extended:
        note(f"{field} is {ours[field]}, and was {theirs[field]} in {checkpoint}")
    different = [f"{field} {theirs[field]} there, {ours[field]} here" for field in ours if field in differing - set(extended)]
    if different:
        hint = "resume with the model it was saved from"
        if differing == {"mtp_num_layers"}:
            hint = f"--mtp-num-layers {theirs['mtp_num_layers']} trains the model that was saved"
        raise BadConfig(f"{checkpoint}: another architecture: {'; '.join(different)}", hint)


def _compare_batches(batches: Batches, has_phases: bool, continues: bool, saved: RunRecord) -> None:
    """Warn if the steps before the checkpoint took another number of samples than the present settings would take.

    Raises BadConfig if phases of --data-schedule would begin elsewhere.
    """
    expected = batches.samples_after(saved.iteration)
    if has_phases and continues and saved.consumed_samples != expected:
        raise BadConfig(
            f"the batch size is another than before: {saved.consumed_samples} samples in {saved.iteration} steps there,"
            f" {expected} here; the phases of --data-schedule would begin elsewhere",
            "keep the options of the batch size, and the sizes of phases that have begun",
        )
    if continues and saved.consumed_samples != expected:
        warn(
            f"the batch size is another than before: {saved.consumed_samples} samples in {saved.iteration} steps there,"
            f" {expected} here; the schedule of the learning rate counts samples"
        )


def _check_version(checkpoint: str, saved: RunRecord) -> None:
    theirs, ours = saved.versions.get("megatron-core", "0"), metadata.version("megatron-core")
    # megatron-core 0.19 stores the common state among the tensors and writes no common.pt, which 0.16 reads.
    if saved.files and checkpoint_layout.COMMON not in saved.files and release(theirs) > release(ours):
        raise BadConfig(
            f"{checkpoint}: was saved with megatron-core {theirs}, in a form that {ours} does not read",
            f"install megatron-core {theirs}, for which Python 3.12 is needed",
        )


def _check_optimizer(settings: Checkpointing, checkpoint: str, saved: RunRecord) -> None:
    unused = not settings.continues and (settings.finetune or settings.no_load_optim)
    if saved.distributed_optimizer is None and checkpoint_layout.iteration_of(Path(checkpoint)) is not None and not unused:
        raise BadConfig(
            f"{checkpoint}: was saved without an optimizer state",
            f"start another --save with --load {checkpoint} and --finetune or --no-load-optim",
        )


def is_finished(settings: Checkpointing, train_iters: int) -> bool:
    """Return whether the run continues from a checkpoint after its last iteration."""
    if settings.start is None or not settings.continues:
        return False
    return (checkpoint_layout.iteration_of(Path(settings.start)) or 0) >= train_iters


def continue_samples(config: RunConfig) -> RunConfig:
    """Return `config` with the steps that train on the samples after the checkpoint to start from."""
    steps, start = steps_done(config.checkpointing), config.checkpointing.start
    saved = record(start) if start is not None and steps else None
    return config if saved is None or saved.iteration != steps else config.continued(steps, saved.consumed_samples)


def steps_done(settings: Checkpointing) -> int:
    """Return the number of steps in the checkpoint to start from, 0 if the run counts from the beginning."""
    if settings.start is None or (settings.finetune and not settings.continues):
        return 0
    return checkpoint_layout.iteration_of(Path(settings.start)) or 0
