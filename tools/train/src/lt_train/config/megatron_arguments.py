"""Convert the settings of a run to Megatron's arguments. The log begins with them, and checkpoints hold them for Megatron-LM."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from lt_shared.models import hybrid_pattern
from lt_shared.models.megatron_arguments import to_arguments
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import pipeline_layout
from lt_train.config.settings.data import Data, blend_words
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.parallelism import VOCABULARY_MULTIPLE
from lt_train.config.settings.skipping import Skipping


@dataclasses.dataclass(frozen=True)
class UpdateArgument:
    """An argument that decides the loss or how a step changes the weights. `can_be_unset`: None is a value, such as no z-loss."""

    name: str
    can_be_unset: bool = False

    def is_stored(self, arguments: Mapping[str, Any]) -> bool:
        return arguments.get(self.name) is not None or (self.can_be_unset and self.name in arguments)


# Megatron-LM sets lengths in samples only if a run counts samples.
UPDATE_ARGUMENTS = (
    UpdateArgument("optimizer"),
    UpdateArgument("lr"),
    UpdateArgument("min_lr"),
    UpdateArgument("lr_decay_style"),
    UpdateArgument("lr_warmup_init"),
    UpdateArgument("start_weight_decay"),
    UpdateArgument("end_weight_decay"),
    UpdateArgument("weight_decay_incr_style"),
    UpdateArgument("adam_beta1"),
    UpdateArgument("adam_beta2"),
    UpdateArgument("adam_eps"),
    UpdateArgument("clip_grad"),
    UpdateArgument("calculate_per_token_loss"),
    UpdateArgument("hidden_dropout"),
    UpdateArgument("attention_dropout"),
    UpdateArgument("eod_mask_loss"),
    UpdateArgument("reset_position_ids"),
    UpdateArgument("reset_attention_mask"),
    UpdateArgument("moe_aux_loss_coeff"),
    UpdateArgument("moe_router_load_balancing_type"),
    UpdateArgument("moe_z_loss_coeff", can_be_unset=True),
    UpdateArgument("moe_expert_capacity_factor", can_be_unset=True),
    UpdateArgument("moe_token_drop_policy"),
    UpdateArgument("moe_router_bias_update_rate"),
    UpdateArgument("mtp_loss_scaling_factor"),
)
SCHEDULE_LENGTHS = (UpdateArgument("lr_warmup_samples"), UpdateArgument("lr_decay_samples"))
WSD_ARGUMENTS = (UpdateArgument("lr_wsd_decay_style"), UpdateArgument("lr_wsd_decay_samples"))


def _indexer_arguments(optimization: Optimization) -> dict[str, Any]:
    return {
        "dsa_indexer_loss_coeff": optimization.indexer_loss_coeff,
        "dsa_indexer_use_sparse_loss": optimization.indexer_has_sparse_loss,
    }


def run_arguments(config: RunConfig, hybrid: bool = False) -> dict[str, Any]:
    """Return the run's settings under Megatron's argument names, of GPTModel or of a `hybrid` HybridModel."""
    optimization, parallel, precision = config.optimization, config.parallelism, config.precision
    architecture_arguments = to_arguments(config.architecture)
    if hybrid:
        architecture_arguments = hybrid_pattern.from_decoder(architecture_arguments, config.architecture)
    return architecture_arguments | {
        "padded_vocab_size": config.padded_vocab_size,
        "make_vocab_size_divisible_by": VOCABULARY_MULTIPLE,
        "seq_length": config.batches.seq_length,
        "micro_batch_size": config.batches.micro_batch_size,
        "global_batch_size": config.batches.global_batch_size,
        "rampup_batch_size": list(dataclasses.astuple(config.batches.ramp_up)) if config.batches.ramp_up else None,
        "step_batch_size_schedule": config.batches.size_schedule_text,
        "train_iters": config.batches.train_iters,
        "train_samples": config.batches.train_samples,
        "world_size": parallel.world_size,
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "virtual_pipeline_model_parallel_size": parallel.interleaving,
        "num_virtual_stages_per_pipeline_rank": parallel.interleaving,
        "pipeline_schedule": parallel.pipeline_schedule,
        "decoder_first_pipeline_num_layers": parallel.first_stage_layers,
        "decoder_last_pipeline_num_layers": parallel.last_stage_layers,
        "pipeline_model_parallel_layout": (
            parallel.stage_layers and pipeline_layout.layout_text(parallel.stage_layers, config.architecture.mtp_num_layers or 0)
        ),
        "context_parallel_size": parallel.context,
        "tp_comm_overlap": bool(parallel.tensor_overlap),
        "expert_model_parallel_size": parallel.expert,
        "transformer_impl": "local",
        "hidden_dropout": config.layers.hidden_dropout,
        "attention_dropout": config.layers.attention_dropout,
        "moe_token_dispatcher_type": config.layers.token_dispatcher,
        "moe_grouped_gemm": config.layers.grouped_experts,
        **config.routing.arguments(),
        "data_parallel_size": parallel.data,
        "sequence_parallel": parallel.sequence,
        "use_distributed_optimizer": parallel.distributed_optimizer,
        **config.memory.arguments(),
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
        "calculate_per_token_loss": config.averages_tokens,
        "ema_decay": optimization.ema_decay,
        "moe_router_bias_update_rate": optimization.router_bias_update_rate,
        "mtp_loss_scaling_factor": optimization.mtp_loss_scaling_factor,
        **(_indexer_arguments(optimization) if config.architecture.sparse_attention else {}),
        **(optimization.mup.arguments(config.architecture) if optimization.mup else {}),
        "seed": config.seed,
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
        "params_dtype": getattr(torch, config.precision.dtype),
        **_data_arguments(config.data, config.schedule, config.skipping),
        "save": config.checkpointing.save,
        "load": config.checkpointing.load,
        "ckpt_format": "torch_dist",
        "async_save": bool(config.checkpointing.async_save),
        "no_save_optim": config.checkpointing.no_save_optim,
        "no_save_rng": config.checkpointing.no_save_rng,
        "finetune": config.checkpointing.finetune,
        "data_parallel_random_init": False,
    }


def _data_arguments(data: Data, schedule: Schedule, skipping: Skipping) -> dict[str, Any]:
    whole = data.split is not None
    return {
        "split": data.split,
        "data_path": blend_words(data.datasets) if whole else None,
        "train_data_path": None if whole else blend_words(data.datasets),
        "valid_data_path": blend_words(data.validation_datasets),
        "validation_names": list(data.validation_names) or None,
        "test_data_path": blend_words(data.test_datasets),
        "mock_data": data.mock,
        "data_streams": None if data.streaming is None else list(data.streaming.lists),
        "shuffle_window": None if data.streaming is None else data.streaming.window_tokens,
        "eval_iters": data.eval_iters,
        "eval_interval": data.eval_interval,
        "reset_position_ids": data.reset_position_ids,
        "reset_attention_mask": data.reset_attention_mask,
        "eod_mask_loss": data.eod_mask_loss,
        "num_workers": data.num_workers,
        "data_schedule": [phase.record() for phase in schedule.phases] or None,
        # Counted from 1, as since Megatron-LM 0.18. Ranges, since a list may be long.
        "iterations_to_skip": str(skipping.steps),
        "skip_samples": str(skipping.samples),
    }


def changes_of_updates(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two runs' arguments, under Megatron's names, that change how a step updates the weights.

    Arguments that the stored run lacks do not count.
    """
    arguments = list(UPDATE_ARGUMENTS)
    if stored.get("train_samples"):
        arguments += SCHEDULE_LENGTHS
    if current["lr_decay_style"] == stored.get("lr_decay_style") == "WSD":
        arguments += WSD_ARGUMENTS
    names = [argument.name for argument in arguments if argument.is_stored(stored)]
    changes = [
        f"{name.replace('_', '-')} was {_format_value(stored[name])} and is {_format_value(current[name])}"
        for name in names
        if stored[name] != current.get(name, stored[name])
    ]
    before, now = _precision(stored), _precision(current)
    return changes + ([f"the precision was {before} and is {now}"] if stored and before != now else [])


def _format_value(value: Any) -> str:
    """Round a value to the digits that people write: a tenth of 0.0003 is 3e-05, not 2.9999999999999997e-05."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _precision(arguments: Mapping[str, Any]) -> str:
    """Describe the precision of the GEMMs: `bf16`, `bf16 with fp8 (hybrid, tensorwise)`, `fp32`."""
    weights = next((name for name in ("bf16", "fp16") if arguments.get(name)), "fp32")
    form = arguments.get("fp8")
    return f"{weights} with fp8 ({form}, {arguments.get('fp8_recipe')})" if form else weights
