"""Fields of Megatron-Bridge's ConfigContainer that lt-train does not have, and what their loss changes.

Read against Megatron-Bridge v0.6.0. A field that has the name and the meaning of an option of Megatron-LM has its row.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.upstream import megatron_options
from lt_train.importers.upstream.rows import Row, rows

# Sections whose fields change no result, except for the fields in ROWS.
SECTIONS = {
    "logger.": Row(Effect.NONE, megatron_options.REPORTS),
    "profiling.": Row(Effect.NONE, megatron_options.REPORTS),
    "straggler.": Row(Effect.NONE, megatron_options.REPORTS),
    "nvrx_straggler.": Row(Effect.NONE, megatron_options.REPORTS),
    "inprocess_restart.": Row(Effect.NONE, megatron_options.FAULTS),
    "ft.": Row(Effect.NONE, megatron_options.FAULTS),
    "dist.": Row(Effect.NONE, "it says how ranks find each other, which lt-train does by itself"),
    "comm_overlap.": Row(Effect.SPEED, megatron_options.COLLECTIVES),
    "tokenizer.": Row(Effect.NONE, megatron_options.TOKENIZER),
    "model.generation_config.": Row(Effect.NONE, megatron_options.INFERENCE),
    "env_vars.": Row(Effect.NONE, "the environment belongs to the job"),
    "peft.": Row(Effect.RUN, "lt-train trains all weights"),
}
COMPUTED = "it is computed from the other fields"

ROWS = {
    name: row for name, row in megatron_options.ROWS.items() if row.effect in (Effect.NONE, Effect.SPEED, Effect.RESULT)
} | rows(
    (Effect.RESULT, megatron_options.FP8_SCALES, "model.tp_only_amax_red"),
    (
        Effect.NONE,
        COMPUTED,
        "scheduler.lr_decay_steps scheduler.lr_warmup_steps scheduler.wd_incr_steps scheduler.wsd_decay_steps"
        " dataset.split_matrix dataset.data_parallel_size dataset.sequence_parallel_size"
        " dataset.context_parallel_size dataset.token_dtype_code dataset.sequences_per_dataset dataset.tokenizer"
        " model.timers model.finalize_model_grads_func model.grad_scale_func model.moe_grad_scale_func"
        " model.mtp_grad_scale_func model.no_sync_func model.grad_sync_func model.param_sync_func model.params_dtype"
        " model.pipeline_dtype model.autocast_dtype model.variable_seq_lengths model.hf_model_id"
        " model.hf_model_revision model.parallel_output model.mtp_enabled model.hetereogenous_dist_checkpoint"
        " model.bos_token_id model.eos_token_id model.pad_token_id optimizer.params_dtype optimizer.timers"
        " optimizer.barrier_with_L1_time optimizer.store_param_remainders mixed_precision.params_dtype"
        " mixed_precision.pipeline_dtype mixed_precision.autocast_dtype mixed_precision.fp32",
    ),
    (
        Effect.NONE,
        megatron_options.CHECKPOINTS,
        "checkpoint.fully_parallel_save checkpoint.fully_parallel_load checkpoint.ckpt_load_validate_sharding_integrity"
        " checkpoint.strict_fsdp_dtensor_load checkpoint.stream_ckpt_dequant checkpoint.storage_writers_per_rank"
        " checkpoint.async_write_results_mp_mode checkpoint.also_save_hf_checkpoint"
        " checkpoint.hf_source_path checkpoint.hf_trust_remote_code checkpoint.hf_distributed_save"
        " checkpoint.hf_save_every_n_ranks checkpoint.save_tokenizer_assets checkpoint.save_optim checkpoint.save_rng"
        " checkpoint.use_tokenizer_model_from_checkpoint_args",
    ),
    (
        Effect.NONE,
        "data is Megatron's mmap format, and is read so in any case",
        "dataset.mmap_bin_files dataset.fast_cache_load dataset.defer_npy_index_mmap dataset.path_to_cache"
        " dataset.dataloader_save dataset.trust_remote_code",
    ),
    (
        Effect.RESULT,
        "lt-train skips a step whose gradients are not finite: --max-nan-steps",
        "ddp.check_for_nan_in_grad rerun_state_machine.check_for_nan_in_loss",
    ),
    (
        Effect.SPEED,
        megatron_options.COLLECTIVES,
        "ddp.nccl_ub ddp.gradient_reduce_div_fusion ddp.num_buckets ddp.bucket_size ddp.pad_buckets_for_high_nccl_busbw"
        " ddp.align_param_gather ddp.average_in_collective ddp.fsdp_all_gather_in_start_param_sync ddp.use_custom_fsdp"
        " optimizer.use_layer_wise_distributed_optimizer train.check_optimizer_step_success",
    ),
    (
        Effect.SPEED,
        megatron_options.MEMORY,
        "train.manual_gc_eval dataset.pin_memory dataset.persistent_workers optimizer.pin_cpu_grads optimizer.pin_cpu_params",
    ),
    (
        Effect.SPEED,
        megatron_options.KERNELS,
        "ddp.megatron_fsdp_cuda_graph_mode",
    ),
    (
        Effect.RUN,
        megatron_options.OTHER_PROGRAM,
        "validation.skip_train train.skip_train model.restore_modelopt_state checkpoint.ckpt_convert_format",
    ),
    (
        Effect.RUN,
        "lt-train has AdamW and Muon, and the schedules of --lr-decay-style",
        "optimizer.optimizer optimizer.decoupled_weight_decay scheduler.lr_decay_style",
    ),
    (
        Effect.RUN,
        "lt-train would start with other weights or another state",
        "checkpoint.load checkpoint.pretrained_checkpoint",
    ),
    (
        Effect.MODEL,
        "the layers are Transformer Engine's then: LayerNorm, GELU, biases, no query groups, no rotary positions",
        "model.use_transformer_engine_full_layer_spec",
    ),
    (
        Effect.RESULT,
        "lt-train computes in one type, not in the types of torch.autocast",
        "model.enable_autocast mixed_precision.autocast_enabled",
    ),
    (Effect.RESULT, "lt-train draws other numbers of the same distribution", "rng.data_parallel_random_init"),
    (Effect.RUN, "it says where the data begins; lt-train begins where the checkpoint ends", "dataset.dataloader_load"),
    (Effect.RUN, "it is code, which lt-train import does not run", "checkpoint.custom_manager_class"),
    (
        Effect.RUN,
        "lt-train masks the loss of no token of the data but with --eod-mask-loss",
        "tokenizer.null_tokenizer_pad_id tokenizer.null_tokenizer_eod_id",
    ),
    (
        Effect.RESULT,
        "the vocabulary is padded to 128 x tensor parallel size",
        "tokenizer.pad_vocab_size tokenizer.make_vocab_size_divisible_by",
    ),
    # The section says nothing, the field does.
    (Effect.RUN, "lt-train does not end a run so", "nvrx_straggler.stop_if_detected ft.simulate_fault"),
    (
        Effect.RUN,
        "lt-train has no such setting",
        "tokenizer.padded_vocab_size tokenizer.vocab_extra_ids",
    ),
)


def row(key: str) -> Row | None:
    """The row of a field, of the option of Megatron-LM with its name, or of its section."""
    section = next((row for prefix, row in SECTIONS.items() if key.startswith(prefix)), None)
    name = key.rpartition(".")[2]
    return ROWS.get(key) or section or (ROWS.get(name) if key.count(".") == 1 else None)
