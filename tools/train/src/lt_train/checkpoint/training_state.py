"""Collect the content of a checkpoint in Megatron's torch_dist format, and load it; saver.py writes it.

Tensors are stored by their offset in the whole model. A run may resume with other tensor, pipeline and data parallel sizes, with
or without the distributed optimizer. Megatron-LM's loader finds everything that it reads.
"""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from lt_shared import version_of
from lt_shared.console import BadConfig, BadData, note, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.files.checksums import DAMAGED
from lt_shared.models.architecture import Architecture
from lt_train.checkpoint import hybrid_layout, optimizer_state, random_state, resume
from lt_train.checkpoint.in_place import fill_whole, merge_in_place
from lt_train.checkpoint.object_reader import known_objects_only
from lt_train.checkpoint.optimizer_state import Kind
from lt_train.checkpoint.shards.replica_reads import Replicas
from lt_train.checkpoint.starting_point import remedies
from lt_train.config import kernels, megatron_arguments, optional_packages
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import changes_of_order
from lt_train.config.settings.data_schedule import Schedule
from lt_train.kernels import split_master_weights
from lt_train.kernels.split_master_weights import Joined
from lt_train.metrics.unlogged import Unlogged
from lt_train.models.chunks import checkpoint_module
from lt_train.optim.optimizer import create_state, float32_masters, separate_steps, take_masters
from lt_train.optim.weight_average import WeightAverage
from lt_train.parallel.ddp import Chunk, gather_weights, gathered_weights

CHECKPOINT_VERSION = 3.0
# megatron-core's messages when the checkpoint has another kind of optimizer.
OTHER_GROUPS = ("Cannot merge two lists", "Different dict keys")
# The form of a sharded optimizer state that loads with other parallel sizes, see parallel/flat_shards.py. The other two are
# Megatron-LM's own.
CONTENT_METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


@dataclasses.dataclass
class TrainingState:
    """The content of a checkpoint: the model, the optimizer with its schedule, and the position in the data.

    `unlogged` are the steps since the last log line, so that a resumed run logs the same line. `ordered_samples` are
    the numbers of samples that were put into an order, several if the run has become longer, none if unknown.
    `average` is None unless the run averages its weights. `is_hybrid` says that the checkpoint that was loaded has the layers of
    megatron-core's HybridModel.
    """

    chunks: list[Chunk]
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    iteration: int = 0
    consumed_samples: int = 0
    unlogged: Unlogged = dataclasses.field(default_factory=Unlogged)
    ordered_samples: tuple[int, ...] = ()
    average: WeightAverage | None = None
    is_hybrid: bool = False

    def create_optimizer_state(self, averages: bool = True) -> None:
        """Create the optimizer's state, and the average if `averages`. What exists stays."""
        create_state(self.optimizer)
        if self.average and averages:
            self.average.begin()

    def sharded_optimizer(
        self, model: dict[str, Any], loading: bool, joined: Joined = split_master_weights.joined, averages: bool = True
    ) -> dict[str, Any]:
        """Return the optimizer's sharded state. `model` is the result of `sharded_model`. `joined` joins split weights.

        Without `averages`, the averaged weights are not loaded.
        """
        # Before the first step that changes weights, torch has no state, and megatron-core asserts that there is a state.
        self.create_optimizer_state(averages)
        with float32_masters(self.optimizer, loading, joined):
            return dict(self.optimizer.sharded_state_dict(model, is_loading=loading, metadata=dict(CONTENT_METADATA)))

    def sharded_model(self) -> dict[str, Any]:
        """Return the weights under Megatron's names: `model`, or `model0`, `model1` ... for interleaved pipeline stages."""
        return {
            name: dict(checkpoint_module(chunk).sharded_state_dict(metadata=dict(CONTENT_METADATA)))
            for name, chunk in self.named_chunks()
        }

    def named_chunks(self) -> list[tuple[str, Chunk]]:
        if len(self.chunks) == 1:
            return [("model", self.chunks[0])]
        return [(f"model{stage}", chunk) for stage, chunk in enumerate(self.chunks)]


def content(config: RunConfig, state: TrainingState, joined: Joined = split_master_weights.joined) -> dict[str, Any]:
    """Collect `state` under the names that Megatron-LM's loader reads. The last three names are lt-train's."""
    settings, batches = config.checkpointing, config.batches
    is_hybrid = settings.saves_hybrid_layers(state.is_hybrid)
    progress = {"iteration": state.iteration, "consumed_train_samples": state.consumed_samples}
    with gathered_weights(state.chunks):
        model = state.sharded_model()
    optimizer = {} if settings.no_save_optim else {"optimizer": state.sharded_optimizer(model, False, joined)}
    generators = {} if settings.no_save_rng else {random_state.KEY: random_state.sharded()}
    if is_hybrid:
        for part in model.values():
            hybrid_layout.add_extra_state(part)
        for sharded in (model, optimizer):
            hybrid_layout.name_layers(sharded, bool(config.architecture.mlp_layers))
    tokens = config.tokens(state.consumed_samples)
    common = {
        "args": argparse.Namespace(**megatron_arguments.run_arguments(config, is_hybrid), **progress),
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": state.iteration,
        "num_floating_point_operations_so_far": tokens * config.architecture.flops_per_token(batches.seq_length),
        "opt_param_scheduler": state.scheduler.state_dict(),
        "consumed_samples": state.consumed_samples,
        "unlogged": dataclasses.asdict(state.unlogged),
        "ordered_samples": state.ordered_samples[0] if len(state.ordered_samples) == 1 else list(state.ordered_samples),
    }
    return model | optimizer | generators | common


def phase_after(schedule: Schedule, batches: Batches, steps: int) -> str | None:
    """Return the name of the phase that the last of `steps` steps belongs to."""
    return schedule.phases[schedule.place(batches, max(0, steps - 1))].name if schedule else None


def record(
    config: RunConfig,
    chosen: kernels.Kernels,
    state: TrainingState,
    loss: float | None,
    datasets: dict[str, dict[str, int]],
    streams: list[dict[str, Any]] | None,
) -> RunRecord:
    return RunRecord(
        architecture=config.architecture,
        padded_vocab_size=config.padded_vocab_size,
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        tokenizer=config.data.tokenizer,
        dtype=config.precision.dtype,
        versions={"lt-train": version_of("lt-train"), **optional_packages.versions()},
        kernels=chosen.record(),
        datasets=datasets,
        streams=streams,
        files={},
        loss=loss,
        phase=phase_after(config.schedule, config.batches, state.iteration),
        distributed_optimizer=None if config.checkpointing.no_save_optim else config.shards_optimizer,
        ema_decay=None if config.checkpointing.no_save_optim else config.optimization.ema_decay,
    )


@remedies()
def load(
    directory: Path, config: RunConfig, state: TrainingState, fetching: contextlib.AbstractContextManager[None] | None = None
) -> None:
    """Restore `state` in place. Within the context `fetching`, missing files are fetched before they are read.

    From a `release` checkpoint, or with --finetune, only the weights are loaded, and training starts at iteration 0. Raises
    BadData if the checkpoint does not fit the model.
    """
    replicas = Replicas.from_process_groups(next(state.chunks[0].parameters()).device)
    with known_objects_only(directory, config.checkpointing.verify, replicas), fetching or contextlib.nullcontext():
        settings = config.checkpointing
        iteration = checkpoint_layout.iteration_of(directory)
        state.is_hybrid = hybrid_layout.has_hybrid_layers(directory)
        saved = RunRecord.read(directory) if (directory / checkpoint_layout.RECORD).is_file() else None
        common = dist_checkpointing.load_common_state_dict(str(directory)) if saved is None else None
        if common is not None:
            _check_unrecorded(directory, common, config.architecture, settings)
        if iteration is None or (settings.finetune and not settings.continues):
            _load_weights(state, _read(state.sharded_model(), directory, config.architecture, state.is_hybrid))
            state.optimizer.reload_model_params()
            return
        if settings.no_load_optim and not settings.continues:
            request = state.sharded_model() | random_state.request(config.layers, config.checkpointing, config.parallelism)
            loaded = _read(request, directory, config.architecture, state.is_hybrid)
            _load_weights(state, loaded)
            state.optimizer.reload_model_params()
        else:
            if common is not None:
                _check_sharding(directory, common)
            loaded = _load_with_optimizer(directory, config, state, saved)
        arguments = vars(loaded.get("args", argparse.Namespace()))
        _restore_progress(loaded, arguments, iteration, config.batches, state, settings.start)
        if torch.distributed.get_rank() == 0:
            _warn_of_changes(arguments, megatron_arguments.run_arguments(config), state.consumed_samples)
            _tell_of_average(config.optimization.ema_decay, saved.ema_decay if saved else None)
        if random_state.KEY in loaded:
            random_state.restore(loaded[random_state.KEY], next(state.chunks[0].parameters()).device)


def _load_with_optimizer(directory: Path, config: RunConfig, state: TrainingState, saved: RunRecord | None) -> dict[str, Any]:
    model = state.sharded_model()
    has_averages = saved is not None and saved.ema_decay is not None
    sharded = model | {"optimizer": state.sharded_optimizer(model, loading=True, averages=has_averages)}
    if saved is not None and saved.padded_vocab_size == config.padded_vocab_size:
        fill_whole(sharded)
    present = Kind(config.shards_optimizer, config.precision.dtype)
    theirs = present if saved is None else Kind(bool(saved.distributed_optimizer), saved.dtype)
    if theirs == present:
        request = sharded | random_state.request(config.layers, config.checkpointing, config.parallelism)
        loaded = _read(request, directory, config.architecture, state.is_hybrid)
        _load_weights(state, loaded)
        optimizer = loaded["optimizer"]
        optimizer_state.count_as_torch(optimizer)
    else:
        model_request, optimizer_request = optimizer_state.requests(sharded, theirs, present)
        request = model_request | random_state.request(config.layers, config.checkpointing, config.parallelism)
        loaded = _read(request, directory, config.architecture, state.is_hybrid)
        # The optimizer's fp32 weights may be the model's weights themselves. Read them last, because the loaded model weights may
        # be rounded.
        _load_weights(state, loaded)
        optimizer = optimizer_state.assemble(sharded, _read(optimizer_request, directory, config.architecture, state.is_hybrid))
    if config.optimization.optimizer == "muon":
        optimizer_state.complete(optimizer)
    optimizer_state.take_schedule(optimizer, state.optimizer.param_groups)
    state.optimizer.load_state_dict(optimizer)
    if kernels.fuses_adamw(config):
        take_masters(state.optimizer)
        gather_weights(state.chunks)
    separate_steps(state.optimizer)
    return loaded


def _check_unrecorded(directory: Path, common: dict[str, Any], architecture: Architecture, settings: Checkpointing) -> None:
    """Raise BadConfig if a Megatron-LM checkpoint has another model, or its directory's name hides its iteration.

    `common` is its state beside the tensors. The first rank warns of unknown arguments.
    """
    arguments = vars(common.get("args", argparse.Namespace()))
    remarks = resume.check_arguments(architecture, arguments, settings, str(settings.start))
    for remark in remarks if torch.distributed.get_rank() == 0 else ():
        warn(f"{settings.start}: {remark}")
    iteration = common.get("iteration")
    is_hidden = checkpoint_layout.iteration_of(directory) is None and directory.name != checkpoint_layout.RELEASE
    if is_hidden and isinstance(iteration, int) and iteration > 0 and not settings.finetune:
        name = checkpoint_layout.iteration_directory(directory.parent, iteration).name
        raise BadConfig(
            f"{settings.start}: is the checkpoint of iteration {iteration}, which its name does not say",
            f"name the directory {name}, or begin at iteration 0 with its weights: --finetune",
        )


def _check_sharding(directory: Path, common: dict[str, Any]) -> None:
    """Raise BadConfig for a Megatron-LM optimizer state that only its layout can read."""
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common) or {}
    sharding = metadata.get("distrib_optim_sharding_type")
    if sharding not in (None, CONTENT_METADATA["distrib_optim_sharding_type"]):
        raise BadConfig(
            f"{directory}: its optimizer state is {sharding}, which fits one layout only",
            "save it with Megatron-LM's --dist-ckpt-optim-fully-reshardable, or add --no-load-optim",
        )


def _restore_progress(
    loaded: dict[str, Any],
    stored_arguments: dict[str, Any],
    iteration: int,
    batches: Batches,
    state: TrainingState,
    start: str | None,
) -> None:
    """Restore the position in the data and in the schedule. `stored_arguments` are the arguments of the run that saved it."""
    state.iteration = iteration
    try:
        consumed = stored_arguments.get("consumed_train_samples", batches.samples_after(iteration))
        state.consumed_samples = int(loaded.get("consumed_samples", consumed))
        state.ordered_samples = _ordered_samples(loaded.get("ordered_samples"), stored_arguments)
        state.unlogged = Unlogged(**loaded.get("unlogged", {}))
        steps = int(loaded.get("opt_param_scheduler", {}).get("num_steps", state.consumed_samples))
        if min(state.consumed_samples, steps) < 0:
            raise ValueError("a negative number of samples")
    except (AttributeError, TypeError, ValueError) as error:
        raise BadData(f"{start}: how far it is trained is malformed: {error}", DAMAGED) from None
    # Skipped steps consume samples and do not move the schedule on.
    state.scheduler.num_steps = 0
    state.scheduler.step(increment=steps)


def _warn_of_changes(stored_arguments: dict[str, Any], arguments: dict[str, Any], consumed_samples: int) -> None:
    """Warn if the remaining steps differ from the steps of the run that saved `stored_arguments`."""
    for change in changes_of_order(stored_arguments, arguments, consumed_samples):
        warn(f"{change}: the samples that are left come in another order than before")
    if changes := megatron_arguments.changes_of_updates(stored_arguments, arguments):
        warn(f"{', '.join(changes)}: the steps that are left update the weights in another way than those before")


def _tell_of_average(decay: float | None, stored_decay: float | None) -> None:
    """Say what becomes of the averaged weights if the decay differs from the decay in the checkpoint."""
    if decay is None and stored_decay is not None:
        warn(f"the averaged weights in the checkpoint are dropped: --ema-decay {stored_decay:g} continues them")
    elif decay is not None and stored_decay is None:
        note("the checkpoint has no averaged weights: the average begins with its weights")
    elif decay != stored_decay:
        warn(f"the decay of the averaged weights was {stored_decay:g} and is {decay:g}")


def _ordered_samples(stored: Any, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Return the successive lengths of a run in samples. Megatron-LM's arguments have the length in samples or in steps."""
    steps_samples = (arguments.get("train_iters") or 0) * (arguments.get("global_batch_size") or 0)
    lengths = stored or arguments.get("train_samples") or steps_samples
    return tuple(map(int, lengths)) if isinstance(lengths, list | tuple) else (int(lengths),) if lengths else ()


def _read(sharded: dict[str, Any], directory: Path, architecture: Architecture, is_hybrid: bool) -> dict[str, Any]:
    """Read the tensors that `sharded` requests. megatron-core's `_extra_state` placeholders may be missing: they are empty.

    `is_hybrid`: the checkpoint has the layers of HybridModel.
    """
    merge_in_place(sharded)
    if is_hybrid:
        hybrid_layout.name_layers(sharded, bool(architecture.mlp_layers))
    loaded: dict[str, Any]
    try:
        loaded, _, absent = dist_checkpointing.load(sharded, str(directory), strict=StrictHandling.RETURN_UNEXPECTED)
    except ValueError as error:
        # megatron-core merges the stored parameter groups of the optimizer with the current groups.
        if not str(error).startswith(OTHER_GROUPS):
            raise
        raise BadData(
            f"{directory}: the optimizer has other groups of parameters than it had there",
            f"give the --optimizer that it was trained with, or start another --save with --load {directory} and --no-load-optim",
        ) from error
    problems = sorted(key for key in absent if not key.endswith("_extra_state"))
    if problems:
        raise BadData(f"{directory}: has no {', '.join(problems[:5])}", "it was saved from another model or another optimizer")
    return loaded


def _load_weights(state: TrainingState, loaded: dict[str, Any]) -> None:
    """Load every parameter. Only megatron-core's `_extra_state` placeholders may be missing."""
    problems = []
    for name, chunk in state.named_chunks():
        missing, unexpected = checkpoint_module(chunk).load_state_dict(loaded[name], strict=False)
        problems += [key for key in (*missing, *unexpected) if not key.endswith("_extra_state")]
    if problems:
        raise BadData(f"the checkpoint does not fit the model: {', '.join(problems[:5])}")
