"""Keys of TorchTitan's TOML that lt-train does not have, and what their loss changes; keys that have other names since.

Read against torchtitan/config_manager.py of v0.1.0 and torchtitan/config/job_config.py of v0.2.0 and v0.2.2.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.upstream.rows import rows

# Where keys of 2024 are since.
MOVED = {
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_split_points": "parallelism.pipeline_parallel_split_points",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "training.enable_fsdp_float8_all_gather": "float8.enable_fsdp_float8_all_gather",
    "training.precompute_float8_dynamic_scale_for_fsdp": "float8.precompute_float8_dynamic_scale_for_fsdp",
    "validation.enabled": "validation.enable",
    "profiling.run_profiler": "profiling.enable_profiling",
    "profiling.profile_every_x_iter": "profiling.profile_freq",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.checkpoint_interval": "checkpoint.interval",
    "training.checkpoint_interval_type": "checkpoint.interval_type",
    "training.checkpoint_folder": "checkpoint.folder",
    "memory_estimation.enabled": "memory_estimation.enable",
}
# Keys that TorchTitan never had, and where its own are.
INVENTED = {
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.context_parallel_degree": "parallelism.context_parallel_degree",
    "training.micro_batch_size": "training.local_batch_size",
    "training.max_steps": "training.steps",
    "training.lr": "optimizer.lr",
    "training.sequence_length": "training.seq_len",
    "training.activation_checkpoint": "activation_checkpoint.mode",
    "checkpoint.checkpoint_dir": "checkpoint.folder",
    "checkpoint.checkpoint_interval": "checkpoint.interval",
    "checkpoint.resume_from_checkpoint": "checkpoint.initial_load_path",
}
TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
OF_DATA = "data is tokenized first: lt-preprocess, then DATA"
LAYOUT = "it says which rank computes what, not what is computed"
MEMORY = "it says how tensors are held or recomputed"
REPORTS = "lt-train reports in its own way"
OTHER_START = "lt-train continues from the newest checkpoint of SAVE, with all that is there"
NO_TRAINING = "TorchTitan does not train then: lt-train would"

ROWS = rows(
    (Effect.NONE, "the model has RMSNorm in any case", "model.norm_type"),
    (Effect.RESULT, TOKENIZER, "model.tokenizer_path model.hf_assets_path"),
    (
        Effect.RESULT,
        OF_DATA,
        # Each worker of a data loader reads all of a data set that is no stream.
        "training.dataset training.dataset_path training.dataloader.num_workers validation.dataset validation.dataset_path"
        " validation.dataloader.num_workers",
    ),
    (
        Effect.NONE,
        OF_DATA,
        "training.dataloader.persistent_workers training.dataloader.pin_memory training.dataloader.prefetch_factor"
        " validation.dataloader.persistent_workers validation.dataloader.pin_memory validation.dataloader.prefetch_factor",
    ),
    (
        Effect.NONE,
        "it is what remains of the ranks; TorchTitan has no such key",
        "training.data_parallel_degree",
    ),
    (Effect.SPEED, "lt-train does not compile the model", "training.compile"),
    # torchtitan/config/configs.py, line 75, of b5bcd76c6.
    (Effect.SPEED, "lt-train records no CUDA graphs", "training.disable_cuda_graphs"),
    (Effect.SPEED, "lt-train does not compile the model; TorchTitan has no such key", "training.compile_mode"),
    (
        Effect.NONE,
        "the last checkpoint has all; lt-convert writes the weights alone, in any type",
        "checkpoint.last_save_model_only checkpoint.last_save_in_hf checkpoint.export_dtype"
        " checkpoint.enable_first_step_checkpoint checkpoint.enable_ft_dataloader_checkpoints"
        " checkpoint.async_mode checkpoint.folder checkpoint.interval_type",
    ),
    (
        Effect.RUN,
        OTHER_START,
        "checkpoint.load_step checkpoint.exclude_from_loading",
    ),
    (Effect.NONE, "TorchTitan saves nothing then; lt-train saves what it trains", "checkpoint.load_only"),
    (Effect.RUN, NO_TRAINING, "checkpoint.create_seed_checkpoint memory_estimation.enable comm.mode"),
    (
        Effect.RUN,
        "it is code, which lt-train import does not run",
        "job.custom_config_module experimental.custom_import experimental.custom_args_module experimental.custom_model_path",
    ),
    (Effect.NONE, "lt-train plan estimates", "memory_estimation.disable_fake_mode"),
    (Effect.NONE, "wandb reads it from WANDB_ENTITY", "metrics.wandb_entity"),
    (
        Effect.NONE,
        REPORTS,
        "metrics.disable_color_printing metrics.save_for_all_ranks metrics.rank_0_only metrics.save_tb_folder"
        " metrics.wandb_project model.print_after_conversion job.print_args job.print_config job.save_config_file"
        " job.save_config_folder job.config_file job.dump_folder job.description job.use_for_integration_test"
        " profiling.save_traces_folder profiling.profiler_active profiling.profiler_warmup"
        " profiling.save_memory_snapshot_folder training.gc_debug",
    ),
    (
        Effect.NONE,
        "lt-train profiles one stretch of steps: --profile-step-start, --profile-step-end",
        "profiling.profile_freq",
    ),
    (
        Effect.NONE,
        "time-outs and traces of communication are lt-train's own",
        "comm.init_timeout_seconds comm.train_timeout_seconds comm.trace_buf_size comm.save_traces_folder"
        " comm.save_traces_file_prefix",
    ),
    (Effect.SPEED, "AdamW is one kernel in any case", "optimizer.implementation optimizer.fused"),
    (
        Effect.RUN,
        "gradients are not clipped then; lt-train clips them to --clip-grad",
        "optimizer.early_step_in_backward",
    ),
    (Effect.RUN, "lt-train has AdamW and Muon", "optimizer.name"),
    (Effect.RUN, "lt-train has other schedules: --lr-decay-style", "lr_scheduler.decay_type"),
    (
        Effect.SPEED,
        LAYOUT,
        "parallelism.enable_async_tensor_parallel parallelism.disable_loss_parallel"
        " parallelism.fsdp_reshard_after_forward parallelism.context_parallel_rotate_method"
        " parallelism.context_parallel_load_balancer parallelism.pipeline_parallel_split_points"
        " parallelism.pipeline_parallel_schedule parallelism.pipeline_parallel_schedule_csv"
        " parallelism.pipeline_parallel_layers_per_stage parallelism.pipeline_parallel_first_stage_less_layers"
        " parallelism.pipeline_parallel_last_stage_less_layers parallelism.pipeline_parallel_expert_parallel_overlap"
        " parallelism.module_fqns_per_model_part parallelism.expert_tensor_parallel_degree"
        " parallelism.expert_parallel_comm_backend parallelism.enable_compiled_autograd"
        " parallelism.pipeline_parallel_microbatch_size",
    ),
    (
        Effect.SPEED,
        MEMORY,
        "training.enable_cpu_offload training.gc_freq activation_checkpoint.mode"
        " activation_checkpoint.selective_ac_option activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"
        " activation_checkpoint.early_stop activation_checkpoint.memory_budget"
        " activation_checkpoint.visualize_memory_budget_pareto activation_checkpoint.preserve_rng_state"
        " activation_checkpoint.determinism_check activation_checkpoint.debug",
    ),
    (Effect.NONE, "the warning replaces an error", "debug.deterministic_warn_only training.deterministic_warn_only"),
    (
        Effect.NONE,
        "fault tolerance is off, and lt-train continues from checkpoints",
        "fault_tolerance.process_group fault_tolerance.process_group_timeout_ms fault_tolerance.replica_id"
        " fault_tolerance.group_size fault_tolerance.min_replica_size fault_tolerance.semi_sync_method",
    ),
)
# Sections that change nothing but speed.
SPEED_SECTIONS = {
    "compile.": "lt-train does not compile the model",
    "symm_mem.": "lt-train has no symmetric memory",
    "training.compile.": "lt-train does not compile the model",
}
