"""Keys of NeMo 1 and of HyperPod's recipes that lt-train does not have, and what their loss changes.

Read against megatron_gpt_config.yaml and nemo/collections/nlp of NeMo's last commit with them (2025-09), Lightning's Trainer, and
the recipes of v1.3.3.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.upstream.rows import Row, rows

JOB = "it belongs to the job: lt-train render slurm --nodes, or srun and torchrun"
TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
IN_ANY_CASE = "lt-train does so in any case"
NEURON = "a switch of AWS's Neuron fork that chooses how the same is computed or stored"
MANAGER = "a switch of the experiment manager; a run continues by itself from its newest checkpoint"
LIGHTNING = "a switch of PyTorch Lightning's that trains nothing"
SAMPLER = "Lightning would replace NeMo's sampler by one that shuffles in its own way, and stops where it cannot"
FUSION = "it chooses a kernel for the same computation"
CHECKPOINTS = "it says how checkpoints are written; lt-train writes torch_dist in its own way"
FSDP = "FSDP2 does so by itself"
DATA = "data is tokenized first: lt-preprocess, then DATA"
OF_DATA = "data is Megatron's mmap format, and is read so in any case"
START = "lt-convert makes a checkpoint for --load from Hugging Face or Megatron weights"
ENDS = "lt-train ends a run by its steps, or by --exit-duration-in-mins"
EVALUATION = "lt-train evaluates --eval-iters batches each --eval-interval steps"

SECTIONS = {
    "exp_manager.": Row(Effect.NONE, MANAGER),
    "model.tokenizer.": Row(Effect.NONE, TOKENIZER),
    "model.nsys_profile.": Row(Effect.NONE, "lt-train has torch's profiler: --profile"),
    "model.viztracer.": Row(Effect.NONE, "lt-train has torch's profiler: --profile"),
    "model.megatron_timer_kwargs.": Row(Effect.NONE, "lt-train reports in its own way"),
    "model.ub_tp_comm_overlap_cfg.": Row(Effect.SPEED, "it says how ranks communicate"),
    "model.pretrained_checkpoint.": Row(Effect.RUN, START),
    "model.peft.": Row(Effect.RUN, "lt-train trains all weights"),
    "s3_checkpointing.": Row(Effect.NONE, CHECKPOINTS),
    "inference.": Row(Effect.NONE, "inference alone reads it"),
    "model.inference.": Row(Effect.NONE, "inference alone reads it"),
}
ROWS = rows(
    (Effect.NONE, "a name of the experiment: see --save and --wandb-exp-name", "name exp_manager.name"),
    (
        Effect.RUN,
        START,
        "restore_from_path restore_from_ckpt model.restore_from_path model.restore_from_ckpt"
        " model.resume_from_checkpoint model.nemo_path exp_manager.resume_from_checkpoint trainer.resume_from_checkpoint"
        " model.pretrained_checkpoint model.kd_teacher_restore_from_path model.load_from_checkpoint"
        " model.pretrained_model_path model.weight_init_only",
    ),
    (Effect.RUN, "the file does not train so: lt-train would", "model.skip_train model.data.data_cache_generation_only"),
    (Effect.RUN, "the file does not train so: lt-train would", "trainer.fast_dev_run"),
    (
        Effect.RUN,
        ENDS,
        "trainer.max_epochs trainer.max_time exp_manager.max_time_per_run exp_manager.create_early_stopping_callback"
        " trainer.limit_train_batches trainer.overfit_batches trainer.min_steps trainer.min_epochs",
    ),
    (Effect.RUN, EVALUATION, "trainer.val_check_interval trainer.limit_val_batches trainer.check_val_every_n_epoch"),
    (Effect.RESULT, "lt-train continues from the newest checkpoint of SAVE in any case", "exp_manager.resume_if_exists"),
    (Effect.RESULT, "gradients are summed in float32", "model.fsdp_grad_reduce_dtype model.zero_use_fp32_grad_accum"),
    (
        Effect.NONE,
        NEURON,
        "model.save_logits model.save_logits_interval model.disable_layer_norm_checkpointing model.convert_to_hf"
        " enable_recovery_time_instrumentation async_checkpointing enable_checkpoint_removal_protection",
    ),
    (Effect.RESULT, "weights and optimizer stay in 32 bits in lt-train", "model.zero_use_master_weight"),
    (Effect.NONE, "NeMo reads it with fp16 alone", "model.apply_query_key_layer_scaling"),
    (Effect.RESULT, TOKENIZER, "model.data.tokenizer_name"),
    (Effect.MODEL, "lt-train has models of text alone", "model.multi_modal"),
    (Effect.RESULT, "lt-train skips a step whose gradients are not finite: --max-nan-steps", "trainer.detect_anomaly"),
    (Effect.RUN, SAMPLER, "trainer.use_distributed_sampler trainer.replace_sampler_ddp"),
    (Effect.RUN, "lt-train pretrains on text", "model.data.fine_tuning model.data.chat"),
    (Effect.RUN, EVALUATION, "model.data.pad_samples_to_global_batch_size"),
    (Effect.RUN, "lt-train has no dropout between the layers of an MLP", "model.ffn_dropout"),
    (Effect.RUN, "lt-train trains no filling in the middle", "model.data.add_fim"),
    (Effect.RUN, "lt-train reads one token more than a sample in any case", "model.data.no_seqlen_plus_one_input_tokens"),
    (
        Effect.RUN,
        "lt-train has no such setting",
        "exp_manager.ema.enable exp_manager.straggler_detection_params.stop_if_detected trainer.accumulate_grad_batches"
        " trainer.gradient_clip_algorithm",
    ),
    (Effect.NONE, JOB, "trainer.devices trainer.num_nodes"),
    (Effect.NONE, "see --device", "trainer.accelerator"),
    (Effect.SPEED, "it follows from the parallel sizes", "trainer.strategy trainer.plugins"),
    (Effect.NONE, "fitting a model tests nothing", "trainer.limit_test_batches trainer.limit_predict_batches"),
    (
        Effect.NONE,
        LIGHTNING,
        "trainer.logger trainer.enable_checkpointing trainer.benchmark trainer.enable_model_summary"
        " trainer.enable_progress_bar trainer.profiler trainer.callbacks"
        " trainer.num_sanity_val_steps trainer.sync_batchnorm trainer.default_root_dir"
        " trainer.log_every_n_steps trainer.sequential_move_factor trainer.weights_save_path trainer.track_grad_norm"
        " trainer.inference_mode",
    ),
    (
        Effect.NONE,
        IN_ANY_CASE,
        "model.mcore_gpt model.pre_process model.post_process model.gradient_as_bucket_view model.megatron_amp_O2"
        " model.use_flash_attention model.log_reduced_training_loss use_smp_model"
        " model.apex_transformer_log_level model.enable_megatron_timers model.nccl_communicator_config_path"
        " model.log_train_loss model.log_token_counts model.log_parameter_norm model.log_gradient_norm model.precision"
        " distributed_backend model.hf_access_token",
    ),
    (
        Effect.NONE,
        CHECKPOINTS,
        "model.dist_ckpt_format model.dist_ckpt_load_on_device model.dist_ckpt_parallel_save"
        " model.dist_ckpt_parallel_save_within_dp model.dist_ckpt_parallel_load model.dist_ckpt_torch_dist_multiproc"
        " model.dist_ckpt_assume_constant_structure model.dist_ckpt_parallel_dist_opt model.dist_ckpt_load_strictness"
        " model.fsdp_sharded_checkpoint",
    ),
    (
        Effect.NONE,
        OF_DATA,
        "model.data.skip_warmup model.data.mmap_bin_files model.data.num_dataset_builder_threads"
        " model.data.exchange_indices_distributed model.data.delay_data_init model.data.delay_data_mmap"
        " model.data.index_mapping_dir model.data.num_workers model.data.data_prefix",
    ),
    (
        Effect.NONE,
        DATA,
        "model.data.dataset_type model.data.zipped_data",
    ),
    (Effect.RESULT, DATA, "model.data.train_dir model.data.val_dir"),
    (
        Effect.SPEED,
        FUSION,
        "model.persist_layer_norm model.grad_div_ar_fusion model.gradient_accumulation_fusion"
        " model.bias_activation_fusion model.bias_dropout_add_fusion model.masked_softmax_fusion model.apply_rope_fusion"
        " model.moe_grouped_gemm model.moe_all_to_all_dispatcher model.moe_token_dispatcher_type"
        " model.transformer_engine model.optim.capturable model.optim.fused model.optim.foreach model.enable_cuda_graph"
        " model.use_te_rng_tracker model.cross_entropy_loss_fusion",
    ),
    (
        Effect.SPEED,
        "it says how tensors are held, moved or recomputed",
        "model.activations_checkpoint_granularity model.activations_checkpoint_method"
        " model.activations_checkpoint_num_layers model.activations_checkpoint_layers_per_pipeline"
        " model.num_micro_batches_with_partial_activation_checkpoints model.activations_checkpoint_recompute"
        " model.grad_allreduce_chunk_size_mb model.cpu_offloading model.cpu_offloading_num_layers"
        " model.cpu_offloading_activations model.cpu_offloading_weights model.fsdp model.fsdp_sharding_strategy"
        " model.gc_interval model.activation_loading_horizon model.delayed_param model.activation_checkpointing"
        " model.offload_activations model.optim.contiguous_grad_buffer model.optim.contiguous_param_buffer"
        " model.optim.bucket_cap_mb model.optim.overlap_grad_sync model.optim.overlap_param_sync"
        " model.optim.overlap_param_gather_with_optimizer_step model.optim.store_params"
        " model.optim.store_param_remainders model.optim.align_param_gather model.optim.nccl_ub"
        " model.optim.distribute_within_nodes",
    ),
    (
        Effect.SPEED,
        "it says how ranks communicate",
        "model.overlap_p2p_comm model.batch_p2p_comm model.sync_batch_comm model.validation_param_sync_overlap"
        " model.sharp model.ub_tp_comm_overlap model.ub_tp_comm_overlap_cfg model.defer_embedding_wgrad_compute"
        " model.wgrad_deferral_limit model.tp_comm_overlap model.sequence_parallel model.sharding_strategy"
        # Fields of megatron-core, which NeMo reads in gpt_full_te_layer_autocast_spec.py, lines 255 and 260.
        " model.shard_degree model.tp_comm_atomic_ag model.tp_comm_atomic_rs",
    ),
    (
        Effect.SPEED,
        FSDP,
        "model.forward_prefetch model.backward_fetch_policy model.auto_wrap_policy model.limit_all_gathers model.use_orig_param",
    ),
    (Effect.NONE, NEURON, "model.save_xser model.load_xser"),
    (Effect.RUN, "lt-train has AdamW and Muon", "model.optim.name model.optim.adam_w_mode"),
    (Effect.RUN, "lt-train has other schedules: --lr-decay-style", "model.optim.sched.name"),
    (Effect.NONE, "it names what the schedule watches", "model.optim.sched.monitor model.optim.sched.reduce_on_plateau"),
    (Effect.NONE, "the router sees all tokens of a rank", "model.global_token_shuffle"),
)


def row(key: str) -> Row | None:
    """The row of a key, or of its section."""
    return ROWS.get(key) or next((row for prefix, row in SECTIONS.items() if key.startswith(prefix)), None)
