"""Checkpoints in Megatron's torch_dist format: saved whole or not at all, resumed from the newest complete one.

All ranks write into `.iter_NNNNNNN.partial`; rank 0 adds `run.json`, renames the directory and then writes the tracker. A run
that is killed while saving so leaves the previous checkpoint as the newest. Tensors are stored by their place in the whole model,
so a run may resume with other tensor, pipeline and data parallel sizes.
"""

import argparse
import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import megatron.core
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch.distributed.checkpoint.api import CheckpointException

from lt_shared import checkpoint_layout, megatron_arguments, storage
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import BadData, IoFailure
from lt_train import __version__
from lt_train.data_parallel import Chunk, gathered
from lt_train.model import checkpointed
from lt_train.optimizer import create_state, separate_steps
from lt_train.plan import VOCABULARY_MULTIPLE, Plan
from lt_train.settings.data import blend_words

CHECKPOINT_VERSION = 3.0
# The default sharding of the distributed optimizer needs CUDA buffers; this one also loads under other parallel sizes.
CONTENT_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


@dataclasses.dataclass
class Unlogged:
    """The steps since the last log line: the losses of those that updated the weights, and how many did not."""

    losses: list[float] = dataclasses.field(default_factory=list)
    skipped_steps: int = 0
    nan_steps: int = 0

    def add(self, loss: float, updated: bool) -> None:
        if updated:
            self.losses.append(loss)
        self.skipped_steps += not updated
        self.nan_steps += not math.isfinite(loss)

    @property
    def mean_loss(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclasses.dataclass
class TrainingState:
    """What a checkpoint holds: the model, the optimizer with its schedule, and the position in the data.

    `unlogged` are the steps since the last log line, so that the next line is the same after a resume.
    """

    chunks: list[Chunk]
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    iteration: int = 0
    consumed_samples: int = 0
    unlogged: Unlogged = dataclasses.field(default_factory=Unlogged)

    def sharded(self, loading: bool) -> dict[str, Any]:
        with gathered(self.chunks):
            model = self.sharded_model()
        optimizer = self.optimizer.sharded_state_dict(model, is_loading=loading, metadata=CONTENT_METADATA)
        return model | {"optimizer": optimizer}

    def sharded_model(self) -> dict[str, Any]:
        """The weights under Megatron's names: `model`, or `model0`, `model1` ... for the stages of an interleaved pipeline."""
        return {
            name: dict(checkpointed(chunk).sharded_state_dict(metadata=CONTENT_METADATA)) for name, chunk in self.named_chunks()
        }

    def named_chunks(self) -> list[tuple[str, Chunk]]:
        if len(self.chunks) == 1:
            return [("model", self.chunks[0])]
        return [(f"model{stage}", chunk) for stage, chunk in enumerate(self.chunks)]


def save(plan: Plan, state: TrainingState, loss: float | None) -> Path:
    """Write the checkpoint of `state.iteration`; returns its directory, complete and durable, on every rank."""
    assert plan.checkpointing.save is not None
    run = Path(plan.checkpointing.save)
    target = checkpoint_layout.iteration_directory(run, state.iteration)
    partial = run / f".{target.name}.partial"
    if torch.distributed.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    torch.distributed.barrier()
    content = state.sharded(loading=False) | {
        "args": argparse.Namespace(**arguments(plan)),
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": state.iteration,
        "consumed_samples": state.consumed_samples,
        "num_floating_point_operations_so_far": 0,
        "opt_param_scheduler": state.scheduler.state_dict(),
        "unlogged": dataclasses.asdict(state.unlogged),
    }
    try:
        dist_checkpointing.save(content, str(partial), content_metadata=dict(CONTENT_METADATA))
    except (OSError, RuntimeError, CheckpointException) as error:
        raise _not_saved(partial, target, error) from error
    if torch.distributed.get_rank() == 0:
        record(plan, state, loss).write(partial)
        storage.publish_prepared_directory(partial, target)
        checkpoint_layout.write_tracker(run, state.iteration)
    torch.distributed.barrier()
    return target


def _not_saved(partial: Path, target: Path, error: BaseException) -> IoFailure:
    """For a failed save. torch's writers report a full disk as a wrong position in a file: the free space tells."""
    free_bytes = shutil.disk_usage(partial.parent).free
    shutil.rmtree(partial, ignore_errors=True)
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return IoFailure(
        f"{target}: not saved, {free_bytes / 1e6:,.0f} MB are free there: {reason[-1]}",
        "make room and run the same command again: it continues from the checkpoint before",
    )


def record(plan: Plan, state: TrainingState, loss: float | None) -> RunRecord:
    return RunRecord(
        architecture=plan.architecture,
        padded_vocab_size=plan.padded_vocab_size,
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        tokenizer=plan.data.tokenizer,
        dtype=plan.precision.dtype,
        versions={"lt-train": __version__, "megatron-core": megatron.core.__version__, "torch": torch.__version__},
        files={},
        loss=loss,
        distributed_optimizer=plan.shards_optimizer,
    )


def arguments(plan: Plan) -> dict[str, Any]:
    """The run's settings under Megatron's argument names."""
    optimization, parallel, precision = plan.optimization, plan.parallelism, plan.precision
    return megatron_arguments.to_arguments(plan.architecture) | {
        "padded_vocab_size": plan.padded_vocab_size,
        "make_vocab_size_divisible_by": VOCABULARY_MULTIPLE,
        "seq_length": plan.batches.seq_length,
        "micro_batch_size": plan.batches.micro_batch_size,
        "global_batch_size": plan.batches.global_batch_size,
        "rampup_batch_size": list(dataclasses.astuple(plan.batches.ramp_up)) if plan.batches.ramp_up else None,
        "train_iters": plan.batches.train_iters,
        "train_samples": plan.batches.train_samples,
        "world_size": parallel.world_size,
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "virtual_pipeline_model_parallel_size": parallel.interleaving,
        "num_virtual_stages_per_pipeline_rank": parallel.interleaving,
        "decoder_first_pipeline_num_layers": parallel.first_stage_layers,
        "decoder_last_pipeline_num_layers": parallel.last_stage_layers,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "transformer_impl": "transformer_engine" if plan.layers.transformer_engine else "local",
        "hidden_dropout": plan.layers.hidden_dropout,
        "attention_dropout": plan.layers.attention_dropout,
        "moe_token_dispatcher_type": plan.layers.token_dispatcher,
        "moe_grouped_gemm": plan.layers.grouped_experts,
        "data_parallel_size": parallel.data,
        "sequence_parallel": parallel.sequence,
        "use_distributed_optimizer": parallel.distributed_optimizer,
        "lr": optimization.lr,
        "min_lr": optimization.min_lr,
        "optimizer": optimization.optimizer,
        "lr_decay_style": optimization.lr_decay_style,
        "lr_warmup_samples": optimization.lr_warmup_samples,
        "lr_warmup_init": optimization.lr_warmup_init,
        "lr_decay_samples": optimization.lr_decay_samples,
        "lr_wsd_decay_style": optimization.wsd_decay_style,
        "lr_wsd_decay_samples": optimization.wsd_decay_samples,
        "weight_decay": optimization.end_weight_decay,
        "start_weight_decay": optimization.start_weight_decay,
        "end_weight_decay": optimization.end_weight_decay,
        "weight_decay_incr_style": optimization.weight_decay_style,
        "adam_beta1": optimization.adam_beta1,
        "adam_beta2": optimization.adam_beta2,
        "adam_eps": optimization.adam_eps,
        "clip_grad": optimization.clip_grad,
        "seed": plan.seed,
        "bf16": precision.bf16,
        "fp16": precision.fp16,
        "loss_scale": precision.loss_scale,
        "initial_loss_scale": precision.initial_loss_scale,
        "min_loss_scale": precision.min_loss_scale,
        "loss_scale_window": precision.loss_scale_window,
        "hysteresis": precision.hysteresis,
        "fp8": precision.fp8_format,
        "fp8_recipe": precision.fp8_recipe,
        "deterministic_mode": precision.deterministic,
        "params_dtype": getattr(torch, plan.precision.dtype),
        **_data_arguments(plan),
        "save": plan.checkpointing.save,
        "load": plan.checkpointing.load,
    }


def _data_arguments(plan: Plan) -> dict[str, Any]:
    data = plan.data
    whole = data.split is not None
    return {
        "split": data.split,
        "data_path": blend_words(data.datasets) if whole else None,
        "train_data_path": None if whole else blend_words(data.datasets),
        "valid_data_path": blend_words(data.validation_datasets),
        "test_data_path": blend_words(data.test_datasets),
        "mock_data": data.mock,
        "eval_iters": data.eval_iters,
        "eval_interval": data.eval_interval,
        "reset_position_ids": data.reset_position_ids,
        "reset_attention_mask": data.reset_attention_mask,
        "eod_mask_loss": data.eod_mask_loss,
        "num_workers": data.num_workers,
    }


def load(directory: Path, plan: Plan, state: TrainingState) -> None:
    """Restore `state` in place. A `release` checkpoint has weights only: training starts at iteration 0 with them."""
    iteration = checkpoint_layout.iteration_of(directory)
    if iteration is None:
        _load_weights(state, _read(state.sharded_model(), directory))
        state.optimizer.reload_model_params()
        return
    create_state(state.optimizer)
    loaded = _read(state.sharded(loading=True), directory)
    _load_weights(state, loaded)
    state.optimizer.load_state_dict(loaded["optimizer"])
    separate_steps(state.optimizer)
    state.iteration = iteration
    state.consumed_samples = int(loaded.get("consumed_samples", iteration * plan.batches.global_batch_size))
    state.unlogged = Unlogged(**loaded.get("unlogged", {}))
    # Skipped steps consume samples and do not move the schedule on.
    state.scheduler.num_steps = 0
    state.scheduler.step(increment=loaded["opt_param_scheduler"]["num_steps"])


def _read(sharded: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The tensors that `sharded` asks for. What TransformerEngine's layers keep beside their weights for fp8 may be absent: torch
    layers have none of it."""
    loaded: dict[str, Any]
    loaded, _, absent = dist_checkpointing.load(sharded, str(directory), strict=StrictHandling.RETURN_UNEXPECTED)
    problems = sorted(key for key in absent if not key.endswith("_extra_state"))
    if problems:
        raise BadData(f"{directory}: has no {', '.join(problems[:5])}", "it was saved from another model or another optimizer")
    return loaded


def _load_weights(state: TrainingState, loaded: dict[str, Any]) -> None:
    """Load every parameter; only megatron-core's `_extra_state` placeholders may be absent."""
    problems = []
    for name, chunk in state.named_chunks():
        missing, unexpected = checkpointed(chunk).load_state_dict(loaded[name], strict=False)
        problems += [key for key in (*missing, *unexpected) if not key.endswith("_extra_state")]
    if problems:
        raise BadData(f"the checkpoint does not fit the model: {', '.join(problems[:5])}")
